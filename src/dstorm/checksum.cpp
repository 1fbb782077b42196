#include "dstorm/checksum.hpp"

#include <cstring>

namespace dstorm {
namespace {

constexpr std::uint64_t kOdd[4] = {0x9E3779B97F4A7C15U, 0xC2B2AE3D27D4EB4FU, 0x165667B19E3779F9U,
                                   0x27D4EB2F165667C5U};

}  // namespace

// `next` returns one word after the other. Four lanes, so that the multiplications overlap. Each step
// is a bijection of its lane, so one changed word always changes the value.
template <class Next>
void Checksum::add_words(std::size_t count, Next next) {
  std::size_t at = 0;
  std::uint64_t a = lanes_[0];
  std::uint64_t b = lanes_[1];
  std::uint64_t c = lanes_[2];
  std::uint64_t d = lanes_[3];
  for (; at + 4 <= count; at += 4) {
    a = (a ^ next(at)) * kOdd[0];
    b = (b ^ next(at + 1)) * kOdd[1];
    c = (c ^ next(at + 2)) * kOdd[2];
    d = (d ^ next(at + 3)) * kOdd[3];
  }
  for (; at < count; ++at) a = (a ^ next(at)) * kOdd[1];
  lanes_[0] = a;
  lanes_[1] = b;
  lanes_[2] = c;
  lanes_[3] = d;
  count_ += count * sizeof(std::uint64_t);
}

void Checksum::add(std::span<const std::byte> words) {
  add_words(words.size() / sizeof(std::uint64_t), [from = words.data()](std::size_t at) {
    std::uint64_t word = 0;
    std::memcpy(&word, from + at * sizeof(word), sizeof(word));
    return word;
  });
}

void Checksum::add_copying(std::span<const std::byte> words, std::byte* to) {
  const auto* from = reinterpret_cast<const std::uint64_t*>(words.data());
  add_words(words.size() / sizeof(std::uint64_t), [from, to](std::size_t at) {
    // Atomic, or the compiler might read once for the copy and once more for the sum.
    const std::uint64_t word = __atomic_load_n(from + at, __ATOMIC_RELAXED);
    std::memcpy(to + at * sizeof(word), &word, sizeof(word));
    return word;
  });
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
