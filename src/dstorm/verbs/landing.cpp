#include "dstorm/verbs/landing.hpp"

#include <cstring>

namespace dstorm::verbs {
namespace {

constexpr std::uint64_t kOdd[4] = {0x9E3779B97F4A7C15U, 0xC2B2AE3D27D4EB4FU, 0x165667B19E3779F9U,
                                   0x27D4EB2F165667C5U};

std::uint64_t word_at(const std::byte* bytes) {
  std::uint64_t word = 0;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}

}  // namespace

// Four lanes, so that the multiplications overlap. Each step is a bijection of its lane, so one
// changed word always changes the value.
void Checksum::add(std::span<const std::byte> words) {
  std::size_t at = 0;
  std::uint64_t a = lanes_[0];
  std::uint64_t b = lanes_[1];
  std::uint64_t c = lanes_[2];
  std::uint64_t d = lanes_[3];
  for (; at + 32 <= words.size(); at += 32) {
    a = (a ^ word_at(&words[at])) * kOdd[0];
    b = (b ^ word_at(&words[at + 8])) * kOdd[1];
    c = (c ^ word_at(&words[at + 16])) * kOdd[2];
    d = (d ^ word_at(&words[at + 24])) * kOdd[3];
  }
  for (; at + 8 <= words.size(); at += 8) a = (a ^ word_at(&words[at])) * kOdd[1];
  lanes_[0] = a;
  lanes_[1] = b;
  lanes_[2] = c;
  lanes_[3] = d;
  count_ += words.size();
}

std::uint64_t Checksum::value() const {
  std::uint64_t value = count_;
  for (const std::uint64_t lane : lanes_) {
    value = (value ^ lane ^ (lane >> 29)) * kOdd[0];
    value ^= value >> 32;
  }
  return value;
}

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
  const Found found = look(after, ~std::uint64_t{0} - 1);
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
  std::byte* payload = writer_->payload(room);
  std::memcpy(payload, from + sizeof(SlotHeader), round_up(bytes, 8));
  Checksum checksum;
  checksum.add(std::as_bytes(std::span(&header, 1)));
  checksum.add({payload, round_up(bytes, 8)});
  checksum.add(std::span(trailer_).first(trailer_.size() - sizeof(tail.checksum)));
  if (checksum.value() != tail.checksum) return false;
  to_.clear();
  for (std::size_t i = 0; i < locals_.size(); ++i) {
    const std::uint64_t ordinal = word_at(trailer_.data() + i * 8);
    if (ordinal != 0) to_.push_back({locals_[i], ordinal});
  }
  writer_->publish_copy(room, header, to_);
  return true;
}

}  // namespace dstorm::verbs
