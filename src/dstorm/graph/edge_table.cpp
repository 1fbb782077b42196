#include "dstorm/graph/edge_table.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>

#include "dstorm/errors.hpp"

namespace dstorm {
namespace {

using Pair = std::pair<int, int>;

std::string describe(const Pair& edge) {
  return "(" + std::to_string(edge.first) + ", " + std::to_string(edge.second) + ")";
}

void require_edge(const Pair& edge) {
  if (edge.first < 0 || edge.second < 0) {
    throw ConfigError("edge " + describe(edge) +
                      " has a negative rank; ranks are 0..size-1, and an edge is (from, to)");
  }
  if (edge.first == edge.second) {
    throw ConfigError("edge " + describe(edge) + " sends from rank " + std::to_string(edge.first) +
                      " to itself; leave it out: a rank's own value always takes part in a gather");
  }
}

// The pairs that begin with `rank`; `pairs` is sorted.
std::span<const Pair> of_rank(const std::vector<Pair>& pairs, int rank) {
  constexpr int kLowest = std::numeric_limits<int>::min();
  constexpr int kHighest = std::numeric_limits<int>::max();
  return {std::lower_bound(pairs.begin(), pairs.end(), Pair{rank, kLowest}),
          std::upper_bound(pairs.begin(), pairs.end(), Pair{rank, kHighest})};
}

std::vector<int> seconds(std::span<const Pair> pairs) {
  std::vector<int> ranks;
  ranks.reserve(pairs.size());
  for (const Pair& pair : pairs) ranks.push_back(pair.second);
  return ranks;
}

// How many pairs begin with each of the ranks 0..size-1 if that is the same for all; otherwise 0.
std::size_t common_degree(const std::vector<Pair>& pairs, std::int64_t size) {
  const auto ranks = static_cast<std::size_t>(size);
  if (pairs.empty() || pairs.size() % ranks != 0) return 0;
  const std::size_t degree = pairs.size() / ranks;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    if (static_cast<std::size_t>(pairs[i].first) != i / degree) return 0;
  }
  return degree;
}

}  // namespace

EdgeTable::EdgeTable(std::vector<Pair> pairs) : by_sender_(std::move(pairs)) {
  std::ranges::for_each(by_sender_, require_edge);
  std::ranges::sort(by_sender_);
  by_sender_.erase(std::unique(by_sender_.begin(), by_sender_.end()), by_sender_.end());

  by_receiver_.reserve(by_sender_.size());
  for (const auto& [from, to] : by_sender_) {
    by_receiver_.emplace_back(to, from);
    size_ = std::max({size_, from + std::int64_t{1}, to + std::int64_t{1}});
  }
  std::ranges::sort(by_receiver_);

  symmetric_ = by_sender_ == by_receiver_;
  regular_ = common_degree(by_sender_, size_) != 0 && common_degree(by_receiver_, size_) != 0;
}

void EdgeTable::require(int size) const {
  if (size == size_) return;
  const std::string ways_out = " or start " + std::to_string(size_) + " ranks";
  if (size > size_) {
    throw ConfigError(name() + " has edges between ranks 0.." + std::to_string(size_ - 1) +
                      ", the job has ranks up to " + std::to_string(size - 1) +
                      ", which would send and receive nothing; add edges for them" + ways_out);
  }
  const auto beyond = std::ranges::find_if(
      by_sender_, [size](const Pair& edge) { return std::max(edge.first, edge.second) >= size; });
  throw ConfigError(name() + " has the edge " + describe(*beyond) + ", the job has " +
                    std::to_string(size) + " ranks, 0.." + std::to_string(size - 1) +
                    "; remove the edges of other ranks" + ways_out);
}

std::vector<int> EdgeTable::out(int rank) const { return seconds(of_rank(by_sender_, rank)); }

std::vector<int> EdgeTable::in(int rank) const { return seconds(of_rank(by_receiver_, rank)); }

std::vector<double> EdgeTable::weights(int rank) const {
  const std::span<const Pair> mine = of_rank(by_receiver_, rank);
  std::vector<double> weights(mine.size(), 1.0 / (static_cast<double>(mine.size()) + 1.0));
  if (regular_ || !symmetric_) return weights;
  // Metropolis-Hastings: the end of an edge that has more neighbours sets its weight, for both
  // ends.
  for (std::size_t i = 0; i < mine.size(); ++i) {
    const std::size_t theirs = of_rank(by_sender_, mine[i].second).size();
    weights[i] = 1.0 / (static_cast<double>(std::max(mine.size(), theirs)) + 1.0);
  }
  return weights;
}

std::string EdgeTable::name() const {
  return "Graph(" + std::to_string(by_sender_.size()) +
         (by_sender_.size() == 1 ? " edge)" : " edges)");
}

}  // namespace dstorm
