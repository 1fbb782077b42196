#include "dstorm/checksum.hpp"

#include <cstring>

namespace dstorm {
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

}  // namespace dstorm
