#include "learn/order.hpp"

#include <numeric>
#include <utility>

namespace learn {
namespace {

// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): the next of a sequence of well-mixed numbers.
std::uint64_t next_random(std::uint64_t& state) {
  state += 0x9e3779b97f4a7c15;
  std::uint64_t mixed = state;
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
  return mixed ^ (mixed >> 31);
}

}  // namespace

void shuffle(std::span<std::uint32_t> order, std::uint64_t seed) {
  std::iota(order.begin(), order.end(), std::uint32_t{0});
  std::uint64_t state = seed;
  for (std::size_t left = order.size(); left > 1; --left) {
    // By the upper half of a product instead of a remainder, which takes a division; its bias is
    // left / 2^32 in a chance of 1 / left.
    const std::uint64_t random = next_random(state) >> 32;
    std::swap(order[left - 1], order[(random * left) >> 32]);
  }
}

}  // namespace learn
