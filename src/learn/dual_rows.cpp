#include "learn/dual_rows.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>

#include "learn/dual_check.hpp"
#include "learn/linear_loss.hpp"
#include "learn/row_prefetch.hpp"
#include "learn/row_sums.hpp"

namespace learn {
namespace {

// Blocks of this many rows, or fewer where there would be fewer than kLeastBlocks.
constexpr std::size_t kBlockRows = 32;
constexpr std::size_t kLeastBlocks = 64;
constexpr std::size_t kRowsALine = kLineBytes / sizeof(std::int64_t);  // of Csr::starts
// Of rows that several ascents sweep over while they are in the second-level cache.
constexpr std::size_t kPieceBytes = 1 << 17;
// Rows within this part of the mean distance from the kink stay in short sweeps.
constexpr double kNear = 0.1;

}  // namespace

template <class T>
void RowCopy<T>::take(const Csr<T>& from, std::span<const std::uint32_t> rows) {
  starts_.resize(rows.size() + 1);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    starts_[i + 1] = starts_[i] + std::ssize(from.row(rows[i]).values);
  }
  const auto count = static_cast<std::size_t>(starts_.back());
  columns_.resize(count);
  values_.resize(count);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::size_t ahead = std::min(i + kRowAhead, rows.size() - 1);
    const SparseView<T> row = view_and_prefetch(from, rows[i], rows[ahead]);
    std::copy_n(row.columns, row.count, columns_.begin() + starts_[i]);
    std::copy_n(row.values, row.count, values_.begin() + starts_[i]);
  }
}

template <class T, class Matrix>
DualRows<T, Matrix>::DualRows(const DualOptions& options, const Matrix& matrix,
                              const Targets<T>& targets, const DualStart<T>& start,
                              const DualDeal<T>& deal)
    : loss_(options.loss), epsilon_(options.epsilon), matrix_(matrix) {
  check_dual(options);
  check_dual_lengths(matrix, targets, start);
  const auto rows = static_cast<std::size_t>(matrix.rows());
  most_listed_ = rows / (2 * static_cast<std::size_t>(options.together));
  if (deal.memory.data() == nullptr) {
    coordinates_ = owned_ = std::vector<Coordinate<T>>(rows);
  } else {
    check_dual_deal(options, rows, deal);
    coordinates_ = {reinterpret_cast<Coordinate<T>*>(deal.memory.data()), rows};
    lists_ = deal.lists;
    ranks_ = static_cast<std::size_t>(options.ranks);
    rank_ = static_cast<std::size_t>(deal.rank);
  }
  first_ = rows * rank_ / ranks_;
  const std::span<Coordinate<T>> own = own_coordinates();
  if constexpr (kIsSparse) {
    const auto first = static_cast<std::int64_t>(first_);
    matrix.check(first, first + std::ssize(own));
  }
  for (std::size_t i = 0; i < own.size(); ++i) {
    const std::size_t row = first_ + i;
    const double weight = targets.weights.empty() ? 1 : static_cast<double>(targets.weights[row]);
    const std::size_t ahead = std::min(i + kRowAhead, own.size() - 1);
    const double norm = squared_norm(view_and_prefetch(matrix, row, first_ + ahead));
    Coordinate<T> at{};
    at.target = targets.values[row];
    at.cost = static_cast<T>(options.c * weight);
    at.norm = static_cast<T>(norm);
    check_dual_row<T>(options, row, at, weight);
    if (at.cost > 0 && !start.alphas.empty()) {
      at.alpha =
          static_cast<T>(allowed(loss_, static_cast<double>(start.alphas[row]),
                                 static_cast<double>(at.target), static_cast<double>(at.cost)));
    }
    own[i] = at;
  }
  check_labels<T>(options, own);
}

template <class T, class Matrix>
void DualRows<T, Matrix>::stop_dealing() {
  if (lists_.empty()) return;
  const std::span<Coordinate<T>> own = own_coordinates();
  if constexpr (kIsSparse) {
    matrix_.starts = matrix_.starts.subspan(first_, own.size() + 1);
  } else {
    const auto features = static_cast<std::size_t>(matrix_.features);
    matrix_.values = matrix_.values.subspan(first_ * features, own.size() * features);
  }
  coordinates_ = own;
  first_ = rank_ = 0;
  ranks_ = 1;
  lists_ = {};
  most_listed_ = own.size() / 2;
  listing_ = false;
  short_left_ = 0;
}

template <class T, class Matrix>
auto DualRows<T, Matrix>::part() -> Part {
  if (!is_short_) return {matrix_, nullptr, coordinates_.size()};
  if constexpr (kIsSparse) {
    return {copy_.matrix(matrix_.features), listed_.data(), listed_.size()};
  } else {
    return {matrix_, listed_.data(), listed_.size()};
  }
}

// Gets the rows that the last sweep of all ranks listed, if a sweep over them is much shorter.
template <class T, class Matrix>
void DualRows<T, Matrix>::list_unrested() {
  listing_ = false;
  listed_.clear();
  may_move_ = width_;
  if (lists_.empty()) {
    listed_ = found_;
  } else {
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      const std::span<const std::uint32_t> list = list_of(rank);
      const auto width = static_cast<double>(std::bit_cast<float>(list[1]));
      may_move_ = rank == 0 ? width : std::min(may_move_, width);
      const std::span<const std::uint32_t> rows =
          list.subspan(2, std::min<std::size_t>(list[0], list.size() - 2));
      std::ranges::copy_if(rows, std::back_inserter(listed_), [this](std::uint32_t row) {
        return row < coordinates_.size();  // another process wrote it
      });
    }
  }
  if (listed_.size() > most_listed_) return;
  if constexpr (kIsSparse) copy_.take(matrix_, listed_);
  short_left_ = kShortSweeps;
}

template <class T, class Matrix>
void DualRows<T, Matrix>::publish_list() {
  const std::span<std::uint32_t> list = list_of(rank_);
  list[0] = static_cast<std::uint32_t>(found_.size());
  list[1] = std::bit_cast<std::uint32_t>(static_cast<float>(width_));
  std::copy(found_.begin(), found_.end(), list.begin() + 2);
}

template <class T, class Matrix>
std::int64_t DualRows<T, Matrix>::begin_sweep(std::uint64_t seed, bool may_rest, double intercept) {
  if (listing_) {
    list_unrested();
    intercept_ = intercept;
  }
  if (!may_rest || std::abs(intercept - intercept_) > may_move_) short_left_ = 0;
  is_short_ = short_left_ > 0;
  if (is_short_) {
    --short_left_;
  } else {
    const auto seen = static_cast<double>(std::max<std::size_t>(coordinates_.size() / ranks_, 1));
    width_ = kNear * distances_ / seen;
    distances_ = 0;
    found_.clear();
    listing_ = may_rest && has_kink(loss_) && sweeps_ >= kFirstSweeps;
  }
  ++sweeps_;
  const std::size_t rows = part().rows;
  block_rows_ = std::clamp<std::size_t>(rows / kLeastBlocks, 1, kBlockRows);
  order_.resize((rows + block_rows_ - 1) / block_rows_);
  shuffle(order_, seed);
  return static_cast<std::int64_t>(rows * (rank_ + 1) / ranks_ - rows * rank_ / ranks_);
}

template <class T, class Matrix>
std::int64_t DualRows<T, Matrix>::sweep(int piece, int pieces, DualModel<T>& model) {
  require_dual(ranks_ == 1 || pieces > 1, "pieces", pieces,
               "at least 2 for dealt rows: the sum after the first one tells that all ranks have "
               "begun the sweep");
  // Of a sweep over dealt rows, every rank takes another part.
  const std::size_t from = rank_ * static_cast<std::size_t>(pieces);
  const auto border = [&](int k) {
    return order_.size() * (from + static_cast<std::size_t>(k)) /
           (ranks_ * static_cast<std::size_t>(pieces));
  };
  const std::size_t first = border(piece);
  const std::size_t last = border(piece + 1);
  const std::int64_t visited = sweep_as_loss(first, last, model);
  if (listing_ && !lists_.empty() && piece + 1 == pieces) publish_list();
  return visited;
}

template <class T, class Matrix>
int DualRows<T, Matrix>::pieces_in_cache() const {
  if (is_short_) return 1;
  const std::size_t bytes = matrix_.values.size() * sizeof(T);
  return static_cast<int>(
      std::clamp<std::size_t>(bytes / kPieceBytes, 1, std::max<std::size_t>(order_.size(), 1)));
}

template <class T, class Matrix>
std::int64_t DualRows<T, Matrix>::sweep_as_loss(std::size_t first, std::size_t last,
                                                DualModel<T>& model) {
  switch (loss_) {
    case Loss::kHinge:
      return sweep_as<Loss::kHinge>(first, last, model);
    case Loss::kSquaredHinge:
      return sweep_as<Loss::kSquaredHinge>(first, last, model);
    case Loss::kSquared:
      return sweep_as<Loss::kSquared>(first, last, model);
    case Loss::kEpsilonInsensitive:
      return sweep_as<Loss::kEpsilonInsensitive>(first, last, model);
    case Loss::kSquaredEpsilonInsensitive:
      return sweep_as<Loss::kSquaredEpsilonInsensitive>(first, last, model);
    default:
      return sweep_as<Loss::kLog>(first, last, model);
  }
}

// The positions and coordinates of the block that comes next. Its rows follow as their turn nears.
template <class T, class Matrix>
[[gnu::always_inline]] inline void DualRows<T, Matrix>::prefetch_block(const Part& over,
                                                                       std::size_t begin) const {
  const std::size_t end = std::min(begin + block_rows_, over.rows);
  for (std::size_t row = begin; row < end; row += kRowsALine) prefetch_start(over.matrix, row);
  if (over.places != nullptr) {
    for (std::size_t row = begin; row < end; ++row)
      prefetch_bytes(&coordinates_[over.places[row]], sizeof(Coordinate<T>));
  } else if (begin < end) {
    prefetch_bytes(&coordinates_[begin], (end - begin) * sizeof(Coordinate<T>));
  }
}

template <class T, class Matrix>
template <Loss kLoss>
std::int64_t DualRows<T, Matrix>::sweep_as(std::size_t first, std::size_t last,
                                           DualModel<T>& model) {
  const Part over = part();
  std::int64_t visited = 0;
  DualModel<T> at = model;  // a local one, which the compiler keeps in registers
  for (std::size_t k = first; k < last; ++k) {
    const std::size_t begin = order_[k] * block_rows_;
    const std::size_t end = std::min(begin + block_rows_, over.rows);
    const std::size_t next = k + 1 < last ? order_[k + 1] * block_rows_ : end;
    prefetch_block(over, next);
    for (std::size_t row = begin; row < end; ++row) {
      const std::size_t ahead = row + kRowAhead;
      const std::size_t fetched = ahead < end ? ahead : next + (ahead - end);
      visit<kLoss>(over, row, fetched < over.rows ? fetched : row, at);
    }
    visited += static_cast<std::int64_t>(end - begin);
  }
  model = at;
  return visited;
}

template <class T, class Matrix>
template <Loss kLoss>
void DualRows<T, Matrix>::visit(const Part& over, std::size_t row, std::size_t ahead,
                                DualModel<T>& model) {
  using Step = DualStep<kLoss>;
  Coordinate<T>& own = coordinates_[over.places != nullptr ? over.places[row] : row];
  if (!(own.cost > 0)) return;
  const auto view = view_and_prefetch(over.matrix, over.in_matrix(row), over.in_matrix(ahead));
  const auto alpha = static_cast<double>(own.alpha);
  const DualPoint at{alpha, static_cast<double>(own.target), static_cast<double>(own.cost),
                     model.sigma * (static_cast<double>(own.norm) * model.pliancy + model.rho),
                     static_cast<double>(dot(view, model.weights)) + model.intercept};
  model.gap += Step::gap(at, epsilon_);
  own.alpha = static_cast<T>(Step::best(at, epsilon_));
  const double to = static_cast<double>(own.alpha);
  if (to != alpha) {
    const double change = to - alpha;
    add(view, static_cast<T>(change * model.sigma * model.pliancy), model.weights);
    model.intercept += model.rho * model.sigma * change;
    model.moved += change;
  }
  if constexpr (Step::kShrinks) {
    if (is_short_) return;
    distances_ += Step::distance(at, epsilon_);
    if (listing_ && !Step::rests(at, to, epsilon_, width_)) {
      found_.push_back(static_cast<std::uint32_t>(row));
    }
  }
}

template <class T, class Matrix>
DualScales DualRows<T, Matrix>::scales(bool swept) const {
  DualScales sums;
  for (const Coordinate<T>& at : own_coordinates()) {
    const auto alpha = static_cast<double>(at.alpha);
    const auto cost = static_cast<double>(at.cost);
    if (!(cost > 0)) continue;
    (alpha > 0 ? sums.positive : sums.negative) += std::abs(alpha);
    ++sums.rows;
    sums.cost += cost;
    sums.norms += cost * static_cast<double>(at.norm);
    sums.curvature += swept ? curvature_at(loss_, alpha, cost) : most_curvature(loss_, cost);
    sums.labels += static_cast<double>(at.target);
  }
  return sums;
}

template <class T, class Matrix>
void DualRows<T, Matrix>::contribute(std::span<double> sums) const {
  const std::span<const Coordinate<T>> own = own_coordinates();
  SignedSums<decltype(view_of(matrix_, 0)), T> all(sums, matrix_.features);
  for (std::size_t i = 0; i < own.size(); ++i) all.add(view_of(matrix_, first_ + i), own[i].alpha);
  all.finish();
}

template <class T, class Matrix>
DualLosses DualRows<T, Matrix>::losses(const T* weights, double intercept,
                                       const DualBalance& balance, std::span<double> sums) const {
  DualLosses losses;
  const std::span<const Coordinate<T>> own = own_coordinates();
  SignedSums<decltype(view_of(matrix_, 0)), T> all(sums, matrix_.features);
  for (std::size_t i = 0; i < own.size(); ++i) {
    const Coordinate<T>& at = own[i];
    const auto cost = static_cast<double>(at.cost);
    if (!(cost > 0)) continue;
    const std::size_t ahead = std::min(i + kRowAhead, own.size() - 1);
    const auto view = view_and_prefetch(matrix_, first_ + i, first_ + ahead);
    const auto target = static_cast<double>(at.target);
    const double p = precise_dot(view, weights) + intercept;
    const double alpha = balance.of(static_cast<double>(at.alpha));
    losses.primal += cost * loss_at(loss_, epsilon_, target, p).loss;
    losses.dual += dual_at(loss_, epsilon_, alpha, target, cost);
    all.add(view, at.alpha);
  }
  all.finish();
  return losses;
}

template <class T, class Matrix>
void DualRows<T, Matrix>::scale(const DualBalance& balance) {
  for (Coordinate<T>& at : own_coordinates()) {
    at.alpha = static_cast<T>(balance.of(static_cast<double>(at.alpha)));
  }
}

template <class T, class Matrix>
void DualRows<T, Matrix>::copy_alphas(std::span<T> alphas) const {
  const std::span<const Coordinate<T>> own = own_coordinates();
  check_length("alphas", alphas.size(), own.size(), "one for each of the rank's rows");
  std::transform(own.begin(), own.end(), alphas.begin(),
                 [](const Coordinate<T>& at) { return at.alpha; });
}

template class DualRows<float, Csr<float>>;
template class DualRows<double, Csr<double>>;
template class DualRows<float, Dense<float>>;
template class DualRows<double, Dense<double>>;

}  // namespace learn
