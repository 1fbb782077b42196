// A thread that belongs to the library and leaves signals to the program's threads.
#pragma once

#include <csignal>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "dstorm/errors.hpp"

namespace dstorm {

// Starts a thread with every signal blocked except those raised by faults of its own. If a fault
// signal were blocked, the system would end the process without calling its handlers, which could
// have reported the fault. Throws ConfigError if the system gives no thread.
template <class Run>
std::thread start_quiet_thread(Run&& run) {
  sigset_t quiet;
  sigset_t before;
  sigfillset(&quiet);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigdelset(&quiet, fault);
  std::thread thread;
  std::string why;
  pthread_sigmask(SIG_SETMASK, &quiet, &before);
  try {
    thread = std::thread(std::forward<Run>(run));
  } catch (const std::system_error& error) {
    why = error.what();
  }
  // Restored in any case; otherwise nothing could interrupt the program any more.
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!thread.joinable()) {
    throw ConfigError("cannot start a thread: " + why +
                      "; raise the limit on processes (ulimit -u, or that of the container) or on "
                      "the address space (ulimit -v)");
  }
  return thread;
}

}  // namespace dstorm
