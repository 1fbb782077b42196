// A thread that sleeps until a peer's process ends, marks the rank dead, and wakes this rank if it
// waits. It sees a SIGKILL well within a millisecond and costs nothing while nobody dies.
#pragma once

#include <thread>

#include "dstorm/shm/control.hpp"

namespace dstorm::shm {

class Watcher {
 public:
  explicit Watcher(Control& control);
  ~Watcher();

 private:
  void run();

  Control& control_;
  int stop_;  // eventfd
  std::thread thread_;
};

}  // namespace dstorm::shm
