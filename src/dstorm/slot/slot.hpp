// The slot protocol: one mailbox per sender, `depth` slots, read in place by all its receivers.
//
// A mailbox is an array of bytes in memory that the sender and its receivers share
// (docs/slot_format.md draws it). Every memory ordering of the data path is in this file. Four
// kinds of words do the work:
//   clock    the sender writes it    the iteration the sender has reached
//   ticket   the sender writes it    one per (slot, receiver): the iteration held there for that
//                                    receiver, 0 if none
//   cursor   the receiver writes it  one per receiver: what it holds and what it is done with
//   slot     the sender writes it    header and payload: plain bytes, not atomic
//
// Invariants. A broken one is a torn or lost update; tests/mutants/memory.py breaks each,
// and tests/model/slot.pml has them in small.
//  S1 Only the sender writes clock, tickets and slots; only receiver r writes cursor r. Where the
//     sender is on another host, this host has copies of what it writes, and at any instant at most
//     one process writes a given copy in its stead (copies.hpp); the invariants below hold within
//     each copy. Where the receiver is on another host, its cursor here only grows, whoever stores
//     what it has said (raise_to); its hold comes from the sender's side, while the update is being
//     carried there.
//  S2 ticket[slot][r] = k > 0 says: the slot holds, complete, the update of iteration k for r. It
//     is stored with release after the payload, so a receiver that loads it with acquire sees all
//     of it.
//  S3 A receiver reads a slot only while its cursor covers the ticket (hold), and only after it has
//     loaded that ticket again behind a sequentially consistent fence that follows the hold.
//  S4 A sender writes into a slot only if for each receiver with a ticket k there, one is true:
//     (a) the receiver's `consumed` is >= k: it will never read this ticket again, and its reads
//         happened before, by the release store of `consumed`;
//     (b) LATEST: the ticket was set to 0 before a sequentially consistent fence, and the hold
//         loaded behind that fence does not cover k. By S3 either the receiver sees the 0 or the
//         sender sees the hold: never neither. A hold that does not cover k was stored with release
//         after any earlier reading;
//     (c) the receiver is dead.
//     QUEUE uses (a) and (c) only, so a ticket once given is never taken back and needs no hold.
//  S5 `consumed` only grows, and tickets for one receiver grow from update to update: no update is
//     folded twice.
//  S6 The clock is stored with release after the tickets of its iteration: who sees the clock at k
//     sees the tickets of every update up to k. A sender that dies before it leaves no update of k.
//     In a copy a writer may have died between two tickets of k: the next writer, to which k is sent
//     again, gives the tickets that are missing for the slot that holds k already (begun, complete).
//  S7 A writer of a copy may have died after it had set tickets to 0 and before it looked at the holds,
//     or restored them (S4 b). The next writer takes whatever update a slot's header names for one
//     that may be being read: it leaves the slot alone while a hold covers that, ticket or not.
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "dstorm/slot/copies.hpp"

namespace dstorm {

inline constexpr std::size_t kLine = 64;  // cache line; also the alignment of every slot
inline constexpr std::size_t kPage = 4096;

constexpr std::size_t round_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

// The last iteration there can be: a hold has one bit fewer for it than a ticket.
inline constexpr std::uint64_t kMostIteration = ~std::uint64_t{0} >> 1;

enum class Policy : std::uint32_t { kLatest = 1, kQueue = 2 };

struct alignas(kLine) SlotHeader {
  std::uint64_t sequence;       // updates this sender has published, this one included
  std::uint64_t iteration;      // the sender's clock for this update
  std::uint64_t payload_bytes;  // <= slot_bytes
  std::uint64_t count;          // elements in the payload
  std::uint32_t unused;
  std::uint32_t sender;
  std::uint32_t format;     // the layer above says what
  std::uint32_t receivers;  // ranks it is addressed to, on all hosts
};
static_assert(sizeof(SlotHeader) == kLine);

struct Ticket {
  std::atomic<std::uint64_t> iteration;
  std::uint64_t ordinal;  // how many updates were addressed to this receiver, this one included
};
static_assert(sizeof(Ticket) == 16);

struct alignas(kLine) Cursor {
  std::atomic<std::uint64_t> hold;         // 0, or iteration << 1 | open
  std::atomic<std::uint64_t> consumed;     // done with every iteration up to this one
  std::atomic<std::uint64_t> folded;       // updates folded
  std::atomic<std::uint64_t> overwritten;  // updates that were replaced before they could be folded
  std::atomic<std::uint64_t> rejected;     // updates the receiver refused (non-finite)
  std::atomic<std::uint64_t> ordinal;      // the last consumed update's
  // Of the updates that have been published for the receiver in a copy on its host, the highest. It
  // only grows, and the copies' writers store it.
  std::atomic<std::uint64_t> published;
};
static_assert(sizeof(Cursor) == kLine);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// Where things are in one mailbox. All offsets are multiples of kLine.
class MailboxShape {
 public:
  MailboxShape(int ranks, int depth, std::size_t slot_bytes)
      : ranks_(static_cast<std::size_t>(ranks)),
        depth_(static_cast<std::size_t>(depth)),
        slot_bytes_(slot_bytes),
        cursors_(round_up(sizeof(std::uint64_t) * 2 + depth_ * ranks_ * sizeof(Ticket), kLine)),
        slots_(cursors_ + ranks_ * sizeof(Cursor)),
        stride_(sizeof(SlotHeader) + round_up(slot_bytes, kLine)) {}

  std::size_t ranks() const { return ranks_; }
  std::size_t depth() const { return depth_; }
  std::size_t slot_bytes() const { return slot_bytes_; }
  // What one mailbox takes; whole pages, so that each sender's memory can be placed by itself.
  std::size_t bytes() const { return round_up(slots_ + depth_ * stride_, kPage); }

  std::size_t ticket(std::size_t slot, int receiver) const {
    return sizeof(std::uint64_t) * 2 +
           (slot * ranks_ + static_cast<std::size_t>(receiver)) * sizeof(Ticket);
  }
  std::size_t cursor(int receiver) const {
    return cursors_ + static_cast<std::size_t>(receiver) * sizeof(Cursor);
  }
  std::size_t slot(std::size_t index) const { return slots_ + index * stride_; }
  // Whether some slot's payload begins there.
  bool is_payload(std::uint64_t place) const {
    const std::uint64_t first = slots_ + sizeof(SlotHeader);
    return place >= first && (place - first) % stride_ == 0 && (place - first) / stride_ < depth_;
  }

 private:
  std::size_t ranks_, depth_, slot_bytes_, cursors_, slots_, stride_;
};

// A mailbox as both sides see it. Memory starts as zeros, which is a valid empty mailbox.
class Mailbox {
 public:
  Mailbox(std::byte* base, const MailboxShape& shape) : Mailbox(base, base, shape) {}
  // A copy of it at `base`, with the cursors of the mailbox at `home` (C5).
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
  // Copy 0 is at `home`, where the cursors are; copy n from 1 on at `others` + (n - 1) * shape.bytes().
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

// A counter of a receiver on another host never goes back, whichever process stores it.
inline void raise_to(std::atomic<std::uint64_t>& counter, std::uint64_t value) {
  std::uint64_t known = counter.load(std::memory_order_relaxed);
  while (known < value && !counter.compare_exchange_weak(known, value, std::memory_order_release,
                                                         std::memory_order_relaxed)) {
  }
}

// A receiver of one update, and which of the updates addressed to it this is, from 1.
struct Addressee {
  int rank;
  std::uint64_t ordinal;
};

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

  // Likewise in a copy of the mailbox: the header and the ordinals, `to` sorted by rank, are those
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

// One receiver's side of one mailbox. One thread. The order is: hold_from(), fence(), find a slot,
// perhaps hold_only(), read, then consume() or let_go().
class SlotReader {
 public:
  SlotReader(Mailbox box, int receiver)
      : box_(box), receiver_(receiver), cursor_(&box.cursor(receiver)) {}
  // Of a sender on another host.
  SlotReader(const Copies& copies, int receiver) : SlotReader(copies.box(0), receiver) {
    copies_ = copies;
  }

  // This and those that find a slot look at the current copy (C6); what they find is read in the
  // one that they have looked at.
  std::uint64_t clock() {
    follow();
    return box_.clock().load(std::memory_order_acquire);
  }
  std::uint64_t consumed() const { return cursor_->consumed.load(std::memory_order_relaxed); }

  // S3: nothing of iteration >= `iteration` for this receiver may be overwritten from here on.
  // Takes effect with the next fence(), which serves any number of readers.
  void hold_from(std::uint64_t iteration) {
    cursor_->hold.store(iteration << 1 | 1, std::memory_order_release);
  }
  static void fence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
  // Narrows a hold to one update that has been found under it.
  void hold_only(std::uint64_t iteration) {
    cursor_->hold.store(iteration << 1, std::memory_order_release);
  }

  // The slot with this iteration's update, or -1.
  int find(std::uint64_t iteration) {
    follow();
    for (std::size_t slot = 0; slot < box_.shape().depth(); ++slot) {
      if (ticket(slot) == iteration) return static_cast<int>(slot);
    }
    return -1;
  }
  // The slot with the newest update beyond `iteration`, or -1.
  int newest(std::uint64_t iteration) {
    follow();
    int best = -1;
    for (std::size_t slot = 0; slot < box_.shape().depth(); ++slot) {
      const std::uint64_t found = ticket(slot);
      if (found > iteration) {
        iteration = found;
        best = static_cast<int>(slot);
      }
    }
    return best;
  }
  // The slot with the oldest update beyond `after` and not beyond `limit`, or -1. For QUEUE, where
  // nothing may be passed over: a slot looked at early may get an older update than one looked at
  // late. But whoever has seen a ticket sees all older ones (S2, one sender), so a second look, for
  // what is older than the first one's find, is final.
  int oldest(std::uint64_t after, std::uint64_t limit) {
    follow();
    const int first = oldest_at_a_look(after, limit);
    if (first < 0) return first;
    --limit;
    const int older = oldest_at_a_look(after, limit);
    return older < 0 ? first : older;
  }

  const SlotHeader& header(int slot) const { return box_.header(static_cast<std::size_t>(slot)); }
  const std::byte* payload(int slot) const { return box_.payload(static_cast<std::size_t>(slot)); }
  std::uint64_t ordinal(int slot) const {
    return box_.ticket(static_cast<std::size_t>(slot), receiver_).ordinal;
  }

  // The updates of this sender were counted so far in another mailbox.
  // `addressed`: the ordinal of the last that this receiver has, folded or not.
  void go_on_from(const SlotReader& before, std::uint64_t addressed) {
    const Cursor& cursor = *before.cursor_;
    cursor_->published.store(addressed);
    cursor_->folded.store(cursor.folded.load(std::memory_order_relaxed));
    cursor_->overwritten.store(cursor.overwritten.load(std::memory_order_relaxed));
    cursor_->rejected.store(cursor.rejected.load(std::memory_order_relaxed));
    cursor_->ordinal.store(cursor.ordinal.load(std::memory_order_relaxed));
  }

  // Done with everything up to `iteration` (S5). `ordinal` is that of the update just read; the gap
  // since the one before is what was overwritten.
  void consume(std::uint64_t iteration, std::uint64_t ordinal, bool folded) {
    count(ordinal, folded);
    release(iteration);
  }
  // The two parts of it, for an update that is copied out of its slot before it is folded.
  void release(std::uint64_t iteration) {
    assert(iteration > consumed());
    cursor_->consumed.store(iteration, std::memory_order_release);
  }
  void count(std::uint64_t ordinal, bool folded) {
    const std::uint64_t missed = ordinal - cursor_->ordinal.load(std::memory_order_relaxed) - 1;
    add(cursor_->overwritten, missed);
    add(folded ? cursor_->folded : cursor_->rejected, 1);
    cursor_->ordinal.store(ordinal, std::memory_order_relaxed);
  }
  void let_go() { cursor_->hold.store(0, std::memory_order_release); }

 private:
  void follow() {
    if (!copies_) return;
    const std::size_t current = copies_->table().current();
    if (current == copy_) return;
    const Mailbox next = copies_->box(current);
    const std::uint64_t reached = box_.clock().load(std::memory_order_acquire);
    if (next.clock().load(std::memory_order_acquire) < reached) return;
    box_ = next;
    copy_ = current;
  }
  // Lowers the limit to the iteration of what it finds.
  int oldest_at_a_look(std::uint64_t after, std::uint64_t& limit) const {
    int best = -1;
    for (std::size_t slot = 0; slot < box_.shape().depth(); ++slot) {
      const std::uint64_t found = ticket(slot);
      if (found > after && found <= limit) {
        limit = found;
        best = static_cast<int>(slot);
      }
    }
    return best;
  }
  std::uint64_t ticket(std::size_t slot) const {
    return box_.ticket(slot, receiver_).iteration.load(std::memory_order_acquire);
  }
  static void add(std::atomic<std::uint64_t>& counter, std::uint64_t amount) {
    if (amount != 0) {  // one writer (S1): no read-modify-write is needed
      counter.store(counter.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
    }
  }

  Mailbox box_;
  int receiver_;
  Cursor* cursor_;
  std::optional<Copies> copies_;
  std::size_t copy_ = 0;  // that box_ is
};

// Takes the updates for some receivers, who are on another host, out of their sender's mailbox in
// order to carry them there. One thread. It holds for its receivers (S1, S3). A ticket whose receiver
// is dead, or has consumed it, says nothing: by S4 the slot may hold another update by now, or be
// about to. `live` below is a predicate on ranks, the same as the sender's.
class SlotCarrier {
 public:
  // `receivers` sorted.
  SlotCarrier(Mailbox box, std::vector<int> receivers)
      : box_(box), receivers_(std::move(receivers)) {}

  std::uint64_t clock() const { return box_.clock().load(std::memory_order_acquire); }

  // The slot with the oldest update beyond `after` for any of the receivers, or -1 if there is none.
  // It does not change until let_go(); should all that it is for die meanwhile, it may, and what is
  // carried may be torn, for nobody.
  template <class Live>
  int take(std::uint64_t after, Live&& live) {
    for (;;) {
      Found found = look(after, ~std::uint64_t{0}, live);
      if (found.slot < 0) return -1;
      // As in SlotReader::oldest: a second look is final.
      if (const Found older = look(after, found.iteration - 1, live); older.slot >= 0) {
        found = older;
      }
      if (hold(found, live)) return found.slot;
      let_go();
      sched_yield();  // replaced just now, or its sender is about to restore the tickets
    }
  }

  // Of the slot taken.
  std::span<const Addressee> addressees() const { return to_; }
  const SlotHeader& header() const { return header_; }
  const std::byte* payload(int slot) const { return box_.payload(static_cast<std::size_t>(slot)); }

  void let_go() {
    for (const Addressee& to : to_) box_.cursor(to.rank).hold.store(0, std::memory_order_release);
    to_.clear();
  }

 private:
  struct Found {
    int slot = -1;
    std::uint64_t iteration = 0;
  };

  std::uint64_t ticket(std::size_t slot, int receiver) const {
    return box_.ticket(slot, receiver).iteration.load(std::memory_order_acquire);
  }

  template <class Live>
  bool awaits(int receiver, std::uint64_t iteration, Live&& live) const {
    return box_.cursor(receiver).consumed.load(std::memory_order_acquire) < iteration &&
           live(receiver);
  }

  template <class Live>
  Found look(std::uint64_t after, std::uint64_t limit, Live&& live) const {
    Found best;
    for (std::size_t slot = 0; slot < box_.shape().depth(); ++slot) {
      for (int r : receivers_) {
        const std::uint64_t k = ticket(slot, r);
        if (k <= after || k > limit || !awaits(r, k, live)) continue;
        limit = k - 1;
        best = {static_cast<int>(slot), k};
      }
    }
    return best;
  }

  // For all of the update's receivers at once: should one of them die, the others' holds remain. They
  // are known when all tickets are there: some are not while the sender publishes, or restores what
  // it has revoked.
  template <class Live>
  bool hold(const Found& found, Live&& live) {
    const auto slot = static_cast<std::size_t>(found.slot);
    for (int r : receivers_) {
      if (ticket(slot, r) != found.iteration || !awaits(r, found.iteration, live)) continue;
      box_.cursor(r).hold.store(found.iteration << 1, std::memory_order_release);
      to_.push_back({r, 0});
    }
    std::atomic_thread_fence(std::memory_order_seq_cst);  // S3
    if (to_.empty()) return false;
    for (Addressee& to : to_) {
      if (ticket(slot, to.rank) != found.iteration) return false;
      to.ordinal = box_.ticket(slot, to.rank).ordinal;
    }
    header_ = box_.header(slot);
    std::size_t tickets = 0;
    for (int r = 0; r < static_cast<int>(box_.shape().ranks()); ++r) {
      if (ticket(slot, r) != found.iteration) continue;
      ++tickets;
      // One that has appeared since: all over again.
      if (!holds_for(r) && std::binary_search(receivers_.begin(), receivers_.end(), r) &&
          awaits(r, found.iteration, live)) {
        return false;
      }
    }
    return header_.iteration == found.iteration && header_.receivers == tickets;
  }

  bool holds_for(int receiver) const {
    return std::any_of(to_.begin(), to_.end(),
                       [&](const Addressee& to) { return to.rank == receiver; });
  }

  Mailbox box_;
  std::vector<int> receivers_;
  std::vector<Addressee> to_;
  SlotHeader header_{};
};

}  // namespace dstorm
