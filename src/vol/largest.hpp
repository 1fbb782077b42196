// Finds the elements of a vector that are largest in magnitude, in two passes over it. Internal to
// top-k.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <type_traits>
#include <vector>

namespace vol {

// As unsigned integers, the bits of floats below the sign have the order of the magnitudes: first
// numbers, then infinity, then NaN. T is float or double.
template <class T>
using MagnitudeKey = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;

template <class T>
MagnitudeKey<T> magnitude_key(T value) {
  using Key = MagnitudeKey<T>;
  return std::bit_cast<Key>(value) & (static_cast<Key>(~Key{0}) >> 1);
}

// The least of the chosen elements, and how many of exactly that magnitude are among them.
template <class T>
struct Least {
  MagnitudeKey<T> key;
  std::size_t equal;
};

// The least of the `largest` largest elements of `values`; 0 < largest <= values.size() < 2^32.
// Elements are counted by the first bits of their keys, so the second pass has to look into one bin
// only.
template <class T>
Least<T> least_of_largest(std::span<const T> values, std::size_t largest) {
  constexpr int kBinBits = 14;  // a float's exponent and 6 bits; fits the second-level cache
  constexpr int kShift = static_cast<int>(8 * sizeof(T)) - 1 - kBinBits;
  std::vector<std::uint32_t> counts(std::size_t{1} << kBinBits);
  for (const T value : values) ++counts[magnitude_key(value) >> kShift];
  std::size_t bin = counts.size() - 1;
  std::size_t left = largest;
  for (; counts[bin] < left; --bin) left -= counts[bin];

  std::vector<MagnitudeKey<T>> candidates;
  for (const T value : values) {
    const MagnitudeKey<T> key = magnitude_key(value);
    if (key >> kShift == bin) candidates.push_back(key);
  }
  const auto least = candidates.begin() + static_cast<std::ptrdiff_t>(left - 1);
  std::nth_element(candidates.begin(), least, candidates.end(), std::greater<>());
  const auto larger = std::count_if(candidates.begin(), least,
                                    [least](MagnitudeKey<T> key) { return key > *least; });
  return {*least, left - static_cast<std::size_t>(larger)};
}

}  // namespace vol
