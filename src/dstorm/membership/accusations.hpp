// Which ranks accuse which of silence, and whom the next epoch has to do without. For each rank that
// accuses anybody a row of bits, so that the work grows with the ranks and the accusations, not with their product.
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

  // In place of what `accuser` said before. Higher ranks among `accused` are no members, and count for nothing
  // but that somebody is accused.
  void set(int accuser, std::span<const int> accused);
  bool any() const noexcept { return accusers_ > 0; }
  // Of `members`, sorted, as many as accuse none of the others that stay and are accused by none of them: the rank
  // with which the most others are at odds goes first, and the highest of several.
  std::vector<int> at_peace(const std::vector<int>& members) const;

 private:
  using Word = std::uint64_t;

  std::vector<Word> pairs_among(const std::vector<Word>& members) const;

  std::size_t words_;                    // in a row
  std::vector<std::vector<Word>> rows_;  // by accuser; empty: accuses nobody
  std::size_t accusers_ = 0;
};

}  // namespace dstorm
