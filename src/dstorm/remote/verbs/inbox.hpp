// The inbox of a sender: the memory into which a network adapter writes the updates of a rank of
// another host, and how the ranks of this host take them in.
//
// For each sender a segment's memory has an inbox: a clock, and one inbox slot for each slot of the
// sender's mailbox. The sender's adapter writes an update into the inbox slot of the same number
// with one write, and needs no process of this host. The rank of this host that gathers next checks
// the update and moves it to this host's copy of the sender's mailbox, where all ranks fold it in
// place (slot/layout.hpp).
//
// An inbox slot:  SlotHeader | payload, padded to 8 bytes | ordinals | iteration | two checksums
// ordinals has one number per rank of this host, in rank order; 0: not addressed to it.
//
// The ranks take turns: the rank that takes in holds the copy to which it moves the updates. A rank
// that is stopped meanwhile, and evicted, keeps that copy, and the others go on in another
// (slot/copies.hpp).
//
// Invariants:
//  L1 The sender alone writes an inbox; the ranks here only read it.
//  L2 An inbox slot may be overwritten while it is read (LATEST). A rank takes a copy, and uses it
//     only if the checksum over that copy, header and ordinals included, is the one that came with
//     it.
//  L3 QUEUE: the sender uses a slot of its mailbox again, and so an inbox slot, only after all
//     receivers of the update in it have consumed it; and before that it was taken in. Nothing is
//     overwritten.
//  L4 Writes of one connection become visible in order. So a rank that sees the inbox clock at k,
//     or the whole update k, finds every earlier update in its slot, whole, unless it has been
//     replaced. Therefore the clock is read before the slots.
//  L5 QUEUE does not rely on that order, which a network with adaptive routing does not keep. An
//     update is taken in when it is whole and when, for each of its receivers, the update before
//     it has been taken in: their ordinals are consecutive. The ordinals do not show that an
//     earlier update to other ranks is missing. So the sender writes an update that is not for all
//     receivers of the last one, or a clock by itself, only when everything before it has been
//     written. An update that is not whole is passed over only if the part after its payload is
//     whole by itself and says that the update is only for ranks that read no more: then the
//     sender may have used the slot anew while its adapter was reading it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "dstorm/slot/checksum.hpp"
#include "dstorm/slot/writer.hpp"

namespace dstorm::verbs {

struct InboxHead {
  alignas(kLine) std::atomic<std::uint64_t> clock;  // the sender's, for clocks without an update
};

// The part of an inbox slot after the payload and the ordinals.
struct InboxTail {
  std::uint64_t iteration;
  std::uint64_t own_checksum;  // over the ordinals and the iteration
  std::uint64_t checksum;      // over all that is before it, header and payload included
};

class InboxShape {
 public:
  // `receivers`: the most ranks that any host of the job has.
  InboxShape(const MailboxShape& mailbox, std::size_t receivers)
      : depth_(mailbox.depth()),
        slot_bytes_(mailbox.slot_bytes()),
        receivers_(receivers),
        stride_(round_up(sizeof(SlotHeader) + round_up(slot_bytes_, 8) + trailer_bytes(), kLine)) {}

  std::size_t depth() const { return depth_; }
  std::size_t slot_bytes() const { return slot_bytes_; }
  std::size_t receivers() const { return receivers_; }
  std::size_t trailer_bytes() const { return receivers_ * 8 + sizeof(InboxTail); }
  std::size_t slot(std::size_t index) const { return sizeof(InboxHead) + index * stride_; }
  // The offset of the trailer from the start of the slot.
  static std::size_t trailer(std::size_t payload_bytes) {
    return sizeof(SlotHeader) + round_up(payload_bytes, 8);
  }
  std::size_t bytes() const { return round_up(slot(depth_), kPage); }

 private:
  std::size_t depth_, slot_bytes_, receivers_, stride_;
};

// One sender's inbox, as one rank of the receiving host takes from it. For one thread.
class Inbox {
 public:
  // `copies` are those of the sender's mailbox; `locals` are the ranks of this host, sorted; `rank`
  // is this rank.
  Inbox(std::byte* base, const InboxShape& shape, const Copies& copies, Policy policy, int sender,
        std::span<const int> locals, int rank);

  int sender() const { return sender_; }
  // Whether anything has arrived. Costs a few loads.
  bool has_news() const;
  // Moves the updates that have arrived whole to the mailbox. Predicates on ranks of this host:
  // `live`: it takes part here; `has_ended`: its process has ended, for certain. `prepare` makes
  // sure that there is memory for a copy. Returns whether anything was moved, for which other ranks
  // of this host may be waiting.
  template <class Live, class HasEnded, class Prepare>
  bool take_in(Live&& live, HasEnded&& has_ended, Prepare&& prepare) {
    if (!has_news() || !begin(live, has_ended, prepare)) return false;
    const Mailbox& box = *box_;
    const std::uint64_t before = box.clock().load(std::memory_order_relaxed);
    const std::uint64_t clock = head().clock.load(std::memory_order_acquire);  // L4
    bool all_there = true;
    std::uint64_t after = before;
    for (Found found; all_there && (found = oldest(after)).slot >= 0;) {
      after = found.iteration;
      const auto slot = static_cast<std::size_t>(found.slot);
      all_there = policy_ == Policy::kQueue ? take_queued(slot, after, live)
                                            : take_latest(slot, after, clock, live);
    }
    const std::uint64_t now = box.clock().load(std::memory_order_relaxed);
    if (clock > now && all_there) writer_->advance(clock);
    const bool has_moved = box.clock().load(std::memory_order_relaxed) != before;
    copies_.table().release(taken_);
    return has_moved;
  }

 private:
  struct Found {
    int slot = -1;
    std::uint64_t iteration = 0;
  };

  InboxHead& head() const { return *reinterpret_cast<InboxHead*>(base_); }
  std::uint64_t iteration(std::size_t slot) const;
  Found look(std::uint64_t after, std::uint64_t limit) const;
  Found oldest(std::uint64_t after) const;
  // Each moves one update to the mailbox, or passes over it; returns false if later updates have to
  // wait.
  template <class Live>
  bool take_latest(std::size_t slot, std::uint64_t iteration, std::uint64_t clock, Live&& live) {
    if (const int begun = writer_->begun(iteration); begun >= 0) {
      return complete(slot, iteration, begun) || is_over(iteration, clock);
    }
    const int room = writer_->claim(policy_, live);
    if (room < 0) return true;  // every slot is being read: passed over, as on one host
    if (move(slot, iteration, room)) return true;
    // If a later update has begun to arrive, this one has arrived as far as it ever will (L4): by
    // now it is whole, or is being replaced.
    const bool has_come = is_over(iteration, clock);
    if (has_come && move(slot, iteration, room)) return true;
    writer_->abandon(room);
    return has_come || this->iteration(slot) != iteration;
  }
  // L5.
  template <class Live>
  bool take_queued(std::size_t slot, std::uint64_t iteration, Live&& live) {
    if (const int begun = writer_->begun(iteration); begun >= 0) {
      return complete(slot, iteration, begun);
    }
    const int room = writer_->claim(policy_, live);
    SlotHeader header;
    if (room >= 0 && read(slot, iteration, header, writer_->payload(room)) && is_next(live)) {
      writer_->publish_copy(room, header, to_);
      return true;
    }
    if (room >= 0) writer_->abandon(room);
    return is_for_nobody(slot, iteration, live);
  }
  bool is_over(std::uint64_t iteration, std::uint64_t clock) const {
    return iteration <= clock || look(iteration, kMostIteration).slot >= 0;
  }
  // Whether the update that was read last is the next one for each of its receivers.
  template <class Live>
  bool is_next(Live&& live) const {
    return std::all_of(to_.begin(), to_.end(), [&](const Addressee& to) {
      const Cursor& cursor = box_->cursor(to.rank);
      return to.ordinal <= cursor.published.load(std::memory_order_relaxed) + 1 || !live(to.rank);
    });
  }
  bool read(std::size_t slot, std::uint64_t iteration, SlotHeader& header, std::byte* to);
  bool read_tail(std::size_t slot, std::uint64_t iteration, std::size_t payload_bytes,
                 InboxTail& tail);
  bool move(std::size_t slot, std::uint64_t iteration, int room);
  bool complete(std::size_t slot, std::uint64_t iteration, int begun);
  // Whether the update is only for ranks that no longer take part.
  template <class Live>
  bool is_for_nobody(std::size_t slot, std::uint64_t iteration, Live&& live) {
    SlotHeader header;
    InboxTail tail{};
    std::memcpy(&header, base_ + shape_.slot(slot), sizeof(header));
    return header.iteration == iteration && header.payload_bytes <= shape_.slot_bytes() &&
           read_tail(slot, iteration, static_cast<std::size_t>(header.payload_bytes), tail) &&
           std::none_of(to_.begin(), to_.end(), [&](const Addressee& to) { return live(to.rank); });
  }
  template <class Live, class HasEnded, class Prepare>
  bool begin(Live&& live, HasEnded&& has_ended, Prepare&& prepare) {
    const auto rank_at = [this](int place) {
      const auto index = static_cast<std::size_t>(place);
      return index < locals_.size() ? locals_[index] : -1;  // -1: the memory of a rank is damaged
    };
    const auto ended = [&](int place) { return rank_at(place) < 0 || has_ended(rank_at(place)); };
    const auto lives = [&](int place) { return rank_at(place) >= 0 && live(rank_at(place)); };
    taken_ = copies_.table().take(0, place_, ended, lives, prepare);
    if (taken_.outcome != CopyTable::Outcome::kTaken) return false;
    if (!taken_.is_unchanged || !writer_ || copy_ != taken_.copy) {
      copy_ = taken_.copy;
      box_.emplace(copies_.box(copy_));
      writer_.emplace(SlotWriter::of_copy(*box_, sender_));
    }
    return true;
  }

  std::byte* base_;
  InboxShape shape_;
  Copies copies_;
  Policy policy_;
  int sender_;
  std::vector<int> locals_;
  int place_;  // index of this rank in locals_
  // The copy that this rank holds or held last.
  CopyTable::Taken taken_{};
  std::size_t copy_ = 0;
  std::optional<Mailbox> box_;
  std::optional<SlotWriter> writer_;
  std::vector<std::byte> trailer_;
  std::vector<Addressee> to_;
};

}  // namespace dstorm::verbs
