#include "dstorm/collective/link.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "dstorm/errors.hpp"
#include "dstorm/host/turn.hpp"
#include "dstorm/segment/parts.hpp"

namespace dstorm {
namespace {

using std::chrono::nanoseconds;

// Of Tag::count, which is the message's length: set in the first of its parts. A message whose
// send() has failed in the middle so ends where the next one begins.
constexpr std::uint64_t kBegins = std::uint64_t{1} << 63;
// Bytes for which room is made when a message begins; for more, when they come.
constexpr std::size_t kMostReserved = 16 << 20;

}  // namespace

Link::Link(std::shared_ptr<Group> group, std::string name, std::size_t slot_bytes, int depth)
    : segment_(group, SegmentOptions{.name = std::move(name),
                                     .slot_bytes = slot_bytes,
                                     .depth = depth,
                                     .policy = Policy::kQueue,
                                     .kind = "link",
                                     .most_updates = 1}),  // kMostKept is looked at between two
      peer_(1 - group->rank()) {}

void Link::throw_dead() const {
  throw PeerError("rank " + std::to_string(peer_) + " is dead, or has left", {peer_});
}

bool Link::has_room() const {
  const SegmentState& state = segment_.parts().state;
  return state.writer().has_free([&](int rank) { return state.is_live(rank); });
}

void Link::send(std::span<const std::byte> message, std::uint32_t tag,
                std::optional<nanoseconds> limit) {
  const Turn turn(segment_.turns(), "send", segment_.options().name);
  const nanoseconds most = limit.value_or(segment_.group().timeout());
  const Deadline deadline(most);
  const auto no_room = [&] { return "no room for a message with tag " + std::to_string(tag); };
  const std::size_t room_bytes = segment_.options().slot_bytes;
  for (std::size_t begin = 0; begin == 0 || begin < message.size(); begin += room_bytes) {
    const auto part = message.subspan(begin, std::min(room_bytes, message.size() - begin));
    if (!segment_.parts().state.wait([&] { return has_room(); }, deadline.left(), no_room)) {
      throw TimeoutError(no_room() + " came within " + format_seconds(most), {peer_});
    }
    const auto receivers = segment_.scatter([&](std::span<std::byte> room) {
      if (!part.empty()) std::memcpy(room.data(), part.data(), part.size());
      return std::pair(part.size(), Tag{message.size() | (begin == 0 ? kBegins : 0), tag});
    });
    if (receivers.empty()) throw_dead();
  }
}

bool Link::try_send(std::span<const std::byte> message, std::uint32_t tag) {
  const Turn turn(segment_.turns(), "send", segment_.options().name);
  if (message.size() > segment_.options().slot_bytes) return false;
  if (!has_room()) return false;
  send(message, tag);
  return true;
}

Link::Place Link::find(std::uint32_t tag) {
  return std::ranges::find_if(
      messages_, [tag](const Message& one) { return one.tag == tag && !one.is_dropped; });
}

void Link::erase(Place message) {
  kept_ -= message->size();
  messages_.erase(message);
}

// From now on the message goes there.
void Link::redirect(Message& message, std::byte* to) {
  if (!message.kept.empty()) std::memcpy(to, message.kept.data(), message.kept.size());
  kept_ -= message.kept.capacity();
  message.kept = std::vector<std::byte>();  // {} would leave it its memory
  message.direct = to;
}

// Keeps a message that went to a caller's memory.
void Link::keep(Message& message) {
  message.kept.assign(message.direct, message.direct + message.arrived);
  kept_ += message.kept.capacity();
  message.direct = nullptr;
}

void Link::begin_message(const Update& update) {
  if (!messages_.empty() && !messages_.back().is_whole()) erase(std::prev(messages_.end()));
  Message begun{update.format, static_cast<std::size_t>(update.count & ~kBegins)};
  // The first message of its tag goes straight to the waiting receive().
  const bool fits = begun.tag == room_tag_ && begun.bytes == room_.size();
  if (room_.data() != nullptr && fits && find(begun.tag) == messages_.end()) {
    begun.direct = room_.data();
  } else {
    begun.kept.reserve(std::min(begun.bytes, kMostReserved));
  }
  kept_ += begun.size();
  messages_.push_back(std::move(begun));
}

void Link::add(const Update& update) {
  if ((update.count & kBegins) != 0) begin_message(update);
  if (messages_.empty()) return;  // of no message that has begun
  Message& message = messages_.back();
  const std::size_t bytes = std::min(update.payload.size(), message.bytes - message.arrived);
  const auto part = update.payload.first(bytes);
  if (message.direct != nullptr) {
    if (bytes != 0) std::memcpy(message.direct + message.arrived, part.data(), bytes);
  } else if (!message.is_dropped) {
    kept_ -= message.kept.capacity();
    message.kept.insert(message.kept.end(), part.begin(), part.end());
    kept_ += message.kept.capacity();
  }
  message.arrived += bytes;
  if (message.is_dropped && message.is_whole()) erase(std::prev(messages_.end()));
}

// Whether the next part has to stay in its slot. Parts that a dead sender has left there are taken
// in: they are few, and behind them one sees that no more come.
bool Link::is_full() const {
  if (kept_ < kMostKept || !segment_.group().is_live(peer_)) return false;
  const Message& last = messages_.back();
  return last.is_whole() || (last.direct == nullptr && !last.is_dropped);
}

// Waits for a part of a message and takes it in. Returns false when the time is up.
bool Link::take_in(nanoseconds limit) {
  const auto has_come = [&] { return segment_.clock_of(peer_) > taken_; };
  const auto is_gone = [&] { return !segment_.group().is_live(peer_); };
  const bool is_news = segment_.wait([&] { return has_come() || is_gone(); }, limit);
  if (!is_news) return false;
  if (!has_come()) throw_dead();
  segment_.gather(GatherOptions{}, [&](std::span<const Update> updates) {
    for (const Update& update : updates) {
      add(update);
      taken_ = update.iteration;
    }
  });
  return true;
}

void Link::receive(std::span<std::byte> to, std::uint32_t tag, nanoseconds limit) {
  const Turn turn(segment_.turns(), "receive", segment_.options().name);
  const Deadline deadline(limit);
  Place found = find(tag);
  if (found == messages_.end()) {
    room_ = to;
    room_tag_ = tag;
  }
  try {
    for (;; found = find(tag)) {
      if (found != messages_.end()) {
        if (found->bytes != to.size()) drop(found, to.size(), deadline);
        if (found->direct == nullptr) redirect(*found, to.data());
        if (found->is_whole()) break;
      }
      throw_if_full(tag);
      if (take_in(deadline.left())) continue;
      throw TimeoutError(
          "no message with tag " + std::to_string(tag) + " came within " + format_seconds(limit),
          {peer_});
    }
  } catch (...) {
    // A part of it may lie where the caller no longer wants it: no later call can tell.
    room_ = {};
    for (Message& message : messages_) {
      if (message.direct != nullptr) keep(message);
    }
    throw;
  }
  room_ = {};
  erase(found);
}

// The rest of the message is taken in, so that its sender does not wait for ever.
void Link::drop(Place message, std::size_t wanted, const Deadline& deadline) {
  const std::size_t bytes = message->bytes;
  if (message->is_whole()) {
    erase(message);
  } else {
    kept_ -= message->kept.capacity();
    message->kept = std::vector<std::byte>();
    message->is_dropped = true;
    while (!messages_.empty() && messages_.back().is_dropped && take_in(deadline.left())) {
    }
  }
  throw ConfigError("the message has " + std::to_string(bytes) +
                    " bytes, and the tensor to receive it " + std::to_string(wanted));
}

void Link::throw_if_full(std::uint32_t tag) const {
  if (!is_full()) return;
  // The one that takes up the most room is the one to receive.
  const auto largest = std::ranges::max_element(messages_, {}, &Message::size);
  throw ConfigError(
      "no message with tag " + std::to_string(tag) + " can be received yet: before it rank " +
      std::to_string(peer_) + " has sent " + std::to_string(messages_.size()) +
      (messages_.size() == 1 ? " message" : " messages") + " of other tags (one of " +
      std::to_string(largest->bytes) + " bytes with tag " + std::to_string(largest->tag) +
      "), which nobody has received and which fill the " + std::to_string(kMostKept >> 20) +
      " MiB that are kept of such; receive that one first, or send this one before it");
}

void Link::check_room(std::uint32_t tag) const {
  const Turn turn(segment_.turns(), "receive", segment_.options().name);
  throw_if_full(tag);
}

int Link::await(std::span<const std::uint32_t> tags, nanoseconds limit) {
  const Turn turn(segment_.turns(), "receive", segment_.options().name);
  const Deadline deadline(limit);
  for (;;) {
    for (const Message& message : messages_) {
      const auto place = std::ranges::find(tags, message.tag);
      if (place != tags.end() && !message.is_dropped) return static_cast<int>(place - tags.begin());
    }
    if (is_full()) {
      if (!segment_.wait([&] { return !is_full(); }, deadline.left())) return -1;
    } else if (!take_in(deadline.left())) {
      return -1;
    }
  }
}

}  // namespace dstorm
