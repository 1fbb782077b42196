#include "dstorm/graph.hpp"

#include <cstddef>
#include <set>

#include "dstorm/errors.hpp"
#include "dstorm/graph/circulant.hpp"
#include "dstorm/graph/edge_table.hpp"

namespace dstorm {
namespace {

// RANDOM does not repeat. It is judged over this many times the fewest rounds in which news from
// one rank can reach all ranks.
constexpr std::uint64_t kRandomJudged = 4;

// FNV-1a, which takes in one 64-bit value byte by byte.
std::uint64_t hash(std::uint64_t so_far, std::uint64_t value) {
  for (int byte = 0; byte < 8; ++byte) {
    so_far = (so_far ^ ((value >> (8 * byte)) & 0xffU)) * 0x100000001b3U;
  }
  return so_far;
}

}  // namespace

Graph Graph::all() { return Graph(Kind::kAll); }
Graph Graph::halton() { return Graph(Kind::kHalton); }
Graph Graph::ring() { return Graph(Kind::kRing); }
Graph Graph::exponential() { return Graph(Kind::kExponential); }
Graph Graph::one_peer() { return Graph(Kind::kOnePeer); }
Graph Graph::star() { return Graph(Kind::kStar); }

Graph Graph::random(int k, std::uint64_t seed) {
  if (k < 1) {
    throw ConfigError("RANDOM(k=" + std::to_string(k) +
                      ") would send to no one; k is the number of out-neighbours of a rank in each "
                      "round and must be at least 1 (2 or log2 of the job's size are good values)");
  }
  Graph graph(Kind::kRandom);
  graph.k_ = k;
  graph.seed_ = seed;
  return graph;
}

Graph Graph::edges(std::vector<std::pair<int, int>> pairs) {
  Graph graph(Kind::kEdges);
  graph.edges_ = std::make_shared<const EdgeTable>(std::move(pairs));
  return graph;
}

void Graph::require(int size) const {
  if (size < 1) {
    throw ConfigError("the size of the job is " + std::to_string(size) + "; it must be at least 1");
  }
  if (kind_ == Kind::kEdges) edges_->require(size);
}

void Graph::require(int rank, int size) const {
  require(size);
  if (rank < 0 || rank >= size) {
    throw ConfigError("rank " + std::to_string(rank) + " is not in a job of size " +
                      std::to_string(size) + "; it must be 0.." + std::to_string(size - 1));
  }
}

Circulant Graph::circulant(int size, std::uint64_t round) const {
  switch (kind_) {
    case Kind::kAll:
      return {all_offsets(size), {}, {}};
    case Kind::kHalton:
      return {halton_offsets(size), {}, {}};
    case Kind::kRing:
      return {ring_offsets(size), {}, {}};
    case Kind::kExponential:
      return {exponential_offsets(size), {}, {}};
    case Kind::kOnePeer:
      return {one_peer_offsets(size, round), {}, {}};
    case Kind::kRandom:
      return random_circulant(k_, seed_, size, round);
    case Kind::kStar:
    case Kind::kEdges:
      break;
  }
  return {};
}

std::vector<int> Graph::out(int rank, int size, std::uint64_t round) const {
  require(rank, size);
  if (is_circulant()) return circulant(size, round).out(rank, size);
  if (kind_ == Kind::kEdges) return edges_->out(rank);
  return rank == 0 ? all_offsets(size) : std::vector<int>{0};
}

std::vector<int> Graph::in(int rank, int size, std::uint64_t round) const {
  require(rank, size);
  if (is_circulant()) return circulant(size, round).in(rank, size);
  if (kind_ == Kind::kEdges) return edges_->in(rank);
  return out(rank, size, round);
}

std::vector<double> Graph::weights(int rank, int size, std::uint64_t round) const {
  require(rank, size);
  if (kind_ == Kind::kEdges) return edges_->weights(rank);
  // Metropolis-Hastings for STAR: each edge ends at rank 0, which has size - 1 neighbours.
  if (kind_ == Kind::kStar) {
    return std::vector<double>(in(rank, size, round).size(), 1.0 / size);
  }
  const std::size_t degree = circulant(size, round).offsets.size();
  return std::vector<double>(degree, 1.0 / (static_cast<double>(degree) + 1.0));
}

Graph Graph::repaired(std::span<const int> living, int size) const {
  require(size);
  if (kind_ != Kind::kEdges) return *this;
  std::set<std::pair<int, int>> pairs(edges_->pairs().begin(), edges_->pairs().end());
  std::vector<int> places(static_cast<std::size_t>(size), -1);
  for (std::size_t i = 0; i < living.size(); ++i) {
    places[static_cast<std::size_t>(living[i])] = static_cast<int>(i);
  }
  const auto place = [&](int rank) { return places[static_cast<std::size_t>(rank)]; };
  for (int lost = 0; lost < size; ++lost) {
    if (place(lost) >= 0) continue;
    std::vector<int> from;
    std::vector<int> to;
    for (const auto& [a, b] : pairs) {
      if (b == lost) from.push_back(a);
      if (a == lost) to.push_back(b);
    }
    std::erase_if(pairs, [&](const auto& p) { return p.first == lost || p.second == lost; });
    for (int a : from) {
      for (int b : to) {
        if (a != b) pairs.emplace(a, b);
      }
    }
  }
  std::vector<std::pair<int, int>> left;
  for (const auto& [a, b] : pairs) left.emplace_back(place(a), place(b));
  return edges(std::move(left));
}

std::uint64_t Graph::period(int size) const {
  require(size);
  if (is_static() || size == 1) return 1;
  if (kind_ == Kind::kOnePeer) return static_cast<std::uint64_t>(rounds_to_reach(size, 2));
  return kRandomJudged * static_cast<std::uint64_t>(rounds_to_reach(size, std::int64_t{k_} + 1));
}

bool Graph::is_static() const noexcept { return kind_ != Kind::kOnePeer && kind_ != Kind::kRandom; }

bool Graph::repeats() const noexcept { return kind_ != Kind::kRandom; }

std::optional<std::pair<int, std::uint64_t>> Graph::drawing() const noexcept {
  if (kind_ != Kind::kRandom) return std::nullopt;
  return std::pair(k_, seed_);
}

std::optional<std::vector<std::pair<int, int>>> Graph::pairs() const {
  if (kind_ != Kind::kEdges) return std::nullopt;
  return edges_->pairs();
}

std::string Graph::name() const {
  switch (kind_) {
    case Kind::kAll:
      return "ALL";
    case Kind::kHalton:
      return "HALTON";
    case Kind::kRing:
      return "RING";
    case Kind::kExponential:
      return "EXPONENTIAL";
    case Kind::kOnePeer:
      return "ONE_PEER";
    case Kind::kRandom:
      return "RANDOM(" + std::to_string(k_) + ", seed=" + std::to_string(seed_) + ")";
    case Kind::kStar:
      return "STAR";
    case Kind::kEdges:
      return edges_->name();
  }
  return {};
}

std::uint64_t Graph::fingerprint() const noexcept {
  std::uint64_t print = hash(0xcbf29ce484222325U, static_cast<std::uint64_t>(kind_));
  print = hash(hash(print, static_cast<std::uint64_t>(k_)), seed_);
  if (kind_ != Kind::kEdges) return print;
  for (const auto& [from, to] : edges_->pairs()) {
    print = hash(hash(print, static_cast<std::uint64_t>(from)), static_cast<std::uint64_t>(to));
  }
  return print;
}

bool Graph::operator==(const Graph& other) const noexcept {
  if (kind_ != other.kind_) return false;
  if (kind_ == Kind::kEdges) {
    return edges_ == other.edges_ || edges_->pairs() == other.edges_->pairs();
  }
  return k_ == other.k_ && seed_ == other.seed_;
}

}  // namespace dstorm
