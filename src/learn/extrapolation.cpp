#include "learn/extrapolation.hpp"

#include <algorithm>
#include <cmath>

namespace learn {
namespace {

constexpr double kLeastPivot = 1e-14;  // of the longest step's square: less is rounding

}  // namespace

std::span<double> Extrapolation::take(std::size_t size) {
  std::vector<double>& next = iterates_[count_++];
  next.resize(size);
  return next;
}

std::array<Extrapolation::Row, Extrapolation::kSteps> Extrapolation::products_of_steps() const {
  std::array<Row, kSteps> products{};
  for (std::size_t i = 0; i < iterates_[0].size(); ++i) {
    Row step;
    for (std::size_t k = 0; k < kSteps; ++k) step[k] = iterates_[k + 1][i] - iterates_[k][i];
    for (std::size_t a = 0; a < kSteps; ++a) {
      for (std::size_t b = 0; b <= a; ++b) products[a][b] += step[a] * step[b];
    }
  }
  return products;
}

// With the steps as columns of U the coefficients are z / sum(z), U'U z = 1.
std::span<const double> Extrapolation::combine() {
  std::array<Row, kSteps> factor = products_of_steps();  // U'U = L L'; L takes its place
  double longest = 0;
  for (std::size_t a = 0; a < kSteps; ++a) longest = std::max(longest, factor[a][a]);
  if (!(longest > 0 && std::isfinite(longest))) return {};
  Row z;
  for (std::size_t a = 0; a < kSteps; ++a) {
    z[a] = 1;
    for (std::size_t b = 0; b < a; ++b) {
      for (std::size_t c = 0; c < b; ++c) factor[a][b] -= factor[a][c] * factor[b][c];
      factor[a][b] /= factor[b][b];
      factor[a][a] -= factor[a][b] * factor[a][b];
      z[a] -= factor[a][b] * z[b];
    }
    factor[a][a] = std::sqrt(std::max(factor[a][a], kLeastPivot * longest));
    z[a] /= factor[a][a];
  }
  double total = 0;  // above 0: U'U is positive definite
  for (std::size_t a = kSteps; a-- > 0;) {
    for (std::size_t c = a + 1; c < kSteps; ++c) z[a] -= factor[c][a] * z[c];
    z[a] /= factor[a][a];
    total += z[a];
  }
  combined_.assign(iterates_[0].size(), 0);
  for (std::size_t k = 0; k < kSteps; ++k) {
    const double share = z[k] / total;
    for (std::size_t i = 0; i < combined_.size(); ++i) combined_[i] += share * iterates_[k + 1][i];
  }
  return combined_;
}

}  // namespace learn
