#include "dstorm/graph/circulant.hpp"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

namespace dstorm {
namespace {

std::size_t index(int i) { return static_cast<std::size_t>(i); }

std::vector<int> at_offsets(const Circulant& circulant, int rank, int size, int sign) {
  const bool relabelled = !circulant.rank_at.empty();
  const std::int64_t place = relabelled ? circulant.place_of[index(rank)] : rank;
  std::vector<int> ranks;
  ranks.reserve(circulant.offsets.size());
  for (const int offset : circulant.offsets) {
    const int target = static_cast<int>((place + sign * offset + size) % size);
    ranks.push_back(relabelled ? circulant.rank_at[index(target)] : target);
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

// SplitMix64 (Steele, Lea, Flood 2014). The standard library's distributions and shuffle may differ
// from one implementation to the next, but ranks built apart must draw alike.
class Draw {
 public:
  Draw(std::uint64_t seed, std::uint64_t round, int size) {
    for (const std::uint64_t part : {seed, round, static_cast<std::uint64_t>(size)}) {
      state_ ^= part;
      state_ = next();
    }
  }

  // Uniform over 0..bound-1. Draws that would favour the low numbers are discarded.
  int below(int bound) {
    const auto range = static_cast<std::uint64_t>(bound);
    const std::uint64_t unfair = (0 - range) % range;
    std::uint64_t drawn = next();
    while (drawn < unfair) drawn = next();
    return static_cast<int>(drawn % range);
  }

 private:
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15U);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
  }

  std::uint64_t state_ = 0;
};

// Puts a uniform sample, in random order, into the first `count` elements.
void shuffle_first(std::vector<int>& values, int count, Draw& draw) {
  const int total = static_cast<int>(values.size());
  for (int i = 0; i < count; ++i) {
    std::swap(values[index(i)], values[index(i + draw.below(total - i))]);
  }
}

}  // namespace

std::vector<int> Circulant::out(int rank, int size) const {
  return at_offsets(*this, rank, size, 1);
}

std::vector<int> Circulant::in(int rank, int size) const {
  return at_offsets(*this, rank, size, -1);
}

int rounds_to_reach(int size, std::int64_t factor) {
  int rounds = 0;
  for (std::int64_t reached = 1; reached < size; reached *= factor) ++rounds;
  return rounds;
}

std::vector<int> all_offsets(int size) {
  std::vector<int> offsets(index(size - 1));
  std::iota(offsets.begin(), offsets.end(), 1);
  return offsets;
}

std::vector<int> ring_offsets(int size) {
  if (size < 2) return {};
  if (size == 2) return {1};
  return {1, size - 1};
}

// MALT (section 3.4) sends to the first log2(N) numbers of the base-2 Halton sequence times N: N/2,
// N/4, 3N/4, N/8, 5N/8, 3N/8, 7N/8, N/16, ... These are near multiples of N / log2(N), so no sum of
// them comes near the ranks in between. At N = 8 the offsets 4, 2, 6 never leave the even ranks; at
// N = 12 the offsets 6, 3, 9 only reach every third rank. If rounding does connect the graph, it
// mixes slowly (at N = 255 its spectral gap is 0.002).
//
// The repair: the sequence comes in levels of halves, quarters, eighths, ...; this graph takes the
// first number of each level, N/2, N/4, N/8, .... It has as many offsets as before, with the next
// levels in place of the other numbers of a level. The last offset is always 1, so the graph is
// connected at every N. At N = 2^L every mode of the mixing matrix meets one offset that turns it
// by half a turn, so the gap is 2/(L+1), the same as that of EXPONENTIAL.
std::vector<int> halton_offsets(int size) {
  std::vector<int> offsets;
  for (int offset = size / 2; offset >= 1; offset /= 2) offsets.push_back(offset);
  return offsets;
}

std::vector<int> exponential_offsets(int size) {
  std::vector<int> offsets;
  for (std::int64_t offset = 1; offset < size; offset *= 2) {
    offsets.push_back(static_cast<int>(offset));
  }
  return offsets;
}

std::vector<int> one_peer_offsets(int size, std::uint64_t round) {
  if (size < 2) return {};
  return {1 << (round % static_cast<std::uint64_t>(rounds_to_reach(size, 2)))};
}

// The offsets of a circulant give every rank as many in-neighbours as out-neighbours, so averaging
// keeps the mean. The ranks are put on the circle at random. So the offset 1 makes a random cycle
// through all of them, which connects each round by itself; the other offsets are drawn without
// replacement.
Circulant random_circulant(int k, std::uint64_t seed, int size, std::uint64_t round) {
  if (k >= size - 1) return {all_offsets(size), {}, {}};
  Draw draw(seed, round, size);
  Circulant circulant;
  circulant.offsets.resize(index(size - 2));
  std::iota(circulant.offsets.begin(), circulant.offsets.end(), 2);
  shuffle_first(circulant.offsets, k - 1, draw);
  circulant.offsets.resize(index(k - 1));
  circulant.offsets.push_back(1);

  circulant.rank_at.resize(index(size));
  std::iota(circulant.rank_at.begin(), circulant.rank_at.end(), 0);
  shuffle_first(circulant.rank_at, size, draw);
  circulant.place_of.resize(index(size));
  for (int place = 0; place < size; ++place) {
    circulant.place_of[index(circulant.rank_at[index(place)])] = place;
  }
  return circulant;
}

}  // namespace dstorm
