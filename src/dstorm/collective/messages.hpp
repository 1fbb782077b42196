// Messages from each rank of a group to all others. Nothing is lost: a receiver takes the messages
// of each sender in the order in which they were sent.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dstorm/segment.hpp"

namespace dstorm {

// Threads: as for a Segment, whose exceptions the calls throw too, Superseded among them.
class Messages {
 public:
  // Collective, blocking. `depth` messages of up to `slot_bytes` bytes each can be on their way
  // from a rank. `rejoins`: see SegmentOptions.
  Messages(std::shared_ptr<Group> group, std::string name, std::size_t slot_bytes, int depth,
           bool rejoins);

  // Collective: see Segment::regroup. Messages that have not been received come along.
  void regroup(std::shared_ptr<Group> group) { segment_.regroup(std::move(group)); }

  // Sends to all live ranks if a slot is free, and returns whether it did. Never waits. Throws
  // ConfigError if the message does not fit a slot.
  bool try_send(std::span<const std::byte> message);

  // Calls take(rank, message, is_old) for each message that has arrived. `is_old`: it was sent in
  // an earlier group. If take throws, all of these messages arrive again. Never waits.
  using Take = std::function<void(int rank, std::span<const std::byte> message, bool is_old)>;
  void receive(const Take& take);

  // Waits until a message has arrived, until a slot is free if `for_room`, or until other ranks are
  // live than `live`. Returns false when the time is up. `what` says what the caller waits for.
  bool await(bool for_room, std::span<const int> live, const std::string& what,
             std::chrono::nanoseconds limit);

  // The live ranks that have yet to receive messages, which so keep slots in use.
  std::vector<int> blockers() const;

  // The ranks that live and have not closed their messages, this one too, sorted.
  std::vector<int> live() const;

  Segment& segment() noexcept { return segment_; }
  const Segment& segment() const noexcept { return segment_; }

 private:
  bool has_room() const;
  bool has_message();

  Segment segment_;
};

}  // namespace dstorm
