// Differences of the digamma function, for the priors of topic models.
#pragma once

#include <cstdint>
#include <vector>

namespace learn {

// digamma(n + x) - digamma(x) = 1 / x + 1 / (x + 1) + ... + 1 / (x + n - 1) for counts n, each
// computed once.
class DigammaRise {
 public:
  explicit DigammaRise(double x) : x_(x), rises_{0} {}

  double operator()(std::int64_t n) {
    while (static_cast<std::int64_t>(rises_.size()) <= n) {
      rises_.push_back(rises_.back() + 1 / (x_ + static_cast<double>(rises_.size() - 1)));
    }
    return rises_[static_cast<std::size_t>(n)];
  }

 private:
  double x_;
  std::vector<double> rises_;
};

}  // namespace learn
