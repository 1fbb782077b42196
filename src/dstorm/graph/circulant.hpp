// Circulants: graphs that look the same from every rank. The ranks stand on a circle, and each
// sends to the places at the same offsets from its own. All built-in graphs except STAR are
// circulants.
#pragma once

#include <cstdint>
#include <vector>

namespace dstorm {

struct Circulant {
  std::vector<int> offsets;   // distinct, in 1..size-1
  std::vector<int> rank_at;   // by place; empty if each rank r stands at place r
  std::vector<int> place_of;  // by rank; the inverse of rank_at

  // The neighbours of `rank`, sorted. O(offsets).
  std::vector<int> out(int rank, int size) const;
  std::vector<int> in(int rank, int size) const;
};

// The offsets for 1 <= size; none for size 1.
std::vector<int> all_offsets(int size);
std::vector<int> ring_offsets(int size);
std::vector<int> halton_offsets(int size);
std::vector<int> exponential_offsets(int size);
std::vector<int> one_peer_offsets(int size, std::uint64_t round);

// A pure function of its arguments: the same on every rank, compiler and machine. O(size).
Circulant random_circulant(int k, std::uint64_t seed, int size, std::uint64_t round);

// The number of rounds in which repeated multiplication by `factor` (at least 2) gets from 1 to
// `size`: ceil(log2 N) for 2.
int rounds_to_reach(int size, std::int64_t factor);

}  // namespace dstorm
