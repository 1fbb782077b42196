// Linear models with an L2 penalty, solved to a known gap by ascent in the dual, one row at a time.
// Use it for the optimum over rows that stay; linear.hpp trains on rows that pass by once.
//
// The problem, over the rows of all ranks:
//   minimise P(w, b) = |w|^2 / 2 + sum_i c_i loss(y_i, w.x_i + b),   c_i = C * weight_i
// Its dual has one alpha for each row, and w = sum_i alpha_i x_i:
//   maximise D(alpha) = -|w|^2 / 2 - sum_i c_i conjugate(-alpha_i / c_i),   sum_i alpha_i = 0
// The condition on the sum belongs to an intercept b, which has no penalty. D(alpha) <= P(w, b) for
// all alphas that the dual allows and all (w, b). So P - D bounds the distance of both from the
// optimum.
//
// Steps: SDCA (Shalev-Shwartz and Zhang 2013) maximises over one alpha at a time and keeps w up to
// date: Hsieh et al. 2008 for the hinges, Yu, Huang and Lin 2011 for the log loss, Ho and Lin 2012
// for the insensitive losses.
//
// Intercept: the method of multipliers on sum_i alpha_i = 0 (Bertsekas 1982, chapter 2). b is the
// multiplier. Steps see b + rho * sum alpha as the intercept, and b += rho * sum alpha follows each
// sweep. That is a proximal step of length rho in b: it shrinks b's error 1 + rho mu times, where
// mu is the curvature in b of min_w P. Let H be the curvature in b of the losses alone, and R^2 the
// mean |x|^2.
//  - A long rho makes b noisy: each row's step moves rho * sum alpha, which forgets the rows before
//    the last n / (rho H). So rho starts at 256 / H, or less for few rows: the intercept adapts to
//    the last 1/256 of a sweep.
//  - mu may be far below H: if some sum of columns is nearly constant, weights do b's work. So rho
//    doubles where sum alpha keeps its sign and half its size from one sweep to the next, and is
//    halved where the sum only changes its sign.
//  - The most is R^2 + 256 / H: moving b by 1 costs about 1 / (R^2 + 1 / H) or more, be it paid in
//    weights or in losses, so that there each step at least halves b's error. (With kappa below,
//    R^2 / (1 + kappa).)
// H is measured at each settle(), because it is far below its bound where one label is rare.
//
// Steep losses: a step is good for its own row. If c loss'' |x|^2 is far above 1, rows undo each
// other's steps, and the number of sweeps grows with C. There steps minimise P + kappa/2 |w - z|^2,
// and z moves after each sweep by Nesterov's momentum (accelerated proximal SDCA: Shalev-Shwartz
// and Zhang 2014; Catalyst: Lin, Mairal, Harchaoui 2015). The number then grows with the root of C.
// kappa is 0 where losses are not steep, and for losses whose slope jumps.
//
// Several ranks: CoCoA+ (Ma et al. 2015, adding). A rank takes steps on its own rows as if its
// change of w counted sigma' times; then all changes are added. sigma' is at first the number of
// ranks, as if all made the same change, and then follows what the changes turn out to be. The
// optimum is exact for any number of ranks and any division of the rows. Speed depends on both.
// Make 16 exchanges a sweep or more. Ranks with unlike rows, such as one label each, overshoot
// together between exchanges. They need an exchange every few hundred rows, or least_kappa = 100:
// divide rows at random where you can.
//
// The last digits come slowly: what the rows of a rank together get wrong, they pass on from one to
// another between two exchanges, as each takes back what another gives. Ranks of one host can share
// their rows (DualDeal). These are dealt out anew in each sweep (Ioannou, Mendler-Duenner and
// Parnell 2019), and the ranks need about as many sweeps as one rank alone.
//
// One rank:                                  Several ranks; `sum` adds over all of them:
//   DualAscent<float> ascent(options, x, y);   DualAscent<float> ascent(options, x, y);
//   do {                                       settle();
//     ascent.begin_sweep();                    do {
//     ascent.sweep(0, 1);                        ascent.begin_sweep();
//   } while (!close(measure(ascent)));           for (int k = 0; k < 16; ++k) {
//                                                  ascent.sweep(k, 16);
//                                                  ascent.take_change(buffer);
//                                                  ascent.add_changes(sum(buffer));
//                                                }
//                                              } while (!close(measure()));
//   where settle() is                          and measure() is
//     const DualScales all =                     const DualScales all =
//         sum(ascent.scales());                      sum(ascent.scales());
//     ascent.contribute(all, buffer);            const DualLosses own =
//     ascent.settle(sum(buffer));                    ascent.losses(all, buffer);
//                                                ascent.gap(sum(own), sum(buffer))
// A measured gap costs about as much as a sweep: measure it when estimate() says that it is small.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "learn/linear.hpp"

namespace learn {

struct DualOptions {
  // kLog, kHinge, kSquaredHinge (y is -1 or 1), kSquared, kEpsilonInsensitive or
  // kSquaredEpsilonInsensitive (y is any number).
  Loss loss = Loss::kHinge;
  double epsilon = 0.1;  // for the losses that have one
  double c = 1;          // C above; with Linear's alpha and n rows of weight 1, C = 1 / (alpha n)
  bool intercept = false;
  int ranks = 1;           // that share the problem
  std::uint64_t seed = 0;  // of the order of rows
  double least_kappa = 0;  // above 0 all sweeps are full ones
  int together = 1;        // ascents for sweep_together(), which share the memory of row copies
};

// The start of training: zeros, or the end of an earlier training on the same rows. Alphas that the
// options do not allow are moved to the nearest that they allow. For another C, give the old alphas
// times the ratio of the Cs.
template <class T>
struct DualStart {
  std::span<const T> alphas = {};  // one for each row; empty: zeros
  double intercept = 0;
};

// Rows that ranks of one host share: each is given the whole matrix, all targets and all alphas,
// and the state of the rows lies in memory that they all map. The rows are dealt out anew for every
// sweep. The memory must be zero at first.
template <class T>
struct DualDeal {
  std::span<T> memory = {};  // 4 values a row; without memory, every rank has rows of its own
  std::span<std::uint32_t> lists = {};  // ranks * dealt_list_length() values
  int rank = 0;                         // this rank's number, from 0 to below options.ranks
};
constexpr std::size_t dealt_list_length(std::size_t rows, std::size_t ranks) {
  return rows / ranks + 67;  // two blocks of rows more, and two values of their own
}

// Sums over a rank's rows that all ranks need. Add them field by field.
struct DualScales {
  double rows = 0;       // whose weight is above 0
  double positive = 0;   // sum of the positive alphas
  double negative = 0;   // sum of the negative ones' sizes
  double cost = 0;       // sum of c
  double norms = 0;      // sum of c |x|^2
  double curvature = 0;  // sum of c times the loss's second derivative (at a kink: rise of slope)
  double labels = 0;     // sum of the targets of these rows
};

// This rank's parts of P and D without the penalty. Add them field by field.
struct DualLosses {
  double primal = 0;
  double dual = 0;
};

// The objectives: dual <= the optimum <= primal.
struct DualGap {
  double primal = 0;
  double dual = 0;
};

// A forecast of the gap at the end of a sweep, from its estimate() and the one before it (infinite:
// there is none), both added over the ranks. An estimate is that of the middle of a sweep. By its
// end the gap has fallen by half of what it falls from the middle of one sweep to that of the next.
double forecast_gap(double estimate, double before);

// The result of ascend().
struct DualSweeps {
  std::int64_t visited = 0;  // rows
  double gap = 0;            // as it is forecast after the last sweep
};

// One rank's part in solving a problem. T is float or double. It holds 16 or 32 bytes a row and,
// for losses with a kink, up to half a copy of a sparse matrix: rows whose alpha rests at a bound
// are left out of most sweeps, and all rows are looked at again every few sweeps. It borrows the
// matrix, which must outlive it, and copies the targets. The matrix need not have passed its
// check(): the constructor checks the rank's own rows, and dealt rows all ranks together.
//
// c and |x|^2 are rounded to T: the problem that is solved, and its gap, have these.
//
// Equal calls with an equal seed give equal bits. For one thread at a time. No call blocks or
// communicates.
template <class T>
class DualAscent {
 public:
  // Throws dstorm::ConfigError if an option or a length is out of range, a row fails Csr::check(),
  // a target or weight does not fit the loss, a row's |x|^2 or c is no finite T, or (one rank) all
  // targets are the same label, with the log loss and an intercept: that has no minimum. Of several
  // ranks no rank can know this: contribute() throws there.
  DualAscent(const DualOptions& options, const Csr<T>& matrix, const Targets<T>& targets,
             const DualStart<T>& start = {}, const DualDeal<T>& deal = {});
  DualAscent(const DualOptions& options, const Dense<T>& matrix, const Targets<T>& targets,
             const DualStart<T>& start = {}, const DualDeal<T>& deal = {});
  ~DualAscent();
  DualAscent(DualAscent&& other) noexcept;
  DualAscent& operator=(DualAscent&& other) noexcept;

  // Starts a sweep: takes the multiplier's step, and draws an order of the rows. Call it on all
  // ranks, after the last sweep's changes have been added. All ranks must be given sums of the same
  // bits, or their intercepts drift apart. Returns the sweep's number of rows on this rank: short
  // sweeps need fewer exchanges. With several ranks, throws dstorm::ConfigError before the first
  // settle(). `may_accelerate`: false where the last sweep led away from the optimum, which shows
  // in an estimate() that, added over the ranks, has risen.
  std::int64_t begin_sweep(bool may_accelerate = true);
  // Takes one step for each row of a piece of the sweep, 0 <= piece < pieces. Call it once for each
  // piece. Returns the number of rows. A rank without rows has pieces without rows. Dealt rows need
  // two pieces or more, with an exchange after each.
  std::int64_t sweep(int piece, int pieces);
  // sweep(0, 1) of each ascent, in one pass over the rows: each part of them is loaded once, for
  // all ascents. For ascents of one rank over the same matrix with equal seeds, such as those of
  // one class against the rest, whose weights fit the cache together. All have begun a sweep. The
  // results are those of sweep(0, 1).
  static void sweep_together(std::span<DualAscent* const> ascents);

  // For one rank alone: sweeps at most so many times, and ends once the gap after a sweep is
  // forecast to be at most `enough`.
  DualSweeps ascend(int sweeps, double enough);

  // An estimate of the gap, to be added over the ranks: the sum of each row's share in it, before
  // its step in this sweep. The gap at the end of the sweep is smaller. It costs nothing, and tells
  // when to measure.
  double estimate() const;

  // Writes this rank's change of w since the last add_changes() or settle(), the change of its sum
  // of alpha, and the square of both: features + 2 values. One rank alone needs neither this nor
  // add_changes().
  void take_change(std::span<T> change);
  // Takes the sum of what all ranks' take_change() wrote.
  void add_changes(std::span<const T> sum);

  // The three calls that compute w anew from all alphas. Make them before the first sweep (one rank
  // alone has done it), and after a rank has died. In float they also end the drift of w: make them
  // every few sweeps if a small gap is asked for. contribute() and settle() take sums over ranks;
  // contributions have contribution_length() values, in double: those of opposite labels nearly
  // cancel.
  //
  // With an intercept, the gap is that of alphas that sum to 0: those of one sign count scaled
  // down. The first time, and after set_ranks(), they are scaled down in fact. contribute() throws
  // dstorm::ConfigError if all ranks together have one label, with the log loss. settle() throws it
  // if a weight is not finite.
  std::size_t contribution_length() const;
  DualScales scales() const;
  void contribute(const DualScales& all, std::span<double> contribution);
  void settle(std::span<const double> sum);

  // The gap of w as it is and of the alphas, after the changes of a sweep have been added. losses()
  // takes the sum of scales(), writes a contribution, and reads the matrix once. It throws
  // dstorm::ConfigError as begin_sweep() and contribute() do. gap() takes the sums of both. It is
  // the gap of weights() and of the intercept rounded to T, computed in double.
  DualLosses losses(const DualScales& all, std::span<double> contribution);
  DualGap gap(const DualLosses& all, std::span<const double> sum) const;

  // For the ranks that are left of a job, before scales(), contribute() and settle(). Their problem
  // is that of their own rows.
  void set_ranks(int ranks);

  // The features' weights, valid until the next call that is not const. Between sweep() and
  // add_changes() of several ranks these are the rank's own guess.
  std::span<const T> weights() const;
  double intercept() const;
  // One value for each row of this rank: of dealt rows, from rows * rank / ranks on. All ranks have
  // ended their sweep, and begin no other before this returns.
  void copy_alphas(std::span<T> alphas) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// scales(), losses() and gap() for one rank alone.
template <class T>
DualGap measure(DualAscent<T>& ascent);

}  // namespace learn
