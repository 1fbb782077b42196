#include "dstorm/remote/verbs/writer.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <string_view>

namespace dstorm::verbs {
namespace {

constexpr std::uint32_t kDepth = 256;  // writes in flight
constexpr std::size_t kFrames = 32;    // updates in flight
constexpr std::size_t kWords = 8;      // of a write that is no update, at most
// a long update is cut into chunks of at least this many bytes
constexpr std::size_t kChunk = 256 * 1024;
// and into at most so many, if the adapter's limit allows
constexpr std::size_t kMostChunks = 32;
// Besides the last chunk, every chunk whose number is a multiple of this signals. Its completion
// shows that the peer is reached.
constexpr std::size_t kUnseenChunks = 2;

std::size_t frame_size(std::size_t receivers) {
  return round_up(sizeof(SlotHeader) + receivers * 8 + sizeof(InboxTail), kLine);
}

host::Memory make_frames(std::size_t bytes) {
  constexpr std::string_view kWhat = "the headers of updates";
  bytes = round_up(bytes, kPage);
  host::Memory made = host::Memory::create(bytes, bytes, kWhat);
  made.reserve(0, bytes, kWhat);
  made.close_fd();
  return made;
}

}  // namespace

Writer::Writer(const Device& device, std::size_t most_receivers,
               std::chrono::milliseconds suspect_after)
    : receivers_(most_receivers),
      longest_(device.choice().longest_write_bytes),
      frame_bytes_(frame_size(most_receivers)),
      frames_(make_frames(kFrames * frame_bytes_ + kDepth * kWords * 8)),
      frames_region_(device, {frames_.data(), frames_.size()}, "the headers of updates"),
      frame_writes_(kFrames),
      queue_(device, {.depth = kDepth, .suspect_after = suspect_after}) {}

void Writer::open_window(std::uint32_t segment, Window window) {
  windows_[segment] = std::move(window);
}

// See has_room(). Of the writes in flight, less than a quarter of the depth may be without a
// completion until more is written (Queue), so the other three quarters have to be enough.
std::uint64_t Writer::most_payload_bytes(const Device& device, std::size_t most_receivers) {
  constexpr std::uint64_t kWrites = kDepth * 3 / 4 - 1;
  const std::uint64_t bytes = kWrites * device.choice().longest_write_bytes;
  return bytes - std::min<std::uint64_t>(frame_size(most_receivers) + 8, bytes);
}

std::size_t Writer::chunk_of(std::size_t bytes) const {
  return std::min(longest_, std::max(kChunk, bytes / kMostChunks + 1));
}

bool Writer::has_room(std::size_t payload_bytes) const noexcept {
  const std::size_t bytes = payload_bytes + frame_bytes_;
  return queue_.room() > bytes / chunk_of(bytes) + 1 &&
         frame_writes_[next_frame_] <= queue_.completed();
}

std::uint64_t Writer::send_update(std::uint32_t segment, const host::SegmentMemory& own,
                                  const Region& region, int slot, const SlotHeader& header,
                                  std::span<const Addressee> to, std::span<const int> host) {
  const InboxShape shape(own.shape().mailbox, receivers_);
  const auto index = static_cast<std::size_t>(slot);
  const auto rank = static_cast<int>(header.sender);
  const Mailbox box = own.box(rank);
  const std::span payload(box.payload(index), round_up(header.payload_bytes, 8));

  std::byte* frame = frames_.data() + next_frame_ * frame_bytes_;
  std::byte* trailer = frame + sizeof(header);
  std::memcpy(frame, &header, sizeof(header));
  std::memset(trailer, 0, shape.trailer_bytes());
  for (const Addressee& addressee : to) {
    const auto place = std::lower_bound(host.begin(), host.end(), addressee.rank) - host.begin();
    std::memcpy(trailer + place * 8, &addressee.ordinal, sizeof(addressee.ordinal));
  }
  InboxTail tail{header.iteration, 0, 0};
  std::memcpy(trailer + receivers_ * 8, &tail, sizeof(tail));
  Checksum of_tail;
  of_tail.add({trailer, receivers_ * 8 + sizeof(tail.iteration)});
  tail.own_checksum = of_tail.value();
  std::memcpy(trailer + receivers_ * 8, &tail, sizeof(tail));
  Checksum checksum;
  checksum.add(std::as_bytes(std::span(&header, 1)));
  checksum.add(payload);
  checksum.add({trailer, shape.trailer_bytes() - sizeof(tail.checksum)});
  tail.checksum = checksum.value();
  std::memcpy(trailer + receivers_ * 8, &tail, sizeof(tail));

  // Posts one write after the other, each of at most a chunk. The bytes come from three places.
  std::array<std::span<const std::byte>, 3> places{
      std::span<const std::byte>(frame, sizeof(header)), payload,
      std::span<const std::byte>(trailer, shape.trailer_bytes())};
  const std::array<std::uint32_t, 3> keys{frames_region_.lkey(), region.lkey(),
                                          frames_region_.lkey()};
  std::size_t left = places[0].size() + places[1].size() + places[2].size();
  const std::size_t chunk = chunk_of(left);
  Target to_there = windows_.at(segment).inbox;
  to_there.address += shape.slot(index);
  std::uint64_t number = 0;
  for (std::size_t posted = 1; left > 0; ++posted) {
    std::array<Part, 3> parts;
    std::size_t count = 0;
    std::size_t taken = 0;
    for (std::size_t i = 0; i < places.size() && taken < chunk; ++i) {
      const std::size_t bytes = std::min(places[i].size(), chunk - taken);
      if (bytes == 0) continue;
      parts[count++] = {places[i].data(), static_cast<std::uint32_t>(bytes), keys[i]};
      places[i] = places[i].subspan(bytes);
      taken += bytes;
    }
    left -= taken;
    number = queue_.write(std::span(parts).first(count), to_there,
                          {.inlined = taken <= queue_.inline_bytes(),
                           .signaled = left == 0 || posted % kUnseenChunks == 0});
    to_there.address += taken;
  }
  frame_writes_[next_frame_] = number;
  next_frame_ = (next_frame_ + 1) % kFrames;
  return number;
}

std::uint64_t Writer::send_words(const Target& target, std::span<const std::uint64_t> words,
                                 bool signaled) {
  const auto bytes = static_cast<std::uint32_t>(words.size_bytes());
  if (bytes <= queue_.inline_bytes()) {
    return queue_.write({words.data(), bytes, 0}, target, {.inlined = true, .signaled = signaled});
  }
  // There is room, so the last write that used this place has completed.
  std::byte* place =
      frames_.data() + kFrames * frame_bytes_ + queue_.posted() % kDepth * kWords * 8;
  std::memcpy(place, words.data(), bytes);
  return queue_.write({place, bytes, frames_region_.lkey()}, target, {.signaled = signaled});
}

std::uint64_t Writer::send_clock(std::uint32_t segment, std::uint64_t clock) {
  return send_words(windows_.at(segment).inbox, {&clock, 1}, true);
}

std::uint64_t Writer::send_cursor(std::uint32_t segment, std::size_t place, int receiver,
                                  const Cursor& cursor, bool signaled) {
  // All words but the hold, which the sender's own host writes there (SlotCarrier).
  const std::array words{cursor.consumed.load(std::memory_order_acquire),
                         cursor.folded.load(std::memory_order_relaxed),
                         cursor.overwritten.load(std::memory_order_relaxed),
                         cursor.rejected.load(std::memory_order_relaxed),
                         cursor.ordinal.load(std::memory_order_relaxed)};
  static_assert(offsetof(Cursor, ordinal) == offsetof(Cursor, consumed) + sizeof(words) - 8);
  Target target = windows_.at(segment).cursors[place];
  target.address +=
      static_cast<std::uint64_t>(receiver) * sizeof(Cursor) + offsetof(Cursor, consumed);
  return send_words(target, words, signaled);
}

}  // namespace dstorm::verbs
