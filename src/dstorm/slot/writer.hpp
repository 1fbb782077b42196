// The sending side of the slot protocol. layout.hpp has the invariants.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "dstorm/slot/layout.hpp"

namespace dstorm {

// The sending side of one mailbox. For one thread. `live` below is a predicate on ranks.
class SlotWriter {
 public:
  SlotWriter(Mailbox box, int sender)
      : box_(box),
        sender_(sender),
        slots_(box.shape().depth()),
        ordinals_(box.shape().receivers().count()) {}

  // Returns the writer of a copy of `sender`'s mailbox on another host. It reads what earlier
  // writers have left in the copy, to which no other process writes now (C1).
  static SlotWriter of_copy(Mailbox box, int sender) {
    SlotWriter writer(box, sender);
    for (std::size_t slot = 0; slot < writer.slots_.size(); ++slot) {
      Sent& sent = writer.slots_[slot];
      for (std::size_t place = 0; place < box.shape().receivers().count(); ++place) {
        const int r = box.shape().receivers().rank_at(place);
        const std::uint64_t k = box.ticket(slot, r).iteration.load(std::memory_order_acquire);
        if (k == 0 || k < sent.iteration) continue;
        // A lower ticket belongs to an earlier update of this slot. By S4 its receiver has consumed
        // that update.
        if (k > sent.iteration) sent.to.clear();
        sent.iteration = k;
        sent.sequence = box.header(slot).sequence;
        sent.to.push_back(r);
      }
      sent.left = box.header(slot).iteration;  // S7
    }
    std::atomic_thread_fence(std::memory_order_seq_cst);  // S3: between tickets and holds
    return writer;
  }

  // Returns a slot that may be written (S4) and has no tickets, or -1 if there is none: under QUEUE
  // each slot has an update that a live receiver has not folded yet; under LATEST every slot is
  // being read at this moment.
  template <class Live>
  int claim(Policy policy, Live&& live) {
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
      if (is_free(slot, live)) return static_cast<int>(slot);
    }
    if (policy == Policy::kQueue) return -1;
    std::size_t tried = 0;  // the oldest first: the newest stays readable as long as possible
    for (std::uint64_t after = 0; tried < slots_.size(); ++tried) {
      const std::size_t slot = oldest_after(after);
      after = slots_[slot].sequence;
      if (revoke(slot, live)) return static_cast<int>(slot);
    }
    return -1;
  }

  // Whether the receiver has consumed this writer's updates for it up to this iteration.
  bool consumed(int receiver, std::uint64_t iteration) const {
    return box_.cursor(receiver).consumed.load(std::memory_order_acquire) >= iteration;
  }

  // The number with which the receiver has marked its cursor.
  std::uint64_t mark_of(int receiver) const {
    return box_.cursor(receiver).ordinal.load(std::memory_order_acquire);
  }

  // Whether there are `least` slots whose update every live receiver has consumed (S4 a, c).
  template <class Live>
  bool has_free(Live&& live, std::size_t least = 1) const {
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
      if (is_free(slot, live) && --least == 0) return true;
    }
    return false;
  }

  // One of blockers(), or -1.
  template <class Live>
  int blocker(Live&& live) const {
    for (const Sent& sent : slots_) {
      for (int r : sent.to) {
        if (!consumed(r, sent.iteration) && live(r)) return r;
      }
    }
    return -1;
  }

  // The live receivers that have not consumed all their updates, and so keep slots in use.
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

  // Makes a claimed slot, which the caller has filled with `header.payload_bytes` bytes, visible to
  // the ranks `to` (S2), then moves the clock (S6).
  void publish(int slot, const SlotHeader& given, std::span<const int> to) {
    announce(slot, given, to);
    show(slot);
  }
  // The two parts of publish(), for a payload that a device is still writing (S8). From announce()
  // on the update counts as sent. Any one thread calls show() once the payload is whole; until it
  // has returned, no other function of this writer may store.
  void announce(int slot, const SlotHeader& given, std::span<const int> to) {
    SlotHeader header = given;
    header.sequence = ++sequence_;
    header.sender = static_cast<std::uint32_t>(sender_);
    header.receivers = static_cast<std::uint32_t>(to.size());
    Sent& sent = put_header(slot, header);
    for (int r : to) {
      sent.to.push_back(r);
      ++ordinals_[static_cast<std::size_t>(r)];
    }
  }
  void show(int slot) {
    const Sent& sent = slots_[static_cast<std::size_t>(slot)];
    for (int r : sent.to) {
      put_ticket(slot, {r, ordinals_[static_cast<std::size_t>(r)]}, sent.iteration);
    }
    advance(sent.iteration);
  }

  // The same in a copy of the mailbox. The header and the ordinals are those that the sender has
  // given. `to` is sorted by rank.
  void publish_copy(int slot, const SlotHeader& header, std::span<const Addressee> to) {
    Sent& sent = put_header(slot, header);
    for (const Addressee& addressee : to) {
      sent.to.push_back(addressee.rank);
      put_ticket(slot, addressee, header.iteration);
      raise_to(box_.cursor(addressee.rank).published, addressee.ordinal);
    }
    advance(header.iteration);
  }

  // Returns the slot of a copy in which an earlier writer, which is dead, began to publish this
  // iteration, or -1. The payload there is whole (S2), and a receiver may be reading it.
  int begun(std::uint64_t iteration) const {
    if (iteration <= box_.clock().load(std::memory_order_relaxed)) return -1;
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
      const Sent& sent = slots_[slot];
      if (sent.iteration == iteration && !sent.to.empty()) return static_cast<int>(slot);
    }
    return -1;
  }
  // Publishes the update in a slot that begun() returned: gives the missing tickets. `to` is sorted
  // by rank.
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

  // Moves only the clock: the readers of this mailbox get no update of this iteration. Every
  // earlier update for them has been published, or replaced (S6).
  void advance(std::uint64_t iteration) { advance(box_, iteration); }
  // The same in a copy that has got no update yet, whose slots may have no memory.
  static void advance(const Mailbox& box, std::uint64_t iteration) {
    box.clock().store(iteration, std::memory_order_release);
  }

  // Counts an update that found every slot being read: as addressed, and as overwritten. Its
  // receivers see a gap in the ordinals.
  void skip(std::uint64_t iteration, std::span<const int> to) {
    for (int r : to) ++ordinals_[static_cast<std::size_t>(r)];
    advance(iteration);
  }

  // Frees a claimed slot that will not be published.
  void abandon(int slot) { slots_[static_cast<std::size_t>(slot)].to.clear(); }

  std::byte* payload(int slot) const { return box_.payload(static_cast<std::size_t>(slot)); }
  std::uint64_t addressed(int receiver) const {
    return ordinals_[static_cast<std::size_t>(receiver)];
  }
  // Continues the count of updates to `receiver` from another mailbox, where `addressed` were
  // counted. The receiver brings its cursor from there.
  void go_on_from(int receiver, std::uint64_t addressed) {
    ordinals_[static_cast<std::size_t>(receiver)] = addressed;
  }

  // The number of updates for `receiver` that are in a slot and not consumed yet.
  std::uint64_t pending(int receiver) const {
    std::uint64_t count = 0;
    for (const Sent& sent : slots_) {
      const bool addressed = std::binary_search(sent.to.begin(), sent.to.end(), receiver);
      if (addressed && !consumed(receiver, sent.iteration)) ++count;
    }
    return count;
  }

 private:
  struct Sent {  // the update that the sender put into a slot last
    std::uint64_t sequence = 0;
    std::uint64_t iteration = 0;
    std::vector<int> to;     // sorted
    std::uint64_t left = 0;  // the iteration in the header that an earlier writer left, or 0
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
    for (std::size_t place = 0; place < box_.shape().receivers().count(); ++place) {
      const int r = box_.shape().receivers().rank_at(place);
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

  // S4 (b). Takes the slot's tickets back. Restores them, and returns false, if a receiver is
  // reading.
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
