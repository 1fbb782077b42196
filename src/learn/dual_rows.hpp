// One rank's rows in dual ascent: their alphas, and the sweeps over them. Internal to dual ascent.
//
// Sweeps go over blocks of neighbouring rows in random order: a random order of single rows
// takes twice as long in memory and converges no faster. For losses with a kink, most alphas soon
// rest at a bound. After kFirstSweeps full sweeps come rounds of one full sweep, which lists the
// rows that do not rest, and kShortSweeps sweeps over those alone, fewer if the intercept moves so
// far that others need not rest. Sparse rows are copied for it; dense ones are long enough to be
// read where they are. Nothing is lost by a wrong guess: the next full sweep looks at every row.
//
// Dealt rows (DualDeal): every rank holds all rows, and draws the same order of the blocks. Rank r
// takes the r-th part of that order. So no two ranks change one alpha in the same sweep. The ranks'
// findings are in shared memory, so all list the same rows. The sums that end a sweep order the
// changes of one sweep before the reads of the next. When a rank has died, each rank sweeps its own
// part alone: the rows of the dead must not be swept, and no rank knows which rows these are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "learn/dual_ascent.hpp"
#include "learn/dual_step.hpp"
#include "learn/matrix.hpp"

namespace learn {

// The values that steps read and change, except the alphas.
template <class T>
struct DualModel {
  T* weights;      // (sum of alpha x + kappa z) * pliancy, with this rank's own change sigma' times
  double pliancy;  // 1 / (1 + kappa)
  double intercept;  // b + rho * sum of alpha, with this rank's change sigma' times
  double rho;        // 0: no intercept
  double sigma;      // sigma'
  double moved;      // change of this rank's sum of alpha
  double gap;        // the rows' shares of the gap, before their steps
};

// Factors of the positive and of the negative alphas, with which all sum to 0.
struct DualBalance {
  double positive = 1;
  double negative = 1;
  double of(double alpha) const { return alpha * (alpha > 0 ? positive : negative); }
};

// Sparse rows copied out of a matrix, to lie next to one another.
template <class T>
class RowCopy {
 public:
  void take(const Csr<T>& from, std::span<const std::uint32_t> rows);
  Csr<T> matrix(std::int64_t features) const { return {starts_, columns_, values_, features}; }

 private:
  std::vector<std::int64_t> starts_{0};
  std::vector<std::int32_t> columns_;
  std::vector<T> values_;
};

template <class T, class Matrix>
class DualRows {
 public:
  static constexpr std::int64_t kFirstSweeps = 3;
  static constexpr std::int64_t kShortSweeps = 12;

  // Throws dstorm::ConfigError as DualAscent's constructor does.
  DualRows(const DualOptions& options, const Matrix& matrix, const Targets<T>& targets,
           const DualStart<T>& start, const DualDeal<T>& deal);

  // A rank has died, and its rows with it. From now on this rank sweeps over its own part alone.
  void stop_dealing();

  // `may_rest`: sweeps may be short. Returns the sweep's number of rows.
  std::int64_t begin_sweep(std::uint64_t seed, bool may_rest, double intercept);
  std::int64_t sweep(int piece, int pieces, DualModel<T>& model);
  // Of the present sweep, pieces whose rows stay in the second-level cache. A short sweep has one:
  // no other ascent goes over its rows.
  int pieces_in_cache() const;

  // The calls from here on are over this rank's own rows, or its part of dealt ones.

  // Of all alphas as they are; `swept` says whether each row has been in a sweep.
  DualScales scales(bool swept) const;
  // Adds alpha x of each row to `sums`; if these have twice the features, that of negative alphas
  // to the second half.
  void contribute(std::span<double> sums) const;
  // Does the same, and returns the losses. The dual is that of the alphas as scale() would leave
  // them.
  DualLosses losses(const T* weights, double intercept, const DualBalance& balance,
                    std::span<double> sums) const;
  void scale(const DualBalance& balance);
  void copy_alphas(std::span<T> alphas) const;

 private:
  static constexpr bool kIsSparse = std::is_same_v<Matrix, Csr<T>>;
  struct Part {  // the rows of a sweep
    Matrix matrix;
    const std::uint32_t* places;  // of its rows' coordinates; nullptr: in the same order
    std::size_t rows;
    std::size_t in_matrix(std::size_t row) const {
      return kIsSparse || places == nullptr ? row : places[row];
    }
  };
  Part part();
  std::span<Coordinate<T>> own_coordinates() const {
    return coordinates_.subspan(first_, coordinates_.size() * (rank_ + 1) / ranks_ - first_);
  }
  std::span<std::uint32_t> list_of(std::size_t rank) const {
    const std::size_t length = lists_.size() / ranks_;
    return lists_.subspan(rank * length, length);
  }
  void publish_list();
  void list_unrested();
  void prefetch_block(const Part& over, std::size_t begin) const;
  std::int64_t sweep_as_loss(std::size_t first, std::size_t last, DualModel<T>& model);
  template <Loss kLoss>
  std::int64_t sweep_as(std::size_t first, std::size_t last, DualModel<T>& model);
  template <Loss kLoss>
  void visit(const Part& part, std::size_t row, std::size_t ahead, DualModel<T>& model);

  Loss loss_;
  double epsilon_;
  std::size_t most_listed_;  // rows of short sweeps
  Matrix matrix_;
  std::vector<Coordinate<T>> owned_;      // empty if the rows are dealt
  std::span<Coordinate<T>> coordinates_;  // of all rows of the matrix
  std::size_t ranks_ = 1, rank_ = 0;      // between which the rows are dealt, and this one
  std::size_t first_ = 0;                 // of this rank's rows outside sweeps
  std::int64_t sweeps_ = 0;

  std::vector<std::uint32_t> order_;  // of the blocks
  std::size_t block_rows_ = 1;

  bool listing_ = false;              // this sweep finds the rows that do not rest
  std::vector<std::uint32_t> found_;  // and these they are, of this rank
  double width_ = 0;                  // of rests()
  double distances_ = 0;              // their sum in this sweep

  double intercept_ = 0;               // when the rows were listed,
  double may_move_ = 0;                // and how far it may move until others need not rest
  std::int64_t short_left_ = 0;        // short sweeps still to come, after the present one
  bool is_short_ = false;              // the present sweep is over the listed rows alone
  std::vector<std::uint32_t> listed_;  // found by all ranks
  RowCopy<T> copy_;                    // of the listed rows, if they are sparse
  std::span<std::uint32_t>
      lists_;  // of dealt rows: of each rank, the number of rows found, their width_, and they
};

}  // namespace learn
