#include "learn/coordinate_descent.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "learn/descent_state.hpp"
#include "learn/dual_check.hpp"
#include "learn/extrapolation.hpp"
#include "learn/order.hpp"
#include "learn/row_view.hpp"
#include "learn/squares.hpp"

namespace learn {
namespace {

// Sweeps over what changed, after each full one. They end below this share of its fall.
constexpr std::size_t kShortSweeps = Extrapolation::kSteps;
constexpr double kShortShare = 0.3;
// The share of a weight that rounding leaves of it where it should be 0.
template <class T>
constexpr T kRoundedAway = 4 * std::numeric_limits<T>::epsilon();

// The part of a column along the roots, as a multiple of these, and the square of the rest.
template <class T, class View>
std::pair<double, double> split(const DescentState<T>& state, const View& view) {
  const std::size_t rows = state.y.size();
  double along = 0;
  for (std::size_t i = 0; i < view.count; ++i) {
    along += state.root(view.feature(i)) * static_cast<double>(view.values[i]);
  }
  const double mean = along / static_cast<double>(rows);
  double square = 0;
  double left = static_cast<double>(rows);  // squares of the roots of rows that are not stored
  for (std::size_t i = 0; i < view.count; ++i) {
    const double root = state.root(view.feature(i));
    const double rest = static_cast<double>(view.values[i]) - mean * root;
    square += rest * rest;
    left -= root * root;
  }
  if (view.count < rows) square += mean * mean * std::max(0.0, left);
  return {mean, square};
}

template <class View>
std::pair<double, double> split(const View& view, std::size_t rows) {
  const double mean = sum_of(view.values, view.count, std::identity()) / static_cast<double>(rows);
  const double square =
      static_cast<double>(rows - view.count) * mean * mean +
      sum_of(view.values, view.count, [mean](double x) { return (x - mean) * (x - mean); });
  return {mean, square};
}

template <class T, class View>
DescentColumn measure_column(const DescentState<T>& state, const View& view) {
  const std::size_t rows = state.y.size();
  DescentColumn column;
  column.square = squares(view.values, view.count);
  if (!state.options.intercept || rows == 0) return column;
  const auto [mean, square] = state.roots.empty() ? split(view, rows) : split(state, view);
  column.mean = mean;
  // The rounding error of a constant column is not a column to fit.
  const double rounding = 4 * static_cast<double>(std::numeric_limits<T>::epsilon());
  const bool is_constant = square <= rounding * rounding * column.square;
  column.square = is_constant && std::isfinite(square) ? 0 : square;
  return column;
}

template <class T, class Matrix>
struct Descent final : DescentState<T> {
  using Base = DescentState<T>;

  Descent(const DescentOptions& asked, const Matrix& given, std::span<const T> targets,
          std::span<const T> start, std::span<const T> weight_roots)
      : Base(asked, static_cast<std::size_t>(given.rows()), targets, start, weight_roots),
        matrix(given) {
    check_length("targets", targets.size(), static_cast<std::size_t>(given.features),
                 "one for each row");
    for (const std::uint32_t j : this->alive) {
      if constexpr (std::is_same_v<Matrix, Csr<T>>) given.check(j, j + std::int64_t{1});
      DescentColumn& column = this->columns[j];
      column = measure_column(*this, view_of(matrix, j));
      require_dual(std::isfinite(static_cast<T>(column.square)),
                   "|x|^2 of column " + std::to_string(j), column.square,
                   "finite; replace values that are not, and scale columns down");
      if (column.square == 0) this->weights[j] = 0;
      read(j);  // while it is in the cache
    }
    std::erase_if(this->alive, [this](std::uint32_t j) { return this->columns[j].square == 0; });
    this->weights_before = this->weights;
    this->seen = this->residual;
  }

  void contribute(std::span<T> contribution) const override {
    check_length("the contribution", contribution.size(),
                 this->y.size() + CoordinateDescent<T>::kSums, "change_length()");
    std::fill(contribution.begin(), contribution.end(), T{0});
    for (std::size_t j = 0; j < this->weights.size(); ++j) {
      if (this->weights[j] != 0) add(view_of(matrix, j), this->weights[j], contribution.data());
    }
  }

  DescentLook look() override {
    this->centre();
    this->measure_drift();
    DescentLook sums;
    for (const std::uint32_t j : this->alive) {
      DescentColumn& column = this->columns[j];
      const auto weight = static_cast<double>(this->weights[j]);
      if (weight == 0) {
        const double most = this->most_reach(column);
        if (most <= this->l1) {  // a step would leave it at 0
          sums.most = std::max(sums.most, most);
          continue;
        }
      }
      read(j);
      sums.most = std::max(sums.most, this->reach(column.correlation - this->l2 * weight));
      const double over = std::max(0.0, this->reach(column.correlation) - this->l1);
      sums.excess += over * over;
      sums.size += std::abs(weight);
      sums.square += weight * weight;
    }
    return sums;
  }

  void read(std::uint32_t j) {
    DescentColumn& column = this->columns[j];
    column.correlation = static_cast<double>(dot(view_of(matrix, j), this->residual.data()));
    column.drift = this->drift;
    ++this->looked;
  }

  // Returns by how much n P fell.
  double step(std::uint32_t j) {
    const DescentColumn& column = this->columns[j];
    const auto weight = static_cast<double>(this->weights[j]);
    const auto view = view_of(matrix, j);
    const double rows = static_cast<double>(this->y.size());
    const double correlation =
        static_cast<double>(dot(view, this->residual.data())) + this->shift * column.mean * rows;
    const double curvature = column.square + this->l2;
    const T now = static_cast<T>(this->shrink(weight * column.square + correlation) / curvature);
    const T moved = now - this->weights[j];
    if (moved == 0) return 0;
    add(view, -moved, this->residual.data());
    this->shift += static_cast<double>(moved) * column.mean;
    this->weights[j] = now;
    return static_cast<double>(moved) * static_cast<double>(moved) * curvature / 2;
  }

  double sweep_over(const std::vector<std::uint32_t>& these, bool is_full) {
    double fall = 0;
    if (is_full) this->changed.clear();
    for (const std::uint32_t j : these) {
      const double by = step(j);
      fall += by;
      if (is_full && by > 0) this->changed.push_back(j);
    }
    this->updates += std::ssize(these);
    return fall;
  }

  void sweep(double share, int most) override {
    ++this->sweeps;
    if (!this->options.dynamic) {
      this->order.resize(this->picked.size());
      shuffle(this->order, this->options.seed + this->sweeps);
      for (std::uint32_t& each : this->order) each = this->picked[each];
      this->last_fall = sweep_over(this->order, true);
      return;
    }
    double first = 0;
    for (int i = 0; i < most; ++i) {
      const double full = sweep_over(this->picked, true);
      if (i == 0) first = this->last_fall = full;
      if (i > 0 && full <= share * first) return;
      extrapolation.begin();
      take_iterate();
      // Of several ranks an exchange gains more than sweeps that are not shorter.
      const bool is_short = this->changed.size() < this->picked.size();
      for (std::size_t k = 0; k < kShortSweeps && (is_short || this->options.ranks == 1); ++k) {
        if (sweep_over(this->changed, false) <= kShortShare * full) break;
        take_iterate();
      }
      if (extrapolation.is_full()) extrapolate();
    }
  }

  void take_iterate() {
    const std::span<double> iterate = extrapolation.take(this->changed.size());
    for (std::size_t i = 0; i < iterate.size(); ++i) {
      iterate[i] = static_cast<double>(this->weights[this->changed[i]]);
    }
  }

  // Moves towards the combination of the last sweeps' weights, to where the objective is least
  // before a weight changes its sign. A weight whose sign the combination would change goes to 0.
  // Up to there the objective is a parabola, so it falls.
  void extrapolate() {
    const std::span<const double> combined = extrapolation.combine();
    if (combined.empty()) return;
    this->centre();
    along.assign(this->y.size(), 0);
    moves.assign(combined.size(), 0);
    double linear = 0;
    double square = 0;
    double offset = 0;
    double farthest = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < combined.size(); ++i) {
      const std::uint32_t j = this->changed[i];
      const auto old = static_cast<double>(this->weights[j]);
      const auto aim = static_cast<double>(static_cast<T>(combined[i]));
      const double now = aim * old < 0 || (this->options.positive && aim < 0) ? 0 : aim;
      moves[i] = static_cast<T>(now - old);
      if (std::abs(now) < std::abs(old)) farthest = std::min(farthest, old / (old - now));
      add(view_of(matrix, j), moves[i], along.data());
      offset += static_cast<double>(moves[i]) * this->columns[j].mean;
      linear += this->l1 * (std::abs(now) - std::abs(old)) + this->l2 * old * (now - old);
      square += this->l2 * (now - old) * (now - old);
    }
    double slope = -linear;
    for (std::size_t i = 0; i < along.size(); ++i) {
      along[i] -= static_cast<T>(offset * this->root(i));
      slope += static_cast<double>(this->residual[i]) * static_cast<double>(along[i]);
    }
    const double curvature = squares(along.data(), along.size()) + square;
    if (!(slope > 0 && curvature > 0)) return;
    const auto length = static_cast<T>(std::min(farthest, slope / curvature));
    for (std::size_t i = 0; i < along.size(); ++i) this->residual[i] -= length * along[i];
    for (std::size_t i = 0; i < moves.size(); ++i) {
      T& weight = this->weights[this->changed[i]];
      const T old = weight;
      weight += length * moves[i];
      if (std::abs(weight) <= kRoundedAway<T> * std::abs(old)) weight = 0;
    }
  }

  Matrix matrix;
  Extrapolation extrapolation;
  std::vector<T> along;  // X times the move to the combination
  std::vector<T> moves;
};

}  // namespace

template <class T>
CoordinateDescent<T>::CoordinateDescent(const DescentOptions& options, const Csr<T>& columns,
                                        std::span<const T> targets, std::span<const T> start,
                                        std::span<const T> roots)
    : impl_(std::make_unique<Descent<T, Csr<T>>>(options, columns, targets, start, roots)) {}
template <class T>
CoordinateDescent<T>::CoordinateDescent(const DescentOptions& options, const Dense<T>& columns,
                                        std::span<const T> targets, std::span<const T> start,
                                        std::span<const T> roots)
    : impl_(std::make_unique<Descent<T, Dense<T>>>(options, columns, targets, start, roots)) {}
template <class T>
CoordinateDescent<T>::~CoordinateDescent() = default;
template <class T>
CoordinateDescent<T>::CoordinateDescent(CoordinateDescent&& other) noexcept = default;
template <class T>
CoordinateDescent<T>& CoordinateDescent<T>::operator=(CoordinateDescent&& other) noexcept = default;

template <class T>
std::size_t CoordinateDescent<T>::change_length() const {
  return impl_->y.size() + kSums;
}
template <class T>
void CoordinateDescent<T>::contribute(std::span<T> contribution) const {
  impl_->contribute(contribution);
}
template <class T>
void CoordinateDescent<T>::settle(std::span<const T> sum) {
  impl_->settle(sum);
}
template <class T>
DescentLook CoordinateDescent<T>::look() {
  return impl_->look();
}
template <class T>
DescentGap CoordinateDescent<T>::choose(const DescentLook& all) {
  return impl_->choose(all);
}
template <class T>
void CoordinateDescent<T>::sweep(double share, int most) {
  impl_->sweep(share, most);
}

template <class T>
void CoordinateDescent<T>::take_change(std::span<T> change) {
  impl_->take_change(change);
}

template <class T>
double CoordinateDescent<T>::add_changes(std::span<const T> sum) {
  return impl_->add_changes(sum);
}

template <class T>
double CoordinateDescent<T>::fall() const {
  return impl_->last_fall;
}
template <class T>
std::int64_t CoordinateDescent<T>::updates() const {
  return impl_->updates;
}
template <class T>
std::int64_t CoordinateDescent<T>::looked() const {
  return impl_->looked;
}
template <class T>
std::int64_t CoordinateDescent<T>::unscreened() const {
  return std::ssize(impl_->alive);
}
template <class T>
std::span<const T> CoordinateDescent<T>::weights() const {
  return impl_->weights;
}
template <class T>
double CoordinateDescent<T>::mean() const {
  return impl_->mean();
}

template class CoordinateDescent<float>;
template class CoordinateDescent<double>;

}  // namespace learn
