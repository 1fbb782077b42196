// The elements of an array that differ from a copy of it, and the addition of such changes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace vol {

namespace detail {
// Integers wrap around, as NumPy's do.
template <class T>
T wrapping(T a, T b, bool adds) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    const U x = static_cast<U>(a);
    const U y = static_cast<U>(b);
    return static_cast<T>(adds ? x + y : x - y);
  } else {
    return adds ? a + b : a - b;
  }
}
}  // namespace detail

// Writes the indices of the elements that differ, in increasing order, and array - copy there;
// returns their number. `places` and `values` have room for n elements each. A NaN differs from
// everything.
template <class T>
std::size_t find_changes(const T* array, const T* copy, std::size_t n, std::uint32_t* places,
                         T* values) {
  constexpr std::size_t kGroup = 16;  // most groups of a large array have no change
  std::size_t found = 0;
  const auto look = [&](std::size_t i) {
    places[found] = static_cast<std::uint32_t>(i);
    values[found] = detail::wrapping(array[i], copy[i], false);
    found += array[i] != copy[i] ? 1 : 0;
  };
  std::size_t begin = 0;
  for (; begin + kGroup <= n; begin += kGroup) {
    int differ = 0;
    for (std::size_t i = begin; i < begin + kGroup; ++i) differ |= array[i] != copy[i] ? 1 : 0;
    if (differ == 0) continue;
    for (std::size_t i = begin; i < begin + kGroup; ++i) look(i);
  }
  for (; begin < n; ++begin) look(begin);
  return found;
}

// array[places[i]] += values[i]; no place comes twice, and all are in the array.
template <class T>
void add_changes(T* array, const std::uint32_t* places, const T* values, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    array[places[i]] = detail::wrapping(array[places[i]], values[i], true);
  }
}

}  // namespace vol
