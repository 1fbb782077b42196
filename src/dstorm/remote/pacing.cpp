#include "dstorm/remote/pacing.hpp"

#include <utility>

namespace dstorm::remote {

bool Pacing::may_hold_back(std::uint32_t segment, const host::SegmentShape& shape,
                           std::size_t bytes, Clock::time_point now) noexcept {
  const bool is_soon = now - std::exchange(last_active_, now) < kSoon;
  const bool has_come = has_come_.exchange(false);
  has_put_off_ = false;
  answers_ = is_soon && has_come ? answers_ + 1 : 0;
  burst_ = is_soon && !has_come && shape.policy == Policy::kQueue ? burst_ + 1 : 0;
  const bool is_same = std::exchange(segment_, segment) == segment;
  bytes_ += bytes;
  return burst_ >= kBurst && is_same && bytes_ < kHeldBytes &&
         ++updates_ * 2 <= shape.mailbox.depth();
}

void Pacing::note_sent(Clock::time_point now) noexcept {
  updates_ = bytes_ = 0;
  last_active_ = now;
}

bool Pacing::may_put_off_cursors() noexcept {
  return answers_ >= kBurst && !std::exchange(has_put_off_, true);
}

}  // namespace dstorm::remote
