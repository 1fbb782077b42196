// A thread that keeps this rank's part of the membership: it sleeps until a neighbour's process ends,
// something comes from another host, or it is time to say that this rank is well. What it comes to
// know it writes into the memory of the host, for all ranks there, and wakes this rank if it waits. It
// sees a SIGKILL well within a millisecond and costs next to nothing while nobody dies.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "dstorm/host/control.hpp"
#include "dstorm/host/wait.hpp"
#include "dstorm/membership/membership.hpp"

namespace dstorm {

namespace remote {
class Engine;
}

struct WatcherOptions {
  std::chrono::nanoseconds silence;  // who is not heard of for so long is missed
  TieRule tie;
  std::function<void()> changed;  // what the program wants done at a new epoch, or nullptr
};

class Watcher {
 public:
  // `alarm`: an eventfd, written by whoever wants it to look at once. `engine` carries this rank's
  // record to other hosts, nullptr if there are none. Both outlive it.
  Watcher(host::Control& control, remote::Engine* engine, int alarm, const WatcherOptions& options);
  ~Watcher();
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  // What this rank has agreed to; whom it leaves out is marked in the memory of the host. Any thread.
  View view() const;

 private:
  struct Known {  // of another rank
    std::uint64_t beat = 0;
    std::int64_t heard = 0;
  };

  void run();
  void step(Clock::time_point now);
  void look(std::chrono::nanoseconds now);
  bool look_at(int rank, std::chrono::nanoseconds now);
  bool take_in(int rank, std::chrono::nanoseconds now);
  void tell();
  void follow();

  host::Control& control_;
  remote::Engine* engine_;
  int alarm_;
  WatcherOptions options_;
  Membership membership_;
  std::vector<Known> known_;           // by rank
  int next_look_ = 0;                  // the rank at which the next look begins
  bool is_behind_ = false;             // the last look left records for the next
  std::chrono::nanoseconds worked_{};  // processor time until the last tick
  std::uint64_t told_ = 0;             // the beat of the last record told
  mutable std::mutex mutex_;           // of followed_
  View followed_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace dstorm
