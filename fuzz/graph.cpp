// A user's edges.
//
// input: size of the job (1 byte), then edges: two ranks of 1 byte each, or behind 255 of 4
#include "dstorm/graph.hpp"

#include <cmath>
#include <numeric>

#include "target.hpp"

namespace fuzz {
namespace {

int take_rank(Input& input) {
  const auto small = input.take<std::uint8_t>();
  return small == 255 ? input.take<std::int32_t>() : small % 16;
}

void check(const dstorm::Graph& graph, int size) {
  for (int rank = 0; rank < size; ++rank) {
    const std::vector<int> in = graph.in(rank, size);
    const std::vector<double> weights = graph.weights(rank, size);
    require(weights.size() == in.size(), "a weight for each in-neighbour");
    require(std::accumulate(weights.begin(), weights.end(), 0.0) < 1, "some weight is its own");
    for (const int from : in) {
      const std::vector<int> out = graph.out(from, size);
      require(std::binary_search(out.begin(), out.end(), rank), "who is heard of sends");
    }
  }
  const double gap = graph.spectral_gap(size);
  require(gap >= 0 && gap <= 1, "a gap is from 0 to 1");
}

}  // namespace

void run(Input input) {
  const int size = input.take<std::uint8_t>() % 18;
  std::vector<std::pair<int, int>> pairs;
  while (!input.empty()) {
    const int from = take_rank(input);
    pairs.emplace_back(from, take_rank(input));
  }
  is_refused([&] {
    const auto graph = dstorm::Graph::edges(pairs);
    require(graph == dstorm::Graph::edges({pairs.rbegin(), pairs.rend()}), "order says nothing");
    graph.check(size);
    check(graph, size);
  });
}

}  // namespace fuzz
