// A limit on the processor time of some work: a bucket of processor time that fills at a steady
// rate, up to what it held at first. Time that is spent beyond that is owed. For one thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <ctime>

#include "dstorm/host/wait.hpp"

namespace dstorm::net {

class ProcessorBudget {
 public:
  // The bucket gains one second in every `period` seconds.
  ProcessorBudget(std::int64_t period, std::chrono::nanoseconds most, Clock::time_point now)
      : period_(period), most_(most), left_(most), filled_(now) {}

  void spend(std::chrono::nanoseconds spent, Clock::time_point now) {
    left_ = std::min(most_, left_ + (now - filled_) / period_) - spent;
    filled_ = now;
  }
  // The time at which the bucket holds `wanted`, if nothing is spent until then.
  Clock::time_point has_at(std::chrono::nanoseconds wanted) const {
    return filled_ + std::max(std::chrono::nanoseconds(0), wanted - left_) * period_;
  }

 private:
  std::int64_t period_;
  std::chrono::nanoseconds most_, left_;
  Clock::time_point filled_;
};

// The processor time that the calling thread has used.
inline std::chrono::nanoseconds thread_processor_time() {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec);
}

}  // namespace dstorm::net
