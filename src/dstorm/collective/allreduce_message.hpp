// The messages that the ranks of an Allreduce write to one another: a head, the members of its
// attempt as bits, and for some a part of a vector, which begins at the next multiple of 64 bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "dstorm/slot/layout.hpp"

namespace dstorm {

class RankSet {
 public:
  explicit RankSet(int size) : words_((static_cast<std::size_t>(size) + 63) / 64) {}

  void add(int rank) { word(rank) |= bit(rank); }
  void remove(int rank) { word(rank) &= ~bit(rank); }
  bool has(int rank) const { return (words_[index(rank)] & bit(rank)) != 0; }
  bool includes(const RankSet& other) const {
    for (std::size_t i = 0; i < words_.size(); ++i) {
      if ((other.words_[i] & ~words_[i]) != 0) return false;
    }
    return true;
  }
  void keep_only(const RankSet& other) {
    for (std::size_t i = 0; i < words_.size(); ++i) words_[i] &= other.words_[i];
  }
  std::vector<int> ranks() const {  // sorted
    std::vector<int> ranks;
    for (int r = 0; r < static_cast<int>(words_.size() * 64); ++r) {
      if (has(r)) ranks.push_back(r);
    }
    return ranks;
  }
  std::span<std::uint64_t> words() { return words_; }
  std::span<const std::uint64_t> words() const { return words_; }
  friend bool operator==(const RankSet&, const RankSet&) = default;

 private:
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank) / 64; }
  static std::uint64_t bit(int rank) { return std::uint64_t{1} << (rank % 64); }
  std::uint64_t& word(int rank) { return words_[index(rank)]; }

  std::vector<std::uint64_t> words_;
};

struct AllreduceHead {
  enum class Kind : std::uint32_t {
    kPart = 1,   // of the sender's vector, or of the result
    kHaveAll,    // the sender has all of the attempt's result
    kCommitted,  // the sender has written the result into its vector
    kGaveUp,     // the sender's call has failed
    kDisagreed   // the sender's call has failed because operations differ
  };
  std::uint64_t round;
  std::uint64_t committed;  // the last round that the sender has committed
  std::uint32_t operation;
  Kind kind;
  std::uint32_t part;  // of kGaveUp: 1 + the rank whose interrupt ended the call; 0: none did
  std::uint32_t unused;
};

struct AllreduceMessage {
  AllreduceHead head;
  RankSet members;

  static std::size_t head_bytes(int ranks) {
    return round_up(sizeof(AllreduceHead) + RankSet(ranks).words().size_bytes(), kLine);
  }
  void write(std::byte* to) const {
    std::memcpy(to, &head, sizeof(head));
    std::memcpy(to + sizeof(head), members.words().data(), members.words().size_bytes());
  }
  // Reads head_bytes() bytes of another process's memory into a copy, so that it can be checked.
  static AllreduceMessage read(const std::byte* from, int ranks) {
    AllreduceMessage message{{}, RankSet(ranks)};
    std::memcpy(&message.head, from, sizeof(message.head));
    const auto words = std::as_writable_bytes(message.members.words());
    std::memcpy(words.data(), from + sizeof(message.head), words.size());
    return message;
  }
};

}  // namespace dstorm
