// The memory of a dense vector: one array, or several that make one vector in their order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dstorm/collective/byte_range.hpp"
#include "vol/dense.hpp"
#include "vol/dtype.hpp"

namespace vol {

inline std::size_t total_count(std::span<const Piece> pieces) {
  std::size_t count = 0;
  for (const Piece& piece : pieces) count += piece.count;
  return count;
}

// Ranges are in bytes from the start of the vector, and begin and end between two elements.
class Elements {
 public:
  using Range = dstorm::ByteRange;

  // Part of a vector up to this long is still in the caches after a pass over it.
  static constexpr std::size_t kCachedBytes = 4 * 1024 * 1024;

  // At least one piece.
  Elements(DType dtype, std::vector<Piece> pieces);
  // Returns `pieces`. Throws ConfigError if some of them share memory, because that memory would be
  // folded twice. `what` names the vector in the error.
  static std::vector<Piece> check_apart(std::vector<Piece> pieces, DType dtype,
                                        const std::string& what);

  DType dtype() const noexcept { return dtype_; }
  std::size_t count() const noexcept { return bytes_ / dtype_size(dtype_); }
  std::size_t bytes() const noexcept { return bytes_; }
  Range whole() const noexcept { return {0, bytes_}; }
  const std::vector<Piece>& pieces() const noexcept { return pieces_; }
  // The address of the first piece.
  std::byte* start() const noexcept { return static_cast<std::byte*>(pieces_[0].data); }
  // Other memory takes the place of the only piece.
  void move_to(Piece piece) noexcept {
    pieces_[0] = piece;
    bytes_ = piece.count * dtype_size(dtype_);
  }

  // Calls visit(address, bytes, place of its first byte in the vector) for each stretch of memory
  // in `range`.
  template <class Visit>
  void visit(Range range, Visit&& visit) const {
    std::size_t start = 0;
    for (const Piece& piece : pieces_) {
      const std::size_t end = start + piece.count * dtype_size(dtype_);
      const std::size_t from = std::max(range.begin, start);
      const std::size_t to = std::min(range.end, end);
      if (from < to) visit(static_cast<std::byte*>(piece.data) + (from - start), to - from, from);
      start = end;
    }
  }

  // Calls visit(range) for blocks of `range` from its end on: the caches still hold what was
  // touched last. A vector far larger than the caches is visited in one go.
  template <class Visit>
  void visit_backwards(Range range, Visit&& visit) const {
    constexpr std::size_t kBlockBytes = 256 * 1024;
    const std::size_t most = bytes_ > kCachedBytes ? bytes_ : kBlockBytes;
    for (std::size_t end = range.end; end > range.begin;) {
      const std::size_t block = std::min(most, end - range.begin);
      visit(Range{end - block, end});
      end -= block;
    }
  }

  // Copy `range` to and from one array that holds only this range.
  void copy_out(std::byte* to, Range range) const;
  void copy_in(const std::byte* from, Range range) const;

 private:
  DType dtype_;
  std::vector<Piece> pieces_;
  std::size_t bytes_ = 0;
};

}  // namespace vol
