#include "dstorm/verbs/landing.hpp"

#include <cstring>

namespace dstorm::verbs {

Landing::Landing(std::byte* base, const LandingShape& shape, Mailbox copy, Policy policy,
                 int sender, std::span<const int> locals, int rank)
    : base_(base),
      shape_(shape),
      copy_(copy),
      policy_(policy),
      sender_(sender),
      locals_(locals.begin(), locals.end()),
      rank_(rank),
      trailer_(shape.trailer_bytes()) {}

std::uint64_t Landing::iteration(std::size_t slot) const {
  auto& header = *reinterpret_cast<SlotHeader*>(base_ + shape_.slot(slot));
  return std::atomic_ref(header.iteration).load(std::memory_order_acquire);
}

bool Landing::has_news() const {
  const std::uint64_t known = copy_.clock().load(std::memory_order_acquire);
  if (head().clock.load(std::memory_order_acquire) > known) return true;
  for (std::size_t slot = 0; slot < shape_.depth(); ++slot) {
    if (iteration(slot) > known) return true;
  }
  return false;
}

Landing::Found Landing::look(std::uint64_t after, std::uint64_t limit) const {
  Found best;
  for (std::size_t slot = 0; slot < shape_.depth(); ++slot) {
    const std::uint64_t found = iteration(slot);
    if (found <= after || found > limit) continue;
    limit = found - 1;
    best = {static_cast<int>(slot), found};
  }
  return best;
}

// As in SlotReader::oldest: a second look is final, by L4.
Landing::Found Landing::oldest(std::uint64_t after) const {
  const Found found = look(after, kMostIteration);
  if (found.slot < 0) return found;
  const Found older = look(after, found.iteration - 1);
  return older.slot < 0 ? found : older;
}

// L2. True if this iteration's update was whole and is published.
bool Landing::move(std::size_t slot, std::uint64_t iteration, int room) {
  const std::byte* from = base_ + shape_.slot(slot);
  SlotHeader header;
  std::memcpy(&header, from, sizeof(header));
  if (header.iteration != iteration || header.payload_bytes > shape_.slot_bytes() ||
      header.sender != static_cast<std::uint32_t>(sender_)) {
    return false;
  }
  const auto bytes = static_cast<std::size_t>(header.payload_bytes);
  LandingTail tail{};
  std::memcpy(trailer_.data(), from + LandingShape::trailer(bytes), trailer_.size());
  std::memcpy(&tail, trailer_.data() + shape_.receivers() * 8, sizeof(tail));
  if (tail.iteration != iteration) return false;  // its end has not come yet
  Checksum checksum;
  checksum.add(std::as_bytes(std::span(&header, 1)));
  checksum.add_copying({from + sizeof(SlotHeader), round_up(bytes, 8)}, writer_->payload(room));
  checksum.add(std::span(trailer_).first(trailer_.size() - sizeof(tail.checksum)));
  if (checksum.value() != tail.checksum) return false;
  to_.clear();
  for (std::size_t i = 0; i < locals_.size(); ++i) {
    std::uint64_t ordinal = 0;
    std::memcpy(&ordinal, trailer_.data() + i * 8, sizeof(ordinal));
    if (ordinal != 0) to_.push_back({locals_[i], ordinal});
  }
  writer_->publish_copy(room, header, to_);
  return true;
}

}  // namespace dstorm::verbs
