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
    if (n > kKept) return (*this)(kKept) + beyond_kept(n);
    while (static_cast<std::int64_t>(rises_.size()) <= n) {
      rises_.push_back(rises_.back() + 1 / (x_ + static_cast<double>(rises_.size() - 1)));
    }
    return rises_[static_cast<std::size_t>(n)];
  }

 private:
  static constexpr std::int64_t kKept = 4096;

  // digamma(n + x) - digamma(kKept + x), by digamma(a) = log(a) - 1 / (2a) - 1 / (12a^2), which is
  // within 1 / (120 a^4): less than a double's rounding for a of at least kKept. Each term's
  // difference is taken by itself, because the digammas are almost equal where x is far above n.
  double beyond_kept(std::int64_t n) const {
    const auto more = static_cast<double>(n - kKept);
    const double low = static_cast<double>(kKept) + x_;
    const double high = static_cast<double>(n) + x_;
    const double fall = more / low / high;  // 1 / low - 1 / high
    return std::log1p(more / low) + fall / 2 + fall * (1 / low + 1 / high) / 12;
  }

  double x_;
  std::vector<double> rises_;
};

// The sum over the counts, each at least 0, of digamma(count + x) - digamma(x).
template <class Count>
double sum_of_rises(std::span<const Count> counts, double x) {
  DigammaRise rise(x);
  double sum = 0;
  for (const Count count : counts) {
    if (count > 0) sum += rise(count);
  }
  return sum;
}

}  // namespace learn
