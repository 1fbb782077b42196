// Graphs in which every rank sees the same picture: the ranks stand on a circle and each sends to
// the places at the same offsets from its own. All the built-in graphs but STAR are such.
#pragma once

#include <cstdint>
#include <vector>

namespace dstorm {

struct Circulant {
  std::vector<int> offsets;   // distinct, in 1..size-1
  std::vector<int> rank_at;   // by place; empty where rank r stands at place r
  std::vector<int> place_of;  // by rank; the inverse of rank_at

  // Sorted. O(offsets).
  std::vector<int> out(int rank, int size) const;
  std::vector<int> in(int rank, int size) const;
};

// Offsets for 1 <= size; none for size 1.
std::vector<int> all_offsets(int size);
std::vector<int> ring_offsets(int size);
std::vector<int> halton_offsets(int size);
std::vector<int> exponential_offsets(int size);
std::vector<int> one_peer_offsets(int size, std::uint64_t round);

// A pure function of its arguments: the same on every rank, compiler and machine. O(size).
Circulant random_circulant(int k, std::uint64_t seed, int size, std::uint64_t round);

// Rounds until doubling (times `factor`, at least 2) from 1 has reached `size`: ceil(log2 N) for 2.
int rounds_to_reach(int size, std::int64_t factor);

}  // namespace dstorm
