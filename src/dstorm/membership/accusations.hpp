// Accusations: which ranks accuse which of silence, and which ranks the next epoch has to do
// without. Each rank that accuses anybody has a row of bits. So the work grows with the ranks and
// the accusations, and not with their product.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace dstorm {

class Accusations {
 public:
  // For ranks below `ranks`.
  explicit Accusations(int ranks);

  // Replaces what `accuser` said before. A rank in `accused` that is not below `ranks` is no
  // member; its only effect is that any() is true.
  void set(int accuser, std::span<const int> accused);
  bool any() const noexcept { return accusers_ > 0; }
  // By rank: whether ranks of two or more hosts accuse it, of those ranks that nobody accuses.
  // `hosts` has the host of each rank; empty: each is one.
  std::vector<bool> accused_by_two_hosts(std::span<const int> hosts) const;
  // The ranks of `members` that can stay together, sorted: none of them accuses another. Ranks are
  // removed one by one: first the rank that accuses, or is accused by, the most of those left; of
  // several such ranks the highest.
  std::vector<int> at_peace(const std::vector<int>& members) const;

 private:
  using Word = std::uint64_t;

  std::vector<Word> pairs_among(const std::vector<Word>& members) const;

  std::size_t words_;                    // words of a row
  std::vector<std::vector<Word>> rows_;  // by accuser; empty: accuses nobody
  std::size_t accusers_ = 0;
  std::vector<std::uint32_t> accused_;  // by rank: by how many
};

}  // namespace dstorm
