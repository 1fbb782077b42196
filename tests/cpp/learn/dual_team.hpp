// Ranks of dual ascent that run at the same time.
#pragma once

#include <array>
#include <barrier>
#include <cstddef>
#include <thread>
#include <utility>
#include <vector>

#include "learn/dual_job.hpp"

namespace learn {

// Adds up arrays over threads. Nothing else orders what they do, as with an allreduce of processes.
// All get the same bits. Arrays of one turn lie beside those of the turn before, which others may
// still read.
template <class T>
class TeamSums {
 public:
  explicit TeamSums(std::size_t ranks)
      : arrays_{std::vector<std::vector<T>>(ranks), std::vector<std::vector<T>>(ranks)},
        turns_(ranks),
        entered_(static_cast<std::ptrdiff_t>(ranks)) {}

  std::vector<T> add(std::size_t rank, std::vector<T> own) {
    std::vector<T> sum(own.size());
    std::vector<std::vector<T>>& arrays = arrays_[turns_[rank]++ % 2];
    arrays[rank] = std::move(own);
    entered_.arrive_and_wait();
    for (const std::vector<T>& each : arrays) {
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += each[i];
    }
    return sum;
  }

 private:
  std::array<std::vector<std::vector<T>>, 2> arrays_;
  std::vector<std::size_t> turns_;
  std::barrier<> entered_;
};

// Solves a job with a thread for each rank.
template <class T>
class DualTeam {
 public:
  explicit DualTeam(DualJob<T>& job) : job_(job), few_(job.size()), wide_(job.size()) {}

  // Sweeps until the gap is at most `tolerance` of the primal objective.
  void solve(double tolerance, int most_sweeps, int pieces) {
    std::vector<std::jthread> threads;
    for (std::size_t k = 0; k < job_.size(); ++k) {
      threads.emplace_back([=, this] { drive(k, tolerance, most_sweeps, pieces); });
    }
  }

 private:
  void drive(std::size_t k, double tolerance, int most_sweeps, int pieces) {
    settle(k);
    for (int sweep = 1; sweep <= most_sweeps; ++sweep) {
      take_sweep(k, pieces);
      if (sweep % 4 != 0) continue;
      const DualGap gap = measure(k);
      if (gap.primal - gap.dual <= tolerance * gap.primal) return;
    }
  }
  DualScales scales(std::size_t k) {
    const DualScales own = job_.rank(k).scales();
    const std::vector<double> all = few_.add(
        k, {own.rows, own.positive, own.negative, own.cost, own.norms, own.curvature, own.labels});
    return {all[0], all[1], all[2], all[3], all[4], all[5], all[6]};
  }
  void settle(std::size_t k) {
    DualAscent<T>& rank = job_.rank(k);
    std::vector<double> contribution(rank.contribution_length());
    rank.contribute(scales(k), contribution);
    rank.settle(few_.add(k, contribution));
  }
  DualGap measure(std::size_t k) {
    DualAscent<T>& rank = job_.rank(k);
    std::vector<double> contribution(rank.contribution_length());
    const DualLosses own = rank.losses(scales(k), contribution);
    const std::vector<double> all = few_.add(k, {own.primal, own.dual});
    return rank.gap({all[0], all[1]}, few_.add(k, contribution));
  }
  void take_sweep(std::size_t k, int pieces) {
    DualAscent<T>& rank = job_.rank(k);
    rank.begin_sweep();
    for (int piece = 0; piece < pieces; ++piece) {
      rank.sweep(piece, pieces);
      std::vector<T> change(rank.weights().size() + 2);
      rank.take_change(change);
      rank.add_changes(wide_.add(k, change));
    }
  }

  DualJob<T>& job_;
  TeamSums<double> few_;
  TeamSums<T> wide_;
};

}  // namespace learn
