#include "dstorm/remote/verbs/inbox.hpp"

#include <algorithm>
#include <cstring>

namespace dstorm::verbs {

Inbox::Inbox(std::byte* base, const InboxShape& shape, const Copies& copies, Policy policy,
             int sender, std::span<const int> locals, int rank)
    : base_(base),
      shape_(shape),
      copies_(copies),
      policy_(policy),
      sender_(sender),
      locals_(locals.begin(), locals.end()),
      place_(static_cast<int>(std::lower_bound(locals_.begin(), locals_.end(), rank) -
                              locals_.begin())),
      trailer_(shape.trailer_bytes()) {}

std::uint64_t Inbox::iteration(std::size_t slot) const {
  auto& header = *reinterpret_cast<SlotHeader*>(base_ + shape_.slot(slot));
  return std::atomic_ref(header.iteration).load(std::memory_order_acquire);
}

bool Inbox::has_news() const {
  const std::uint64_t known = copies_.current().clock().load(std::memory_order_acquire);
  if (head().clock.load(std::memory_order_acquire) > known) return true;
  for (std::size_t slot = 0; slot < shape_.depth(); ++slot) {
    if (iteration(slot) > known) return true;
  }
  return false;
}

Inbox::Found Inbox::look(std::uint64_t after, std::uint64_t limit) const {
  Found best;
  for (std::size_t slot = 0; slot < shape_.depth(); ++slot) {
    const std::uint64_t found = iteration(slot);
    if (found <= after || found > limit) continue;
    limit = found - 1;
    best = {static_cast<int>(slot), found};
  }
  return best;
}

// As in SlotReader::oldest: a second look is final, by L4 or L5.
Inbox::Found Inbox::oldest(std::uint64_t after) const {
  const Found found = look(after, kMostIteration);
  if (found.slot < 0) return found;
  const Found older = look(after, found.iteration - 1);
  return older.slot < 0 ? found : older;
}

// Reads the part after the payload, and fills trailer_ and to_. Returns whether that part is whole
// by itself.
bool Inbox::read_tail(std::size_t slot, std::uint64_t iteration, std::size_t payload_bytes,
                      InboxTail& tail) {
  std::memcpy(trailer_.data(), base_ + shape_.slot(slot) + InboxShape::trailer(payload_bytes),
              trailer_.size());
  const std::size_t ordinals = shape_.receivers() * 8;
  std::memcpy(&tail, trailer_.data() + ordinals, sizeof(tail));
  if (tail.iteration != iteration) return false;  // its end has not arrived yet
  Checksum checksum;
  checksum.add(std::span(trailer_).first(ordinals + sizeof(tail.iteration)));
  if (checksum.value() != tail.own_checksum) return false;
  to_.clear();
  for (std::size_t i = 0; i < locals_.size(); ++i) {
    std::uint64_t ordinal = 0;
    std::memcpy(&ordinal, trailer_.data() + i * 8, sizeof(ordinal));
    if (ordinal != 0) to_.push_back({locals_[i], ordinal});
  }
  return true;
}

// L2. Fills `header` and to_, and copies the payload unless `to` is nullptr. Returns whether this
// iteration's update was whole.
bool Inbox::read(std::size_t slot, std::uint64_t iteration, SlotHeader& header, std::byte* to) {
  const std::byte* from = base_ + shape_.slot(slot);
  std::memcpy(&header, from, sizeof(header));
  if (header.iteration != iteration || header.payload_bytes > shape_.slot_bytes() ||
      header.sender != static_cast<std::uint32_t>(sender_)) {
    return false;
  }
  const auto bytes = static_cast<std::size_t>(header.payload_bytes);
  InboxTail tail{};
  if (!read_tail(slot, iteration, bytes, tail)) return false;
  const std::span payload(from + sizeof(SlotHeader), round_up(bytes, 8));
  Checksum checksum;
  checksum.add(std::as_bytes(std::span(&header, 1)));
  if (to != nullptr) {
    checksum.add_copying(payload, to);
  } else {
    checksum.add(payload);
  }
  checksum.add(std::span(trailer_).first(trailer_.size() - sizeof(tail.checksum)));
  return checksum.value() == tail.checksum;
}

bool Inbox::move(std::size_t slot, std::uint64_t iteration, int room) {
  SlotHeader header;
  if (!read(slot, iteration, header, writer_->payload(room))) return false;
  writer_->publish_copy(room, header, to_);
  return true;
}

// The rank that took in before this one died when it had stored some of the update's tickets.
bool Inbox::complete(std::size_t slot, std::uint64_t iteration, int begun) {
  SlotHeader header;
  if (!read(slot, iteration, header, nullptr)) return false;
  writer_->complete(begun, to_);
  return true;
}

}  // namespace dstorm::verbs
