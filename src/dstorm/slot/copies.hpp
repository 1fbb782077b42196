// Which process of a host writes which copy of what a sender of another host writes.
//
// Several processes of a host can come to write for the same sender: the rank that the sender's
// connection leads to (its proxy) changes, and the ranks take turns in taking in what an adapter
// has brought. Each of them may be stopped at any instruction, for any time, and go on. So the
// right to write is never taken from a process that may still use it. Instead the next writer
// begins another copy, and the readers move to it.
//
// Invariants:
//  C1 Only the rank that holds a copy writes it: from the compare-and-swap by which it took the
//     copy until it releases it.
//  C2 A rank takes a copy only if nobody holds it, or the process of the rank that holds it has
//     ended for certain (pidfd). The release and the take order what both write there.
//  C3 A rank holds one copy at most. So where there are as many copies as ranks on the host, each
//     finds one, whatever the others hold.
//  C4 The link in the word of the current copy never goes back: a rank whose connection has been
//     replaced cannot make a copy current any more.
//  C5 There is one cursor per sender and receiver, whatever the number of copies. What a receiver
//     has consumed it reads in no copy again, and what it holds no copy's writer overwrites.
//  C6 A reader moves to the current copy once its clock has reached that of the copy it reads, so
//     that no clock goes back for it. A sender tells a new connection everything that somebody may
//     not have consumed yet, and an adapter's inbox has it all. So a copy whose clock is at k lacks
//     nothing up to k that a reader still wants and that has not been replaced (layout.hpp, S6). If
//     the sender dies before the current copy has caught up, a reader stays with the copy it has:
//     two readers may then differ in the last updates of the dead, as two hosts may.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace dstorm {

class CopyTable {
 public:
  using Words = std::span<std::atomic<std::uint64_t>>;

  // Words for `copies` copies, zero at first: copy 0 is current, and nobody holds any.
  static constexpr std::size_t words_for(std::size_t copies) { return 1 + copies; }
  explicit CopyTable(Words words) : words_(words) {}

  Words words() const { return words_; }
  std::size_t copies() const { return words_.size() - 1; }
  // The copy that readers are to move to.
  std::size_t current() const { return copy_in(words_[0].load(std::memory_order_acquire)); }

  enum class Outcome : std::uint8_t {
    kTaken,
    kOccupied,  // another rank holds the current copy, and may release it soon
    kOutdated   // a newer connection has made a copy current
  };
  struct Taken {
    Outcome outcome;
    std::size_t copy = 0;
    std::uint64_t holding = 0;  // to be released
    bool is_unchanged = false;  // this rank held it last, for the same link
    bool is_another = false;    // than was current before
  };
  // Has the rank at `place` of this host hold the current copy, for the connection `link`; or if
  // another holds that one and is not to be waited for, another copy, which becomes current.
  // `has_ended(place)`: that rank's process has, for certain. `may_wait(place)`: that rank is
  // expected to release its copy. `prepare(copy)`: sees that there is memory for it; may throw.
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
        if ((word & kHeld) == 0) continue;  // released just now
        if (may_wait(place_of(word))) return taken;
        taken = hold_another(link, place, has_ended);
        if (taken.outcome == Outcome::kOccupied) return taken;  // others hold all there are
      }
      taken.is_another = taken.copy != copy;
      try {
        if (taken.is_another) prepare(taken.copy);
      } catch (...) {
        release(taken);
        throw;
      }
      // C4. Should another have come first, it is looked at anew.
      const std::uint64_t next = link << kLinkBit | taken.copy;
      if (current == next ||
          words_[0].compare_exchange_strong(current, next, std::memory_order_acq_rel)) {
        return taken;
      }
      release(taken);
    }
  }

  // Nothing if a later connection of the same rank holds the copy by now.
  void release(const Taken& taken) const {
    std::uint64_t word = taken.holding;
    words_[1 + taken.copy].compare_exchange_strong(word, word & ~kHeld, std::memory_order_acq_rel);
  }

 private:
  // A copy's word: the link, whether it is held, and the place, from 1, of who holds it or did
  // last. The current copy's: the link, and the copy.
  static constexpr int kLinkBit = 16;
  static constexpr std::uint64_t kHeld = 1U << 15;
  static constexpr std::uint64_t kMostPlaces = kHeld - 1;
  static constexpr std::uint64_t kMostCopies = (1U << kLinkBit) - 1;

  std::size_t copy_in(std::uint64_t current) const {
    const std::size_t copy = current & kMostCopies;
    return copy < copies() ? copy : 0;  // else a rank's memory is damaged
  }
  static int place_of(std::uint64_t word) { return static_cast<int>(word & kMostPlaces) - 1; }

  // C2.
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

  // C3: the one that it holds still, for an earlier connection, or else the first that is free.
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
