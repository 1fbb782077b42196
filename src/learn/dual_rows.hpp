// One rank's rows in dual ascent: their alphas, and the sweeps over them. Internal to dual ascent.
//
// Sweeps go over blocks of neighbouring rows in random order: a random order of single rows
// takes twice as long in memory and converges no faster. For losses with a kink, most alphas soon
// rest at a bound. After kFirstSweeps full sweeps come rounds of one full sweep, which lists the
// rows that do not rest, and kShortSweeps sweeps over a copy of those alone. Nothing is lost by a
// wrong guess: the next full sweep looks at every row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "learn/dual_ascent.hpp"
#include "learn/dual_step.hpp"
#include "learn/matrix.hpp"

namespace learn {

// The values that steps read and change, except the alphas.
template <class T>
struct DualModel {
  T* weights;  // (sum of alpha x + kappa z) * pliancy, with this rank's own change `ranks` times
  double pliancy;    // 1 / (1 + kappa)
  double intercept;  // b + rho * sum of alpha, with this rank's change `ranks` times
  double rho;        // 0: no intercept
  double ranks;      // sigma'
  double moved;      // change of this rank's sum of alpha
};

// Rows copied out of a matrix.
template <class Matrix>
class RowCopy;
template <class T>
class RowCopy<Csr<T>> {
 public:
  void clear();
  void append(const Csr<T>& from, std::size_t row);
  Csr<T> matrix(std::int64_t features) const { return {starts_, columns_, values_, features}; }

 private:
  std::vector<std::int64_t> starts_{0};
  std::vector<std::int32_t> columns_;
  std::vector<T> values_;
};
template <class T>
class RowCopy<Dense<T>> {
 public:
  void clear() { values_.clear(); }
  void append(const Dense<T>& from, std::size_t row);
  Dense<T> matrix(std::int64_t features) const { return {values_, features}; }

 private:
  std::vector<T> values_;
};

template <class T, class Matrix>
class DualRows {
 public:
  static constexpr std::int64_t kFirstSweeps = 3;
  static constexpr std::int64_t kShortSweeps = 12;

  // Throws dstorm::ConfigError as DualAscent's constructor does.
  DualRows(const DualOptions& options, const Matrix& matrix, const Targets<T>& targets,
           const DualStart<T>& start);

  // `may_rest`: sweeps may be short.
  void begin_sweep(std::uint64_t seed, bool may_rest);
  std::int64_t sweep(int piece, int pieces, DualModel<T>& model);

  // Of all alphas as they are; `swept` says whether each row has been in a sweep.
  DualScales scales(bool swept) const;
  // Adds alpha x of each row to `sums`.
  void contribute(std::vector<double>& sums) const;
  DualLosses losses(const T* weights, double intercept) const;
  // Multiplies the positive and the negative alphas.
  void scale(double positive, double negative);
  void copy_alphas(std::span<T> alphas) const;

 private:
  struct Part {  // what a sweep goes over
    Matrix matrix;
    Coordinate<T>* coordinates;
    std::size_t rows;
  };
  Part part();
  void list_unrested();
  void prefetch_block(const Part& over, std::size_t begin) const;
  template <Loss kLoss>
  std::int64_t sweep_as(std::size_t first, std::size_t last, DualModel<T>& model);
  template <Loss kLoss>
  void visit(const Part& part, std::size_t row, DualModel<T>& model);

  Loss loss_;
  double epsilon_;
  Matrix matrix_;
  std::vector<Coordinate<T>> coordinates_;
  std::int64_t sweeps_ = 0;

  std::vector<std::uint32_t> order_;  // of the blocks
  std::size_t block_rows_ = 1;

  bool listing_ = false;               // this sweep lists the rows that do not rest
  std::vector<std::uint32_t> listed_;  // and these they are
  double width_ = 0;                   // of rests()
  double distances_ = 0;               // their sum in this sweep

  std::int64_t short_left_ = 0;  // short sweeps still to come, after the present one
  bool is_short_ = false;        // the present sweep is over the copy
  RowCopy<Matrix> copy_;
  std::vector<Coordinate<T>> copied_;  // of the rows of listed_; empty in full sweeps
};

}  // namespace learn
