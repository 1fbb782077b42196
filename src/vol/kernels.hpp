// The arithmetic of the built-in folds: one pass over all inputs, vectorised, chosen at run time
// for the processor (AVX-512, AVX2, baseline x86-64, or plain C++ elsewhere). Internal to VOL.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "vol/dtype.hpp"

namespace vol {

// The kernels of one element type. `in` are k >= 1 arrays of n elements (k < 2^20). `out` may be
// one of them (same address), and otherwise overlaps none. Element i of `out` depends only on
// element i of each input. Sums run in the order of `in`. So the same inputs in the same order give
// the same bits, with every instruction set and however the range is cut up; the only exception is
// which of several NaNs a sum returns. Numbers of half precision are folded as floats, and the
// result is rounded once. Nothing need be aligned. Any thread may call; nothing is locked. Only
// median and trimmed_mean of more than 64 inputs, and folds of more than 8 of half precision,
// allocate (and may throw std::bad_alloc).
struct Kernels {
  // out = in[0] + in[1] + ... (integers wrap)
  void (*sum)(void* out, const void* const* in, std::size_t k, std::size_t n);
  // out = (in[0] + ...) / k; for integers the exact mean, rounded toward zero
  void (*mean)(void* out, const void* const* in, std::size_t k, std::size_t n);
  // out = weights[0] * in[0] + ...; for floats the weights are converted to the element type;
  // integers are computed in double, rounded to nearest even and clamped to the type, and NaN
  // becomes 0
  void (*weighted)(void* out, const void* const* in, const double* weights, std::size_t k,
                   std::size_t n);
  // Element-wise median. For even k it is the mean of the middle two (integers: toward zero,
  // without overflow). NaNs sort last: the result is NaN only where a middle value is NaN.
  void (*median)(void* out, const void* const* in, std::size_t k, std::size_t n);
  // Element-wise mean of the values left after the `trim` smallest and the `trim` largest are
  // dropped; 2 * trim < k. NaNs sort last. The sum runs from the smallest up. Integers are treated
  // as by mean.
  void (*trimmed_mean)(void* out, const void* const* in, std::size_t trim, std::size_t k,
                       std::size_t n);
  // False if any element is NaN or infinite; always true for integers.
  bool (*all_finite)(const void* in, std::size_t n);
  // in[0]^2 + in[1]^2 + ..., computed in double.
  double (*sum_of_squares)(const void* in, std::size_t n);
};

// The kernels of the level that simd_level() names. Throws std::invalid_argument as simd_level()
// does.
const Kernels& kernels(DType dtype);

// "avx512", "avx2" or "baseline": the highest level of this build and processor, or the one to
// which MALT_SIMD lowers it. MALT_SIMD is read once. Throws std::invalid_argument while MALT_SIMD
// names no level, or a higher one than there is.
std::string_view simd_level();

// The kernels of one level, for tests and benchmarks; null if this build or processor lacks it.
// Throws std::invalid_argument for a name that is no level.
const Kernels* kernels_at(DType dtype, std::string_view level);

// Like memcpy, but with streaming stores if `bytes` is far above the size of the caches. A reader
// then gets the bytes from memory, and writing does not first read the destination.
void copy(void* to, const void* from, std::size_t bytes) noexcept;

}  // namespace vol
