// The watcher: a thread that does this rank's part of the membership. It sleeps until the process
// of a neighbour ends, something arrives from another host, or the next heartbeat is due. It writes
// what it learns into the memory of the host, for all ranks there, and wakes its own rank if that
// waits. It notices a SIGKILL well within a millisecond and costs next to nothing while no rank
// dies.
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

class Recorder;
namespace remote {
class Engine;
}

struct WatcherOptions {
  std::chrono::nanoseconds suspect_after;  // a rank not heard from for this long is suspected
  TieRule tie;
  std::function<void()> changed;  // called in the watcher's thread at a new epoch; may be null
  Recorder* recorder = nullptr;   // told of each epoch; may be null
};

class Watcher {
 public:
  // `alarm` is an eventfd; a thread that wants the watcher to look at once writes to it. `engine`
  // carries this rank's record to other hosts; it is null if there are none. `control`, `engine`
  // and `alarm` must outlive the watcher. Throws ConfigError if the system gives no thread. The
  // destructor ends the thread and waits for it.
  Watcher(host::Control& control, remote::Engine* engine, int alarm, const WatcherOptions& options);
  ~Watcher();
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  // The view that this rank has agreed to. Ranks that it evicts are marked in the memory of the
  // host. Any thread may call.
  View view() const;

 private:
  struct Known {  // about another rank
    std::uint64_t beat = 0;
    std::int64_t heard = 0;
  };

  void run();
  void step(Clock::time_point now);
  void look(std::chrono::nanoseconds now);
  bool look_at(int rank, std::chrono::nanoseconds now);
  bool take_in(int rank, std::chrono::nanoseconds now);
  void tell();
  void note_watched();
  void follow();
  void record(const View& view);

  host::Control& control_;
  remote::Engine* engine_;
  int alarm_;
  WatcherOptions options_;
  Membership membership_;
  std::vector<Known> known_;           // by rank
  std::vector<bool> is_watched_;       // by rank
  std::vector<bool> watched_hosts_;    // as the engine knows them
  int next_look_ = 0;                  // the rank at which the next look begins
  bool is_behind_ = false;             // the last look left records for the next
  std::chrono::nanoseconds worked_{};  // processor time of this thread until the last tick
  std::uint64_t told_ = 0;             // the beat of the last record published
  mutable std::mutex mutex_;           // guards followed_
  View followed_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace dstorm
