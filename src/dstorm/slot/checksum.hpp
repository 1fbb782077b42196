// What shows that bytes were not written as one: two writers, or one that had not finished.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace dstorm {

// CRC-64/NVME: the remainder of the bytes, as a polynomial over GF(2), by one of degree 64 that is
// primitive. Two different sequences of the same length, as an update and its mix with the next
// one, have different values
//   - for certain, if they differ within 64 consecutive bits, as in one word;
//   - for certain, if they differ by the same bits in two places, however far apart: two words that
//     have changed places, two signs that have flipped;
//   - else but for one in 2^64 of all differences: with a million torn reads a second, one in
//     580,000 years is taken for whole.
// The value is the same on every machine. Not for keeping out forgers: they would need the memory's
// key, which only those have who hold the job's.
class Checksum {
 public:
  void add(std::span<const std::byte> words);  // a multiple of 8 bytes
  // Copies them as well: what is added is what was copied, though `words` may change meanwhile, of
  // which each word is read once. Both are aligned to 8 bytes, and do not overlap; nobody else
  // writes to `to`.
  void add_copying(std::span<const std::byte> words, std::byte* to);
  std::uint64_t value() const { return ~state_; }

 private:
  std::uint64_t state_ = ~std::uint64_t{0};
};

// The ways to compute it, which differ in speed alone.
struct ChecksumWay {
  std::string_view name;
  bool is_possible;  // with this processor
  std::uint64_t (*add)(std::uint64_t state, std::span<const std::byte> words);
};
// The fastest first; the last is possible everywhere.
std::span<const ChecksumWay> checksum_ways();

}  // namespace dstorm
