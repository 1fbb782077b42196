// A thread of the library's own, which leaves signals to the program's.
#pragma once

#include <csignal>
#include <thread>
#include <utility>

namespace dstorm {

// Starts it with every signal blocked but those of its own faults: the system ends a process on one
// that is blocked without asking its handlers, which could have said what has happened.
template <class Run>
std::thread start_quiet_thread(Run&& run) {
  sigset_t quiet;
  sigset_t before;
  sigfillset(&quiet);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigdelset(&quiet, fault);
  pthread_sigmask(SIG_SETMASK, &quiet, &before);
  std::thread thread(std::forward<Run>(run));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace dstorm
