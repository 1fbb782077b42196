// Reads a mailbox for receivers on another host. layout.hpp has the invariants.
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

// Takes updates out of a sender's mailbox, to carry them to receivers on another host. For one
// thread. A carrier stores the holds of its receivers (S1, S3). It ignores a ticket whose receiver
// is dead or has consumed it: by S4 the sender may have put another update into the slot, or be
// about to. `live` below is a predicate on ranks, the same as the sender's.
class SlotCarrier {
 public:
  // `receivers` is sorted.
  SlotCarrier(Mailbox box, std::vector<int> receivers)
      : box_(box), receivers_(std::move(receivers)) {}

  std::uint64_t clock() const { return box_.clock().load(std::memory_order_acquire); }

  // Returns the slot with the oldest update after `after` for any of the receivers, or -1 if there
  // is none. The slot does not change until let_go(), unless all receivers of the update die
  // meanwhile: then the update that is carried may be torn, but no rank reads it.
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
      sched_yield();  // the sender has just replaced the update, or will soon restore the tickets
    }
  }

  // The receivers and the header of the update that take() found.
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

  // Stores the holds of all the update's receivers at once: if one of them dies, the holds of the
  // others remain. Returns false unless all tickets of the update are there, since only then are
  // its receivers known. Some tickets are missing while the sender publishes the update, or
  // restores tickets that it has revoked.
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
    for (int r = 0; r < static_cast<int>(box_.shape().receivers().count()); ++r) {
      if (ticket(slot, r) != found.iteration) continue;
      ++tickets;
      // A ticket for a receiver that is not held has appeared meanwhile: begin again.
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
