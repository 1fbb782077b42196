// The slot protocol: one mailbox per sender, `depth` slots, read in place by all its receivers.
//
// A mailbox is an array of bytes in memory that the sender and its receivers share
// (docs/slot_format.md draws it). It has four kinds of words:
//   clock    the sender writes it    the iteration that the sender has reached
//   ticket   the sender writes it    one per (slot, receiver): the iteration of the update that
//                                    the slot has for that receiver, 0 if none
//   cursor   the receiver writes it  one per receiver: what it holds and what it has consumed
//   slot     the sender writes it    header and payload: plain bytes, not atomic
//
// Every store to these words is in this folder, with its memory ordering: writer.hpp sends,
// reader.hpp receives, carrier.hpp reads for receivers on another host, and raise_to() below stores
// what such a receiver reports. copies.hpp says which process writes a copy on another host. Other
// files of src/dstorm/ only load some of the words:
//   remote/transport/backlog.cpp,  the cursor of a receiver, to send it to the sender's host;
//   remote/verbs/writer.cpp        `consumed` with acquire, as S4 (a) requires
//   remote/tcp/change_receiver.cpp,
//   remote/verbs/inbox.{hpp,cpp}   the clock of a copy; inbox.hpp also `published`
//   segment/state.cpp,
//   segment/regrouping.cpp         the counters of a cursor
//
// Invariants. If one is broken, an update is torn or lost. tests/mutants/memory.py breaks each on
// purpose, and tests/model/slot.pml is a small model of them.
//  S1 Only the sender writes clock, tickets and slots; only receiver r writes cursor r.
//     If the sender is on another host, this host has copies of what it writes. At any instant at
//     most one process writes a given copy in the sender's place (copies.hpp), and the invariants
//     below hold within each copy.
//     If the receiver is on another host, its cursor here only grows, whichever process stores the
//     values that the receiver reports (raise_to). The sender's side stores the hold while it
//     carries the update to that host.
//  S2 ticket[slot][r] = k > 0 says that the slot holds the whole update of iteration k, and that
//     the update is for r. The sender stores the ticket with release after the payload, so a
//     receiver that loads it with acquire sees the whole payload.
//  S3 A receiver reads a slot only while its cursor covers the ticket (hold), and only after it has
//     loaded that ticket again behind a sequentially consistent fence that follows the hold.
//  S4 A sender writes into a slot only if, for each receiver with a ticket k there, one is true:
//     (a) the receiver's `consumed` is >= k: the receiver will never read this ticket again, and
//         its reads happened before, by the release store of `consumed`;
//     (b) LATEST: the sender set the ticket to 0 before a sequentially consistent fence, and the
//         hold that it loaded behind that fence does not cover k. By S3 the receiver sees the 0, or
//         the sender sees the hold, or both. A receiver stores a hold that does not cover k with
//         release, after any earlier reading;
//     (c) the receiver is dead, or has left: a call that is reading then fails. Its own process,
//         which stores what a sender on another host writes, takes only (a) and (b) for its ticket.
//     QUEUE uses only (a) and (c), so a sender never takes a ticket back, and a receiver needs no
//     hold.
//  S5 `consumed` only grows, and the tickets for one receiver grow from update to update, so no
//     update is folded twice.
//  S6 The sender stores the clock with release after the tickets of its iteration, so a reader that
//     sees the clock at k sees the tickets of every update up to k. A sender that dies before it
//     stores the clock leaves no update of k.
//     The writer of a copy may die between two tickets of k. The next writer receives k again, and
//     gives the missing tickets for the slot that already holds k (begun, complete).
//  S7 The writer of a copy may die after it has set tickets to 0, and before it has looked at the
//     holds or restored the tickets (S4 b). The next writer therefore assumes that the update which
//     a slot's header names is being read: it does not write into the slot while a hold covers that
//     update, whether there is a ticket or not.
//  S8 A device may write the payload of an update, or read the payloads of others, after the call
//     that began it has returned. The sender then stores the tickets and the clock of the update
//     (S2, S6) when the device has finished, and begins no other update before that. The receiver
//     keeps its holds, and stores `consumed`, when the device has finished (S3, S4), and looks for
//     no other update before that. So S2 to S6 hold as if the device's work were a part of the
//     store or the load that follows it. The rules between device and processor are in
//     device/lane.hpp. A process that is killed meanwhile has stored nothing: its update is not
//     seen, and its holds are those of a dead receiver.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "dstorm/policy.hpp"
#include "dstorm/slot/copies.hpp"

namespace dstorm {

inline constexpr std::size_t kLine = 64;  // cache line; also the alignment of every slot
inline constexpr std::size_t kPage = 4096;

constexpr std::size_t round_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

// The highest iteration possible: a hold has one bit fewer for the iteration than a ticket.
inline constexpr std::uint64_t kMostIteration = ~std::uint64_t{0} >> 1;

struct alignas(kLine) SlotHeader {
  std::uint64_t sequence;       // updates this sender has published, this one included
  std::uint64_t iteration;      // the sender's clock for this update
  std::uint64_t payload_bytes;  // <= slot_bytes
  std::uint64_t count;          // elements in the payload
  std::uint32_t unused;
  std::uint32_t sender;
  std::uint32_t format;     // the layer above defines the values
  std::uint32_t receivers;  // ranks it is addressed to, on all hosts
  std::uint64_t rest[2];    // 0: named, so that no bytes of the stack go to other hosts
};
static_assert(sizeof(SlotHeader) == kLine);

struct Ticket {
  std::atomic<std::uint64_t> iteration;
  std::uint64_t ordinal;  // how many updates were addressed to this receiver, this one included
};
static_assert(sizeof(Ticket) == 16);

struct alignas(kLine) Cursor {
  std::atomic<std::uint64_t> hold;         // 0, or iteration << 1 | open
  std::atomic<std::uint64_t> consumed;     // the receiver is done with iterations up to this one
  std::atomic<std::uint64_t> folded;       // updates folded
  std::atomic<std::uint64_t> overwritten;  // updates replaced before the receiver could fold them
  std::atomic<std::uint64_t> rejected;     // updates the receiver refused
  // The ordinal of the last update consumed, or what SlotReader::mark() says instead.
  std::atomic<std::uint64_t> ordinal;
  // The highest ordinal that has been published for the receiver in a copy on its host. It only
  // grows, and the copies' writers store it.
  std::atomic<std::uint64_t> published;
};
static_assert(sizeof(Cursor) == kLine);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// The receivers of a mailbox: all ranks of the job; or, of the copy of a mailbox on another host,
// the ranks of that host, each at its place among them.
class Receivers {
 public:
  explicit Receivers(int ranks) : ranks_(ranks) {}
  // `locals` is sorted.
  Receivers(int ranks, std::vector<int> locals)
      : ranks_(ranks), locals_(std::move(locals)), places_(static_cast<std::size_t>(ranks), -1) {
    for (std::size_t i = 0; i < locals_.size(); ++i) {
      places_[static_cast<std::size_t>(locals_[i])] = static_cast<int>(i);
    }
  }

  std::size_t count() const {
    return places_.empty() ? static_cast<std::size_t>(ranks_) : locals_.size();
  }
  int rank_at(std::size_t place) const {
    return places_.empty() ? static_cast<int>(place) : locals_[place];
  }
  // The place of each, by rank; null if all ranks are receivers, each at the place of its number.
  const int* places() const { return places_.empty() ? nullptr : places_.data(); }

 private:
  int ranks_;
  std::vector<int> locals_;
  std::vector<int> places_;  // by rank; empty: all ranks are receivers
};

// The offsets of the parts of one mailbox. Cursors, slots and payloads start at multiples of kLine.
class MailboxShape {
 public:
  // A mailbox with all ranks as receivers.
  MailboxShape(int ranks, int depth, std::size_t slot_bytes)
      : MailboxShape(std::make_shared<const Receivers>(ranks), depth, slot_bytes) {}
  MailboxShape(std::shared_ptr<const Receivers> receivers, int depth, std::size_t slot_bytes)
      : receivers_(std::move(receivers)),
        places_(receivers_->places()),
        count_(receivers_->count()),
        depth_(static_cast<std::size_t>(depth)),
        slot_bytes_(slot_bytes),
        cursors_(round_up(sizeof(std::uint64_t) * 2 + depth_ * count_ * sizeof(Ticket), kLine)),
        slots_(cursors_ + count_ * sizeof(Cursor)),
        stride_(sizeof(SlotHeader) + round_up(slot_bytes, kLine)) {}

  const Receivers& receivers() const { return *receivers_; }
  std::size_t depth() const { return depth_; }
  std::size_t slot_bytes() const { return slot_bytes_; }
  // The size of one mailbox: whole pages, so that each sender's memory can be mapped by itself.
  std::size_t bytes() const { return round_up(slots_ + depth_ * stride_, kPage); }

  // `receiver` is one of the receivers.
  std::size_t ticket(std::size_t slot, int receiver) const {
    return sizeof(std::uint64_t) * 2 + (slot * count_ + place_of(receiver)) * sizeof(Ticket);
  }
  std::size_t cursor(int receiver) const { return cursors_ + place_of(receiver) * sizeof(Cursor); }
  std::size_t slot(std::size_t index) const { return slots_ + index * stride_; }
  // Whether the payload of a slot begins at the offset `place`.
  bool is_payload(std::uint64_t place) const {
    const std::uint64_t first = slots_ + sizeof(SlotHeader);
    return place >= first && (place - first) % stride_ == 0 && (place - first) / stride_ < depth_;
  }

 private:
  std::size_t place_of(int receiver) const {
    const auto rank = static_cast<std::size_t>(receiver);
    return places_ == nullptr ? rank : static_cast<std::size_t>(places_[rank]);
  }

  std::shared_ptr<const Receivers> receivers_;
  const int* places_;  // its
  std::size_t count_, depth_, slot_bytes_, cursors_, slots_, stride_;
};

// A mailbox as both sides see it. Memory that is all zeros is a valid, empty mailbox.
class Mailbox {
 public:
  Mailbox(std::byte* base, const MailboxShape& shape) : Mailbox(base, base, shape) {}
  // A copy of a mailbox, at `base`, with the cursors of the mailbox at `home` (C5).
  Mailbox(std::byte* base, std::byte* home, const MailboxShape& shape)
      : base_(base), home_(home), shape_(&shape) {}

  std::atomic<std::uint64_t>& clock() const {
    return *reinterpret_cast<std::atomic<std::uint64_t>*>(base_);
  }
  Ticket& ticket(std::size_t slot, int receiver) const {
    return *reinterpret_cast<Ticket*>(base_ + shape_->ticket(slot, receiver));
  }
  Cursor& cursor(int receiver) const {
    return *reinterpret_cast<Cursor*>(home_ + shape_->cursor(receiver));
  }
  SlotHeader& header(std::size_t slot) const {
    return *reinterpret_cast<SlotHeader*>(base_ + shape_->slot(slot));
  }
  std::byte* payload(std::size_t slot) const {
    return base_ + shape_->slot(slot) + sizeof(SlotHeader);
  }
  const MailboxShape& shape() const { return *shape_; }

 private:
  std::byte* base_;
  std::byte* home_;
  const MailboxShape* shape_;
};

// The copies of one remote sender's mailbox on this host.
class Copies {
 public:
  // Copy 0 is at `home`, where the cursors are. Copy n, from 1 on, is at
  // `others` + (n - 1) * shape.bytes().
  Copies(CopyTable table, std::byte* home, std::byte* others, const MailboxShape& shape)
      : table_(table), home_(home), others_(others), shape_(&shape) {}

  const CopyTable& table() const { return table_; }
  Mailbox box(std::size_t copy) const {
    return {copy == 0 ? home_ : others_ + (copy - 1) * shape_->bytes(), home_, *shape_};
  }
  Mailbox current() const { return box(table_.current()); }

 private:
  CopyTable table_;
  std::byte* home_;
  std::byte* others_;
  const MailboxShape* shape_;
};

// Stores `value` unless the counter is higher: a counter of a receiver on another host never
// decreases, whichever process stores it.
inline void raise_to(std::atomic<std::uint64_t>& counter, std::uint64_t value) {
  std::uint64_t known = counter.load(std::memory_order_relaxed);
  while (known < value && !counter.compare_exchange_weak(known, value, std::memory_order_release,
                                                         std::memory_order_relaxed)) {
  }
}

// A receiver of one update. `ordinal` counts the updates addressed to that receiver, from 1.
struct Addressee {
  int rank;
  std::uint64_t ordinal;
};

}  // namespace dstorm
