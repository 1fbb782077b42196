// CUDA's words, as far as kernels.cu uses them, for an ordinary C++ compiler: tests run the
// kernels without a GPU. A block has one thread and a warp one lane, and the blocks run one after
// the other. So barriers do nothing, shared memory belongs to the thread, and an addition is
// atomic.
#pragma once

#include <cmath>
#include <cstring>

// NOLINTBEGIN(readability-identifier-naming): CUDA's names
#define __global__ inline
#define __device__ inline
#define __shared__ static thread_local
#define __grid_constant__

struct HostDim {
  unsigned x;
};
inline constexpr HostDim threadIdx{0};
inline constexpr HostDim blockDim{1};
inline constexpr int warpSize = 1;
// Several threads may run kernels at the same time.
inline thread_local HostDim blockIdx{0};
inline thread_local HostDim gridDim{1};

inline void __syncthreads() {}
inline unsigned __ballot_sync(unsigned, bool vote) { return vote ? 1 : 0; }
inline unsigned __shfl_xor_sync(unsigned, unsigned value, int) { return value; }
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }

template <class T>
T atomicAdd(T* to, T value) {
  const T before = *to;
  *to += value;
  return before;
}

inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<unsigned long long>((static_cast<Wide>(a) * b) >> 64);
}

inline unsigned __float_as_uint(float value) {
  unsigned bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline float __uint_as_float(unsigned bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline long long __double_as_longlong(double value) {
  long long bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// NOLINTEND(readability-identifier-naming)

namespace vol::device {

// Runs all blocks of a kernel on the calling thread.
template <class Args>
void run_on_host(void (*kernel)(Args), const Args& args, unsigned blocks) {
  gridDim.x = blocks;
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) kernel(args);
}

}  // namespace vol::device
