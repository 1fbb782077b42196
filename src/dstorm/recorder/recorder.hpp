// The writing side of a recorder: what one rank does, as events and totals (layout.hpp).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include "dstorm/recorder/memory.hpp"

namespace dstorm {

// One for all groups of a job. The functions are for the thread that has the turn (host/turn.hpp),
// except note_epoch(), update() and report(), which any thread may call. None blocks for long, and
// none throws.
class Recorder {
 public:
  // Begins to record in the memory file behind `fd`, which is zeroed, backed with pages, sealed
  // against shrinking, and used by no other recorder. Throws ConfigError.
  Recorder(int fd, int rank, int size);
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // The descriptor of its memory, by which other processes can open it.
  int fd() const noexcept { return memory_.fd(); }
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }

  using Time = std::int64_t;  // Clock, in nanoseconds
  static Time now() noexcept { return to_time(std::chrono::steady_clock::now()); }
  static Time to_time(std::chrono::steady_clock::time_point time) noexcept {
    return std::chrono::nanoseconds(time.time_since_epoch()).count();
  }

  void scattered(Time began, std::uint64_t iteration, std::uint64_t bytes,
                 std::span<const int> to) noexcept;
  // An update that a gather folds; to be called for each, then folded().
  void folds(int rank, std::uint64_t iteration, std::uint64_t bytes) noexcept;
  // A gather has ended. Its fold counts from the end of its last wait: what a gather does besides
  // is short, and each look at the clock takes as long as an event.
  void gathered(Time began) noexcept;
  void allreduced(Time began, std::uint64_t bytes, std::span<const int> members) noexcept;
  void wait_began(Time time) noexcept;
  // In a wait, at each look: the rank that is missing, or -1 if that is not known.
  void waits_for(int rank) noexcept {
    if (rank >= 0 && rank != waits_for_) note_missing(rank);
  }
  void wait_ended(Time time) noexcept;
  // The members of a new epoch, and those that it leaves behind; both sorted.
  void note_epoch(std::uint32_t epoch, std::size_t members, std::span<const int> gone) noexcept;
  // A call to a port of a rank of another host has failed for the reason `error` (errno.h); or,
  // with 0, has succeeded. For the thread that has the engine's lock.
  void called(int rank, std::uint16_t port, int error) noexcept;
  // The iteration of the last scatter or, before any scatter, the number of allreduces.
  std::uint64_t update() const noexcept;
  // Keeps a value that the program reports, with the time and update(). A name has 1 to
  // ReportName::kMostBytes bytes, none of them 0. Returns false if it is new and all kReportNames
  // places are taken.
  bool report(std::string_view name, double value) noexcept;

 private:
  void note_missing(int rank) noexcept;

  int rank_, size_;
  RecorderMemory memory_;
  RecorderTotals& totals_;
  std::span<RecorderPeer> peers_;
  EventRing calls_;
  std::mutex mutex_;  // guards changes_
  EventRing changes_;
  std::mutex reports_mutex_;        // guards the names and reports_
  std::vector<EventRing> reports_;  // by name
  std::uint64_t iteration_ = 0;
  Time wait_began_ = 0;
  Time wait_ended_ = 0;
  int waits_for_ = -1;
  std::uint64_t missing_ = 0;  // a set: ranks that were missing in this wait
  Event fold_;                 // of the gather in progress
};

}  // namespace dstorm
