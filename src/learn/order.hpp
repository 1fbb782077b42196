// The order in which training takes the rows of a matrix.
#pragma once

#include <cstdint>
#include <span>

namespace learn {

// The rows order[first], ..., order[last - 1] of a matrix; without an order, rows first to last -
// 1.
struct Rows {
  std::int64_t first = 0;
  std::int64_t last = 0;
  std::span<const std::uint32_t> order = {};
};

// Makes `order` a permutation of 0, 1, ..., order.size() - 1. The same seed gives the same
// permutation on every machine.
void shuffle(std::span<std::uint32_t> order, std::uint64_t seed);

}  // namespace learn
