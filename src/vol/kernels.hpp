// The arithmetic of the built-in folds: one pass over all inputs, vectorised, chosen at run time for
// the processor (AVX-512, AVX2, baseline x86-64 or plain C++ elsewhere). Internal to VOL.
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

// For one element type. `in` are k >= 1 arrays of n elements; `out` may be one of them (same
// address), and otherwise overlaps none. Element i of out depends on element i of each input only.
// Sums run in the order of `in`, so the same inputs in the same order give the same bits, whichever
// instruction set is used and however the range is cut up. Nothing need be aligned.
struct Kernels {
  // out = in[0] + in[1] + ... (integers wrap)
  void (*sum)(void* out, const void* const* in, std::size_t k, std::size_t n);
  // out = (in[0] + ...) / k; integers sum in 64 bits and round toward zero
  void (*mean)(void* out, const void* const* in, std::size_t k, std::size_t n);
  // out = weights[0] * in[0] + ...; weights are converted to the element type for floats; integers
  // are computed in double and rounded to nearest
  void (*weighted)(void* out, const void* const* in, const double* weights, std::size_t k,
                   std::size_t n);
  // Element-wise median; for even k the mean of the middle two. NaNs sort last.
  void (*median)(void* out, const void* const* in, std::size_t k, std::size_t n);
  // Element-wise mean of what is left after dropping the `trim` smallest and the `trim` largest;
  // 2 * trim < k.
  void (*trimmed_mean)(void* out, const void* const* in, std::size_t trim, std::size_t k,
                       std::size_t n);
  // False if any element is NaN or infinite; always true for integers.
  bool (*all_finite)(const void* in, std::size_t n);
};

const Kernels& kernels(DType dtype) noexcept;

// "avx512", "avx2" or "baseline": what kernels() uses here. MALT_SIMD=<one of these> lowers it.
std::string_view simd_level() noexcept;

// Like memcpy, with streaming stores where `bytes` is far above what the caches hold.
void copy(void* to, const void* from, std::size_t bytes) noexcept;

}  // namespace vol
