// Messages from one process to another: over a segment, or over a bare TCP stream.
//
//   transport stream|TRANSPORT bandwidth|latency BYTES [BLOCKS]
//
// Prints bytes a second one way, or the seconds of half a round trip: the median over blocks, as
// rank 1 sees it. As with the peers' own programs, a sender touches only the first 8 bytes of a
// message, which number it, and a receiver reads only those.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "dstorm/group.hpp"
#include "dstorm/segment.hpp"
#include "forked_ranks.hpp"

namespace {

using forked_ranks::ForkBootstrap;
using forked_ranks::Meeting;
using Clock = std::chrono::steady_clock;

constexpr double kBlockSeconds = 0.1;
constexpr int kMostRepeats = 1'000'000;
constexpr int kCalibration = 32;  // messages, twice: the first ones warm up
constexpr std::chrono::seconds kPatience{60};
// Room for what is under way: 6 MB, but at least 4 messages and at most 16. More would not be
// written from and into a cache.
constexpr std::size_t kMostUnderWay = std::size_t{6} << 20;

std::size_t slots_for(std::size_t bytes) {
  return std::clamp<std::size_t>(kMostUnderWay / bytes, 4, 16);
}

// A way from one of two ranks to the other.
class Path {
 public:
  virtual ~Path() = default;
  // Rank `from` sends its message `number`, from 1 on; the other returns when it has it.
  virtual void pass(int from, std::uint64_t number) = 0;
};

void check(std::uint64_t number, std::uint64_t expected) {
  if (number != expected) {
    throw std::runtime_error("message " + std::to_string(expected) + " came as " +
                             std::to_string(number));
  }
}

class SegmentPath final : public Path {
 public:
  SegmentPath(ForkBootstrap& bootstrap, const std::string& transport, std::size_t bytes)
      : segment_(dstorm::Group::join(bootstrap, {.transport = transport}), options(bytes)) {}

  void pass(int from, std::uint64_t number) override {
    if (from == segment_.group().rank()) {
      segment_.scatter([&](std::span<std::byte> room) {
        std::memcpy(room.data(), &number, sizeof(number));
        return std::pair(room.size(), dstorm::Tag{});
      });
    } else if (!segment_.wait([&] { return last_ >= number || gather() >= number; }, kPatience)) {
      throw std::runtime_error("message " + std::to_string(number) + " did not come");
    }
  }

 private:
  static dstorm::SegmentOptions options(std::size_t bytes) {
    dstorm::SegmentOptions options;
    options.name = "messages";
    options.slot_bytes = bytes;
    options.depth = static_cast<int>(slots_for(bytes));
    options.policy = dstorm::Policy::kQueue;
    return options;
  }

  // Takes what has come, maybe several messages at once; returns the number of the last so far.
  std::uint64_t gather() {
    segment_.gather({}, [this](std::span<const dstorm::Update> updates) {
      for (const dstorm::Update& update : updates) {
        std::uint64_t number = 0;
        std::memcpy(&number, update.payload.data(), sizeof(number));
        check(number, ++last_);
      }
    });
    return last_;
  }

  dstorm::Segment segment_;
  std::uint64_t last_ = 0;
};

class Socket {
 public:
  Socket() : Socket(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {}
  explicit Socket(int descriptor) : descriptor_(descriptor) { check(descriptor); }
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  int get() const { return descriptor_; }
  static void check(long result) {
    if (result < 0) throw std::system_error(errno, std::generic_category(), "socket");
  }

 private:
  int descriptor_;
};

// The two ends of a stream over loopback: rank 0 connects to where rank 1 listens.
Socket connect_ranks(ForkBootstrap& bootstrap) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* at = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = sizeof(address);
  Socket own;
  if (bootstrap.rank() == 1) {
    Socket::check(bind(own.get(), at, length));
    Socket::check(listen(own.get(), 1));
    Socket::check(getsockname(own.get(), at, &length));
  }
  const auto port = std::as_bytes(std::span(&address.sin_port, 1));
  const auto ports = bootstrap.allgather(port, kPatience);
  if (bootstrap.rank() == 1) return Socket(accept4(own.get(), nullptr, nullptr, SOCK_CLOEXEC));
  std::memcpy(&address.sin_port, ports[1].data(), sizeof(address.sin_port));
  Socket::check(connect(own.get(), at, length));
  return own;
}

class StreamPath final : public Path {
 public:
  // `spin`: burn the core until something comes, for the shortest time. `like_slots`: laid out as
  // MALT's proxies are in general, with a connection for each direction, and with as many messages
  // in memory as slots; else one of each.
  StreamPath(ForkBootstrap& bootstrap, std::size_t bytes, bool spin, bool like_slots)
      : rank_(bootstrap.rank()),
        flags_(spin ? MSG_DONTWAIT : 0),
        messages_(like_slots ? slots_for(bytes) : 1, std::vector<std::byte>(bytes)) {
    const int on = 1;
    while (sockets_.size() < (like_slots ? 2 : 1)) {
      sockets_.push_back(connect_ranks(bootstrap));
      Socket::check(setsockopt(sockets_.back().get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)));
    }
  }

  void pass(int from, std::uint64_t number) override {
    const int socket = sockets_[static_cast<std::size_t>(from) % sockets_.size()].get();
    std::vector<std::byte>& message = messages_[number % messages_.size()];
    if (rank_ == from) {
      std::memcpy(message.data(), &number, sizeof(number));
      for (std::size_t sent = 0; sent < message.size();)
        sent += moved(send(socket, &message[sent], message.size() - sent, flags_));
    } else {
      for (std::size_t got = 0; got < message.size();)
        got += moved(recv(socket, &message[got], message.size() - got, flags_));
      std::uint64_t found = 0;
      std::memcpy(&found, message.data(), sizeof(found));
      check(found, number);
    }
  }

 private:
  static std::size_t moved(ssize_t bytes) {
    if (bytes < 0 && errno == EAGAIN) return 0;
    Socket::check(bytes);
    if (bytes == 0) throw std::runtime_error("the other rank has ended");
    return static_cast<std::size_t>(bytes);
  }

  int rank_;
  int flags_;
  std::vector<Socket> sockets_;
  std::vector<std::vector<std::byte>> messages_;
};

// Passes messages from rank 0 to rank 1, or to and fro.
class Measurement {
 public:
  Measurement(ForkBootstrap& bootstrap, Path& path, bool to_and_fro)
      : bootstrap_(bootstrap), path_(path), to_and_fro_(to_and_fro) {}

  // Seconds a message.
  double pass(int messages) {
    bootstrap_.meet(kPatience);
    const auto start = Clock::now();
    for (int i = 0; i < messages; ++i) {
      const int from = to_and_fro_ ? i % 2 : 0;
      path_.pass(from, ++numbers_[from]);
    }
    return std::chrono::duration<double>(Clock::now() - start).count() / messages;
  }

 private:
  ForkBootstrap& bootstrap_;
  Path& path_;
  bool to_and_fro_;
  std::uint64_t numbers_[2] = {};
};

// The calling thread alone, so that those of a transport go where there is room. Two that spin on
// one core would measure the scheduler.
void stay_on_core(int number) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  for (int core = 0, passed = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &allowed) || passed++ < number) continue;
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET(core, &own);
    sched_setaffinity(0, sizeof(own), &own);
    return;
  }
}

// Of two adapters, each rank takes one.
void take_adapter(int rank) {
  const char* given = std::getenv("BENCHMARK_ADAPTERS");
  const std::string adapters = given == nullptr ? "" : given;
  const std::size_t comma = adapters.find(',');
  if (comma == std::string::npos) return;
  const std::string own = rank == 0 ? adapters.substr(0, comma) : adapters.substr(comma + 1);
  setenv("MALT_RDMA_DEVICE", own.c_str(), 1);
}

void run(Meeting& meeting, int rank, const std::string& way, bool latency, std::size_t bytes,
         int blocks) {
  take_adapter(rank);
  ForkBootstrap bootstrap(meeting, rank, 2);
  std::unique_ptr<Path> path;
  if (way == "stream" || way == "slot-stream") {
    path = std::make_unique<StreamPath>(bootstrap, bytes, latency, way == "slot-stream");
  } else {
    path = std::make_unique<SegmentPath>(bootstrap, way, bytes);
  }
  stay_on_core(rank);
  Measurement measurement(bootstrap, *path, latency);
  measurement.pass(kCalibration);
  const double once = measurement.pass(kCalibration);
  // An even number, so that each block begins with rank 0.
  if (rank == 1)
    meeting.repeats = 2 * std::clamp(static_cast<int>(kBlockSeconds / once / 2), 2, kMostRepeats);
  bootstrap.meet(kPatience);
  std::vector<double> seconds;
  for (int block = 0; block < blocks; ++block) {
    seconds.push_back(measurement.pass(meeting.repeats));
  }
  bootstrap.meet(kPatience);  // nobody leaves before all is done
  std::nth_element(seconds.begin(), seconds.begin() + blocks / 2, seconds.end());
  const double median = seconds[static_cast<std::size_t>(blocks) / 2];
  if (rank == 1) std::printf("%.6g\n", latency ? median : static_cast<double>(bytes) / median);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string way = argc > 1 ? argv[1] : "";
  const std::string what = argc > 2 ? argv[2] : "";
  const std::size_t bytes = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 0;
  const int blocks = argc > 4 ? std::atoi(argv[4]) : 5;
  if ((what != "bandwidth" && what != "latency") || bytes < sizeof(std::uint64_t) || blocks < 1) {
    std::fprintf(stderr,
                 "usage: %s stream|slot-stream|TRANSPORT bandwidth|latency BYTES [BLOCKS]\n",
                 argv[0]);
    return 2;
  }
  try {
    return forked_ranks::run(2, [&](Meeting& meeting, int rank) {
      run(meeting, rank, way, what == "latency", bytes, blocks);
    });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
