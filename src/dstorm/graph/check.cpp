// Whether a graph is fit for a job, and how well: Graph::check() and Graph::spectral_gap().
#include <algorithm>
#include <cmath>
#include <cstddef>

#include "dstorm/errors.hpp"
#include "dstorm/graph.hpp"
#include "dstorm/graph/circulant.hpp"
#include "dstorm/graph/edge_table.hpp"
#include "dstorm/graph/mixing.hpp"

namespace dstorm {
namespace {

using Neighbours = std::vector<std::vector<int>>;  // by rank

// The ranks to which no path along `next` leads from rank 0, sorted.
std::vector<int> unreached(const Neighbours& next) {
  std::vector<bool> reached(next.size());
  reached[0] = true;
  std::vector<int> open{0};
  while (!open.empty()) {
    const int rank = open.back();
    open.pop_back();
    for (const int neighbour : next[static_cast<std::size_t>(rank)]) {
      const auto at = static_cast<std::size_t>(neighbour);
      if (!reached[at]) open.push_back(neighbour);
      reached[at] = true;
    }
  }
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < next.size(); ++rank) {
    if (!reached[rank]) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

}  // namespace

// A circulant is connected iff its offsets and its size have no common divisor. Every circulant
// here has the offset 1, in round 0 if not in all rounds. So only the other graphs need a search.
Graph::Reach Graph::reach(int size) const {
  if (is_circulant()) return {};
  Neighbours out_of;
  Neighbours in_of;
  for (int rank = 0; rank < size; ++rank) {
    out_of.push_back(out(rank, size));
    in_of.push_back(in(rank, size));
  }
  return {unreached(out_of), unreached(in_of)};
}

void Graph::check(int size) const {
  require(size);
  const Reach found = reach(size);
  if (found.all()) return;
  std::string message =
      name() + " is not connected in a job of size " + std::to_string(size) + ": ";
  if (!found.not_from_first.empty()) {
    message += describe_ranks(found.not_from_first) + " cannot be reached from rank 0";
  }
  if (!found.not_to_first.empty()) {
    if (!found.not_from_first.empty()) message += ", and ";
    message += describe_ranks(found.not_to_first) + " cannot reach rank 0";
  }
  throw ConfigError(message + "; what they learn would never get to the others; add edges until " +
                    "every rank can be reached from every other");
}

double Graph::spectral_gap(int size) const {
  require(size);
  if (size == 1) return 1;
  if (kind_ == Kind::kAll || (kind_ == Kind::kRandom && k_ >= size - 1)) return 1;
  if (!is_circulant() || kind_ == Kind::kRandom) return matrix_gap(size);
  std::vector<std::vector<int>> rounds(period(size));
  for (std::uint64_t round = 0; round < rounds.size(); ++round) {
    rounds[round] = circulant(size, round).offsets;
  }
  return 1 - std::pow(second_singular_value(rounds, size), 1 / static_cast<double>(rounds.size()));
}

double Graph::matrix_gap(int size) const {
  if (!reach(size).all()) return 0;
  std::vector<MixingMatrix> rounds(period(size));
  for (std::uint64_t round = 0; round < rounds.size(); ++round) {
    const Circulant now = circulant(size, round);
    const std::vector<double> equal(now.offsets.size(),
                                    1.0 / (static_cast<double>(now.offsets.size()) + 1));
    for (int rank = 0; rank < size; ++rank) {
      if (is_circulant()) {
        rounds[round].add_row(now.in(rank, size), equal);
      } else {
        rounds[round].add_row(in(rank, size), weights(rank, size));
      }
    }
  }
  const bool doubly_stochastic = kind_ != Kind::kEdges || edges_->is_doubly_stochastic();
  const std::vector<double> stationary =
      doubly_stochastic ? std::vector<double>(static_cast<std::size_t>(size), 1.0 / size)
                        : stationary_distribution(rounds[0]);
  const double shrinks = second_singular_value(std::move(rounds), stationary);
  return 1 - std::pow(shrinks, 1 / static_cast<double>(period(size)));
}

}  // namespace dstorm
