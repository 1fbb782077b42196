// The user's own edges, stored so that a rank's neighbours are found at once.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace dstorm {

// Immutable after construction. Memory and time grow with the number of edges, not of ranks.
class EdgeTable {
 public:
  // Throws ConfigError on a negative rank or a self-loop.
  explicit EdgeTable(std::vector<std::pair<int, int>> pairs);

  // Throws ConfigError unless the edges use ranks of 0..size-1, including the highest.
  void require(int size) const;

  // Sorted. `rank` may be any number.
  std::vector<int> out(int rank) const;
  std::vector<int> in(int rank) const;
  std::vector<double> weights(int rank) const;  // in the order of in(rank)

  // Whether every row and every column of the weights adds up to 1.
  bool is_doubly_stochastic() const { return regular_ || symmetric_; }

  const std::vector<std::pair<int, int>>& pairs() const { return by_sender_; }
  std::string name() const;

 private:
  std::vector<std::pair<int, int>> by_sender_;    // (from, to), sorted, each once
  std::vector<std::pair<int, int>> by_receiver_;  // (to, from), sorted
  std::int64_t size_ = 1;                         // highest rank + 1
  // every rank has as many in-neighbours as out-neighbours
  bool regular_ = false;
  bool symmetric_ = false;  // each edge has its reverse
};

}  // namespace dstorm
