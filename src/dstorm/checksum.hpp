// What shows that bytes were not written as one: two writers, or one that had not finished.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace dstorm {

// Over 64-bit words; tells a mix of two updates from either. Not for keeping out forgers, who would
// need the memory's key, which only those have who hold the job's.
class Checksum {
 public:
  void add(std::span<const std::byte> words);  // a multiple of 8 bytes
  // Copies them as well, in one pass: what is added is what was copied, though `words` may change
  // meanwhile. Both are aligned to 8 bytes, and do not overlap.
  void add_copying(std::span<const std::byte> words, std::byte* to);
  std::uint64_t value() const;

 private:
  template <class Next>
  void add_words(std::size_t count, Next next);

  std::uint64_t lanes_[4] = {1, 2, 3, 4};
  std::uint64_t count_ = 0;
};

}  // namespace dstorm
