// Where a network adapter writes the updates of a rank of another host, and how the ranks here take
// them in.
//
// For each sender a segment's memory has a landing area: a clock and one landing slot for each slot
// of the sender's mailbox. The sender's adapter writes an update into the landing slot of the same
// number with one write, and needs nobody here; whoever gathers next checks it and moves it to the
// sender's mailbox as it is on this host, where all ranks fold it in place (slot.hpp).
//
// A landing slot:  SlotHeader | payload, padded to 8 bytes | ordinals | iteration | checksum
// ordinals has one number per rank of this host, in rank order; 0: not addressed to it.
//
// Invariants:
//  L1 The sender alone writes a landing area; the ranks here only read it, but for the word by which
//     they take turns (`taker`), which the sender never writes.
//  L2 A landing slot may be overwritten while it is read (LATEST). What is taken is a copy, and only
//     if the checksum over that copy, header and ordinals included, is the one that came with it.
//  L3 QUEUE: the sender uses a slot of its mailbox, and so a landing slot, again only after all of
//     its receivers have consumed the update, which was taken before. Nothing is overwritten.
//  L4 Writes of one connection become visible in order, so that who sees the landing clock at k, or
//     the whole update k, finds every earlier update in its slot, whole, unless it has been replaced.
//     The clock is therefore read before the slots.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "dstorm/checksum.hpp"
#include "dstorm/slot.hpp"

namespace dstorm::verbs {

struct LandingHead {
  alignas(kLine) std::atomic<std::uint64_t> clock;  // the sender's, where no update says it
  // Of the ranks here: who is taking in now (rank + 1, or 0), and who did last.
  alignas(kLine) std::atomic<std::uint32_t> taker;
  std::atomic<std::uint32_t> last_taker;
};

// What follows the payload, after the ordinals.
struct LandingTail {
  std::uint64_t iteration;
  std::uint64_t checksum;
};

class LandingShape {
 public:
  // `receivers`: the most ranks that any host of the job has.
  LandingShape(const MailboxShape& mailbox, std::size_t receivers)
      : depth_(mailbox.depth()),
        slot_bytes_(mailbox.slot_bytes()),
        receivers_(receivers),
        stride_(round_up(sizeof(SlotHeader) + round_up(slot_bytes_, 8) + trailer_bytes(), kLine)) {}

  std::size_t depth() const { return depth_; }
  std::size_t slot_bytes() const { return slot_bytes_; }
  std::size_t receivers() const { return receivers_; }
  std::size_t trailer_bytes() const { return receivers_ * 8 + sizeof(LandingTail); }
  std::size_t slot(std::size_t index) const { return sizeof(LandingHead) + index * stride_; }
  // From the start of the slot.
  static std::size_t trailer(std::size_t payload_bytes) {
    return sizeof(SlotHeader) + round_up(payload_bytes, 8);
  }
  std::size_t bytes() const { return round_up(slot(depth_), kPage); }

 private:
  std::size_t depth_, slot_bytes_, receivers_, stride_;
};

// One sender's landing area, as one rank of the receiving host takes from it. One thread.
class Landing {
 public:
  // `copy` is the sender's mailbox here; `locals` the ranks of this host, sorted; `rank` this one.
  Landing(std::byte* base, const LandingShape& shape, Mailbox copy, Policy policy, int sender,
          std::span<const int> locals, int rank);

  // A few loads.
  bool has_news() const;
  // Moves what has come whole to the mailbox. `live` is a predicate on ranks. True if anything has,
  // for which other ranks of this host may be waiting.
  template <class Live>
  bool take_in(Live&& live) {
    if (!has_news() || !begin(live)) return false;
    const std::uint64_t before = copy_.clock().load(std::memory_order_relaxed);
    const std::uint64_t clock = head().clock.load(std::memory_order_acquire);  // L4
    bool all_there = true;
    std::uint64_t after = before;
    for (Found found; all_there && (found = oldest(after)).slot >= 0;) {
      const auto slot = static_cast<std::size_t>(found.slot);
      after = found.iteration;
      const int room = writer_->claim(policy_, live);
      if (room >= 0 && move(slot, after, room)) continue;
      // If what follows has begun to come, this has come as far as it ever does (L4): it is whole by
      // now, or for ranks alone that died before it was.
      const bool is_over = after <= clock || look(after, kMostIteration).slot >= 0;
      if (room >= 0 && is_over && move(slot, after, room)) continue;
      if (room >= 0) writer_->abandon(room);
      // LATEST also passes over what has been replaced, and what finds every slot being read, as on
      // one host. What is still coming is waited for.
      all_there = room >= 0 ? is_over || (policy_ == Policy::kLatest && iteration(slot) != after)
                            : policy_ == Policy::kLatest;
    }
    const std::uint64_t now = copy_.clock().load(std::memory_order_relaxed);
    if (clock > now && all_there) writer_->advance(clock);
    end();
    return copy_.clock().load(std::memory_order_relaxed) != before;
  }

 private:
  struct Found {
    int slot = -1;
    std::uint64_t iteration = 0;
  };

  LandingHead& head() const { return *reinterpret_cast<LandingHead*>(base_); }
  std::uint64_t iteration(std::size_t slot) const;
  Found look(std::uint64_t after, std::uint64_t limit) const;
  Found oldest(std::uint64_t after) const;
  bool move(std::size_t slot, std::uint64_t iteration, int room);
  // The adapter of a sender whose memory is damaged may have written the word in spite of L1: who is
  // none of this host is nobody.
  bool is_here(std::uint32_t taker) const {
    return std::binary_search(locals_.begin(), locals_.end(), static_cast<int>(taker - 1));
  }
  template <class Live>
  bool begin(Live&& live) {
    const auto mine = static_cast<std::uint32_t>(rank_) + 1;
    std::uint32_t taker = head().taker.load(std::memory_order_relaxed);
    if (taker != 0 && is_here(taker) && live(static_cast<int>(taker - 1))) return false;
    if (!head().taker.compare_exchange_strong(taker, mine, std::memory_order_acquire)) return false;
    if (head().last_taker.exchange(mine, std::memory_order_relaxed) != mine || !writer_) {
      writer_.emplace(SlotWriter::of_copy(copy_, sender_));
    }
    return true;
  }
  void end() { head().taker.store(0, std::memory_order_release); }

  std::byte* base_;
  LandingShape shape_;
  Mailbox copy_;
  Policy policy_;
  int sender_;
  std::vector<int> locals_;
  int rank_;
  std::optional<SlotWriter> writer_;
  std::vector<std::byte> trailer_;
  std::vector<Addressee> to_;
};

}  // namespace dstorm::verbs
