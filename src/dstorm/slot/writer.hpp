// The sending side of the slot protocol (layout.hpp has its invariants).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "dstorm/slot/layout.hpp"

namespace dstorm {

// The sending side of one mailbox. One thread. `live` below is a predicate on ranks.
class SlotWriter {
 public:
  SlotWriter(Mailbox box, int sender)
      : box_(box), sender_(sender), slots_(box.shape().depth()), ordinals_(box.shape().ranks()) {}

  // The writer of a copy of `sender`'s mailbox on another host. It reads what the writers before it
  // have left there; nobody else writes there now (C1).
  static SlotWriter of_copy(Mailbox box, int sender) {
    SlotWriter writer(box, sender);
    for (std::size_t slot = 0; slot < writer.slots_.size(); ++slot) {
      Sent& sent = writer.slots_[slot];
      for (int r = 0; r < static_cast<int>(box.shape().ranks()); ++r) {
        const std::uint64_t k = box.ticket(slot, r).iteration.load(std::memory_order_acquire);
        if (k == 0 || k < sent.iteration) continue;
        // A lower ticket is of an update that the slot held before: by S4 its receiver is through.
        if (k > sent.iteration) sent.to.clear();
        sent.iteration = k;
        sent.sequence = box.header(slot).sequence;
        sent.to.push_back(r);
      }
      sent.left = box.header(slot).iteration;  // S7
    }
    std::atomic_thread_fence(std::memory_order_seq_cst);  // S3: tickets before, holds after
    return writer;
  }

  // A slot that may be written (S4), or -1: under QUEUE because a live receiver has yet to fold it,
  // under LATEST because every slot is being read at this moment. No ticket is left in it.
  template <class Live>
  int claim(Policy policy, Live&& live) {
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
      if (is_free(slot, live)) return static_cast<int>(slot);
    }
    if (policy == Policy::kQueue) return -1;
    std::size_t tried = 0;  // oldest first, so that the newest stays readable as long as possible
    for (std::uint64_t after = 0; tried < slots_.size(); ++tried) {
      const std::size_t slot = oldest_after(after);
      after = slots_[slot].sequence;
      if (revoke(slot, live)) return static_cast<int>(slot);
    }
    return -1;
  }

  // Whether claim() would find a slot whose update every live receiver has folded (S4 a, c).
  template <class Live>
  bool has_free(Live&& live) const {
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
      if (is_free(slot, live)) return true;
    }
    return false;
  }

  // The live receivers that keep every slot taken.
  template <class Live>
  std::vector<int> blockers(Live&& live) const {
    std::vector<int> ranks;
    for (const Sent& sent : slots_) {
      for (int r : sent.to) {
        if (!consumed(r, sent.iteration) && live(r)) ranks.push_back(r);
      }
    }
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    return ranks;
  }

  // Makes a claimed slot, filled with `header.payload_bytes`, visible to `to` (S2), then moves the
  // clock (S6).
  void publish(int slot, const SlotHeader& given, std::span<const int> to) {
    SlotHeader header = given;
    header.sequence = ++sequence_;
    header.sender = static_cast<std::uint32_t>(sender_);
    header.receivers = static_cast<std::uint32_t>(to.size());
    Sent& sent = put_header(slot, header);
    for (int r : to) {
      sent.to.push_back(r);
      put_ticket(slot, {r, ++ordinals_[static_cast<std::size_t>(r)]}, header.iteration);
    }
    advance(header.iteration);
  }

  // The same in a copy of the mailbox: the header and the ordinals, `to` sorted by rank, are those
  // the sender has given.
  void publish_copy(int slot, const SlotHeader& header, std::span<const Addressee> to) {
    Sent& sent = put_header(slot, header);
    for (const Addressee& addressee : to) {
      sent.to.push_back(addressee.rank);
      put_ticket(slot, addressee, header.iteration);
      raise_to(box_.cursor(addressee.rank).published, addressee.ordinal);
    }
    advance(header.iteration);
  }

  // The slot of a copy in which the writer before this one, which has ended, began to publish this
  // iteration, or -1. The payload there is whole (S2), and may be being read.
  int begun(std::uint64_t iteration) const {
    if (iteration <= box_.clock().load(std::memory_order_relaxed)) return -1;
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
      const Sent& sent = slots_[slot];
      if (sent.iteration == iteration && !sent.to.empty()) return static_cast<int>(slot);
    }
    return -1;
  }
  // Publishes it: gives the tickets that are missing. `to` sorted by rank.
  void complete(int slot, std::span<const Addressee> to) {
    Sent& sent = slots_[static_cast<std::size_t>(slot)];
    const std::vector<int> given = sent.to;
    for (const Addressee& addressee : to) {
      raise_to(box_.cursor(addressee.rank).published, addressee.ordinal);
      if (std::binary_search(given.begin(), given.end(), addressee.rank)) continue;
      sent.to.insert(std::upper_bound(sent.to.begin(), sent.to.end(), addressee.rank),
                     addressee.rank);
      put_ticket(slot, addressee, sent.iteration);
    }
    advance(sent.iteration);
  }

  // Moves the clock alone: nothing of this iteration is for the readers of this mailbox (S6: what
  // was for them of earlier ones has been published, or replaced).
  void advance(std::uint64_t iteration) {
    box_.clock().store(iteration, std::memory_order_release);
  }

  // An update that found every slot being read: it counts as addressed, and as overwritten, which
  // its receivers see as a gap in the ordinals.
  void skip(std::uint64_t iteration, std::span<const int> to) {
    for (int r : to) ++ordinals_[static_cast<std::size_t>(r)];
    advance(iteration);
  }

  // A claimed slot that will not be published is free again.
  void abandon(int slot) { slots_[static_cast<std::size_t>(slot)].to.clear(); }

  std::byte* payload(int slot) const { return box_.payload(static_cast<std::size_t>(slot)); }
  std::uint64_t addressed(int receiver) const {
    return ordinals_[static_cast<std::size_t>(receiver)];
  }
  // The updates to `receiver` were counted so far in another mailbox, whose cursor it brings along.
  void go_on_from(int receiver, std::uint64_t addressed) {
    ordinals_[static_cast<std::size_t>(receiver)] = addressed;
  }

  // Updates for `receiver` that are in a slot and not folded yet.
  std::uint64_t pending(int receiver) const {
    std::uint64_t count = 0;
    for (const Sent& sent : slots_) {
      const bool addressed = std::binary_search(sent.to.begin(), sent.to.end(), receiver);
      if (addressed && !consumed(receiver, sent.iteration)) ++count;
    }
    return count;
  }

 private:
  struct Sent {  // what the sender put into a slot last
    std::uint64_t sequence = 0;
    std::uint64_t iteration = 0;
    std::vector<int> to;     // sorted
    std::uint64_t left = 0;  // the iteration that an earlier writer left there, or 0
  };

  Sent& put_header(int slot, const SlotHeader& header) {
    const auto index = static_cast<std::size_t>(slot);
    box_.header(index) = header;
    Sent& sent = slots_[index];
    sent.sequence = header.sequence;
    sent.iteration = header.iteration;
    sent.to.clear();
    sent.left = 0;
    return sent;
  }

  void put_ticket(int slot, const Addressee& to, std::uint64_t iteration) {
    Ticket& ticket = box_.ticket(static_cast<std::size_t>(slot), to.rank);
    ticket.ordinal = to.ordinal;
    ticket.iteration.store(iteration, std::memory_order_release);
  }

  bool consumed(int receiver, std::uint64_t iteration) const {
    return box_.cursor(receiver).consumed.load(std::memory_order_acquire) >= iteration;
  }

  template <class Live>
  bool is_free(std::size_t slot, Live&& live) const {
    const Sent& sent = slots_[slot];
    for (int r : sent.to) {
      if (!consumed(r, sent.iteration) && live(r)) return false;
    }
    return !may_be_read(sent, live);
  }

  // S7.
  template <class Live>
  bool may_be_read(const Sent& sent, Live&& live) const {
    if (sent.left == 0) return false;
    for (int r = 0; r < static_cast<int>(box_.shape().ranks()); ++r) {
      if (holds(r, sent.left) && live(r)) return true;
    }
    return false;
  }

  bool holds(int receiver, std::uint64_t iteration) const {
    return covers(box_.cursor(receiver).hold.load(std::memory_order_acquire), iteration) &&
           !consumed(receiver, iteration);
  }

  std::size_t oldest_after(std::uint64_t sequence) const {
    std::size_t best = 0;
    std::uint64_t lowest = ~std::uint64_t{0};
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
      if (slots_[slot].sequence > sequence && slots_[slot].sequence < lowest) {
        lowest = slots_[slot].sequence;
        best = slot;
      }
    }
    return best;
  }

  static bool covers(std::uint64_t hold, std::uint64_t iteration) {
    if (hold == 0) return false;
    return (hold & 1) != 0 ? iteration >= hold >> 1 : iteration == hold >> 1;
  }

  template <class Live>
  bool is_held(const Sent& sent, Live&& live) const {
    for (int r : sent.to) {
      if (holds(r, sent.iteration) && live(r)) return true;
    }
    return may_be_read(sent, live);
  }

  // S4 (b). Leaves the tickets as they were if a receiver is reading.
  template <class Live>
  bool revoke(std::size_t slot, Live&& live) {
    Sent& sent = slots_[slot];
    if (is_held(sent, live)) return false;
    for (int r : sent.to) box_.ticket(slot, r).iteration.store(0, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (is_held(sent, live)) {
      for (int r : sent.to) {
        box_.ticket(slot, r).iteration.store(sent.iteration, std::memory_order_release);
      }
      return false;
    }
    sent.to.clear();
    return true;
  }

  Mailbox box_;
  int sender_;
  std::uint64_t sequence_ = 0;
  std::vector<Sent> slots_;
  std::vector<std::uint64_t> ordinals_;
};

}  // namespace dstorm
