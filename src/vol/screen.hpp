// What a rank lets into its folds: updates that are not finite are refused, long ones made shorter,
// so that a rank that goes wrong can pull the others only so far.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "vol/kernels.hpp"

namespace vol {

// How many updates of each rank were refused or clipped here; who is not in it: none.
struct Screened {
  std::map<int, std::uint64_t> rejected_from;
  std::map<int, std::uint64_t> clipped_from;
};

// One vector's. For the one thread that uses the vector.
class Screen {
 public:
  // `what` names the vector in errors. Throws ConfigError unless max_norm, where it is given, is
  // above 0 and finite, and the elements are floats.
  Screen(bool reject_nonfinite, std::optional<double> max_norm, DType dtype,
         const std::string& what);

  // What to multiply an update of n elements by: 1, or less where its L2 norm is above max_norm,
  // which it then has (to within the rounding of the elements). Nothing: refuse it. With a max_norm
  // that is also what becomes of NaN and infinity, which no factor makes any shorter.
  std::optional<double> factor(const void* values, std::size_t n) const;
  // out = factor * values; `out` may be `values`.
  void scale(void* out, const void* values, double factor, std::size_t n) const;

  // After a gather.
  void count(std::span<const int> rejected, std::span<const int> clipped);
  const Screened& counts() const noexcept { return counts_; }

  bool is_on() const noexcept { return reject_nonfinite_ || max_norm_.has_value(); }

 private:
  double factor_beyond_squares(const void* values, std::size_t n) const;

  bool reject_nonfinite_;
  std::optional<double> max_norm_;
  DType dtype_;
  Screened counts_;
};

}  // namespace vol
