// A MembershipRecord as 64-bit words. It has this form in the memory of a host, with one record a
// rank, and in frames. The last word is a checksum over the others, because a writer may die
// halfway, or another writer may overtake it and write for the same rank.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "dstorm/membership/membership.hpp"

namespace dstorm {

class RecordFormat {
 public:
  using Words = std::vector<std::uint64_t>;
  using Cell = std::span<std::atomic<std::uint64_t>>;

  explicit RecordFormat(int ranks) : ranks_(ranks) {}
  std::size_t words() const { return kFixed + kSets * words_of_set() + 1; }

  Words pack(const MembershipRecord& record) const;
  // Returns nothing if the checksum does not match, or if the words name a rank that the job does
  // not have. If the view's epoch is `known_epoch`, its members are omitted: in a large job each
  // record names thousands, which its reader knows already.
  std::optional<MembershipRecord> unpack(std::span<const std::uint64_t> words,
                                         std::optional<std::uint64_t> known_epoch = {}) const;

  static void store(Cell cell, std::span<const std::uint64_t> words);
  static Words load(Cell cell);
  // The beat of the record in `cell`, whether that record is whole or not.
  static std::uint64_t beat(Cell cell) { return cell[0].load(std::memory_order_relaxed); }
  static std::uint64_t news(Cell cell) { return cell[1].load(std::memory_order_relaxed); }

 private:
  static constexpr std::size_t kFixed = 6;  // beat, news, epoch, three ballots
  static constexpr std::size_t kSets = 5;

  bool is_set(std::span<const std::uint64_t> words) const;
  std::size_t words_of_set() const { return (static_cast<std::size_t>(ranks_) + 63) / 64; }

  int ranks_;
};

}  // namespace dstorm
