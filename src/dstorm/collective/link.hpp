// Messages from one rank to another, in a group of these two. Each message has a tag; the receiver
// takes the messages of a tag in the order in which they were sent, and may take those of another
// tag first.
//
// A message that is received goes from its slots straight to the caller's memory. The receiver
// keeps those that nobody has asked for yet, up to kMostKept bytes of them. Then it leaves the next
// ones in their slots, so that the sender waits; and what lies behind them cannot be received
// before them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dstorm/host/wait.hpp"
#include "dstorm/segment.hpp"

namespace dstorm {

// Rank 0 of the group only sends, rank 1 only receives. Threads: as for a Segment.
class Link {
 public:
  // Bytes of messages that have arrived and not been received, and of what is needed to list them.
  // A part of one slot may come on top, and a message whose receive() has failed in the middle,
  // which is as long as its caller's memory.
  static constexpr std::size_t kMostKept = 64 << 20;

  // Collective, blocking: both ranks make the link. `depth` parts of `slot_bytes` bytes each can be
  // on their way. Throws what the constructor of Segment throws.
  Link(std::shared_ptr<Group> group, std::string name, std::size_t slot_bytes, int depth);

  // Returns when the whole message has been copied into slots. Waits for slots no longer than
  // `limit`, or else the group's. Throws TimeoutError, and PeerError if the receiver is dead; the
  // receiver then never gets any of the message.
  void send(std::span<const std::byte> message, std::uint32_t tag,
            std::optional<std::chrono::nanoseconds> limit = std::nullopt);

  // Sends a message that fits a slot, if a slot is free; returns whether it did. Never waits.
  // Throws PeerError if the receiver is dead.
  bool try_send(std::span<const std::byte> message, std::uint32_t tag);

  // Waits for the next message of the tag and copies it to `to`. Throws ConfigError if the message
  // has another length (it is then dropped), TimeoutError, and PeerError if the sender is dead.
  // Throws ConfigError at once if messages of other tags, which it names, fill what is kept: no
  // other message can come before one of them has been received.
  void receive(std::span<std::byte> to, std::uint32_t tag, std::chrono::nanoseconds limit);

  // Waits until a message of one of the tags has begun to arrive. Returns the tag's place in
  // `tags`, or -1 when the time is up. Throws PeerError if the sender is dead.
  int await(std::span<const std::uint32_t> tags, std::chrono::nanoseconds limit);

  // For a tag for which await() has found nothing: throws ConfigError, as receive() does, if
  // messages of other tags fill what is kept.
  void check_room(std::uint32_t tag) const;

  void shut() noexcept { segment_.shut(); }

 private:
  struct Message {
    std::uint32_t tag;
    std::size_t bytes;        // the whole message's
    std::size_t arrived = 0;  // so far
    std::vector<std::byte> kept = {};
    std::byte* direct = nullptr;  // where it goes at once, instead of `kept`
    bool is_dropped = false;      // it goes nowhere; only while it arrives
    bool is_whole() const { return arrived == bytes; }
    std::size_t size() const { return sizeof(Message) + kept.capacity(); }
  };

  using Place = std::list<Message>::iterator;
  bool has_room() const;
  Place find(std::uint32_t tag);
  bool take_in(std::chrono::nanoseconds limit);
  void add(const Update& update);
  void begin_message(const Update& update);
  bool is_full() const;
  void erase(Place message);
  void redirect(Message& message, std::byte* to);
  void keep(Message& message);
  [[noreturn]] void drop(Place message, std::size_t wanted, const Deadline& deadline);
  void throw_if_full(std::uint32_t tag) const;
  [[noreturn]] void throw_dead() const;

  Segment segment_;
  int peer_;
  std::uint64_t taken_ = 0;      // the sender's iterations that have been read
  std::list<Message> messages_;  // in the order in which they were sent; the last may be incomplete
  std::size_t kept_ = 0;         // the size() of all of them
  std::span<std::byte> room_;    // of the receive() in progress
  std::uint32_t room_tag_ = 0;
};

}  // namespace dstorm
