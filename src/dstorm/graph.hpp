// Who sends to whom, round by round: pure data and pure functions, no communication.
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

// A directed communication graph over ranks 0..size-1, possibly different in every round.
// Immutable and cheap to copy; safe to use from any thread. The size is given with each call, so
// that one graph serves jobs of any size (except edges(), which belongs to one size).
class Graph {
 public:
  static Graph all();     // everyone to everyone
  static Graph halton();  // to rank + N/2, N/4, N/8, ..., 1: floor(log2 N) offsets, the first of
                          // each level of the Halton sequence (MALT, section 3.4), which
                          // mends the published rule: connected at every N
  static Graph ring();    // to rank+1 and rank-1
  static Graph exponential();  // to rank + 2^k, k = 0 .. ceil(log2 N)-1
  static Graph one_peer();     // round t: to rank + 2^(t mod ceil(log2 N)) only
  // k new out-neighbours and k new in-neighbours a round (size - 1 where k is more), the same
  // drawing on every rank; each round is strongly connected by itself. Throws ConfigError if k < 1.
  static Graph random(int k, std::uint64_t seed);
  static Graph star();  // rank 0 in the middle
  // The user's own (from, to) pairs, for a job of highest rank + 1 ranks; a pair given twice counts
  // once. Throws ConfigError on a negative rank or a self-loop.
  static Graph edges(std::vector<std::pair<int, int>> pairs);

  // Sorted, without `rank` itself. O(size) at most, for every kind. Throw ConfigError if rank or
  // size is out of range, or the graph is for another size.
  std::vector<int> out(int rank, int size, std::uint64_t round = 0) const;
  std::vector<int> in(int rank, int size, std::uint64_t round = 0) const;

  // Mixing weight of each of in(rank, size, round), in that order; what is missing to 1 is the
  // rank's own weight. Doubly stochastic where the graph allows it: 1/(d+1) where every rank has d
  // in- and d out-neighbours, Metropolis-Hastings where every edge has its reverse. Elsewhere
  // 1/(in-neighbours + 1), whose rows add up to 1 and whose columns may not.
  std::vector<double> weights(int rank, int size, std::uint64_t round = 0) const;

  // Rounds after which the graph repeats; 1 if it is the same in every round. For random(), the
  // number of rounds over which it is judged.
  std::uint64_t period(int size) const;
  bool is_static() const noexcept;
  // Whether round + period is as round. Not so for random(), which draws anew in every round.
  bool repeats() const noexcept;

  // What becomes of it when of `size` ranks only `living` (sorted) are left: a graph for a job of as
  // many, whose rank i is living[i]. Every graph is drawn anew for the smaller job; edges of the
  // user's own that led to a lost rank now lead to whom it would have passed things on, so that
  // what was connected stays so.
  Graph repaired(std::span<const int> living, int size) const;

  // Throws ConfigError naming the ranks that cannot be reached from rank 0, or that cannot reach
  // it, over one period.
  void check(int size) const;

  // 1 - the second largest singular value of the mixing matrix, per round: for a graph that varies,
  // of the product over one period, taken to the power 1/period. 1 mixes at once, 0 never. Where
  // the matrix is not doubly stochastic, singular values are those in the norm weighted by its
  // stationary distribution. May take seconds past a thousand ranks; not for the hot path.
  double spectral_gap(int size) const;

  // What it was made of, to make it again elsewhere: random()'s k and seed, edges()' pairs (sorted,
  // each once); none of the other graphs.
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

  struct Reach {  // the ranks that have no path from rank 0, and those that have none to it
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
