#include "vol/screen.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "dstorm/errors.hpp"
#include "vol/kernels.hpp"

namespace vol {

Screen::Screen(bool reject_nonfinite, std::optional<double> max_norm, DType dtype,
               const std::string& what)
    : reject_nonfinite_(reject_nonfinite), max_norm_(max_norm), dtype_(dtype) {
  if (!max_norm) return;
  if (!(*max_norm > 0 && std::isfinite(*max_norm))) {
    throw dstorm::ConfigError(what + ": max_norm is " + std::to_string(*max_norm) +
                              "; it must be above 0 and finite; leave it out for no limit");
  }
  if (dtype != DType::kFloat32 && dtype != DType::kFloat64) {
    throw dstorm::ConfigError(what + " has dtype " + std::string(dtype_name(dtype)) +
                              ", which cannot be scaled to a max_norm; use float32 or float64, or "
                              "leave max_norm out");
  }
}

std::optional<double> Screen::factor(const void* values, std::size_t n) const {
  if (!is_on()) return 1.0;
  const Kernels& kernel = kernels(dtype_);
  if (max_norm_) {
    const double norm = std::sqrt(kernel.sum_of_squares(values, n));
    if (norm <= *max_norm_) return 1.0;
    if (std::isfinite(norm)) return *max_norm_ / norm;
  }
  if (!kernel.all_finite(values, n)) return std::nullopt;
  return max_norm_ ? factor_beyond_squares(values, n) : 1.0;
}

std::optional<double> Screen::factor(double sum_of_squares, bool is_nonfinite) const {
  if (is_nonfinite) return std::nullopt;
  if (!max_norm_) return 1.0;
  const double norm = std::sqrt(sum_of_squares);
  if (norm <= *max_norm_) return 1.0;
  return std::isfinite(norm) ? std::optional(*max_norm_ / norm) : std::nullopt;
}

// For finite elements whose squares are infinite; these are float64.
double Screen::factor_beyond_squares(const void* values, std::size_t n) const {
  constexpr double kDown = 0x1p-600;
  std::array<double, 256> part{};
  double sum = 0;
  for (std::size_t at = 0; at < n; at += part.size()) {
    const std::size_t count = std::min(part.size(), n - at);
    scale(part.data(), static_cast<const double*>(values) + at, kDown, count);
    sum += kernels(dtype_).sum_of_squares(part.data(), count);
  }
  return std::min(1.0, *max_norm_ / std::sqrt(sum) * kDown);
}

void Screen::scale(void* out, const void* values, double factor, std::size_t n) const {
  kernels(dtype_).weighted(out, &values, &factor, 1, n);
}

}  // namespace vol
