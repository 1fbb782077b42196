#include "dstorm/collective/duplex.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "dstorm/errors.hpp"
#include "dstorm/host/turn.hpp"
#include "dstorm/segment/parts.hpp"

namespace dstorm {

using std::chrono::nanoseconds;

// In a slot the body follows the head at once; the slot's format is the length of the head.

Duplex::Duplex(std::shared_ptr<Group> group, std::string name, int peer, std::size_t slot_bytes,
               int depth, int spare)
    : segment_(std::move(group), SegmentOptions{.name = std::move(name),
                                                .slot_bytes = slot_bytes,
                                                .depth = depth + spare,
                                                .policy = Policy::kQueue,
                                                .kind = "duplex"}),
      peer_(peer),
      depth_(static_cast<std::size_t>(depth)) {}

void Duplex::throw_gone() const {
  throw PeerError("rank " + std::to_string(peer_) + " is dead, or has left", {peer_});
}

void Duplex::send(std::span<const std::byte> head, std::span<const std::byte> body) {
  const Turn turn(segment_.turns(), "send", segment_.options().name);
  await_slot();
  put(head, body);
}

void Duplex::await_slot() {
  SegmentState& state = segment_.parts().state;
  state.begin_call(false);
  const auto has_slot = [&] {
    return !state.is_live(peer_) || state.writer().pending(peer_) < depth_;
  };
  const auto missed = [&] {
    return "rank " + std::to_string(peer_) + " received none of the " + std::to_string(depth_) +
           " messages on their way";
  };
  const nanoseconds limit = state.group().timeout();
  if (!state.wait(has_slot, limit, missed, [&] { return peer_; })) {
    throw TimeoutError(missed() + " within " + format_seconds(limit), {peer_});
  }
}

void Duplex::put(std::span<const std::byte> head, std::span<const std::byte> body) {
  const std::size_t bytes = head.size() + body.size();
  if (bytes > segment_.options().slot_bytes) {
    throw ConfigError("a message of " + std::to_string(bytes) + " bytes does not fit a slot of " +
                      std::to_string(segment_.options().slot_bytes));
  }
  const auto receivers = segment_.scatter([&](std::span<std::byte> room) {
    if (!head.empty()) std::memcpy(room.data(), head.data(), head.size());
    if (!body.empty()) std::memcpy(room.data() + head.size(), body.data(), body.size());
    return std::pair(bytes, Tag{body.size(), static_cast<std::uint32_t>(head.size())});
  });
  if (receivers.empty()) throw_gone();
}

bool Duplex::try_send(std::span<const std::byte> head, std::span<const std::byte> body) {
  const Turn turn(segment_.turns(), "send", segment_.options().name);
  const SegmentState& state = segment_.parts().state;
  if (!state.is_live(peer_)) return false;
  if (!state.writer().has_free([&](int rank) { return state.is_live(rank); })) return false;
  put(head, body);
  return true;
}

// The oldest message that has not been taken.
std::optional<Duplex::Found> Duplex::find() {
  SegmentState& state = segment_.parts().state;
  SlotReader& reader = state.reader(peer_);
  const std::uint64_t clock = reader.clock();
  if (clock <= taken_) return std::nullopt;
  const int slot = reader.oldest(taken_, clock);
  if (slot < 0) {
    taken_ = clock;
    return std::nullopt;
  }
  const SlotHeader header = state.header_of(peer_, slot, taken_, clock);
  if (header.format > header.payload_bytes) {
    state.group().check_standing();  // an evicted rank's slots are written by others
    throw Error("rank " + std::to_string(peer_) + " wrote a message of " +
                std::to_string(header.payload_bytes) + " bytes with a head of " +
                std::to_string(header.format) + " for " + state.name() + "; its memory is damaged");
  }
  return Found{slot, header};
}

Duplex::Arrived Duplex::peek(nanoseconds limit) {
  const Turn turn(segment_.turns(), "receive", segment_.options().name);
  SegmentState& state = segment_.parts().state;
  state.begin_call(false);
  const auto is_gone = [&] { return !state.is_live(peer_); };
  const auto missed = [&] { return "a message of rank " + std::to_string(peer_); };
  const auto is_news = [&] { return (found_ = find()).has_value() || is_gone(); };
  if (!state.wait(is_news, std::max(limit, nanoseconds(0)), missed)) {
    throw TimeoutError(
        "no message of rank " + std::to_string(peer_) + " came within " + format_seconds(limit),
        {peer_});
  }
  if (!found_) found_ = find();  // sent before it was gone
  if (!found_) throw_gone();
  const std::byte* const begin = state.reader(peer_).payload(found_->slot);
  const std::size_t head_bytes = found_->header.format;
  Arrived arrived{{begin, begin + head_bytes}, found_->header.payload_bytes - head_bytes};
  state.group().check_standing();  // once this rank has been evicted, its slots are overwritten
  return arrived;
}

void Duplex::take(std::span<std::byte> to) {
  const Turn turn(segment_.turns(), "receive", segment_.options().name);
  SegmentState& state = segment_.parts().state;
  state.begin_call(false);
  if (!found_) throw ConfigError("no message has been looked at");
  const SlotHeader& header = found_->header;
  const std::size_t bytes = header.payload_bytes - header.format;
  if (to.size() != bytes) {
    throw ConfigError("the message has " + std::to_string(bytes) + " bytes, and the room for it " +
                      std::to_string(to.size()));
  }
  SlotReader& reader = state.reader(peer_);
  if (bytes != 0) std::memcpy(to.data(), reader.payload(found_->slot) + header.format, bytes);
  state.group().check_standing();  // as in peek()
  reader.consume(header.iteration, reader.ordinal(found_->slot), true);
  taken_ = header.iteration;
  state.bytes_in += header.payload_bytes;
  found_.reset();
  state.channel().acknowledge({&peer_, 1}, true);
}

}  // namespace dstorm
