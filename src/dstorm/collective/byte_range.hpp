// Ranges of bytes of a vector, and how a vector is cut into parts that the ranks fold.
#pragma once

#include <cstddef>

namespace dstorm {

struct ByteRange {
  std::size_t begin, end;

  std::size_t size() const { return end - begin; }
};

// Part `part` of `parts` of a vector of `bytes`: cut at cache lines, as even as these are.
ByteRange part_range(std::size_t bytes, std::size_t part, std::size_t parts);

}  // namespace dstorm
