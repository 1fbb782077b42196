// The numbers of a coordinate descent, and what needs no matrix: the dual bound, screening, the
// schedule, and the exchange. Internal to coordinate descent.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "learn/coordinate_descent.hpp"

namespace learn {

struct DescentColumn {
  double mean = 0;
  double square = 0;       // |x|^2, of the centred column; 0: it gets no weight
  double correlation = 0;  // x r, when the column was last read
  double drift = 0;        // the state's, then
};

template <class T>
struct DescentState {
  DescentState(const DescentOptions& given, std::size_t columns_given, std::span<const T> targets,
               std::span<const T> start, std::span<const T> roots_given);
  virtual ~DescentState() = default;
  virtual void contribute(std::span<T> contribution) const = 0;
  virtual DescentLook look() = 0;
  virtual void sweep(double share, int most) = 0;

  void settle(std::span<const T> sum);
  DescentGap choose(const DescentLook& all);
  void take_change(std::span<T> change);
  double add_changes(std::span<const T> sum);
  double mean() const;

  // Ends the implicit shift of r, and what rounding has left of its mean.
  void centre();
  // Adds how far r has moved since the last call to `drift`.
  void measure_drift();
  // The part of x r that counts against l1: its size, or only what is above 0 if no weight may be
  // below it.
  double reach(double correlation) const {
    return options.positive ? correlation : std::abs(correlation);
  }
  // `value` moved by l1 towards 0, where it is if that is nearer, or if it may not be below 0.
  double shrink(double value) const {
    if (value > l1) return value - l1;
    return value < -l1 && !options.positive ? value + l1 : 0;
  }
  // The direction in the space of rows in which the intercept moves r.
  double root(std::size_t row) const {
    return roots.empty() ? 1.0 : static_cast<double>(roots[row]);
  }
  // At least reach(x r): it has not changed by more than |x| times what r has moved.
  double most_reach(const DescentColumn& column) const;

  DescentOptions options;
  double l1 = 0;
  double l2 = 0;
  std::vector<T> roots;  // of the rows' weights; none: all 1
  std::vector<T> y;      // centred
  std::vector<DescentColumn> columns;
  std::vector<T> weights;
  std::vector<T> weights_before;       // of picked columns, at the last add_changes()
  std::vector<T> residual;             // less `shift`
  std::vector<T> before;               // r at the last add_changes(), if there are several ranks
  std::vector<T> seen;                 // r at the last look
  double shift = 0;                    // of r: what the means of columns have changed
  double drift = 0;                    // of r: how far it has moved from look to look, summed
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

 private:
  void remember();
  void screen(double scale, double radius);
  double fall_of(std::size_t j) const;
  void pick();
};

}  // namespace learn
