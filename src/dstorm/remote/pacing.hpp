// Whether a rank sends at once, or first waits for more to send. Several updates of a burst cost
// one system call, and so does an update with cursors.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "dstorm/host/segment_memory.hpp"
#include "dstorm/host/wait.hpp"

namespace dstorm::remote {

// For the rank's thread, except note_arrival(), which any thread may call.
//
// A rank is in one of three states, which its last scatters decide:
//  bursting   each came soon after the one before, and no update came in between
//  answering  each came soon after the one before, and an update came in between
//  neither
class Pacing {
 public:
  // So many scatters in a row make a burst, or answers.
  static constexpr int kBurst = 4;
  // A scatter is soon after the last one, or after a wait, if no more time has passed.
  static constexpr std::chrono::microseconds kSoon{50};
  // Updates are held back until they have so many bytes, or fill half of the slots.
  static constexpr std::size_t kHeldBytes = 256 * 1024;

  // The rank scatters an update of `bytes` in a segment of this shape. Returns whether the update
  // may be held back. Only in a burst; only under QUEUE, where no newer update replaces it
  // meanwhile; and only updates of one segment, so that none overtakes another.
  bool may_hold_back(std::uint32_t segment, const host::SegmentShape& shape, std::size_t bytes,
                     Clock::time_point now) noexcept;
  // Nothing is held back any more.
  void note_sent(Clock::time_point now) noexcept;
  // The rank has waited until now.
  void note_wait(Clock::time_point now) noexcept { last_active_ = now; }
  // An update has come from another host.
  void note_arrival() noexcept { has_come_.store(true); }
  // The rank has folded updates. Returns whether their cursors may wait for its next scatter: it is
  // answering, and none have waited since its last scatter.
  bool may_put_off_cursors() noexcept;

 private:
  Clock::time_point last_active_{};    // when the rank last scattered or waited
  int burst_ = 0;                      // scatters in a row without an update that came in between
  int answers_ = 0;                    // scatters in a row with one
  bool has_put_off_ = false;           // cursors wait for the next scatter
  std::uint32_t segment_ = 0;          // of the last scatter
  std::size_t updates_ = 0;            // held back
  std::size_t bytes_ = 0;              // of them
  std::atomic<bool> has_come_{false};  // an update has come since the last scatter
};

}  // namespace dstorm::remote
