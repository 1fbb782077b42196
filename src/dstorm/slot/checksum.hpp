// A checksum that detects torn bytes: two writers wrote them, or one had not finished.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace dstorm {

// CRC-64/NVME: the bytes are a polynomial over GF(2), and the value is its remainder by a primitive
// polynomial of degree 64. Take two different sequences of the same length, such as an update and a
// mix of it with the next update. Their values differ
//   - always, if they differ only within 64 consecutive bits, for example in one word;
//   - always, if they differ by the same bits in two places, at any distance: two words that have
//     changed places, or two signs that have flipped;
//   - otherwise in all but one of 2^64 cases: at a million torn reads a second, one torn update in
//     580,000 years is accepted as whole.
// The value is the same on every machine. It is not meant to detect forgery: a forger would need
// the key of the memory, which only the holders of the job's key have.
class Checksum {
 public:
  void add(std::span<const std::byte> words);  // a multiple of 8 bytes
  // Adds the words and copies them to `to`. It reads each word once, so it adds exactly the bytes
  // that it copied, even if `words` changes meanwhile. Both ranges are aligned to 8 bytes and do
  // not overlap. No other thread writes to `to`.
  void add_copying(std::span<const std::byte> words, std::byte* to);
  std::uint64_t value() const { return ~state_; }

 private:
  std::uint64_t state_ = ~std::uint64_t{0};
};

// One way to compute the checksum. The ways differ only in speed.
struct ChecksumWay {
  std::string_view name;
  bool is_possible;  // on this processor
  std::uint64_t (*add)(std::uint64_t state, std::span<const std::byte> words);
};
// All ways, the fastest first. The last one is possible on every processor.
std::span<const ChecksumWay> checksum_ways();

}  // namespace dstorm
