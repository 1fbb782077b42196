// Least squares with L1 and L2 penalties (lasso, elastic net), solved to a known gap by coordinate
// descent on the columns that a schedule picks.
//
// The problem, for n rows, an intercept b without a penalty, and columns x_j:
//   minimise P(w, b) = |y - X w - b|^2 / (2n) + alpha * (ratio |w|_1 + (1 - ratio) |w|^2 / 2)
// Everything below is n times that: l1 = n alpha ratio, l2 = n alpha (1 - ratio). With an
// intercept, y and the columns count as if their means were subtracted. No centred copy is made.
// Rows whose squares weigh v_i, n together: give y and X multiplied by sqrt(v_i), and these roots,
// along which then lies what the intercept explains.
//
// A step minimises over one weight at a time and keeps the residual r = y - X w up to date.
//
// Gap: any r, scaled so that the dual allows it, bounds the optimum from below (Fercoq, Gramfort
// and Salmon 2015). For the elastic net the rows are extended by sqrt(l2) I; r as it is gives a
// second bound, by the conjugate of the whole penalty. The higher one counts.
// Screening: a column whose correlation with the dual point is further below l1 than the gap allows
// it to move has weight 0 at the optimum, and is looked at no more (the same paper). A look also
// leaves out columns without a weight whose correlation with r cannot have risen to l1 since they
// were read: it changes by at most |x_j| times what r has moved (Johnson and Guestrin 2017,
// StingyCD).
//
// The dynamic schedule: a look computes by how much a step of each column would let the objective
// fall. The round's columns are those whose weight is not 0 and as many others, of the largest
// falls (Lee et al. 2014, STRADS; Massias, Gramfort and Salmon 2018, celer). Full sweeps over them
// alternate with sweeps over those that changed in the last one. If these gain little, the
// weights move to where they seem to go (extrapolation.hpp), as far as the objective falls. The
// random schedule: each sweep takes every column that is not screened once, in a random order.
//
// Several ranks hold the same X. Each owns blocks of neighbouring columns and takes steps as
// if the others' weights stayed. The ranks' changes of r are then added. Columns of different
// ranks may be correlated, and the sum overshoots. So the step along the sum is the one at which a
// bound on the objective is least: the squares are known exactly along the line, and penalties are
// at most their linear interpolation. A step of 1 / ranks lets the objective fall unless it is the
// least one. So every round falls, and the optimum is exact for any number of ranks.
//
// One rank:                                       Several ranks; `sum` adds over all of them:
//   CoordinateDescent<T> descent(options, x, y);    CoordinateDescent<T> descent(options, x, y);
//   while (gap(descent.choose(descent.look()))      while (gap(descent.choose(sum(descent.look())))
//          > tol) {                                        > tol) {
//     descent.sweep(0.01, 100);                       for (int k = 0; k < 10; ++k) {
//   }                                                   descent.sweep(0, 1);
//                                                       descent.take_change(buffer);
//                                                       descent.add_changes(sum(buffer));
//                                                     }
//                                                   }
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "learn/matrix.hpp"

namespace learn {

struct DescentOptions {
  double alpha = 1;     // above 0; finite, also times the rows
  double l1_ratio = 1;  // from 0 to 1
  bool intercept = true;
  bool dynamic = true;  // the schedule
  int rank = 0;
  int ranks = 1;           // that own the columns
  std::uint64_t seed = 0;  // of the random schedule
  bool positive = false;   // no weight may be below 0
};

// A rank's part of a measured gap: add the sums over the ranks, and take the highest `most`.
struct DescentLook {
  double most = 0;    // at least the largest |x_j r - l2 w_j|; exact if that is above l1
  double excess = 0;  // sum of squares of |x_j r| above l1
  double size = 0;    // |w|_1
  double square = 0;  // |w|^2
};

// In units of P: dual <= the optimum <= primal.
struct DescentGap {
  double primal = 0;
  double dual = 0;
};

template <class T>
struct DescentState;  // internal

// One rank's part. T is float or double. It holds 56 bytes a column, 64 more for each that
// changed in the last sweep, and 5 values a row. It borrows the matrix, whose rows are the columns
// of X (CSC, or Fortran order), and which must outlive it.
// The matrix need not have passed its check(): the constructor checks the rank's own columns.
// Equal calls with equal seeds give equal bits. For one thread at a time. No call blocks or
// communicates.
template <class T>
class CoordinateDescent {
 public:
  // `start`: weights to begin with, one for each column, or none: zeros. `roots`: of the rows'
  // weights, or none: all 1. Columns that are constant (without an intercept: zero) get the weight
  // 0. Throws dstorm::ConfigError if an option or a
  // length is out of range, a column fails Csr::check(), or a target, a start, the |x|^2 of a
  // column or the |y|^2 of the targets is no finite T.
  CoordinateDescent(const DescentOptions& options, const Csr<T>& columns,
                    std::span<const T> targets, std::span<const T> start = {},
                    std::span<const T> roots = {});
  CoordinateDescent(const DescentOptions& options, const Dense<T>& columns,
                    std::span<const T> targets, std::span<const T> start = {},
                    std::span<const T> roots = {});
  ~CoordinateDescent();
  CoordinateDescent(CoordinateDescent&& other) noexcept;
  CoordinateDescent& operator=(CoordinateDescent&& other) noexcept;

  // Contributions and changes have so many values: one a row, and kSums.
  std::size_t change_length() const;

  // Computes r anew from all weights: before the first look unless `start` is empty, and to end the
  // drift of rounding.
  void contribute(std::span<T> contribution) const;
  void settle(std::span<const T> sum);

  // Reads the columns that are not screened and may have or get a weight. All changes have been
  // added.
  DescentLook look();
  // Takes all ranks' look, screens, and picks this rank's columns for the sweeps that follow.
  DescentGap choose(const DescentLook& all);

  // Sweeps over the picked columns at least once, and until a full sweep lets n P fall by at most
  // `share` of what the first did, or `most` sweeps are done. Of the random schedule: once.
  void sweep(double share, int most);
  // Writes the change of X w since the last add_changes(), what it changes of the penalty, and the
  // last sweep's fall. One rank alone needs neither this nor add_changes(), and has fall().
  void take_change(std::span<T> change);
  // Takes the sum over ranks; returns the length of the step, from 1 / ranks to 1.
  double add_changes(std::span<const T> sum);
  // By how much the steps of the last full sweep here let n P fall.
  double fall() const;

  std::int64_t updates() const;        // coordinate steps so far, of this rank
  std::int64_t looked() const;         // columns read by looks and at the start, of this rank
  std::int64_t unscreened() const;     // columns of this rank that may have a weight
  std::span<const T> weights() const;  // one for each column; of other ranks' columns 0
  // The mean of each own column times its weight, summed: the intercept is the mean of y less the
  // sum over ranks.
  double mean() const;

  static constexpr std::size_t kSums = 3;

 private:
  std::unique_ptr<DescentState<T>> impl_;
};

}  // namespace learn
