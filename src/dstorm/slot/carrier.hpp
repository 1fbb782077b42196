// Reads a mailbox on behalf of receivers on another host (layout.hpp has the invariants).
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "dstorm/slot/layout.hpp"

namespace dstorm {

// Takes the updates for some receivers, who are on another host, out of their sender's mailbox in
// order to carry them there. One thread. It holds for its receivers (S1, S3). A ticket whose
// receiver is dead, or has consumed it, says nothing: by S4 the slot may hold another update by
// now, or be about to. `live` below is a predicate on ranks, the same as the sender's.
class SlotCarrier {
 public:
  // `receivers` sorted.
  SlotCarrier(Mailbox box, std::vector<int> receivers)
      : box_(box), receivers_(std::move(receivers)) {}

  std::uint64_t clock() const { return box_.clock().load(std::memory_order_acquire); }

  // The slot with the oldest update beyond `after` for any of the receivers, or -1 if there is
  // none. It does not change until let_go(); should all that it is for die meanwhile, it may, and
  // what is carried may be torn, for nobody.
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

  // For all of the update's receivers at once: should one of them die, the others' holds remain.
  // They are known when all tickets are there: some are not while the sender publishes, or restores
  // what it has revoked.
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
