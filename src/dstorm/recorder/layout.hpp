// The recorder's memory: what one rank did last, for other processes to read while it runs, while
// it is stuck, and after it has been killed.
//
// In this order: a header with totals; a line per rank of the job with what this rank knows of it;
// the names that the program reports values under; a ring of reported values for each name; a ring
// of changes (deaths, epochs); a ring of calls (scatter, gather, fold, wait, allreduce). A ring is
// an array of cells, each with one event, and is written over from the beginning when it is full.
// All stores to a ring are in this file, with their memory orderings.
//
// Invariants. A reader is usually in another process, reads at its own pace, and may be lapped.
//  E1 One thread at a time writes a ring. The thread that has the turn (host/turn.hpp) writes the
//     ring of calls; a mutex of Recorder orders the writers of the ring of changes, and another one
//     those of names and reports. The mutexes are in the rank's own memory: a rank that is stopped
//     or killed while it holds one keeps no reader waiting. Readers write nothing.
//  E2 Event n (from 0) lies in cell n mod cells. The writer does this, in this order: it stores 0
//     in the cell's sequence, passes a release fence, stores the words of the event, stores n + 1
//     in the sequence with release, and stores n + 1 in the ring's head with release. A sequence
//     names one event for ever: it has 64 bits.
//  E3 A reader reports event n only if the cell's sequence is n + 1 both before it copies the words
//     (an acquire load) and after (behind an acquire fence). So no torn event is ever reported. By
//     the first load it sees no word older than event n. If it copied a word of a later event, the
//     two fences order the writer's 0, which precedes that word, before the second load, which then
//     differs from n + 1.
//  E4 A writer never waits for a reader. A reader that is lapped counts the events that it missed:
//     reported + missed = the events up to the head that it loaded.
//  E5 A writer that is killed in the middle of an event leaves a sequence of 0 and a head that does
//     not count the event. All others stay readable.
//  E6 A reader believes nothing: it checks the header and the size of the memory before it uses an
//     offset, and a read looks at no more cells than the ring has, whatever the head says.
//  E7 Each total and each word about a rank is one atomic word that one thread at a time writes.
//     Two of them may be of slightly different moments. (The engine, under its lock, writes
//     failed_calls. Of two groups, the last call counts.)
//  E8 A name never changes once it is counted: the writer stores its bytes, then the number of
//     names, with release. A reader loads the number with acquire and looks at no name beyond it,
//     nor at more names than there are places for (E6). Each name has a ring of its own, so that
//     values reported often do not write over those reported rarely, and the last value of each
//     name is there, but for one that is being written.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

namespace dstorm {

enum class EventKind : std::uint32_t {
  kScatter = 1,
  kGather = 2,
  kWait = 3,
  kFold = 4,
  kAllreduce = 5,
  kDeath = 6,   // `rank` is no longer a member
  kEpoch = 7,   // `iteration` is the epoch's number, `count` its members
  kReport = 8,  // `ranks` are the bits of a double, reported at `began`
};

struct Event {
  std::int64_t began = 0;       // Clock, in nanoseconds
  std::int64_t lasted = 0;      // nanoseconds
  std::uint64_t iteration = 0;  // of this rank's last scatter
  std::uint64_t bytes = 0;      // of payload: sent, once per receiver; or folded
  // A set of ranks, bit r for rank r < 64: those sent to, folded, or seen to be missing in a wait.
  std::uint64_t ranks = 0;
  EventKind kind = EventKind::kScatter;
  std::int32_t rank = -1;       // a wait: the last rank that was missing; a death: the rank
  std::uint32_t count = 0;      // of ranks sent to, or of updates folded
  std::uint32_t staleness = 0;  // of the oldest update folded, in iterations
};

struct alignas(64) EventCell {
  static constexpr std::size_t kWords = 7;
  std::atomic<std::uint64_t> sequence;
  std::array<std::atomic<std::uint64_t>, kWords> words;
};
static_assert(sizeof(Event) == EventCell::kWords * sizeof(std::uint64_t));
static_assert(sizeof(EventCell) == 64 && std::is_trivially_copyable_v<Event>);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// A ring over memory of its owner's; the number of cells is a power of two.
class EventRing {
 public:
  EventRing() = default;
  EventRing(std::atomic<std::uint64_t>* head, std::span<EventCell> cells)
      : head_(head), cells_(cells), next_(head->load(std::memory_order_acquire)) {}

  // The writer's side (E1, E2).
  void add(const Event& event) noexcept {
    const auto words = std::bit_cast<std::array<std::uint64_t, EventCell::kWords>>(event);
    EventCell& cell = cells_[next_ & (cells_.size() - 1)];
    cell.sequence.store(0, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    for (std::size_t i = 0; i < words.size(); ++i) {
      cell.words[i].store(words[i], std::memory_order_relaxed);
    }
    ++next_;
    cell.sequence.store(next_, std::memory_order_release);
    head_->store(next_, std::memory_order_release);
  }

  // The reader's side (E3, E4, E6): calls use(event) for the events since the last call, oldest
  // first, and returns how many were missed since then.
  template <class Use>
  std::uint64_t read(Use&& use) {
    const std::uint64_t head = head_->load(std::memory_order_acquire);
    if (head < next_) return 0;  // no writer does that (E6)
    std::uint64_t missed = head - next_ > cells_.size() ? head - next_ - cells_.size() : 0;
    for (next_ += missed; next_ != head; ++next_) {
      Event event;
      if (copy(next_, event)) {
        use(event);
      } else {
        ++missed;
      }
    }
    return missed;
  }
  // A reader begins with the oldest event that is there.
  void rewind() noexcept { next_ = 0; }

 private:
  bool copy(std::uint64_t number, Event& event) const {
    const EventCell& cell = cells_[number & (cells_.size() - 1)];
    std::array<std::uint64_t, EventCell::kWords> words;
    if (cell.sequence.load(std::memory_order_acquire) != number + 1) return false;
    for (std::size_t i = 0; i < words.size(); ++i) {
      words[i] = cell.words[i].load(std::memory_order_relaxed);
    }
    std::atomic_thread_fence(std::memory_order_acquire);
    if (cell.sequence.load(std::memory_order_relaxed) != number + 1) return false;
    event = std::bit_cast<Event>(words);
    return true;
  }

  std::atomic<std::uint64_t>* head_ = nullptr;
  std::span<EventCell> cells_;
  std::uint64_t next_ = 0;  // the number of the next event to write, or to read
};

using SharedWord = std::atomic<std::uint64_t>;

struct alignas(64) RecorderTotals {
  SharedWord iteration;  // of the last scatter
  SharedWord scatters, gathers, allreduces;
  SharedWord bytes_out, bytes_in;
  SharedWord folded;  // updates
  SharedWord waited;  // nanoseconds
  SharedWord epoch;
  SharedWord waits_since;  // when the wait in progress began (Clock, in nanoseconds), or 0
  SharedWord waits_for;    // the rank that was missing at its last look + 1, or 0
};

struct alignas(32) RecorderPeer {  // this rank's record of another
  SharedWord waited;               // nanoseconds of waits in which that one was the last to come
  SharedWord folded;               // updates of its own that were folded here
  SharedWord staleness;            // of the last of these, in iterations; 0 if it was ahead
  SharedWord failed_calls;         // FailedCalls since the last call to it that succeeded
};

// Calls to a rank of another host, over TCP, that failed one after another.
struct FailedCalls {
  std::uint32_t count = 0;
  std::uint16_t error = 0;  // of the last one: a number of errno.h
  std::uint16_t port = 0;   // that it went to
};
static_assert(sizeof(FailedCalls) == sizeof(SharedWord));

struct alignas(64) ReportName {
  static constexpr std::size_t kMostBytes = 47;
  SharedWord head;                        // of the ring of its values
  std::array<char, kMostBytes + 1> text;  // ends with a 0
};

struct alignas(64) RecorderHeader {
  static constexpr std::uint64_t kMagic = 0x32726563746C616D;  // "maltrec2"
  SharedWord magic;                                            // stored last, with release
  std::uint64_t cells;
  std::int32_t rank, size;
  std::int64_t process;
  // The two clocks at one moment, in nanoseconds: Clock, and the time since 1970.
  std::int64_t clock, wall;
  alignas(64) SharedWord calls;  // heads of the rings
  alignas(64) SharedWord changes;
  SharedWord names;  // how many there are
  RecorderTotals totals;
};

inline constexpr std::size_t kChangeCells = 256;
inline constexpr std::size_t kLeastCells = 64;
inline constexpr std::size_t kReportNames = 32;
inline constexpr std::size_t kReportCells = 512;  // for each name

}  // namespace dstorm
