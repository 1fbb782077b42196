// Which process writes which copy. A host has copies of what a sender on another host writes.
//
// Several processes of a host can write for the same sender, one after the other: the rank to which
// the sender's connection leads (its proxy) changes, and the ranks take turns in taking in the
// updates that an adapter has brought. Each of these processes may be stopped at any instruction,
// for any time, and then go on. So the right to write is never taken from a process that may still
// use it. Instead the next writer begins another copy, and the readers move to it.
//
// Invariants:
//  C1 Only the rank that holds a copy writes it: from the compare-and-swap by which it took the
//     copy until it releases the copy.
//  C2 A rank takes a copy only if no rank holds it, or if the process of the rank that holds it has
//     certainly ended (pidfd). The release and the take order the writes of both to the copy.
//  C3 A rank holds at most one copy. So if there are as many copies as ranks on the host, each rank
//     finds one, whichever copies the others hold.
//  C4 The link in the word of the current copy never decreases: a rank whose connection has been
//     replaced can no longer make a copy current.
//  C5 There is one cursor per sender and receiver, for any number of copies. A receiver reads an
//     update that it has consumed in no copy again, and no copy's writer overwrites an update that
//     a receiver holds.
//  C6 A reader moves to the current copy once the clock of that copy has reached the clock of the
//     copy that it reads, so the clock never decreases for the reader. A sender sends everything
//     that a receiver may not have consumed yet over each new connection, and an adapter's inbox
//     has all of it. So a copy whose clock is at k has every update up to k that a reader still
//     needs, except those that have been replaced (layout.hpp, S6). If the sender dies before the
//     current copy has caught up, a reader stays with the copy it reads. Two readers may then
//     differ in the last updates of the dead sender, as two hosts may.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace dstorm {

class CopyTable {
 public:
  using Words = std::span<std::atomic<std::uint64_t>>;

  // The number of words for `copies` copies. They are zero at first: copy 0 is current, and no rank
  // holds a copy.
  static constexpr std::size_t words_for(std::size_t copies) { return 1 + copies; }
  explicit CopyTable(Words words) : words_(words) {}

  Words words() const { return words_; }
  std::size_t copies() const { return words_.size() - 1; }
  // The copy to which readers move.
  std::size_t current() const { return copy_in(words_[0].load(std::memory_order_acquire)); }

  enum class Outcome : std::uint8_t {
    kTaken,
    kOccupied,  // another rank holds the current copy, and may release it soon
    kOutdated   // a newer connection has made a copy current
  };
  struct Taken {
    Outcome outcome;
    std::size_t copy = 0;
    std::uint64_t holding = 0;  // the copy's word while the rank holds it, for release()
    bool is_unchanged = false;  // this rank held the copy last, for the same link
    bool is_another = false;    // another copy was current before
  };
  // Takes the current copy for the rank at `place` of this host and its connection `link`. If
  // another rank holds the current copy, and is not expected to release it, takes another copy and
  // makes that the current one.
  // `has_ended(place)`: whether the process of that rank has certainly ended. `may_wait(place)`:
  // whether that rank is expected to release its copy. `prepare(copy)` reserves memory for the
  // copy; it may throw.
  template <class HasEnded, class MayWait, class Prepare>
  Taken take(std::uint64_t link, int place, HasEnded&& has_ended, MayWait&& may_wait,
             Prepare&& prepare) const {
    for (;;) {
      std::uint64_t current = words_[0].load(std::memory_order_acquire);
      if (current >> kLinkBit > link) return {Outcome::kOutdated};
      const std::size_t copy = copy_in(current);
      Taken taken = hold(copy, link, place, has_ended);
      if (taken.outcome == Outcome::kOccupied) {
        const std::uint64_t word = words_[1 + copy].load(std::memory_order_acquire);
        if ((word & kHeld) == 0) continue;  // the rank has just released it
        if (may_wait(place_of(word))) return taken;
        taken = hold_another(link, place, has_ended);
        if (taken.outcome == Outcome::kOccupied) return taken;  // other ranks hold all copies
      }
      taken.is_another = taken.copy != copy;
      try {
        if (taken.is_another) prepare(taken.copy);
      } catch (...) {
        release(taken);
        throw;
      }
      // C4. If another rank has changed the word meanwhile, begin again.
      const std::uint64_t next = link << kLinkBit | taken.copy;
      if (current == next ||
          words_[0].compare_exchange_strong(current, next, std::memory_order_acq_rel)) {
        return taken;
      }
      release(taken);
    }
  }

  // Releases the copy. Does nothing if a later connection of the same rank holds it by now.
  void release(const Taken& taken) const {
    std::uint64_t word = taken.holding;
    words_[1 + taken.copy].compare_exchange_strong(word, word & ~kHeld, std::memory_order_acq_rel);
  }

 private:
  // The word of a copy has the link, whether a rank holds the copy, and the place, counted from 1,
  // of the rank that holds it or held it last. Word 0 has the link and the number of the current
  // copy.
  static constexpr int kLinkBit = 16;
  static constexpr std::uint64_t kHeld = 1U << 15;
  static constexpr std::uint64_t kMostPlaces = kHeld - 1;
  static constexpr std::uint64_t kMostCopies = (1U << kLinkBit) - 1;

  std::size_t copy_in(std::uint64_t current) const {
    const std::size_t copy = current & kMostCopies;
    return copy < copies() ? copy : 0;  // a higher number shows that memory is damaged
  }
  static int place_of(std::uint64_t word) { return static_cast<int>(word & kMostPlaces) - 1; }

  // Takes the copy if C2 allows it.
  template <class HasEnded>
  Taken hold(std::size_t copy, std::uint64_t link, int place, HasEnded&& has_ended) const {
    const std::uint64_t mine = link << kLinkBit | kHeld | static_cast<std::uint64_t>(place + 1);
    std::uint64_t word = words_[1 + copy].load(std::memory_order_acquire);
    const bool is_free =
        (word & kHeld) == 0 || place_of(word) == place || has_ended(place_of(word));
    if (!is_free ||
        !words_[1 + copy].compare_exchange_strong(word, mine, std::memory_order_acq_rel)) {
      return {Outcome::kOccupied};
    }
    return {Outcome::kTaken, copy, mine, (word | kHeld) == mine};
  }

  // C3: takes the copy that the rank still holds for an earlier connection, or else the first free
  // copy.
  template <class HasEnded>
  Taken hold_another(std::uint64_t link, int place, HasEnded&& has_ended) const {
    for (const bool own : {true, false}) {
      for (std::size_t copy = 0; copy < copies(); ++copy) {
        const std::uint64_t word = words_[1 + copy].load(std::memory_order_acquire);
        if (own && ((word & kHeld) == 0 || place_of(word) != place)) continue;
        const Taken taken = hold(copy, link, place, has_ended);
        if (taken.outcome == Outcome::kTaken) return taken;
      }
    }
    return {Outcome::kOccupied};
  }

  Words words_;
};

}  // namespace dstorm
