// The time limit of a call. A plain value.
#pragma once

#include <algorithm>
#include <chrono>

namespace dstorm {

using Clock = std::chrono::steady_clock;

// The time limit of a call that waits several times, counted from here on. It may be the longest
// there is.
class Deadline {
 public:
  template <class Rep, class Period>
  // NOLINTNEXTLINE(google-explicit-constructor): a call that takes one may be given a duration.
  Deadline(std::chrono::duration<Rep, Period> limit) : limit_(limit) {}
  // Of a call that has begun already and has `left` of its limit.
  Deadline(std::chrono::nanoseconds limit, std::chrono::nanoseconds left)
      : start_(Clock::now() - (limit - left)), limit_(limit) {}
  std::chrono::nanoseconds left() const {
    return std::max(limit_ - (Clock::now() - start_), std::chrono::nanoseconds::zero());
  }
  std::chrono::nanoseconds limit() const { return limit_; }
  // The same one, or `most` from here on if that ends sooner.
  Deadline but_within(std::chrono::nanoseconds most) const {
    return left() > most ? Deadline(most) : *this;
  }

 private:
  Clock::time_point start_ = Clock::now();
  std::chrono::nanoseconds limit_;
};

}  // namespace dstorm
