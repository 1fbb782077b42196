// Jobs of several ranks of dual ascent, in one process.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "learn/dual_problem.hpp"

namespace learn {

// Some rows of a problem, as a matrix that a rank trains on.
template <class T>
class Shard {
 public:
  Shard(const DualProblem& problem, std::span<const std::size_t> rows)
      : features_(problem.features) {
    for (const std::size_t i : rows) {
      for (std::int32_t j = 0; j < features_; ++j) {
        const T value = static_cast<T>(problem.row(i)[static_cast<std::size_t>(j)]);
        dense_.push_back(value);
        if (value == 0) continue;
        columns_.push_back(j);
        values_.push_back(value);
      }
      starts_.push_back(static_cast<std::int64_t>(values_.size()));
      targets_.push_back(static_cast<T>(problem.targets[i]));
      weights_.push_back(static_cast<T>(problem.weights[i]));
    }
  }
  Csr<T> csr() const { return {starts_, columns_, values_, features_}; }
  Dense<T> dense() const { return {dense_, features_}; }
  Targets<T> targets() const { return {targets_, weights_}; }

 private:
  std::int64_t features_;
  std::vector<std::int64_t> starts_{0};
  std::vector<std::int32_t> columns_;
  std::vector<T> values_;
  std::vector<T> dense_;
  std::vector<T> targets_;
  std::vector<T> weights_;
};

inline std::vector<std::size_t> all_rows(const DualProblem& problem) {
  std::vector<std::size_t> rows(problem.rows());
  std::iota(rows.begin(), rows.end(), std::size_t{0});
  return rows;
}

// Shards that are unequal and unlike: rows sorted by target, rank k's part k + 1 times the first's.
inline std::vector<std::vector<std::size_t>> unlike_shards(const DualProblem& problem,
                                                           std::size_t ranks) {
  std::vector<std::size_t> rows = all_rows(problem);
  std::sort(rows.begin(), rows.end(), [&](std::size_t a, std::size_t b) {
    return std::pair(problem.targets[a], a) < std::pair(problem.targets[b], b);
  });
  std::vector<std::vector<std::size_t>> shards(ranks);
  const std::size_t parts = ranks * (ranks + 1) / 2;
  for (std::size_t k = 0; k < ranks; ++k) {
    const std::size_t first = rows.size() * (k * (k + 1) / 2) / parts;
    const std::size_t last = rows.size() * ((k + 1) * (k + 2) / 2) / parts;
    for (std::size_t i = first; i < last; ++i) shards[k].push_back(rows[i]);
  }
  return shards;
}

// So many ranks share all rows, which are dealt out anew in each sweep.
struct Dealt {
  std::size_t ranks;
};

// The rows of a sweep, of all ranks together.
struct SweptRows {
  std::int64_t announced = 0;  // by begin_sweep()
  std::int64_t visited = 0;    // by sweep()
};

// All ranks of a job, in one process.
template <class T>
class DualJob {
 public:
  // Each rank has rows of its own.
  DualJob(const DualProblem& problem, const std::vector<std::vector<std::size_t>>& shards,
          bool is_sparse)
      : features_(static_cast<std::size_t>(problem.features)) {
    DualOptions options = problem.options;
    options.ranks = static_cast<int>(shards.size());
    for (const auto& rows : shards) {
      options.seed += 1;
      shards_.push_back(std::make_unique<Shard<T>>(problem, rows));
      add_rank(options, *shards_.back(), is_sparse, {}, {});
    }
  }
  DualJob(const DualProblem& problem, Dealt dealt, bool is_sparse, const DualStart<T>& start = {})
      : features_(static_cast<std::size_t>(problem.features)),
        memory_(4 * problem.rows()),
        lists_(dealt.ranks * dealt_list_length(problem.rows(), dealt.ranks)) {
    DualOptions options = problem.options;
    options.ranks = static_cast<int>(dealt.ranks);
    shards_.push_back(std::make_unique<Shard<T>>(problem, all_rows(problem)));
    for (int rank = 0; rank < options.ranks; ++rank) {
      add_rank(options, *shards_.front(), is_sparse, start, {memory_, lists_, rank});
    }
  }

  DualAscent<T>& rank(std::size_t k) { return ranks_[k]; }
  std::size_t size() const { return ranks_.size(); }
  // A rank dies with its rows.
  void lose_last() {
    ranks_.pop_back();
    for (DualAscent<T>& rank : ranks_) rank.set_ranks(static_cast<int>(ranks_.size()));
  }

  DualScales scales() const {
    DualScales all;
    for (const DualAscent<T>& rank : ranks_) {
      const DualScales own = rank.scales();
      all.rows += own.rows;
      all.positive += own.positive;
      all.negative += own.negative;
      all.cost += own.cost;
      all.norms += own.norms;
      all.curvature += own.curvature;
      all.labels += own.labels;
    }
    return all;
  }
  void settle() {
    const DualScales all = scales();
    exchange<double>(
        ranks_.front().contribution_length(),
        [&](auto& rank, auto own) { rank.contribute(all, own); },
        [](auto& rank, auto sum) { rank.settle(sum); });
  }
  SweptRows sweep(int pieces) {
    SweptRows rows;
    for (DualAscent<T>& rank : ranks_) rows.announced += rank.begin_sweep();
    for (int piece = 0; piece < pieces; ++piece) {
      for (DualAscent<T>& rank : ranks_) rows.visited += rank.sweep(piece, pieces);
      exchange<T>(
          features_ + 2, [](auto& rank, auto own) { rank.take_change(own); },
          [](auto& rank, auto sum) { rank.add_changes(sum); });
    }
    return rows;
  }
  double estimate() const {
    return std::accumulate(ranks_.begin(), ranks_.end(), 0.0,
                           [](double sum, const auto& rank) { return sum + rank.estimate(); });
  }
  DualGap gap() {
    const DualScales scales_of_all = scales();
    DualLosses all;
    DualGap gap;
    exchange<double>(
        ranks_.front().contribution_length(),
        [&](auto& rank, auto own_part) {
          const DualLosses own = rank.losses(scales_of_all, own_part);
          all.primal += own.primal;
          all.dual += own.dual;
        },
        [&](auto& rank, auto sum) { gap = rank.gap(all, sum); });
    return gap;
  }

  // Sweeps until the gap is at most `tolerance` of the primal objective. Returns the last gap.
  DualGap solve(double tolerance, int most_sweeps, int pieces = 16) {
    settle();
    DualGap last;
    for (sweeps = 1; sweeps <= most_sweeps; ++sweeps) {
      sweep(pieces);
      if (sweeps % 4 != 0) continue;
      last = gap();
      if (last.primal - last.dual <= tolerance * last.primal) break;
    }
    return last;
  }
  int sweeps = 0;

  std::vector<double> weights() const {
    return {ranks_.front().weights().begin(), ranks_.front().weights().end()};
  }
  double intercept() const { return ranks_.front().intercept(); }

 private:
  void add_rank(const DualOptions& options, const Shard<T>& shard, bool is_sparse,
                const DualStart<T>& start, const DualDeal<T>& deal) {
    if (is_sparse) {
      ranks_.emplace_back(options, shard.csr(), shard.targets(), start, deal);
    } else {
      ranks_.emplace_back(options, shard.dense(), shard.targets(), start, deal);
    }
  }
  template <class Value, class Give, class Take>
  void exchange(std::size_t length, Give give, Take take) {
    std::vector<Value> sum(length);
    std::vector<Value> own(length);
    for (DualAscent<T>& rank : ranks_) {
      give(rank, std::span<Value>(own));
      for (std::size_t j = 0; j < length; ++j) sum[j] += own[j];
    }
    for (DualAscent<T>& rank : ranks_) take(rank, std::span<const Value>(sum));
  }

  std::size_t features_;
  std::vector<T> memory_;             // of dealt rows
  std::vector<std::uint32_t> lists_;  // and theirs
  std::vector<std::unique_ptr<Shard<T>>> shards_;
  std::vector<DualAscent<T>> ranks_;
};

}  // namespace learn
