// The members that watch each other: they exchange heartbeats, and accuse each other of silence.
// Hosts form a ring, in the order of their lowest members, and so do the members of one host. A
// place on a ring is watched by those at distances 1, 2, 4 and 8 to both sides. So a job of any
// size costs a host at most eight heartbeats at a time.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>

namespace dstorm {

// Of up to so many places each watches all others.
constexpr std::size_t kMostInFullView = 9;

// Whether two different places of a ring of `count` watch each other.
constexpr bool watch_each_other(std::size_t a, std::size_t b, std::size_t count) {
  const std::size_t way = a < b ? b - a : a - b;
  const std::size_t distance = std::min(way, count - way);
  return count <= kMostInFullView || (distance <= 8 && std::has_single_bit(distance));
}

}  // namespace dstorm
