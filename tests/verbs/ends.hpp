// One end of a connection for tests: a device, memory the peer may write, and a queue to the peer.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "dstorm/remote/verbs/queue.hpp"
#include "dstorm/remote/verbs/region.hpp"

namespace dstorm::verbs {

// What one end must know of the other.
struct Address {
  Endpoint endpoint;
  Target target;
};

struct End {
  explicit End(const std::string& setting, std::size_t bytes = 4096,
               const QueueOptions& options = {})
      : memory(bytes),
        device(Device::open(Library::load(), setting)),
        region(device, memory, "a test"),
        queue(device, options) {}

  Address address() const { return {queue.local(), {region.address(), region.rkey()}}; }
  // The first `bytes` of the memory, from `offset` on.
  Part part(std::size_t bytes, std::size_t offset = 0) const {
    return {memory.data() + offset, static_cast<std::uint32_t>(bytes), region.lkey()};
  }

  std::vector<std::byte> memory;
  Device device;
  Region region;
  Queue queue;
};

// Two ends in this process, on two devices, connected.
struct Connection {
  explicit Connection(std::size_t bytes = 4096, const QueueOptions& options = {})
      : writer("rxe1", bytes, options), reader("rxe2", bytes, options) {
    writer.queue.connect(reader.queue.local());
    reader.queue.connect(writer.queue.local());
  }
  Target target(std::size_t offset = 0) const {
    return {reader.region.address() + offset, reader.region.rkey()};
  }

  End writer, reader;
};

// Sleeps until the write has completed; false if the queue failed, or did nothing for `limit`.
inline bool settle(Queue& queue, std::uint64_t write,
                   std::chrono::milliseconds limit = std::chrono::seconds(10)) {
  for (;;) {
    queue.arm();
    if (queue.reap() >= write) return true;
    if (queue.failed()) return false;
    pollfd ready{queue.fd(), POLLIN, 0};
    if (poll(&ready, 1, static_cast<int>(limit.count())) != 1) return false;
  }
}

// While it lives, nothing reaches the device of this number, or leaves it.
class Unplugged {
 public:
  explicit Unplugged(int number) : port_("p" + std::to_string(number)) { set("down"); }
  ~Unplugged() { set("up"); }
  Unplugged(const Unplugged&) = delete;
  Unplugged& operator=(const Unplugged&) = delete;

 private:
  void set(const char* state) const {
    const std::string command = "ip link set " + port_ + " " + state;
    if (std::system(command.c_str()) != 0) std::abort();
  }
  std::string port_;
};

// What the error of type E says, or "" if none is thrown.
template <class E, class Call>
std::string message_of(Call&& call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  }
  return "";
}

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace dstorm::verbs
