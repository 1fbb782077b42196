#include "learn/order.hpp"

#include <numeric>
#include <utility>

#include "learn/splitmix.hpp"

namespace learn {

void shuffle(std::span<std::uint32_t> order, std::uint64_t seed) {
  std::iota(order.begin(), order.end(), std::uint32_t{0});
  SplitMix random(seed);
  for (std::size_t left = order.size(); left > 1; --left) {
    // Takes the upper half of a product instead of a remainder, which needs a division. The bias is
    // left / 2^32 in a chance of 1 / left.
    const std::uint64_t draw = random.next() >> 32;
    std::swap(order[left - 1], order[(draw * left) >> 32]);
  }
}

}  // namespace learn
