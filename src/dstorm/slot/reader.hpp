// The receiving side of the slot protocol. layout.hpp has the invariants.
#pragma once

#include <atomic>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "dstorm/slot/layout.hpp"

namespace dstorm {

// One receiver's side of one mailbox. For one thread. The order of calls is: hold_from(), fence(),
// one that finds a slot, perhaps hold_only(), reading, then consume() or let_go().
class SlotReader {
 public:
  SlotReader(Mailbox box, int receiver)
      : box_(box), receiver_(receiver), cursor_(&box.cursor(receiver)) {}
  // A reader of the mailbox of a sender on another host.
  SlotReader(const Copies& copies, int receiver) : SlotReader(copies.box(0), receiver) {
    copies_ = copies;
  }

  // This function and those that find a slot move to the current copy first (C6). The caller then
  // reads the slot in the copy in which it was found.
  std::uint64_t clock() {
    follow();
    return box_.clock().load(std::memory_order_acquire);
  }
  std::uint64_t consumed() const { return cursor_->consumed.load(std::memory_order_relaxed); }

  // S3: from now on the sender may overwrite no update of iteration >= `iteration` for this
  // receiver. Takes effect with the next fence(); one fence is enough for any number of readers.
  void hold_from(std::uint64_t iteration) {
    cursor_->hold.store(iteration << 1 | 1, std::memory_order_release);
  }
  static void fence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
  // Narrows the hold to one update, which was found under it.
  void hold_only(std::uint64_t iteration) {
    cursor_->hold.store(iteration << 1, std::memory_order_release);
  }

  // The slot with the update of this iteration, or -1.
  int find(std::uint64_t iteration) {
    follow();
    for (std::size_t slot = 0; slot < box_.shape().depth(); ++slot) {
      if (ticket(slot) == iteration) return static_cast<int>(slot);
    }
    return -1;
  }
  // The slot with the newest update after `iteration`, or -1.
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
  // The slot with the oldest update after `after` and up to `limit`, or -1. For QUEUE, which may
  // skip no update. One look at the slots is not enough: a slot may get an update after the look at
  // it, while the same look then finds a newer update in a later slot. But a reader that has seen a
  // ticket sees all older tickets (S2, one sender). So a second look, for an update older than the
  // one that the first look found, is final.
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

  // Continues the counts of this sender's updates from another mailbox, that of `before`.
  // `addressed` is the ordinal of the last update that this receiver has, folded or not.
  void go_on_from(const SlotReader& before, std::uint64_t addressed) {
    const Cursor& cursor = *before.cursor_;
    cursor_->published.store(addressed);
    cursor_->folded.store(cursor.folded.load(std::memory_order_relaxed));
    cursor_->overwritten.store(cursor.overwritten.load(std::memory_order_relaxed));
    cursor_->rejected.store(cursor.rejected.load(std::memory_order_relaxed));
    cursor_->ordinal.store(cursor.ordinal.load(std::memory_order_relaxed));
  }

  // Marks every update up to `iteration` as consumed (S5). `ordinal` is that of the update just
  // read. The ordinals between it and that of the last update consumed were overwritten.
  void consume(std::uint64_t iteration, std::uint64_t ordinal, bool folded) {
    count(ordinal, folded);
    release(iteration);
  }
  // The two parts of consume(), for an update that is copied out of its slot before it is folded.
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
  // For a protocol of its own, which does not count: tells the sender a number that only grows.
  void mark(std::uint64_t number) { cursor_->ordinal.store(number, std::memory_order_release); }
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
  // Lowers `limit` to the iteration of the update that it finds.
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
  std::size_t copy_ = 0;  // the number of the copy that box_ is
};

}  // namespace dstorm
