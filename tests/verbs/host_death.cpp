// What a writer sees when the other host dies.
//   host_death victim         takes writes from one writer, and dies in the midst: kernel and all
//   host_death writer HOST    writes to the victim there; well if it hears of the death within 1 s
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <stdexcept>
#include <string_view>
#include <thread>

#include "ends.hpp"

namespace dstorm::verbs {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr std::uint16_t kPort = 7077;
constexpr std::size_t kBytes = 65'536;

sockaddr_in address_of(const char* host) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(kPort);
  inet_pton(AF_INET, host, &address.sin_addr);
  return address;
}

int accept_one() {
  const sockaddr_in any = address_of("0.0.0.0");
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  if (bind(listener, reinterpret_cast<const sockaddr*>(&any), sizeof(any)) != 0 ||
      listen(listener, 1) != 0) {
    throw std::runtime_error("cannot listen");
  }
  return accept(listener, nullptr, nullptr);
}

int connect_to(const char* host) {
  const sockaddr_in there = address_of(host);
  for (const auto end = Clock::now() + 30s; Clock::now() < end;) {
    const int connection = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(connection, reinterpret_cast<const sockaddr*>(&there), sizeof(there)) == 0) {
      return connection;
    }
    close(connection);
    std::this_thread::sleep_for(100ms);
  }
  throw std::runtime_error("the victim's host does not answer");
}

template <class T>
T swap_over(int connection, const T& mine) {
  T theirs{};
  if (send(connection, &mine, sizeof(mine), MSG_NOSIGNAL) != sizeof(mine) ||
      recv(connection, &theirs, sizeof(theirs), MSG_WAITALL) != sizeof(theirs)) {
    throw std::runtime_error("the other end is gone before it began");
  }
  return theirs;
}

Target meet(int connection, End& end) {
  const Address other = swap_over(connection, end.address());
  end.queue.connect(other.endpoint);
  swap_over(connection, '\0');  // both are connected
  return other.target;
}

int take_writes_and_die() {
  End end("", kBytes);
  meet(accept_one(), end);
  std::this_thread::sleep_for(1s);
  std::ofstream("/proc/sysrq-trigger") << "b" << std::flush;  // at once, with no good-bye
  std::this_thread::sleep_for(10s);
  return 1;
}

int write_until_death(const char* host) {
  End end("", kBytes);
  const Target target = meet(connect_to(host), end);
  Clock::time_point last;
  while (settle(end.queue, end.queue.write(end.part(kBytes), target, {.signaled = true}))) {
    last = Clock::now();
  }
  const std::chrono::duration<double> silence = Clock::now() - last;
  const auto& failure = end.queue.failed();
  std::printf("%lu writes, then %.2f s of silence: %s\n", end.queue.completed(), silence.count(),
              failure ? failure->what.c_str() : "and no error");
  const bool well = end.queue.completed() > 0 && failure &&
                    failure->status == IBV_WC_RETRY_EXC_ERR && silence < 1s;
  return well ? 0 : 1;
}

}  // namespace
}  // namespace dstorm::verbs

int main(int count, char** arguments) {
  try {
    if (count == 2 && std::string_view(arguments[1]) == "victim") {
      return dstorm::verbs::take_writes_and_die();
    }
    if (count == 3) return dstorm::verbs::write_until_death(arguments[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "host_death: %s\n", error.what());
    return 1;
  }
  std::fprintf(stderr, "usage: host_death victim | host_death writer HOST\n");
  return 2;
}
