// A small random generator that draws the same numbers with every compiler: SplitMix64 (Steele,
// Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014, figure 16).
#pragma once

#include <cstddef>
#include <cstdint>

namespace learn {

class SplitMix {
 public:
  explicit SplitMix(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    state_ += 0x9e3779b97f4a7c15U;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
  }
  // A number in [0, bound), bound > 0; uniform up to an error of bound / 2^64.
  std::uint64_t below(std::uint64_t bound) { return next() % bound; }

 private:
  std::uint64_t state_;
};

// Puts the elements into a random order (Fisher and Yates).
template <class T>
void shuffle(T* elements, std::size_t n, SplitMix& random) {
  for (; n > 1; --n) {
    const std::size_t other = random.below(n);
    const T last = elements[n - 1];
    elements[n - 1] = elements[other];
    elements[other] = last;
  }
}

}  // namespace learn
