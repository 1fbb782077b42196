// A screen decides which updates a rank folds. It refuses updates that are not finite, and scales
// long ones down. So a rank that sends wrong values can change the vectors of the others only by a
// limited amount.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "vol/dtype.hpp"

namespace vol {

// How many updates of each rank were refused or clipped here. Ranks without any are not listed.
struct Screened {
  std::map<int, std::uint64_t> rejected_from;
  std::map<int, std::uint64_t> clipped_from;
};

// The screen of one vector. For the one thread that uses the vector.
class Screen {
 public:
  // `what` names the vector in errors. Throws ConfigError unless max_norm, if given, is above 0 and
  // finite, and the elements are floats.
  Screen(bool reject_nonfinite, std::optional<double> max_norm, DType dtype,
         const std::string& what);

  // The factor by which an update of n elements is to be multiplied: 1, or less if its L2 norm is
  // above max_norm; the product then has the norm max_norm, except for rounding. nullopt if the
  // update is to be refused. With a max_norm, updates with NaN or infinity are always refused,
  // because no factor makes them shorter.
  std::optional<double> factor(const void* values, std::size_t n) const;
  // The same of elements on a device, which has added up their squares. Elements whose squares
  // overflow are refused too if there is a max_norm.
  std::optional<double> factor(double sum_of_squares, bool is_nonfinite) const;
  // out = factor * values; `out` may be `values`.
  void scale(void* out, const void* values, double factor, std::size_t n) const;

  // Counts the refused and the clipped updates of a gather.
  void count(std::span<const int> rejected, std::span<const int> clipped) {
    for (const int rank : rejected) ++counts_.rejected_from[rank];
    for (const int rank : clipped) ++counts_.clipped_from[rank];
  }
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
