// The kernels of a vector in device memory: folds, codecs and screening. They give the bits of the
// CPU's kernels (kernels.hpp, codec.hpp), except those of a NaN. (So top-k may choose others of
// several NaNs.) kernel_args.hpp is the contract.
//
// NVRTC compiles this file at run time, with the text of kernel_args.hpp in front of it, as C++17
// and with --fmad=false: the CPU's kernels do not contract either. A host compiler takes it too
// (kernel_host.hpp). Every pointer is aligned to its elements. A block has kBlock threads.
#ifndef __CUDACC_RTC__
#include "vol/device/kernel_args.hpp"
#endif
#ifndef __CUDACC__
#include "vol/device/kernel_host.hpp"
#endif

namespace vol::device {

// ---- Types

template <class T>
inline constexpr bool kIsFloat = false;
template <>
inline constexpr bool kIsFloat<float> = true;
template <>
inline constexpr bool kIsFloat<double> = true;

using Int64 = long;  // as std::int64_t, so a host may alias the two
static_assert(sizeof(Int64) == 8);

// The unsigned integer of T's size. Additions of these wrap.
template <class T>
struct Bits {
  using Type = Count;
};
template <>
struct Bits<float> {
  using Type = unsigned;
};
template <>
struct Bits<int> {
  using Type = unsigned;
};

// ---- Threads

inline constexpr unsigned kAllLanes = 0xFFFFFFFFU;

__device__ Count grid_thread() { return static_cast<Count>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ Count grid_threads() { return static_cast<Count>(gridDim.x) * blockDim.x; }

// The elements of block b are a contiguous share of all.
struct Share {
  Count first, last;
};
__device__ Share block_share(Count count) {
  const Count size = (count + gridDim.x - 1) / gridDim.x;
  const Count first = blockIdx.x * size < count ? blockIdx.x * size : count;
  return {first, count - first < size ? count : first + size};
}

__device__ unsigned warp_max(unsigned value) {
  for (int apart = warpSize / 2; apart > 0; apart /= 2) {
    const unsigned other = __shfl_xor_sync(kAllLanes, value, apart);
    value = other > value ? other : value;
  }
  return value;
}

// The following are called by all threads of a block together.

// The order of the additions depends on nothing but the size of the block.
template <class V>
__device__ V block_sum(V value) {
  __shared__ V values[kBlock];
  __syncthreads();  // an earlier call's result has been read
  values[threadIdx.x] = value;
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) values[threadIdx.x] += values[threadIdx.x + half];
  }
  __syncthreads();
  return values[0];
}

// The sum over the threads before this one.
__device__ Count block_sum_before(Count value) {
  __shared__ Count sums[kBlock];
  __syncthreads();
  sums[threadIdx.x] = value;
  for (unsigned apart = 1; apart < blockDim.x; apart *= 2) {
    __syncthreads();
    const Count other = threadIdx.x >= apart ? sums[threadIdx.x - apart] : 0;
    __syncthreads();
    sums[threadIdx.x] += other;
  }
  return sums[threadIdx.x] - value;
}

// How many threads have each of two flags: of the threads before this one, and of all.
struct Ranks {
  LargestTally before, all;
};
__device__ Ranks block_ranks(bool is_above, bool is_equal) {
  __shared__ unsigned of_warp[kBlock];  // those above, and 2^16 times the equal ones
  const unsigned lane = threadIdx.x % warpSize;
  const unsigned warp = threadIdx.x / warpSize;
  const unsigned above = __ballot_sync(kAllLanes, is_above);
  const unsigned equal = __ballot_sync(kAllLanes, is_equal);
  const auto count = [=](unsigned lanes) {
    return static_cast<unsigned>(__popc(above & lanes) + (__popc(equal & lanes) << 16));
  };
  __syncthreads();  // an earlier call's counts have been read
  if (lane == 0) of_warp[warp] = count(kAllLanes);
  __syncthreads();
  unsigned before = count((1U << lane) - 1);
  unsigned all = 0;
  for (unsigned w = 0; w < blockDim.x / warpSize; ++w) {
    if (w < warp) before += of_warp[w];
    all += of_warp[w];
  }
  return {{before & 0xFFFFU, before >> 16}, {all & 0xFFFFU, all >> 16}};
}

// ---- Memory

// N elements that are loaded and stored together, in accesses of up to 16 bytes.
template <class T, int N>
struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Pack {
  T x[N];
};

template <int N, class T>
__device__ bool is_aligned(const T* place) {
  return reinterpret_cast<Count>(place) % alignof(Pack<T, N>) == 0;
}

template <int N, class T>
__device__ void load(T (&to)[N], const T* from) {
  const Pack<T, N> pack = *reinterpret_cast<const Pack<T, N>*>(from);
  for (int n = 0; n < N; ++n) to[n] = pack.x[n];
}

template <int N, class T>
__device__ void store(T* to, const T (&from)[N]) {
  Pack<T, N> pack;
  for (int n = 0; n < N; ++n) pack.x[n] = from[n];
  *reinterpret_cast<Pack<T, N>*>(to) = pack;
}

// Deals the elements [0, count) in packs of N to threads, and the rest one by one: calls
// body.run<elements>(first element). (Bodies are structs, as NVRTC 12 takes no generic lambda.)
template <int N, class Body>
__device__ void each_pack(Count count, Count thread, Count threads, const Body& body) {
  const Count packs = count / N;
  for (Count pack = thread; pack < packs; pack += threads) body.template run<N>(pack * N);
  if constexpr (N > 1) {
    for (Count i = packs * N + thread; i < count; i += threads) body.template run<1>(i);
  }
}

// ---- Formats: kernels_wire.hpp explains the arithmetic

inline constexpr unsigned kSign = 0x80000000U;
inline constexpr unsigned kInfinite = 0x7F800000U;  // NaN is above it

__device__ float from_float16(unsigned short half) {
  const unsigned size = (half & 0x7FFFU) << 13;
  const unsigned finite = __float_as_uint(__uint_as_float(size) * 0x1p112F);
  const unsigned value = size >= (0x7C00U << 13) ? size | kInfinite : finite;
  return __uint_as_float(value | ((half & 0x8000U) << 16));
}

__device__ unsigned short to_float16(float value) {
  constexpr unsigned kHalf = 0x3F000000U;  // 0.5
  constexpr unsigned kLeastNormal = (127U - 14U) << 23;
  constexpr unsigned kTooLarge = (127U + 16U) << 23;
  const unsigned word = __float_as_uint(value);
  const unsigned size = word & ~kSign;
  const unsigned normal = (size - ((127U - 15U) << 23) + 0xFFFU + ((size >> 13) & 1U)) >> 13;
  const unsigned small = __float_as_uint(__uint_as_float(size) + 0.5F) - kHalf;
  unsigned half = size < kLeastNormal ? small : normal;
  if (size >= kTooLarge) half = size > kInfinite ? 0x7E00U : 0x7C00U;
  return static_cast<unsigned short>(half | ((word & kSign) >> 16));
}

__device__ float from_bfloat16(unsigned short half) {
  return __uint_as_float(static_cast<unsigned>(half) << 16);
}

__device__ unsigned short to_bfloat16(float value) {
  const unsigned word = __float_as_uint(value);
  const unsigned rounded = (word + 0x7FFFU + ((word >> 16) & 1U)) >> 16;
  const unsigned nan = (word >> 16) | 0x40U;
  return static_cast<unsigned short>((word & ~kSign) > kInfinite ? nan : rounded);
}

// The scale of a group whose largest magnitude has the bits `most`, and what its elements are
// multiplied by. The inverse is 0 if only zeros are sent: the numbers are so small that their scale
// has no inverse.
struct Scale {
  float scale, inverse;
};
__device__ Scale int8_scale(unsigned most) {
  constexpr float kLeast = 0x1p-100F;
  const float largest = __uint_as_float(most);
  if (largest < kLeast) return {0, 0};
  const float scale = largest / 127;
  return {scale, 1 / scale};
}

constexpr signed char kNotFinite = -128;  // which no finite element becomes

__device__ signed char to_int8(float value, float inverse) {
  constexpr float kRound = 0x1.8p23F;  // its last bit is worth 1
  if ((__float_as_uint(value) & ~kSign) >= kInfinite) return kNotFinite;
  if (inverse == 0) return 0;
  return static_cast<signed char>(__float_as_uint(value * inverse + kRound) & 0xFFU);
}

template <class T, Wire W>
struct StoredAs {
  using Type = T;
};
template <class T>
struct StoredAs<T, Wire::kFloat16> {
  using Type = unsigned short;
};
template <class T>
struct StoredAs<T, Wire::kBfloat16> {
  using Type = unsigned short;
};
template <class T>
struct StoredAs<T, Wire::kInt8> {
  using Type = signed char;
};

__device__ Count scale_bytes(Count total) { return (total + kGroup - 1) / kGroup * sizeof(float); }

// An update of `total` elements of type T.
template <class T, Wire W>
struct Update {
  using Stored = typename StoredAs<T, W>::Type;
  // As many elements as make 16 bytes, or 16 bytes of the result.
  static constexpr int kPack = W == Wire::kPlain ? 16 / static_cast<int>(sizeof(T)) : 4;

  const void* in;
  Count total;

  __device__ const Stored* elements() const {
    const auto* const bytes = static_cast<const unsigned char*>(in);
    return reinterpret_cast<const Stored*>(W == Wire::kInt8 ? bytes + scale_bytes(total) : bytes);
  }

  // Whether packs may be read from element i on. The elements of a pack share a scale.
  __device__ bool has_packs(Count i) const {
    return is_aligned<kPack>(elements() + i) && (W != Wire::kInt8 || i % kPack == 0);
  }

  template <int N>
  __device__ void read(T (&to)[N], Count i) const {
    if constexpr (W == Wire::kPlain) {
      load<N>(to, elements() + i);
    } else {
      Stored stored[N];
      load<N>(stored, elements() + i);
      float scale = 1;
      if constexpr (W == Wire::kInt8) scale = static_cast<const float*>(in)[i / kGroup];
      for (int n = 0; n < N; ++n) {
        float value;
        if constexpr (W == Wire::kFloat16) {
          value = from_float16(stored[n]);
        } else if constexpr (W == Wire::kBfloat16) {
          value = from_bfloat16(stored[n]);
        } else {
          value = stored[n] == kNotFinite ? __uint_as_float(kInfinite | 0x400000U)
                                          : static_cast<float>(stored[n]) * scale;
        }
        to[n] = static_cast<T>(value);
      }
    }
  }
};

// Calls body.run<wire>(). Integers are never encoded.
template <class T, class Body>
__device__ void with_format(Wire wire, const Body& body) {
  if constexpr (kIsFloat<T>) {
    switch (wire) {
      case Wire::kFloat16:
        return body.template run<Wire::kFloat16>();
      case Wire::kBfloat16:
        return body.template run<Wire::kBfloat16>();
      case Wire::kInt8:
        return body.template run<Wire::kInt8>();
      default:
        break;
    }
  }
  body.template run<Wire::kPlain>();
}

// ---- Sums and means. Each gives the loop below it
//   Acc               what is summed in
//   start()           the sum of nothing; of floats -0, as +0 would change the sum of -0 alone
//   weight(args, j)   the weight of input j, for add
//   add(acc, x, weight)
//   finish(acc)       the result

struct NoWeight {};

// Divides numbers below 2^40 by k < 2^20: the product with the inverse, rounded up, is off by less
// than 2^-24, which moves no quotient to the next whole number. 64-bit division takes far longer.
struct Divider {
  Count inverse;  // 0: k is 1
  __device__ explicit Divider(int k)
      : inverse(k == 1 ? 0 : ~Count{0} / static_cast<Count>(k) + 1) {}
  __device__ Count divide(Count number) const {
    return inverse == 0 ? number : __umul64hi(number, inverse);
  }
};

// The sum of integers wraps.
template <class T>
struct Sum {
  using Acc = typename Bits<T>::Type;
  __device__ Acc start() const { return 0; }
  __device__ NoWeight weight(const FoldArgs&, int) const { return {}; }
  __device__ void add(Acc& acc, T x, NoWeight) const { acc += static_cast<Acc>(x); }
  __device__ T finish(Acc acc) const { return static_cast<T>(acc); }
};

// For k a power of two the product has the same bits as the quotient.
template <class T>
struct MeanFloats {
  using Acc = T;
  T k, inverse;
  bool by_product;
  __device__ explicit MeanFloats(int count)
      : k(static_cast<T>(count)), inverse(1 / k), by_product((count & (count - 1)) == 0) {}
  __device__ Acc start() const { return static_cast<T>(-0.0); }
  __device__ NoWeight weight(const FoldArgs&, int) const { return {}; }
  __device__ void add(Acc& acc, T x, NoWeight) const { acc += x; }
  __device__ T finish(Acc acc) const { return by_product ? acc * inverse : acc / k; }
};

// The exact mean, rounded toward zero.
struct MeanInt32 {
  using Acc = long long;
  Divider divider;
  __device__ explicit MeanInt32(int k) : divider(k) {}
  __device__ Acc start() const { return 0; }
  __device__ NoWeight weight(const FoldArgs&, int) const { return {}; }
  __device__ void add(Acc& acc, int x, NoWeight) const { acc += x; }
  __device__ int finish(Acc acc) const {
    const Count size = acc < 0 ? Count{0} - static_cast<Count>(acc) : static_cast<Count>(acc);
    const auto mean = static_cast<long long>(divider.divide(size));
    return static_cast<int>(acc < 0 ? -mean : mean);
  }
};

// The same in two words, upper * 2^32 + lower, which neither sum overflows. The magnitude of the sum
// is then divided in digits of 32 bits.
struct MeanInt64 {
  struct Acc {
    long long upper;
    Count lower;
  };
  static constexpr Count kDigit = 0xFFFFFFFFU;
  Count k;
  Divider divider;
  __device__ explicit MeanInt64(int count) : k(static_cast<Count>(count)), divider(count) {}
  __device__ Acc start() const { return {0, 0}; }
  __device__ NoWeight weight(const FoldArgs&, int) const { return {}; }
  __device__ void add(Acc& acc, long long x, NoWeight) const {
    acc.upper += x >> 32;
    acc.lower += static_cast<Count>(x) & kDigit;
  }
  __device__ long long finish(Acc acc) const {
    const long long signed_upper = acc.upper + static_cast<long long>(acc.lower >> 32);
    const bool is_negative = signed_upper < 0;
    auto upper = static_cast<Count>(signed_upper);
    Count lower = acc.lower & kDigit;
    if (is_negative) {
      upper = ~upper + (lower == 0 ? 1 : 0);
      lower = (Count{0} - lower) & kDigit;
    }
    const Count high = divider.divide(upper);
    const Count low = divider.divide(((upper - high * k) << 32) + lower);
    const Count size = (high << 32) + low;
    return static_cast<long long>(is_negative ? Count{0} - size : size);
  }
};

template <class T>
struct MeanOf {
  using Type = MeanFloats<T>;
};
template <>
struct MeanOf<int> {
  using Type = MeanInt32;
};
template <>
struct MeanOf<Int64> {
  using Type = MeanInt64;
};
template <class T>
using Mean = typename MeanOf<T>::Type;

// Floats are summed in their own type. Integers are summed in double, rounded to nearest even and
// clamped; NaN becomes 0.
template <class T>
struct Weighted {
  using Acc = double;
  __device__ Acc start() const { return -0.0; }
  __device__ double weight(const FoldArgs& args, int j) const { return args.weight[j]; }
  __device__ void add(Acc& acc, T x, double weight) const {
    acc += weight * static_cast<double>(x);
  }
  __device__ T finish(Acc acc) const {
    constexpr double kBound = sizeof(T) == 4 ? 2147483648.0 : 9223372036854775808.0;
    constexpr auto kMost = static_cast<T>(~Count{0} >> (65 - 8 * sizeof(T)));
    const double rounded = rint(acc);
    if (rounded >= kBound) return kMost;
    if (rounded < -kBound) return -kMost - 1;
    return rounded == rounded ? static_cast<T>(rounded) : 0;
  }
};

template <class T>
struct WeightedFloats {
  using Acc = T;
  __device__ Acc start() const { return static_cast<T>(-0.0); }
  __device__ T weight(const FoldArgs& args, int j) const { return static_cast<T>(args.weight[j]); }
  __device__ void add(Acc& acc, T x, T weight) const { acc += weight * x; }
  __device__ T finish(Acc acc) const { return acc; }
};
template <>
struct Weighted<float> : WeightedFloats<float> {};
template <>
struct Weighted<double> : WeightedFloats<double> {};

// Folds `waves` * Unroll * N elements from element `from` of `out` on. A thread folds Unroll packs
// at a time, and reads several inputs at a time where they need no arithmetic, so that many loads are
// under way. More unrolling would mostly cost time of NVRTC.
template <class T, Wire W, int N, int Unroll, class Op>
__device__ void fold_packs(const Op& op, const FoldArgs& args, Count from, Count waves) {
  T* const out = static_cast<T*>(args.out);
  for (Count wave = grid_thread(); wave < waves; wave += grid_threads()) {
    Count at[Unroll];
    typename Op::Acc acc[Unroll][N];
    for (int u = 0; u < Unroll; ++u) {
      at[u] = from + (static_cast<Count>(u) * waves + wave) * N;
      for (int n = 0; n < N; ++n) acc[u][n] = op.start();
    }
#ifdef __CUDACC__
#pragma unroll(W == Wire::kPlain && N > 1 ? 4 : 1)
#endif
    for (int j = 0; j < args.inputs; ++j) {
      const auto weight = op.weight(args, j);
      const bool is_own = j == args.own;
      T x[Unroll][N];
      if constexpr (W == Wire::kPlain) {  // no branch, so that loads of further inputs are begun
        const T* const in = is_own ? out : static_cast<const T*>(args.in[j]) + args.begin;
        for (int u = 0; u < Unroll; ++u) load<N>(x[u], in + at[u]);
      } else if (is_own) {
        for (int u = 0; u < Unroll; ++u) load<N>(x[u], out + at[u]);
      } else {
        const Update<T, W> update{args.in[j], args.total};
        for (int u = 0; u < Unroll; ++u) update.template read<N>(x[u], args.begin + at[u]);
      }
      for (int u = 0; u < Unroll; ++u) {
        for (int n = 0; n < N; ++n) op.add(acc[u][n], x[u][n], weight);
      }
    }
    for (int u = 0; u < Unroll; ++u) {
      T result[N];
      for (int n = 0; n < N; ++n) result[n] = op.finish(acc[u][n]);
      store<N>(out + at[u], result);
    }
  }
}

template <class T, class Op>
struct FoldLinear {
  const Op& op;
  const FoldArgs& args;

  template <Wire W>
  __device__ void run() const {
    constexpr int kPack = Update<T, W>::kPack;
    constexpr int kUnroll = 2;
    bool has_packs = is_aligned<kPack>(static_cast<const T*>(args.out));
    for (int j = 0; j < args.inputs; ++j) {
      if (j == args.own) continue;
      has_packs = has_packs && Update<T, W>{args.in[j], args.total}.has_packs(args.begin);
    }
    const Count waves = has_packs ? args.count / (kPack * kUnroll) : 0;
    const Count done = waves * kPack * kUnroll;
    fold_packs<T, W, kPack, kUnroll>(op, args, 0, waves);
    fold_packs<T, W, 1, 1>(op, args, done, args.count - done);
  }
};

template <class T, class Op>
__device__ void fold_linear(const Op& op, const FoldArgs& args) {
  with_format<T>(args.wire, FoldLinear<T, Op>{op, args});
}

// ---- Median and trimmed mean: the sorting network of kernels_order.hpp

// Calls exchange(i, j), i < j, for every comparator over n values, in order.
template <class Exchange>
__device__ constexpr void merge_exchange(int n, Exchange exchange) {
  int top = 1;
  while (2 * top < n) top *= 2;
  if (n < 2) return;
  for (int p = top; p > 0; p /= 2) {
    int r = 0;
    for (int q = top, d = p;; d = q - p, q /= 2, r = p) {
      for (int run = r; run + d < n; run += 2 * p) {
        for (int i = run; i < run + p && i + d < n; ++i) exchange(i, i + d);
      }
      if (q == p) break;
    }
  }
}

template <int K>
struct Network {
  int low[K * K]{};
  int high[K * K]{};
  int size = 0;
  __device__ constexpr Network() {
    merge_exchange(K, [this](int i, int j) {
      low[size] = i;
      high[size] = j;
      ++size;
    });
  }
};
template <int K>
inline constexpr Network<K> kNetwork{};

// If the two are equal, each keeps its own, so of two zeros neither sign is lost.
template <class T>
__device__ void sort_two(T& low, T& high) {
  const T a = low;
  const T b = high;
  low = a < b ? a : b;
  high = b > a ? b : a;
}

// Comparators [First, Last), whose places are constants: x stays in registers.
template <int First, int Last, class T, int K>
__device__ void sort_registers(T (&x)[K]) {
  if constexpr (Last - First == 1) {
    constexpr int kLow = kNetwork<K>.low[First];
    constexpr int kHigh = kNetwork<K>.high[First];
    sort_two(x[kLow], x[kHigh]);
  } else {
    constexpr int kMiddle = (First + Last) / 2;
    sort_registers<First, kMiddle>(x);
    sort_registers<kMiddle, Last>(x);
  }
}

inline constexpr int kMostInRegisters = 16;

// The value that sorts last.
template <class T>
__device__ T last_value() {
  if constexpr (kIsFloat<T>) {
    return __uint_as_float(kInfinite);
  } else {
    return static_cast<T>(~Count{0} >> (65 - 8 * sizeof(T)));
  }
}

// Element i of all inputs, as `x`, in `places` places. NaNs become infinities, which sort last too,
// and are counted.
template <class T, int K>
struct ReadColumn {
  const FoldArgs& args;
  Count i;
  int places;
  T (&x)[K];
  int& nans;

  template <Wire W>
  __device__ void run() const {
    for (int j = 0; j < places; ++j) {
      T value[1]{last_value<T>()};
      if (j < args.inputs && j == args.own) {
        value[0] = static_cast<const T*>(args.out)[i];
      } else if (j < args.inputs) {
        Update<T, W>{args.in[j], args.total}.template read<1>(value, args.begin + i);
      }
      if (value[0] != value[0]) {
        value[0] = last_value<T>();
        ++nans;
      }
      x[j] = value[0];
    }
  }
};

// For up to K inputs. If there are fewer, values that sort last stand for the others; the network of
// K values treats the first ones just as a smaller network would.
template <class T, int K>
__device__ T sorted_mean(const FoldArgs& args, const Mean<T>& mean, int trim, Count i) {
  constexpr bool kInRegisters = K <= kMostInRegisters;
  const int inputs = args.inputs;
  const int places = kInRegisters ? K : inputs;
  T x[K];
  int nans = 0;
  with_format<T>(args.wire, ReadColumn<T, K>{args, i, places, x, nans});
  if constexpr (kInRegisters) {
    sort_registers<0, kNetwork<K>.size>(x);
  } else {
    merge_exchange(inputs, [&](int low, int high) { sort_two(x[low], x[high]); });
  }
  auto acc = mean.start();
  for (int j = 0; j < places; ++j) {
    if (j >= trim && j < inputs - trim) mean.add(acc, x[j], NoWeight{});
  }
  if constexpr (kIsFloat<T>) {
    if (nans > trim) return __uint_as_float(kInfinite | 0x400000U);
  }
  return mean.finish(acc);
}

template <class T, int K>
__device__ void fold_up_to(const FoldArgs& args) {
  const int trim = args.kind == FoldKind::kMedian ? (args.inputs - 1) / 2 : args.trim;
  const Mean<T> mean(args.inputs - 2 * trim);
  for (Count i = grid_thread(); i < args.count; i += grid_threads()) {
    static_cast<T*>(args.out)[i] = sorted_mean<T, K>(args, mean, trim, i);
  }
}

template <class T>
__device__ void fold_sorted(const FoldArgs& args) {
  if (args.inputs <= 4) return fold_up_to<T, 4>(args);
  if (args.inputs <= 8) return fold_up_to<T, 8>(args);
  if (args.inputs <= kMostInRegisters) return fold_up_to<T, kMostInRegisters>(args);
  if (args.inputs <= 32) return fold_up_to<T, 32>(args);
  fold_up_to<T, kMostInputs>(args);
}

template <class T>
__device__ void fold(const FoldArgs& args) {
  switch (args.kind) {
    case FoldKind::kMean:
      return fold_linear<T>(Mean<T>(args.inputs), args);
    case FoldKind::kSum:
      if constexpr (kIsFloat<T>) {
        return fold_linear<T>(Mean<T>(1), args);  // the product with 1 changes no bits
      } else {
        return fold_linear<T>(Sum<T>(), args);
      }
    case FoldKind::kWeighted:
      return fold_linear<T>(Weighted<T>(), args);
    case FoldKind::kMedian:
    case FoldKind::kTrimmedMean:
      return fold_sorted<T>(args);
  }
}

// ---- Codecs

template <class T, Wire W>
struct EncodeHalves {
  const T* in;
  unsigned short* out;

  template <int N>
  __device__ void run(Count i) const {
    T x[N];
    unsigned short halves[N];
    load<N>(x, in + i);
    for (int n = 0; n < N; ++n) {
      const auto value = static_cast<float>(x[n]);
      halves[n] = W == Wire::kFloat16 ? to_float16(value) : to_bfloat16(value);
    }
    store<N>(out + i, halves);
  }
};

template <class T, Wire W>
__device__ void encode_halves(const EncodeArgs& args) {
  const EncodeHalves<T, W> body{static_cast<const T*>(args.in),
                                static_cast<unsigned short*>(args.out)};
  if (is_aligned<4>(body.in) && is_aligned<4>(body.out)) {
    each_pack<4>(args.count, grid_thread(), grid_threads(), body);
  } else {
    each_pack<1>(args.count, grid_thread(), grid_threads(), body);
  }
}

// Of the finite elements. The bits of magnitudes have their order; others are beyond all.
template <class T>
struct FindLargest {
  const T* in;
  unsigned& most;

  template <int N>
  __device__ void run(Count i) const {
    T x[N];
    load<N>(x, in + i);
    for (int n = 0; n < N; ++n) {
      const unsigned magnitude = __float_as_uint(static_cast<float>(x[n])) & ~kSign;
      most = magnitude > most && magnitude < kInfinite ? magnitude : most;
    }
  }
};

template <class T>
struct EncodeBytes {
  const T* in;
  signed char* out;
  float inverse;

  template <int N>
  __device__ void run(Count i) const {
    T x[N];
    signed char bytes[N];
    load<N>(x, in + i);
    for (int n = 0; n < N; ++n) bytes[n] = to_int8(static_cast<float>(x[n]), inverse);
    store<N>(out + i, bytes);
  }
};

// A warp encodes a group, N elements at a time.
template <class T, int N>
__device__ void encode_groups(const EncodeArgs& args) {
  const Count groups = (args.count + kGroup - 1) / kGroup;
  const Count warps = grid_threads() / warpSize;
  const Count lane = threadIdx.x % warpSize;
  auto* const scales = static_cast<float*>(args.out);
  auto* const bytes = static_cast<signed char*>(args.out) + scale_bytes(args.count);
  for (Count group = grid_thread() / warpSize; group < groups; group += warps) {
    const Count first = group * kGroup;
    const Count count = args.count - first < kGroup ? args.count - first : kGroup;
    const T* const in = static_cast<const T*>(args.in) + first;
    unsigned most = 0;
    each_pack<N>(count, lane, warpSize, FindLargest<T>{in, most});
    const Scale scale = int8_scale(warp_max(most));
    if (lane == 0) scales[group] = scale.scale;
    each_pack<N>(count, lane, warpSize, EncodeBytes<T>{in, bytes + first, scale.inverse});
  }
}

template <class T>
__device__ void encode(const EncodeArgs& args) {
  if (args.wire == Wire::kFloat16) {
    encode_halves<T, Wire::kFloat16>(args);
  } else if (args.wire == Wire::kBfloat16) {
    encode_halves<T, Wire::kBfloat16>(args);
  } else if (is_aligned<4>(static_cast<const T*>(args.in)) &&
             is_aligned<4>(static_cast<const signed char*>(args.out))) {
    encode_groups<T, 4>(args);
  } else {
    encode_groups<T, 1>(args);
  }
}

template <class T, Wire W, class Body>
struct Visit {
  Update<T, W> update;
  const Body& body;

  template <int N>
  __device__ void run(Count i) const {
    T x[N];
    update.read(x, i);
    body.take(x, i);
  }
};

// Calls body.take(values, first element) for all elements of an update, several at a time where
// `can_pack`.
template <class T, class Body>
struct EachValue {
  const void* in;
  Count count;
  bool can_pack;
  const Body& body;

  template <Wire W>
  __device__ void run() const {
    const Visit<T, W, Body> visit{{in, count}, body};
    if (can_pack && visit.update.has_packs(0)) {
      each_pack<Update<T, W>::kPack>(count, grid_thread(), grid_threads(), visit);
    } else {
      each_pack<1>(count, grid_thread(), grid_threads(), visit);
    }
  }
};

template <class T>
struct StoreScaled {
  T* out;
  T factor;
  template <int N>
  __device__ void take(T (&x)[N], Count i) const {
    for (int n = 0; n < N; ++n) x[n] *= factor;
    store<N>(out + i, x);
  }
};

template <class T>
__device__ void decode(const DecodeArgs& args) {
  using Body = StoreScaled<T>;
  const Body body{static_cast<T*>(args.out), static_cast<T>(args.factor)};
  with_format<T>(args.wire, EachValue<T, Body>{args.in, args.count, is_aligned<4>(body.out), body});
}

template <class T>
struct AddSquares {
  Found& found;
  template <int N>
  __device__ void take(T (&x)[N], Count) const {
    for (int n = 0; n < N; ++n) {
      const auto value = static_cast<double>(x[n]);
      found.sum_of_squares += value * value;
      if (!(value - value == 0)) ++found.nonfinite;
    }
  }
};

template <class T>
__device__ void screen(const ScreenArgs& args) {
  using Body = AddSquares<T>;
  Found found{0, 0};
  const Body body{found};
  with_format<T>(args.wire, EachValue<T, Body>{args.in, args.count, true, body});
  const double squares = block_sum(found.sum_of_squares);
  const Count nonfinite = block_sum(found.nonfinite);
  if (threadIdx.x == 0) args.result[blockIdx.x] = {squares, nonfinite};
}

// ---- Top-k: a search for the least key to send, byte by byte, then one ordered pass

inline constexpr int kBins = 256;  // of the histogram of a byte

// As unsigned integers, the bits of floats below the sign have the order of the magnitudes.
__device__ unsigned magnitude_key(float value) { return __float_as_uint(value) & ~kSign; }
__device__ Count magnitude_key(double value) {
  return static_cast<Count>(__double_as_longlong(value)) & (~Count{0} >> 1);
}

template <class T>
__device__ void largest_begin(const LargestArgs& args) {
  const T* const in = static_cast<const T*>(args.in);
  T* const kept = static_cast<T*>(args.kept);
  for (Count i = grid_thread(); i < args.count; i += grid_threads()) {
    kept[i] = args.is_first != 0 ? in[i] : kept[i] + in[i];
  }
  if (blockIdx.x != 0) return;
  for (unsigned bin = threadIdx.x; bin < kBins; bin += blockDim.x) args.histogram[bin] = 0;
  if (threadIdx.x == 0) *args.state = {0, args.largest, static_cast<int>(sizeof(T)) - 1};
}

template <class T>
__device__ void largest_count(const LargestArgs& args) {
  // Most keys share their first byte. Lanes that count in copies of a bin wait less for each other.
  constexpr unsigned kCopies = 8;
  __shared__ unsigned bins[kBins * kCopies];
  for (unsigned bin = threadIdx.x; bin < kBins * kCopies; bin += blockDim.x) bins[bin] = 0;
  __syncthreads();

  const LargestState state = *args.state;
  const int shift = 8 * state.byte;
  const Count above = ~Count{0xFF} << shift;  // the bytes that are known
  const T* const kept = static_cast<const T*>(args.kept);
  for (Count i = grid_thread(); i < args.count; i += grid_threads()) {
    const Count key = magnitude_key(kept[i]);
    if (((key ^ state.prefix) & above) != 0) continue;
    const unsigned bin = static_cast<unsigned>(key >> shift) & 0xFFU;
    atomicAdd(&bins[bin * kCopies + threadIdx.x % kCopies], 1U);
  }
  __syncthreads();

  for (unsigned bin = threadIdx.x; bin < kBins; bin += blockDim.x) {
    Count counted = 0;
    for (unsigned copy = 0; copy < kCopies; ++copy) counted += bins[bin * kCopies + copy];
    if (counted != 0) atomicAdd(&args.histogram[bin], counted);
  }
}

// Each thread looks at some bins, the first thread at the highest.
__device__ void largest_choose(const LargestArgs& args) {
  const unsigned each = kBins / blockDim.x;
  const unsigned top = kBins - 1 - threadIdx.x * each;
  const LargestState state = *args.state;
  Count counted = 0;
  for (unsigned bin = 0; bin < each; ++bin) counted += args.histogram[top - bin];
  const Count before = block_sum_before(counted);
  if (before < state.left && before + counted >= state.left) {
    Count left = state.left - before;
    unsigned bin = top;
    for (; args.histogram[bin] < left; --bin) left -= args.histogram[bin];
    *args.state = {state.prefix | (static_cast<Count>(bin) << (8 * state.byte)), left,
                   state.byte - 1};
  }
  __syncthreads();
  for (unsigned bin = 0; bin < each; ++bin) args.histogram[top - bin] = 0;
}

template <class T>
__device__ void largest_tally(const LargestArgs& args) {
  const T* const kept = static_cast<const T*>(args.kept);
  const Count least = args.state->prefix;
  const Share share = block_share(args.count);
  LargestTally tally{0, 0};
  for (Count i = share.first + threadIdx.x; i < share.last; i += blockDim.x) {
    const Count key = magnitude_key(kept[i]);
    tally.above += key > least ? 1 : 0;
    tally.equal += key == least ? 1 : 0;
  }
  const Count above = block_sum(tally.above);
  const Count equal = block_sum(tally.equal);
  if (threadIdx.x == 0) args.tallies[blockIdx.x] = {above, equal};
}

// Each thread takes some of the tallies.
__device__ void largest_place(const LargestArgs& args) {
  const unsigned each = (args.blocks + blockDim.x - 1) / blockDim.x;
  const unsigned first = threadIdx.x * each;
  const auto is_there = [&](unsigned t) { return t < each && first + t < args.blocks; };
  LargestTally mine{0, 0};
  for (unsigned t = 0; is_there(t); ++t) {
    mine.above += args.tallies[first + t].above;
    mine.equal += args.tallies[first + t].equal;
  }
  Count above = block_sum_before(mine.above);
  Count equal = block_sum_before(mine.equal);
  for (unsigned t = 0; is_there(t); ++t) {
    const LargestTally tally = args.tallies[first + t];
    args.tallies[first + t] = {above, equal};
    above += tally.above;
    equal += tally.equal;
  }
}

template <class T>
__device__ void largest_write(const LargestArgs& args) {
  T* const kept = static_cast<T*>(args.kept);
  T* const values = static_cast<T*>(args.out);
  int* const indices = reinterpret_cast<int*>(values + args.largest);
  const LargestState state = *args.state;
  const Share share = block_share(args.count);
  LargestTally before = args.tallies[blockIdx.x];
  for (Count tile = share.first; tile < share.last; tile += blockDim.x) {
    const Count i = tile + threadIdx.x;
    const T value = i < share.last ? kept[i] : T{0};
    const Count key = magnitude_key(value);
    const bool is_above = i < share.last && key > state.prefix;
    const bool is_equal = i < share.last && key == state.prefix;
    const Ranks ranks = block_ranks(is_above, is_equal);
    const Count equals = before.equal + ranks.before.equal;  // of these, state.left are sent
    if (is_above || (is_equal && equals < state.left)) {
      const Count sent =
          before.above + ranks.before.above + (equals < state.left ? equals : state.left);
      values[sent] = value;
      indices[sent] = static_cast<int>(i);
      kept[i] = 0;
    }
    before.above += ranks.all.above;
    before.equal += ranks.all.equal;
  }
}

// `in` may be another rank's memory, and change at any time. So an index is read once, checked and
// used; `volatile` keeps the compiler from reading it again. The index before it only serves to
// notice a wrong order.
template <class T>
__device__ void place(const PlaceArgs& args) {
  T* const out = static_cast<T*>(args.out);
  const T* const values = static_cast<const T*>(args.in);
  const auto* const indices = reinterpret_cast<const volatile int*>(values + args.largest);
  const T factor = static_cast<T>(args.factor);
  for (Count j = grid_thread(); j < args.largest; j += grid_threads()) {
    const int index = indices[j];
    const int before = j == 0 ? -1 : indices[j - 1];
    if (index > before && index >= 0 && static_cast<Count>(index) < args.count) {
      out[index] = values[j] * factor;
    } else {
      *args.wrong = 1;
    }
  }
}

// ---- The kernels

// NVRTC compiles the kernels of one dtype at a time (as vol::DType numbers them): all take seconds.
#if !defined(ONLY_DTYPE) || ONLY_DTYPE == 1
extern "C" __global__ void fold_float32(const __grid_constant__ FoldArgs args) {
  fold<float>(args);
}
extern "C" __global__ void encode_float32(const __grid_constant__ EncodeArgs args) {
  encode<float>(args);
}
extern "C" __global__ void decode_float32(const __grid_constant__ DecodeArgs args) {
  decode<float>(args);
}
extern "C" __global__ void screen_float32(const __grid_constant__ ScreenArgs args) {
  screen<float>(args);
}
extern "C" __global__ void largest_begin_float32(const __grid_constant__ LargestArgs args) {
  largest_begin<float>(args);
}
extern "C" __global__ void largest_count_float32(const __grid_constant__ LargestArgs args) {
  largest_count<float>(args);
}
extern "C" __global__ void largest_choose_float32(const __grid_constant__ LargestArgs args) {
  largest_choose(args);
}
extern "C" __global__ void largest_tally_float32(const __grid_constant__ LargestArgs args) {
  largest_tally<float>(args);
}
extern "C" __global__ void largest_place_float32(const __grid_constant__ LargestArgs args) {
  largest_place(args);
}
extern "C" __global__ void largest_write_float32(const __grid_constant__ LargestArgs args) {
  largest_write<float>(args);
}
extern "C" __global__ void place_float32(const __grid_constant__ PlaceArgs args) {
  place<float>(args);
}
#endif

#if !defined(ONLY_DTYPE) || ONLY_DTYPE == 2
extern "C" __global__ void fold_float64(const __grid_constant__ FoldArgs args) {
  fold<double>(args);
}
extern "C" __global__ void encode_float64(const __grid_constant__ EncodeArgs args) {
  encode<double>(args);
}
extern "C" __global__ void decode_float64(const __grid_constant__ DecodeArgs args) {
  decode<double>(args);
}
extern "C" __global__ void screen_float64(const __grid_constant__ ScreenArgs args) {
  screen<double>(args);
}
extern "C" __global__ void largest_begin_float64(const __grid_constant__ LargestArgs args) {
  largest_begin<double>(args);
}
extern "C" __global__ void largest_count_float64(const __grid_constant__ LargestArgs args) {
  largest_count<double>(args);
}
extern "C" __global__ void largest_choose_float64(const __grid_constant__ LargestArgs args) {
  largest_choose(args);
}
extern "C" __global__ void largest_tally_float64(const __grid_constant__ LargestArgs args) {
  largest_tally<double>(args);
}
extern "C" __global__ void largest_place_float64(const __grid_constant__ LargestArgs args) {
  largest_place(args);
}
extern "C" __global__ void largest_write_float64(const __grid_constant__ LargestArgs args) {
  largest_write<double>(args);
}
extern "C" __global__ void place_float64(const __grid_constant__ PlaceArgs args) {
  place<double>(args);
}
#endif

#if !defined(ONLY_DTYPE) || ONLY_DTYPE == 3
extern "C" __global__ void fold_int32(const __grid_constant__ FoldArgs args) { fold<int>(args); }
#endif

#if !defined(ONLY_DTYPE) || ONLY_DTYPE == 4
extern "C" __global__ void fold_int64(const __grid_constant__ FoldArgs args) { fold<Int64>(args); }
#endif

}  // namespace vol::device
