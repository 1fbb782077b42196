// sigma' of CoCoA+: how strongly the changes of several ranks add up. Internal to dual ascent.
#pragma once

#include <algorithm>
#include <cmath>

namespace learn {

// The dual rises with each exchange if |sum of changes|^2 <= sigma' * sum of |change|^2 (Ma et al.
// 2015, section 3.1). The number of ranks is always enough, and is needed if all make the same
// change. For changes that are as good as orthogonal 1 is enough, and steps are longer with a
// smaller sigma'. So sigma' follows the ratio that exchanges show: up at once, and down slowly. All
// ranks see the same sums, and so have the same sigma'.
class DualCoupling {
 public:
  double sigma() const { return sigma_; }

  void set_ranks(int ranks) { sigma_ = ranks_ = ranks; }
  void note(double square_of_sum, double sum_of_squares) {
    if (sum_of_squares == 0) return;
    const double ratio = kMargin * square_of_sum / sum_of_squares;
    const bool is_known = std::isfinite(square_of_sum) && std::isfinite(sum_of_squares);
    const double needed = is_known ? std::clamp(ratio, 1.0, ranks_) : ranks_;
    sigma_ = std::max(needed, sigma_ + kFall * (needed - sigma_));
  }

 private:
  static constexpr double kMargin = 1.1;
  static constexpr double kFall = 0.1;
  double ranks_ = 1;
  double sigma_ = 1;
};

}  // namespace learn
