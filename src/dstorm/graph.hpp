// Graphs: which rank sends to which, round by round. Pure data and pure functions, no
// communication.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace dstorm {

struct Circulant;
class EdgeTable;

// A directed communication graph over ranks 0..size-1. It may differ from round to round.
// Immutable, cheap to copy, and safe to use from any thread. Each call gives the size, so one graph
// serves jobs of any size, except edges(), which belongs to one size.
class Graph {
 public:
  static Graph all();  // every rank to every other
  // To rank + N/2, N/4, 3N/4, N/8, ..., the Halton sequence (MALT, section 3.4), of which this
  // graph takes the first offset of each level: N/2, N/4, N/8, ..., 1, floor(log2 N) offsets. That
  // mends the published rule, which leaves the graph disconnected at some N: this graph is
  // connected at every N.
  static Graph halton();
  static Graph ring();         // to rank+1 and rank-1
  static Graph exponential();  // to rank + 2^k, k = 0 .. ceil(log2 N)-1
  static Graph one_peer();     // round t: to rank + 2^(t mod ceil(log2 N)) only
  // k new out-neighbours and k new in-neighbours in each round (size - 1 if k is larger), drawn
  // identically on every rank. Each round by itself is strongly connected. Throws ConfigError if k
  // is below 1.
  static Graph random(int k, std::uint64_t seed);
  static Graph star();  // rank 0 in the middle
  // The user's own (from, to) pairs, for a job of highest rank + 1 ranks. A pair given twice counts
  // once. Throws ConfigError on a negative rank or a self-loop.
  static Graph edges(std::vector<std::pair<int, int>> pairs);

  // The out- and in-neighbours of `rank`, sorted, without `rank` itself. O(size) at most for every
  // kind. Both throw ConfigError if rank or size is out of range, or if the graph is for another
  // size.
  std::vector<int> out(int rank, int size, std::uint64_t round = 0) const;
  std::vector<int> in(int rank, int size, std::uint64_t round = 0) const;

  // The mixing weight of each rank of in(rank, size, round), in that order. The rank's own weight
  // is 1 minus their sum. The weights are doubly stochastic where the graph allows it: 1/(d+1) if
  // every rank has d in-neighbours and d out-neighbours, Metropolis-Hastings if every edge has its
  // reverse. For other graphs they are 1/(in-neighbours + 1): each row then adds up to 1, but a
  // column may not.
  std::vector<double> weights(int rank, int size, std::uint64_t round = 0) const;

  // The number of rounds after which the graph repeats; 1 if it is the same in every round. For
  // random() it is the number of rounds over which the graph is judged.
  std::uint64_t period(int size) const;
  bool is_static() const noexcept;
  // Whether round + period is the same as round. False for random(), which draws anew in every
  // round.
  bool repeats() const noexcept;

  // The graph for the ranks that remain when only `living` (sorted) of `size` ranks are left: a
  // graph for a job of living.size() ranks, whose rank i is living[i]. The built-in graphs are
  // drawn anew for the smaller job. In a graph of the user's own edges, an edge that led to a
  // removed rank now leads to the ranks to which that rank would have passed things on, so what was
  // connected stays connected.
  Graph repaired(std::span<const int> living, int size) const;

  // Throws ConfigError naming the ranks that rank 0 cannot reach, or that cannot reach rank 0, over
  // one period.
  void check(int size) const;

  // 1 - the second largest singular value of the mixing matrix, per round. For a graph that varies,
  // the singular value is that of the product over one period, raised to the power 1/period. 1
  // mixes at once, 0 never. If the matrix is not doubly stochastic, the singular values are those
  // in the norm weighted by its stationary distribution. May take seconds past a thousand ranks:
  // not for the hot path.
  double spectral_gap(int size) const;

  // The parameters the graph was made of, to make it again elsewhere: k and seed of random(), the
  // pairs of edges() (sorted, each once); nullopt for other graphs.
  std::optional<std::pair<int, std::uint64_t>> drawing() const noexcept;
  std::optional<std::vector<std::pair<int, int>>> pairs() const;

  std::string name() const;                    // "HALTON", "RANDOM(2, seed=7)", ...
  std::uint64_t fingerprint() const noexcept;  // equal on all ranks iff the graph is
  bool operator==(const Graph& other) const noexcept;

 private:
  enum class Kind : std::uint8_t {
    kAll,
    kHalton,
    kRing,
    kExponential,
    kOnePeer,
    kRandom,
    kStar,
    kEdges
  };
  explicit Graph(Kind kind) : kind_(kind) {}

  struct Reach {  // ranks without a path from rank 0, and ranks without a path to it
    std::vector<int> not_from_first;
    std::vector<int> not_to_first;
    bool all() const { return not_from_first.empty() && not_to_first.empty(); }
  };

  void require(int size) const;
  void require(int rank, int size) const;
  bool is_circulant() const noexcept { return kind_ != Kind::kStar && kind_ != Kind::kEdges; }
  Circulant circulant(int size, std::uint64_t round) const;
  Reach reach(int size) const;
  double matrix_gap(int size) const;

  Kind kind_;
  int k_ = 0;                               // random() only
  std::uint64_t seed_ = 0;                  // random() only
  std::shared_ptr<const EdgeTable> edges_;  // edges() only
};

}  // namespace dstorm
