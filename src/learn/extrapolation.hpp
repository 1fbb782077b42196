// Anderson extrapolation: where the iterates of a map that is close to linear go. Internal to
// coordinate descent.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

namespace learn {

// Keeps iterates w_0, ..., w_K, K = kSteps, and combines w_1, ..., w_K with the coefficients of sum
// 1 for which the same combination of their steps w_k - w_(k-1) is the shortest (Bertrand and
// Massias 2021, "Anderson acceleration of coordinate descent", section 2). For a linear map in K
// - 1 dimensions that is its fixed point. It holds K + 2 values for each of w.
class Extrapolation {
 public:
  static constexpr std::size_t kSteps = 5;

  // Forgets all iterates.
  void begin() { count_ = 0; }
  // Returns the memory of the next iterate, to be written: at most kSteps + 1 of one size.
  std::span<double> take(std::size_t size);
  bool is_full() const { return count_ == iterates_.size(); }
  // Returns the combination, or nothing if no iterate differs from the next, or a value is not
  // finite. Call it only if is_full().
  std::span<const double> combine();

 private:
  using Row = std::array<double, kSteps>;
  std::array<Row, kSteps> products_of_steps() const;

  std::array<std::vector<double>, kSteps + 1> iterates_;
  std::size_t count_ = 0;
  std::vector<double> combined_;
};

}  // namespace learn
