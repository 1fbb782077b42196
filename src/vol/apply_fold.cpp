#include "vol/apply_fold.hpp"

#include <algorithm>
#include <cassert>
#include <numeric>

namespace vol {

std::vector<double> mixing_weights(const dstorm::Segment& segment,
                                   std::span<const dstorm::Update> updates) {
  const dstorm::Graph& graph = segment.options().graph;
  std::vector<double> weights(1);
  for (const dstorm::Update& update : updates) {
    const bool own_round = graph.is_static() || update.iteration == segment.iteration();
    // An update of another round was sent by the graph of that round.
    const dstorm::Segment::Round round =
        own_round ? dstorm::Segment::Round{{}, segment.in_neighbours(), segment.weights()}
                  : segment.round(update.iteration - 1);
    const auto at = std::lower_bound(round.in.begin(), round.in.end(), update.rank);
    if (at == round.in.end() || *at != update.rank) {
      if (segment.is_repaired()) {  // sent by the graph of an earlier epoch
        weights.push_back(0);
        continue;
      }
      throw dstorm::ConfigError("WEIGHTED has no weight for rank " + std::to_string(update.rank) +
                                ", which is no in-neighbour of rank " +
                                std::to_string(segment.group().rank()) + " under " + graph.name() +
                                "; scatter over the vector's own graph, or use AVG");
    }
    const auto same_sender = std::count_if(updates.begin(), updates.end(), [&](const auto& other) {
      return other.rank == update.rank;
    });
    weights.push_back(round.weights[static_cast<std::size_t>(at - round.in.begin())] /
                      static_cast<double>(same_sender));
  }
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  const auto count = static_cast<double>(updates.size());
  const double most = graph.is_static() ? 1.0 : count / (count + 1);
  if (sum > most) {
    for (double& weight : weights) weight *= most / sum;
  }
  weights[0] = 1.0 - std::min(sum, most);
  return weights;
}

void apply_fold(const Fold& fold, const Kernels& kernels, void* out,
                std::span<const void* const> in, std::span<const double> weights, std::size_t n) {
  const std::size_t k = in.size();
  switch (fold.kind()) {
    case Fold::Kind::kAvg:
      return kernels.mean(out, in.data(), k, n);
    case Fold::Kind::kSum:
      return kernels.sum(out, in.data(), k, n);
    case Fold::Kind::kWeighted:
      return kernels.weighted(out, in.data(), weights.data(), k, n);
    case Fold::Kind::kMedian:
      return kernels.median(out, in.data(), k, n);
    case Fold::Kind::kTrimmedMean: {
      const double trim = fold.fraction() * static_cast<double>(k);
      return kernels.trimmed_mean(out, in.data(), static_cast<std::size_t>(trim), k, n);
    }
    case Fold::Kind::kReplace:
    case Fold::Kind::kLowest:
    case Fold::Kind::kUser:
      assert(false && "not element by element");
  }
}

}  // namespace vol
