// Differences of the digamma function, for the priors of topic models.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

namespace learn {

// digamma(n + x) - digamma(x) for counts n, with x above 0. Up to kKept it is
// 1 / x + 1 / (x + 1) + ... + 1 / (x + n - 1), each computed once.
class DigammaRise {
 public:
  explicit DigammaRise(double x) : x_(x), rises_{0} {}

  double operator()(std::int64_t n) {
    if (n > kKept) return (*this)(kKept) + large(n) - large(kKept);
    while (static_cast<std::int64_t>(rises_.size()) <= n) {
      rises_.push_back(rises_.back() + 1 / (x_ + static_cast<double>(rises_.size() - 1)));
    }
    return rises_[static_cast<std::size_t>(n)];
  }

 private:
  static constexpr std::int64_t kKept = 4096;

  // digamma(n + x), within 1 / (120 n^4): less than a double's rounding where n is at least kKept.
  double large(std::int64_t n) const {
    const double at = static_cast<double>(n) + x_;
    return std::log(at) - 1 / (2 * at) - 1 / (12 * at * at);
  }

  double x_;
  std::vector<double> rises_;
};

// The sum over the counts, each at least 0, of digamma(count + x) - digamma(x).
inline double sum_of_rises(std::span<const std::int32_t> counts, double x) {
  DigammaRise rise(x);
  double sum = 0;
  for (const std::int32_t count : counts) {
    if (count > 0) sum += rise(count);
  }
  return sum;
}

}  // namespace learn
