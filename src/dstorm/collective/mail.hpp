// Messages among the ranks of a group: each from one rank to one other, of at most `slot_bytes`
// bytes. Sending never waits.
//
// The messages lie in the mailboxes of a QUEUE segment that only this class uses.
//  M1 A message is taken once, in the order in which its sender sent it: the tickets of a sender
//     for one receiver grow (S5), and while a message waits for a slot, all later ones for its
//     receiver wait behind it.
//  M2 A rank that finds no slot keeps the message in memory of its own. So two ranks that send to
//     each other cannot block each other; the layer above bounds what it has in flight. It can
//     leave messages lying, so that a rank which does not take the answers to its questions fills
//     memory of its own alone. Half of the slots are for receivers that have taken all that lies
//     there for them: one that takes nothing has the other half and one more at most.
//  M3 Messages that a rank sent before it died are taken up to its clock (S6). A message to a rank
//     that is dead or has left is dropped.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "dstorm/segment.hpp"
#include "dstorm/segment/parts.hpp"

namespace dstorm {

// For one thread, which holds the group's turn (host/turn.hpp).
class Mail {
 public:
  // Collective, blocking. Throws what the constructor of Segment throws.
  Mail(std::shared_ptr<Group> group, std::string name, std::size_t slot_bytes, int depth);

  // Room for the next message, to be filled before end(). Throws Error if `bytes` is above
  // slot_bytes().
  std::byte* begin(int to, std::size_t bytes);
  // Sends the message that begin() gave room for.
  void end();
  void send(int to, std::span<const std::byte> message) {
    if (std::byte* const room = begin(to, message.size()); !message.empty()) {
      std::memcpy(room, message.data(), message.size());
    }
    end();
  }

  // Sends messages that wait for slots; returns whether it sent any.
  bool pump();
  // Calls take(sender, message) for each message that has arrived; the bytes are valid during the
  // call, and another process may write them. Returns whether there were any. If `take` returns
  // false, the message and the later ones of its sender stay where they are until this rank sends
  // the sender a message, or the sender takes one (M2).
  template <class Take>
  bool take_in(Take&& take) {
    bool is_news = false;
    for (Peer& peer : peers_) {
      if (peer.rank == rank() || state_.group().is_left_out(peer.rank)) continue;
      is_news = take_from(peer, take) || is_news;
    }
    return is_news;
  }
  // Waits until a message has arrived, a waiting message finds a slot, or `ready()`. Returns false
  // when the time is up. Without `missed` a wait never counts as slow.
  template <class Ready, class Missed>
  bool wait(Ready&& ready, std::chrono::nanoseconds limit, const Missed& missed) {
    return state_.wait([&] { return has_news() || ready(); }, limit, missed);
  }
  template <class Ready>
  bool wait(Ready&& ready, std::chrono::nanoseconds limit) {
    return state_.wait([&] { return has_news() || ready(); }, limit);
  }

  // Ends such a wait's sleep, from any thread: `ready` looks at something that has changed.
  void wake() noexcept { state_.channel().wake_self(); }
  // The same for such a wait of another rank of this host.
  void wake(int rank) noexcept { state_.channel().wake({&rank, 1}); }

  int rank() const { return state_.group().rank(); }
  Group& group() const { return state_.group(); }
  bool is_live(int rank) const { return state_.is_live(rank); }
  Turns& turns() const { return state_.turns(); }
  const std::string& name() const { return segment_.options().name; }
  std::size_t slot_bytes() const { return segment_.options().slot_bytes; }
  // The messages that wait for a slot; those to one receiver.
  std::size_t waiting() const { return waiting_; }
  std::size_t waiting_for(int to) const {
    return peers_[static_cast<std::size_t>(to)].backlog.size();
  }
  // Whether `to` has taken all messages to it, as far as this host has heard.
  bool has_taken_all(int to) const;
  // How many it has not taken; none once it is dead.
  std::size_t untaken(int to);
  // Of the messages sent, and of those taken.
  std::uint64_t bytes_out() const { return bytes_out_; }
  std::uint64_t bytes_in() const { return bytes_in_; }
  // Of both, those sent to this member or taken from it.
  std::uint64_t bytes_with(int member) const {
    return peers_[static_cast<std::size_t>(member)].bytes;
  }
  // Leaves: the other ranks no longer wait for this one. Any thread, at any time.
  void shut() noexcept { segment_.shut(); }

 private:
  struct Peer {
    int rank;
    SlotReader reader;
    std::uint64_t read = 0;                  // its messages up to this iteration have been taken
    std::uint64_t sent = 0;                  // the iteration of the last message to it
    std::uint64_t bytes = 0;                 // of messages in both directions
    std::deque<std::uint64_t> untaken = {};  // the iterations of messages to it; not those waiting
    std::deque<std::vector<std::byte>> backlog = {};  // messages to it that wait for slots
    bool is_left = false;               // its next message has been left lying, when this rank had
    std::size_t untaken_when_left = 0;  // so many messages to it untaken
  };
  template <class Take>
  bool take_from(Peer& peer, Take& take) {
    if (is_left(peer)) return false;
    peer.is_left = false;
    const std::uint64_t clock = peer.reader.clock();
    bool is_news = peer.read < clock;
    bool has_taken = false;
    while (peer.read < clock) {
      const int slot = peer.reader.oldest(peer.read, clock);
      if (slot < 0) {
        peer.read = clock;
        break;
      }
      const SlotHeader header = header_of(peer, slot, clock);
      const std::span message(peer.reader.payload(slot), header.payload_bytes);
      if constexpr (std::is_void_v<decltype(take(peer.rank, message))>) {
        take(peer.rank, message);
      } else if (!take(peer.rank, message)) {
        peer.is_left = true;
        peer.untaken_when_left = untaken(peer.rank);
        is_news = has_taken;
        break;
      }
      peer.read = header.iteration;
      peer.reader.release(header.iteration);
      bytes_in_ += header.payload_bytes;
      peer.bytes += header.payload_bytes;
      has_taken = true;
    }
    if (has_taken) state_.channel().acknowledge({&peer.rank, 1}, true);
    return is_news;
  }
  SlotHeader header_of(const Peer& peer, int slot, std::uint64_t clock) const;
  bool has_news();
  bool is_left(const Peer& peer) {
    return peer.is_left && untaken(peer.rank) >= peer.untaken_when_left;
  }
  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  int claim(Peer& to);
  bool may_claim(Peer& to);
  void publish(int slot, std::size_t bytes, Peer& to);

  Segment segment_;  // only this class reads and writes its mailboxes
  SegmentState& state_;
  SlotWriter writer_;
  std::vector<Peer> peers_;      // by rank
  std::uint64_t iteration_ = 0;  // of this rank's last message
  std::uint64_t bytes_out_ = 0;
  std::uint64_t bytes_in_ = 0;
  std::size_t waiting_ = 0;  // messages that wait for slots
  int to_ = 0;               // of the message that is begun
  int slot_ = -1;            // that begin() gave; -1: the message is in begun_
  std::size_t begun_bytes_ = 0;
  std::vector<std::byte> begun_;
};

}  // namespace dstorm
