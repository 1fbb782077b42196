// When a fault ends a rank, a signal handler prints a line with the rank and the signal. The
// handler is installed over Python's faulthandler, which then prints the place. A signal handler
// can reach nothing but globals, hence the global here.
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <string>

#include "bindings.hpp"

namespace malt_bindings {
namespace {

struct Fault {
  int number;
  const char* name;
  std::string line = {};  // made in advance, because a handler may not allocate
  struct sigaction before = {};
};

struct Announcer {
  std::array<Fault, 5> faults{{{SIGSEGV, "SIGSEGV"},
                               {SIGFPE, "SIGFPE"},
                               {SIGILL, "SIGILL"},
                               {SIGBUS, "SIGBUS"},
                               {SIGABRT, "SIGABRT"}}};
  pid_t process = 0;  // 0: not installed
};

Announcer announcer;

// Async-signal-safe. Restores the earlier handler and raises the signal again, so that handler runs
// when this one returns.
void announce(int number) {
  const int error = errno;
  for (const Fault& fault : announcer.faults) {
    if (fault.number != number) continue;
    // A process that was forked from the rank is not a rank.
    if (getpid() == announcer.process) {
      [[maybe_unused]] const ssize_t written =
          write(STDERR_FILENO, fault.line.data(), fault.line.size());
    }
    sigaction(number, &fault.before, nullptr);
  }
  errno = error;
  raise(number);
}

void start(int rank) {
  announcer.process = getpid();
  for (Fault& fault : announcer.faults) {
    fault.line = "malt: rank " + std::to_string(rank) + " (pid " +
                 std::to_string(announcer.process) + ") was ended by " + fault.name + "\n";
    struct sigaction action = {};
    action.sa_handler = announce;
    action.sa_flags = SA_ONSTACK;  // a stack that has overflowed has no room
    sigaction(fault.number, &action, &fault.before);
  }
}

// Restores the earlier handlers. A handler that the program has installed since start() stays.
void stop() {
  announcer.process = 0;
  for (const Fault& fault : announcer.faults) {
    struct sigaction now = {};
    sigaction(fault.number, nullptr, &now);
    if (now.sa_handler == announce) sigaction(fault.number, &fault.before, nullptr);
  }
}

}  // namespace

void bind_fault(py::module_& module) {
  module.def("announce_faults", &start, py::arg("rank"),
             "Have this process name its rank and the signal on standard error when SIGSEGV, "
             "SIGFPE, SIGILL, SIGBUS or SIGABRT ends it; earlier handlers run after that.");
  module.def("announce_no_faults", &stop, "Undo announce_faults().");
}

}  // namespace malt_bindings
