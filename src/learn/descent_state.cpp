#include "learn/descent_state.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>

#include "learn/dual_check.hpp"
#include "learn/squares.hpp"

namespace learn {
namespace {

// Neighbouring columns are often correlated, so one rank has many of them. But it has columns from
// all over X, or its share of those that have a weight might be far from even.
constexpr std::size_t kBlocksOfRank = 16;
constexpr std::size_t kLeastBlock = 32;
constexpr std::size_t kLeastPicked = 64;      // a round's columns, if so many would change
constexpr std::size_t kLookedAPicked = 1000;  // a look costs as much as steps of so many
constexpr double kScreenMargin = 1e-3;        // of l1: rounding must not screen a column
constexpr double kDriftMargin = 1e-6;         // of what r has moved: for its rounding

void check_descent(const DescentOptions& options) {
  require_dual(std::isfinite(options.alpha) && options.alpha > 0, "alpha", options.alpha,
               "above 0 and finite; without a penalty use least squares");
  require_dual(options.l1_ratio >= 0 && options.l1_ratio <= 1, "l1_ratio", options.l1_ratio,
               "from 0 to 1");
  require_dual(options.ranks >= 1, "ranks", options.ranks, "at least 1");
  require_dual(options.rank >= 0 && options.rank < options.ranks, "the rank", options.rank,
               "from 0 to below the number of ranks");
}

}  // namespace

template <class T>
DescentState<T>::DescentState(const DescentOptions& given, std::size_t columns_given,
                              std::span<const T> targets, std::span<const T> start,
                              std::span<const T> roots_given)
    : options(given),
      roots(roots_given.begin(), roots_given.end()),
      y(targets.begin(), targets.end()),
      columns(columns_given),
      weights(columns_given) {
  check_descent(options);
  const auto n = static_cast<double>(y.size());
  l1 = n * options.alpha * options.l1_ratio;
  l2 = n * options.alpha * (1 - options.l1_ratio);
  require_dual(std::isfinite(n * options.alpha), "alpha times the rows", n * options.alpha,
               "finite; lower alpha");
  for (std::size_t i = 0; i < y.size(); ++i) {
    require_dual(std::isfinite(y[i]), "the target of row " + std::to_string(i),
                 static_cast<double>(y[i]), "finite");
  }
  if (!start.empty()) check_length("the start", start.size(), columns_given, "one a column");
  if (!roots.empty()) check_length("the roots", roots.size(), y.size(), "one a row");
  const auto ranks = static_cast<std::size_t>(options.ranks);
  const auto rank = static_cast<std::size_t>(options.rank);
  const std::size_t block = std::max(kLeastBlock, columns_given / (kBlocksOfRank * ranks));
  for (std::size_t j = 0; j < columns_given; ++j) {
    if (j / block % ranks != rank) continue;
    alive.push_back(static_cast<std::uint32_t>(j));
    if (start.empty()) continue;
    require_dual(std::isfinite(start[j]), "the start of column " + std::to_string(j),
                 static_cast<double>(start[j]), "finite");
    weights[j] = options.positive ? std::max(T{0}, start[j]) : start[j];
  }
  residual = y;
  centre();
  y = residual;
  const double square = squares(y.data(), y.size());
  require_dual(std::isfinite(static_cast<T>(square)), "|y|^2 of the targets", square,
               "finite; scale the targets and alpha down");
  before = residual;
  weights_before = weights;
}

template <class T>
void DescentState<T>::centre() {
  if (options.intercept && !residual.empty()) {
    double sum = 0;
    if (roots.empty()) {
      sum = sum_of(residual.data(), residual.size(), std::identity());
    } else {
      for (std::size_t i = 0; i < roots.size(); ++i) {
        sum += root(i) * static_cast<double>(residual[i]);
      }
    }
    const T mean = static_cast<T>(sum / static_cast<double>(residual.size()));
    for (std::size_t i = 0; i < residual.size(); ++i) {
      residual[i] -= roots.empty() ? mean : mean * roots[i];
    }
  }
  shift = 0;
}

template <class T>
void DescentState<T>::measure_drift() {
  double moved = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    const double by = static_cast<double>(residual[i]) - static_cast<double>(seen[i]);
    moved += by * by;
  }
  drift += std::sqrt(moved) * (1 + kDriftMargin);
  seen = residual;
}

template <class T>
double DescentState<T>::most_reach(const DescentColumn& column) const {
  return reach(column.correlation) + std::sqrt(column.square) * (drift - column.drift);
}

template <class T>
void DescentState<T>::settle(std::span<const T> sum) {
  check_length("the sum", sum.size(), y.size() + CoordinateDescent<T>::kSums, "change_length()");
  for (std::size_t i = 0; i < y.size(); ++i) residual[i] = y[i] - sum[i];
  centre();
  before = residual;
  remember();
}

template <class T>
void DescentState<T>::remember() {
  for (const std::uint32_t j : picked) weights_before[j] = weights[j];
}

template <class T>
DescentGap DescentState<T>::choose(const DescentLook& all) {
  const double rr = squares(residual.data(), residual.size());
  double ry = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    ry += static_cast<double>(y[i]) * static_cast<double>(residual[i]);
  }
  const double primal = rr / 2 + l1 * all.size + l2 * all.square / 2;
  const double length = rr + l2 * all.square;  // |(r, -sqrt(l2) w)|^2
  const double limit = all.most > 0 ? l1 / all.most : std::numeric_limits<double>::infinity();
  const double scale =
      length > 0 ? std::clamp(ry / length, options.positive ? 0 : -limit, limit) : 1;
  const double scaled = scale * ry - scale * scale * length / 2;
  double dual = scaled;
  if (l2 > 0) dual = std::max(dual, ry - rr / 2 - all.excess / (2 * l2));
  best_dual = std::max(best_dual, dual);
  if (l1 > 0) screen(scale, std::sqrt(2 * std::max(0.0, primal - scaled)));
  if (options.dynamic) {
    pick();
  } else {
    picked = alive;
  }
  remember();
  const auto n = static_cast<double>(std::max<std::size_t>(1, y.size()));
  return {primal / n, std::min(primal, best_dual) / n};
}

template <class T>
void DescentState<T>::screen(double scale, double radius) {
  const double limit = l1 * (1 - kScreenMargin);
  std::erase_if(alive, [&](std::uint32_t j) {
    const DescentColumn& column = columns[j];
    if (weights[j] != 0) return false;
    return std::abs(scale) * most_reach(column) + radius * std::sqrt(column.square + l2) < limit;
  });
}

// By how much a step of the column would let n P fall.
template <class T>
double DescentState<T>::fall_of(std::size_t j) const {
  const DescentColumn& column = columns[j];
  if (column.square == 0) return 0;
  const double curvature = column.square + l2;
  const auto weight = static_cast<double>(weights[j]);
  const double moved = shrink(weight * column.square + column.correlation) / curvature - weight;
  return moved * moved * curvature / 2;
}

template <class T>
void DescentState<T>::pick() {
  picked.clear();
  falls.clear();
  for (const std::uint32_t j : alive) {
    if (weights[j] != 0) {
      picked.push_back(j);
    } else if (const double fall = fall_of(j); fall > 0) {
      falls.emplace_back(fall, j);
    }
  }
  const auto ranks = static_cast<std::size_t>(options.ranks);
  const std::size_t most =
      std::min(falls.size(),
               std::max({kLeastPicked / ranks + 1, alive.size() / kLookedAPicked, picked.size()}));
  std::nth_element(falls.begin(), falls.begin() + static_cast<std::ptrdiff_t>(most), falls.end(),
                   std::greater<>());
  for (std::size_t i = 0; i < most; ++i) picked.push_back(falls[i].second);
  std::sort(picked.begin(), picked.end());
}

template <class T>
void DescentState<T>::take_change(std::span<T> change) {
  const std::size_t rows = y.size();
  check_length("the change", change.size(), rows + CoordinateDescent<T>::kSums, "change_length()");
  centre();
  for (std::size_t i = 0; i < rows; ++i) change[i] = before[i] - residual[i];
  double linear = 0;
  double square = 0;
  for (const std::uint32_t j : picked) {
    const auto old = static_cast<double>(weights_before[j]);
    const auto now = static_cast<double>(weights[j]);
    linear += l1 * (std::abs(now) - std::abs(old)) + l2 * old * (now - old);
    square += l2 * (now - old) * (now - old);
  }
  change[rows] = static_cast<T>(linear);
  change[rows + 1] = static_cast<T>(square);
  change[rows + 2] = static_cast<T>(last_fall);
}

template <class T>
double DescentState<T>::add_changes(std::span<const T> sum) {
  const std::size_t rows = y.size();
  check_length("the sum", sum.size(), rows + CoordinateDescent<T>::kSums, "change_length()");
  double along = 0;
  for (std::size_t i = 0; i < rows; ++i) {
    along += static_cast<double>(before[i]) * static_cast<double>(sum[i]);
  }
  const double slope = along - static_cast<double>(sum[rows]);
  const double curvature = squares(sum.data(), rows) + static_cast<double>(sum[rows + 1]);
  // Rounding hides the slope near the optimum, where 1 / ranks is a good step all the same.
  const double least = 1.0 / options.ranks;
  const double length = curvature > 0 ? std::clamp(slope / curvature, least, 1.0) : 1.0;
  const T by = static_cast<T>(length);
  for (std::size_t i = 0; i < rows; ++i) residual[i] = before[i] - by * sum[i];
  centre();
  before = residual;
  for (const std::uint32_t j : picked) {
    if (by < 1) weights[j] = weights_before[j] + by * (weights[j] - weights_before[j]);
    weights_before[j] = weights[j];
  }
  return length;
}

template <class T>
double DescentState<T>::mean() const {
  double sum = 0;
  for (std::size_t j = 0; j < weights.size(); ++j) {
    sum += columns[j].mean * static_cast<double>(weights[j]);
  }
  return sum;
}

template struct DescentState<float>;
template struct DescentState<double>;

}  // namespace learn
