// The witness of a rank: a process that outlives the rank, and then proves to other hosts that the
// rank's process has ended.
//
// It sleeps until the system reports, by a pidfd, that the rank's process has ended. From then on
// nothing of the rank runs or writes any more. The witness accepts connections to the rank's
// listening socket, which it has inherited, and answers each caller with the token that the rank
// gave it. It does not have the key, and it shows the token to nobody before.
//
// It ends when the rank has left the job, when it has answered every other host, or when the time
// limit of its order is up. A launcher that adopts it (`malt run`) takes it along when it ends. If
// the launcher ended before the rank, the witness ends a second after the rank.
//
// It is another program than the rank's, so it has none of the rank's memory. It has a session of
// its own, so signals to the rank's process group or terminal do not reach it.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bitset>
#include <cerrno>
#include <climits>
#include <csignal>
#include <ctime>

#include "dstorm/remote/witness_order.hpp"

namespace {

using dstorm::remote::kWitnessControl;
using dstorm::remote::kWitnessListener;
using dstorm::remote::kWitnessRank;
using dstorm::remote::WitnessOrder;
using dstorm::remote::WitnessReceipt;
using dstorm::remote::WitnessWord;

constexpr std::uint64_t kOrphanLimitMs = 1000;
constexpr int kMostCallers = 32;  // the oldest makes way for a new one
constexpr std::uint32_t kMostHosts = 65536;
constexpr int kListener = 0, kLauncher = 1, kCallers = 2;  // indexes into the array that is polled

std::uint64_t now_ms() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1000 +
         static_cast<std::uint64_t>(now.tv_nsec) / 1'000'000;
}

void close_what_is_inherited() {
  constexpr unsigned kFirst = kWitnessRank + 1;
  if (syscall(SYS_close_range, kFirst, ~0U, 0) == 0) return;
  const long most = sysconf(_SC_OPEN_MAX);  // before Linux 5.9
  for (int fd = kFirst; fd < most; ++fd) close(fd);
}

// Signals that end jobs are meant for the ranks. The witness ends by itself.
void ignore_signals() {
  for (const int number : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGTSTP}) {
    signal(number, SIG_IGN);
  }
}

// Waits until `parent` has ended, and this process has another parent.
void await_adoption(pid_t parent) {
  const timespec nap{0, 1'000'000};
  while (getppid() == parent) nanosleep(&nap, nullptr);
}

bool take_order(WitnessOrder& order) {
  auto* to = reinterpret_cast<char*>(&order);
  std::size_t taken = 0;
  while (taken < sizeof(order)) {
    const ssize_t bytes = read(kWitnessControl, to + taken, sizeof(order) - taken);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) return false;
    taken += static_cast<std::size_t>(bytes);
  }
  return true;
}

// Returns false if there is nothing to tell.
bool await_end(std::uint64_t limit_ms) {
  pollfd polled[] = {{kWitnessRank, POLLIN, 0}, {kWitnessControl, POLLIN, 0}};
  int wait = -1;
  for (;;) {
    const int count = poll(polled, 2, wait);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    if ((polled[0].revents & POLLIN) != 0) return true;
    char word = 0;
    const ssize_t bytes = recv(kWitnessControl, &word, sizeof(word), MSG_DONTWAIT);
    if (bytes > 0) return word == static_cast<char>(WitnessWord::kLeft);
    // The rank's process is ending; or it runs another program now, and does not end.
    polled[1].fd = -1;
    wait = static_cast<int>(std::min<std::uint64_t>(limit_ms, INT_MAX));
  }
}

class Answers {
 public:
  Answers(const WitnessOrder& order, pid_t launcher) : order_(order) {
    const bool is_orphan = getppid() != launcher;
    const std::uint64_t limit =
        is_orphan ? std::min(order.limit_ms, kOrphanLimitMs) : order.limit_ms;
    end_ms_ = now_ms() + limit;
    for (pollfd& one : polled_) one = {-1, POLLIN, 0};
    polled_[kListener].fd = kWitnessListener;
    if (!is_orphan) {
      polled_[kLauncher].fd = static_cast<int>(syscall(SYS_pidfd_open, launcher, 0));
    }
    if (order.own_host < kMostHosts) is_told_[order.own_host] = true;
  }

  void give() {
    while (!are_all_told()) {
      const std::uint64_t now = now_ms();
      if (now >= end_ms_) return;
      const int wait = static_cast<int>(std::min<std::uint64_t>(end_ms_ - now, 60'000));
      if (poll(polled_, kCallers + kMostCallers, wait) <= 0) continue;
      if (polled_[kLauncher].revents != 0) return;
      for (int i = kCallers; i < kCallers + kMostCallers; ++i) {
        if (polled_[i].revents != 0) hear(polled_[i]);
      }
      if (polled_[kListener].revents != 0 && !answer()) return;
    }
  }

 private:
  bool are_all_told() const {
    const std::uint32_t hosts = std::min(order_.hosts, kMostHosts);
    for (std::uint32_t host = 0; host < hosts; ++host) {
      if (!is_told_[host]) return false;
    }
    return true;
  }

  // Returns false if no process can connect any more.
  bool answer() {
    const int fd = accept4(kWitnessListener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return errno != EINVAL && errno != EBADF;
    send(fd, order_.token.data(), order_.token.size(), MSG_NOSIGNAL);
    shutdown(fd, SHUT_WR);
    pollfd& place = polled_[kCallers + next_++ % kMostCallers];
    if (place.fd >= 0) close(place.fd);
    place = {fd, POLLIN, 0};
    return true;
  }

  // Takes in the receipt of a caller, or whatever else it had to say to the rank.
  void hear(pollfd& caller) {
    WitnessReceipt host = 0;
    const ssize_t bytes = recv(caller.fd, &host, sizeof(host), 0);
    if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (bytes == sizeof(host) && host < kMostHosts) is_told_[host] = true;
    close(caller.fd);
    caller.fd = -1;
  }

  const WitnessOrder& order_;
  std::uint64_t end_ms_ = 0;
  pollfd polled_[kCallers + kMostCallers];
  unsigned next_ = 0;
  std::bitset<kMostHosts> is_told_;
};

}  // namespace

int main() {
  ignore_signals();
  close_what_is_inherited();
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child != 0) _exit(child < 0 ? 1 : 0);
  setsid();
  WitnessOrder order{};
  if (chdir("/") != 0 || !take_order(order)) _exit(1);
  await_adoption(parent);
  const pid_t launcher = getppid();
  if (await_end(order.limit_ms)) Answers(order, launcher).give();
  _exit(0);
}
