// The arithmetic of the built-in folds: one pass over all inputs, vectorised, chosen at run time
// for the processor (AVX-512, AVX2, baseline x86-64 or plain C++ elsewhere). Internal to VOL.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace vol {

enum class DType : std::uint32_t { kFloat32 = 1, kFloat64 = 2, kInt32 = 3, kInt64 = 4 };

constexpr std::size_t dtype_size(DType dtype) noexcept {
  return dtype == DType::kFloat32 || dtype == DType::kInt32 ? 4 : 8;
}
std::string_view dtype_name(DType dtype) noexcept;  // "float32", ...

// For one element type. `in` are k >= 1 arrays of n elements (k < 2^20); `out` may be one of them
// (same address), and otherwise overlaps none. Element i of out depends on element i of each input
// only. Sums run in the order of `in`, so the same inputs in the same order give the same bits,
// whichever instruction set is used and however the range is cut up; only which of several NaNs a
// sum hands on is left open. Nothing need be aligned. Any thread may call; nothing is locked. Only
// median and trimmed_mean of more than 64 inputs allocate (and may throw std::bad_alloc).
struct Kernels {
  // out = in[0] + in[1] + ... (integers wrap)
  void (*sum)(void* out, const void* const* in, std::size_t k, std::size_t n);
  // out = (in[0] + ...) / k; of integers the exact mean, rounded toward zero
  void (*mean)(void* out, const void* const* in, std::size_t k, std::size_t n);
  // out = weights[0] * in[0] + ...; weights are converted to the element type for floats; integers
  // are computed in double, rounded to nearest even and clamped to the type; NaN becomes 0
  void (*weighted)(void* out, const void* const* in, const double* weights, std::size_t k,
                   std::size_t n);
  // Element-wise median; for even k the mean of the middle two (integers: toward zero, without
  // overflow). NaNs sort last: the result is NaN only where a middle value is one.
  void (*median)(void* out, const void* const* in, std::size_t k, std::size_t n);
  // Element-wise mean of what is left after dropping the `trim` smallest and the `trim` largest;
  // 2 * trim < k. NaNs sort last; the sum runs from the smallest up. Of integers as mean.
  void (*trimmed_mean)(void* out, const void* const* in, std::size_t trim, std::size_t k,
                       std::size_t n);
  // False if any element is NaN or infinite; always true for integers.
  bool (*all_finite)(const void* in, std::size_t n);
  // in[0]^2 + in[1]^2 + ..., computed in double.
  double (*sum_of_squares)(const void* in, std::size_t n);
};

// The kernels for the level simd_level() names. Throws std::invalid_argument as that does.
const Kernels& kernels(DType dtype);

// "avx512", "avx2" or "baseline": the most this build and processor have, or what MALT_SIMD=<one of
// these> lowers it to. Read once. Throws std::invalid_argument while MALT_SIMD names none of them,
// or more than there is.
std::string_view simd_level();

// The kernels of one level, for tests and benchmarks: null where this build or processor lacks it.
// Throws std::invalid_argument for a name that is no level.
const Kernels* kernels_at(DType dtype, std::string_view level);

// Like memcpy, with streaming stores where `bytes` is far above what the caches hold: a reader gets
// it from memory then, and writing it does not first read the destination.
void copy(void* to, const void* from, std::size_t bytes) noexcept;

}  // namespace vol
