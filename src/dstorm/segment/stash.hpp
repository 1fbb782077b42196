// Updates that this rank has copied out of their slots before a gather folds them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "dstorm/slot/layout.hpp"

namespace dstorm {

// Updates are stashed to free their slots (Strays), and when a segment leaves a group, whose slots
// end with it (regrouping.cpp). The next gather takes a sender's stashed updates before those in
// its slots.
class Stash {
 public:
  struct Stashed {
    int rank;  // its sender
    SlotHeader header;
    std::uint64_t ordinal;
    std::vector<std::byte> payload;
  };

  // The updates of one sender are added in order of iteration.
  void add(Stashed update) { updates_.push_back(std::move(update)); }
  bool is_empty() const { return updates_.empty(); }
  const std::vector<Stashed>& updates() const { return updates_; }
  std::size_t count(int rank) const;
  // The newest update of `rank` up to iteration `limit`, or null.
  const Stashed* newest(int rank, std::uint64_t limit) const;
  // The ordinal of the last update of `rank`, or 0.
  std::uint64_t last_ordinal(int rank) const;

  // A gather has folded or passed over the updates of `rank` up to `iteration`.
  void erase(int rank, std::uint64_t iteration);
  template <class Predicate>
  void erase_senders(Predicate&& is_gone) {
    std::erase_if(updates_, [&](const Stashed& update) { return is_gone(update.rank); });
  }

 private:
  std::vector<Stashed> updates_;
};

}  // namespace dstorm
