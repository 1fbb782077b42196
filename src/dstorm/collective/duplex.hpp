// Messages between two ranks, which both send and receive. Each message lies whole in one slot: its
// sender copies it in once, and its receiver copies it out once.
//
// A message is a head, by which the receiver knows what it is and how much room it needs, and a
// body. The receiver looks at the head of the oldest message first (peek), and then takes its body.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dstorm/segment.hpp"
#include "dstorm/slot/layout.hpp"

namespace dstorm {

// Threads: as for a Segment. Messages are taken in the order in which they were sent, each once.
class Duplex {
 public:
  // Collective, blocking: the ranks of `group`, which are this one and `peer`, make it.
  // `depth` messages of up to `slot_bytes` bytes, head and body, can be on their way from each of
  // them, and `spare` more that try_send() sends. Throws what the constructor of Segment throws.
  Duplex(std::shared_ptr<Group> group, std::string name, int peer, std::size_t slot_bytes,
         int depth, int spare = 0);

  // Returns when the message has been copied into a slot. Waits for a slot that is not spare, as
  // long as the group's time limit. Throws ConfigError if the message does not fit a slot,
  // TimeoutError, and PeerError if the receiver is dead or has left.
  void send(std::span<const std::byte> head, std::span<const std::byte> body);

  // Sends if any slot is free and the receiver is live; returns whether it did. Never waits.
  bool try_send(std::span<const std::byte> head, std::span<const std::byte> body);

  struct Arrived {
    std::vector<std::byte> head;
    std::size_t body_bytes;
  };
  // Waits for a message and says what the oldest one is; again the same one until it is taken.
  // Throws TimeoutError, and PeerError if the sender is dead or has left and has sent no more.
  Arrived peek(std::chrono::nanoseconds limit);

  // Copies the body of the message that peek() has returned, and frees its slot. Never waits.
  // Throws ConfigError, and takes nothing, if peek() has returned none, or if `to` has another
  // length.
  void take(std::span<std::byte> to);

  void shut() noexcept { segment_.shut(); }

 private:
  [[noreturn]] void throw_gone() const;
  void await_slot();
  void put(std::span<const std::byte> head, std::span<const std::byte> body);

  struct Found {
    int slot;
    SlotHeader header;  // a copy, checked
  };
  std::optional<Found> find();

  Segment segment_;
  int peer_;
  std::size_t depth_;           // without the spare slots
  std::uint64_t taken_ = 0;     // the sender's iterations up to this one have been taken
  std::optional<Found> found_;  // peek()'s result
};

}  // namespace dstorm
