#include "learn/coordinate_descent.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "learn/dual_check.hpp"
#include "learn/order.hpp"
#include "learn/row_view.hpp"
#include "learn/squares.hpp"

namespace learn {

struct DescentColumn {
  double mean = 0;
  double square = 0;       // |x|^2, of the centred column; 0: it gets no weight
  double correlation = 0;  // x r, at the last look
};

namespace {

// Neighbouring columns are often correlated, so one rank has many of them. But it has columns from
// all over X, or its share of those that have a weight might be far from even.
constexpr std::size_t kBlocksOfRank = 16;
constexpr std::size_t kLeastBlock = 32;
constexpr std::size_t kLeastPicked = 64;      // a round's columns, if so many would change
constexpr std::size_t kLookedAPicked = 1000;  // a look costs as much as steps of so many
constexpr int kShortDescents = 5;             // sweeps over what changed, after each full sweep
constexpr double kShortShare = 0.3;     // such sweeps end below this share of the full one's fall
constexpr double kScreenMargin = 1e-3;  // of l1: rounding must not screen a column

void check_descent(const DescentOptions& options) {
  require_dual(std::isfinite(options.alpha) && options.alpha > 0, "alpha", options.alpha,
               "above 0 and finite; without a penalty use least squares");
  require_dual(options.l1_ratio >= 0 && options.l1_ratio <= 1, "l1_ratio", options.l1_ratio,
               "from 0 to 1");
  require_dual(options.ranks >= 1, "ranks", options.ranks, "at least 1");
  require_dual(options.rank >= 0 && options.rank < options.ranks, "the rank", options.rank,
               "from 0 to below the number of ranks");
}

double shrink(double value, double by) {
  return value > by ? value - by : value < -by ? value + by : 0;
}

template <class View>
DescentColumn measure_column(const View& view, std::size_t rows, bool is_centred) {
  using T = std::remove_cvref_t<decltype(view.values[0])>;
  DescentColumn column;
  column.square = squares(view.values, view.count);
  if (!is_centred || rows == 0) return column;
  double sum = 0;
  for (std::size_t i = 0; i < view.count; ++i) sum += static_cast<double>(view.values[i]);
  column.mean = sum / static_cast<double>(rows);
  double square = static_cast<double>(rows - view.count) * column.mean * column.mean;
  for (std::size_t i = 0; i < view.count; ++i) {
    const double off = static_cast<double>(view.values[i]) - column.mean;
    square += off * off;
  }
  // What rounding leaves of a constant column is not a column to fit.
  const double rounding = 4 * static_cast<double>(std::numeric_limits<T>::epsilon());
  const bool is_constant = square <= rounding * rounding * column.square;
  column.square = is_constant && std::isfinite(square) ? 0 : square;
  return column;
}

}  // namespace

template <class T>
struct DescentState {
  virtual ~DescentState() = default;
  virtual void contribute(std::span<T> contribution) const = 0;
  virtual DescentLook look() = 0;
  virtual void sweep(double share, int most) = 0;

  DescentState(const DescentOptions& given, std::size_t columns_given, std::span<const T> targets,
               std::span<const T> start)
      : options(given),
        y(targets.begin(), targets.end()),
        columns(columns_given),
        weights(columns_given) {
    check_descent(options);
    const auto n = static_cast<double>(y.size());
    l1 = n * options.alpha * options.l1_ratio;
    l2 = n * options.alpha * (1 - options.l1_ratio);
    for (std::size_t i = 0; i < y.size(); ++i) {
      require_dual(std::isfinite(y[i]), "the target of row " + std::to_string(i),
                   static_cast<double>(y[i]), "finite");
    }
    if (!start.empty()) check_length("the start", start.size(), columns_given, "one a column");
    const auto ranks = static_cast<std::size_t>(options.ranks);
    const auto rank = static_cast<std::size_t>(options.rank);
    const std::size_t block = std::max(kLeastBlock, columns_given / (kBlocksOfRank * ranks));
    for (std::size_t j = 0; j < columns_given; ++j) {
      if (j / block % ranks != rank) continue;
      alive.push_back(static_cast<std::uint32_t>(j));
      if (start.empty()) continue;
      require_dual(std::isfinite(start[j]), "the start of column " + std::to_string(j),
                   static_cast<double>(start[j]), "finite");
      weights[j] = start[j];
    }
    residual = y;
    centre();
    y = residual;
    before = residual;
    weights_before = weights;
  }

  // Ends the implicit shift of r, and what rounding has left of its mean.
  void centre() {
    if (options.intercept && !residual.empty()) {
      double sum = 0;
      for (const T each : residual) sum += static_cast<double>(each);
      const T mean = static_cast<T>(sum / static_cast<double>(residual.size()));
      for (T& each : residual) each -= mean;
    }
    shift = 0;
  }

  void settle(std::span<const T> sum) {
    check_length("the sum", sum.size(), y.size() + CoordinateDescent<T>::kSums, "change_length()");
    for (std::size_t i = 0; i < y.size(); ++i) residual[i] = y[i] - sum[i];
    centre();
    before = residual;
    remember();
  }

  void remember() {
    for (const std::uint32_t j : picked) weights_before[j] = weights[j];
  }

  DescentGap choose(const DescentLook& all) {
    const double rr = squares(residual.data(), residual.size());
    double ry = 0;
    for (std::size_t i = 0; i < y.size(); ++i) {
      ry += static_cast<double>(y[i]) * static_cast<double>(residual[i]);
    }
    const double primal = rr / 2 + l1 * all.size + l2 * all.square / 2;
    const double length = rr + l2 * all.square;  // |(r, -sqrt(l2) w)|^2
    const double limit = all.most > 0 ? l1 / all.most : std::numeric_limits<double>::infinity();
    const double scale = length > 0 ? std::clamp(ry / length, -limit, limit) : 1;
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

  void screen(double scale, double radius) {
    const double limit = l1 * (1 - kScreenMargin);
    std::erase_if(alive, [&](std::uint32_t j) {
      const DescentColumn& column = columns[j];
      if (weights[j] != 0) return false;
      return std::abs(scale * column.correlation) + radius * std::sqrt(column.square + l2) < limit;
    });
  }

  // What a step of the column would let n P fall by.
  double fall_of(std::size_t j) const {
    const DescentColumn& column = columns[j];
    if (column.square == 0) return 0;
    const double curvature = column.square + l2;
    const auto weight = static_cast<double>(weights[j]);
    const double moved =
        shrink(weight * column.square + column.correlation, l1) / curvature - weight;
    return moved * moved * curvature / 2;
  }

  void pick() {
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
    const std::size_t most = std::min(
        falls.size(),
        std::max({kLeastPicked / ranks + 1, alive.size() / kLookedAPicked, picked.size()}));
    std::nth_element(falls.begin(), falls.begin() + static_cast<std::ptrdiff_t>(most), falls.end(),
                     std::greater<>());
    for (std::size_t i = 0; i < most; ++i) picked.push_back(falls[i].second);
    std::sort(picked.begin(), picked.end());
  }

  DescentOptions options;
  double l1 = 0;
  double l2 = 0;
  std::vector<T> y;  // centred
  std::vector<DescentColumn> columns;
  std::vector<T> weights;
  std::vector<T> weights_before;       // of picked columns, at the last add_changes()
  std::vector<T> residual;             // less `shift`
  std::vector<T> before;               // r at the last add_changes(), if there are several ranks
  double shift = 0;                    // of r: what the means of columns have changed
  std::vector<std::uint32_t> alive;    // own columns that are not screened
  std::vector<std::uint32_t> picked;   // for the sweeps
  std::vector<std::uint32_t> changed;  // by the last sweep
  std::vector<std::uint32_t> order;
  std::vector<std::pair<double, std::uint32_t>> falls;
  double best_dual = -std::numeric_limits<double>::infinity();
  double last_fall = 0;
  std::uint64_t sweeps = 0;
  std::int64_t updates = 0;
  std::int64_t looked = 0;
};

namespace {

template <class T, class Matrix>
struct Descent final : DescentState<T> {
  using Base = DescentState<T>;

  Descent(const DescentOptions& asked, const Matrix& given, std::span<const T> targets,
          std::span<const T> start)
      : Base(asked, static_cast<std::size_t>(given.rows()), targets, start), matrix(given) {
    check_length("targets", targets.size(), static_cast<std::size_t>(given.features),
                 "one for each row");
    for (const std::uint32_t j : this->alive) {
      if constexpr (std::is_same_v<Matrix, Csr<T>>) given.check(j, j + std::int64_t{1});
      DescentColumn& column = this->columns[j];
      column = measure_column(view_of(matrix, j), targets.size(), asked.intercept);
      require_dual(std::isfinite(static_cast<T>(column.square)),
                   "|x|^2 of column " + std::to_string(j), column.square,
                   "finite; replace values that are not, and scale columns down");
      if (column.square == 0) this->weights[j] = 0;
    }
    std::erase_if(this->alive, [this](std::uint32_t j) { return this->columns[j].square == 0; });
    this->weights_before = this->weights;
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
    DescentLook sums;
    for (const std::uint32_t j : this->alive) {
      DescentColumn& column = this->columns[j];
      const auto weight = static_cast<double>(this->weights[j]);
      column.correlation = static_cast<double>(dot(view_of(matrix, j), this->residual.data()));
      sums.most = std::max(sums.most, std::abs(column.correlation - this->l2 * weight));
      const double over = std::max(0.0, std::abs(column.correlation) - this->l1);
      sums.excess += over * over;
      sums.size += std::abs(weight);
      sums.square += weight * weight;
    }
    this->looked += std::ssize(this->alive);
    return sums;
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
    const T now =
        static_cast<T>(shrink(weight * column.square + correlation, this->l1) / curvature);
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
      for (int k = 0; k < kShortDescents && this->changed.size() < this->picked.size(); ++k) {
        if (sweep_over(this->changed, false) <= kShortShare * full) break;
      }
    }
  }

  Matrix matrix;
};

}  // namespace

template <class T>
CoordinateDescent<T>::CoordinateDescent(const DescentOptions& options, const Csr<T>& columns,
                                        std::span<const T> targets, std::span<const T> start)
    : impl_(std::make_unique<Descent<T, Csr<T>>>(options, columns, targets, start)) {}
template <class T>
CoordinateDescent<T>::CoordinateDescent(const DescentOptions& options, const Dense<T>& columns,
                                        std::span<const T> targets, std::span<const T> start)
    : impl_(std::make_unique<Descent<T, Dense<T>>>(options, columns, targets, start)) {}
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
  DescentState<T>& at = *impl_;
  check_length("the change", change.size(), change_length(), "change_length()");
  at.centre();
  const std::size_t rows = at.y.size();
  for (std::size_t i = 0; i < rows; ++i) change[i] = at.before[i] - at.residual[i];
  double linear = 0;
  double square = 0;
  for (const std::uint32_t j : at.picked) {
    const auto old = static_cast<double>(at.weights_before[j]);
    const auto now = static_cast<double>(at.weights[j]);
    linear += at.l1 * (std::abs(now) - std::abs(old)) + at.l2 * old * (now - old);
    square += at.l2 * (now - old) * (now - old);
  }
  change[rows] = static_cast<T>(linear);
  change[rows + 1] = static_cast<T>(square);
  change[rows + 2] = static_cast<T>(at.last_fall);
}

template <class T>
double CoordinateDescent<T>::add_changes(std::span<const T> sum) {
  DescentState<T>& at = *impl_;
  check_length("the sum", sum.size(), change_length(), "change_length()");
  const std::size_t rows = at.y.size();
  double along = 0;
  for (std::size_t i = 0; i < rows; ++i) {
    along += static_cast<double>(at.before[i]) * static_cast<double>(sum[i]);
  }
  const double slope = along - static_cast<double>(sum[rows]);
  const double curvature = squares(sum.data(), rows) + static_cast<double>(sum[rows + 1]);
  // Rounding hides the slope near the optimum, where 1 / ranks is a good step all the same.
  const double least = 1.0 / at.options.ranks;
  const double length = curvature > 0 ? std::clamp(slope / curvature, least, 1.0) : 1.0;
  const T by = static_cast<T>(length);
  for (std::size_t i = 0; i < rows; ++i) at.residual[i] = at.before[i] - by * sum[i];
  at.centre();
  at.before = at.residual;
  for (const std::uint32_t j : at.picked) {
    if (by < 1) at.weights[j] = at.weights_before[j] + by * (at.weights[j] - at.weights_before[j]);
    at.weights_before[j] = at.weights[j];
  }
  return length;
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
  double sum = 0;
  for (std::size_t j = 0; j < impl_->weights.size(); ++j) {
    sum += impl_->columns[j].mean * static_cast<double>(impl_->weights[j]);
  }
  return sum;
}

template class CoordinateDescent<float>;
template class CoordinateDescent<double>;

}  // namespace learn
