// The sum of squares, in double. Internal to the kernels.
#pragma once

#include <cstddef>

namespace learn {

// Several sums are kept at once: a single sum would wait for each addition to end.
template <class T>
double squares(const T* values, std::size_t count) {
  constexpr std::size_t kAtOnce = 8;
  double sums[kAtOnce]{};
  std::size_t i = 0;
  for (; count - i >= kAtOnce; i += kAtOnce) {
    for (std::size_t k = 0; k < kAtOnce; ++k) {
      const auto value = static_cast<double>(values[i + k]);
      sums[k] += value * value;
    }
  }
  for (; i < count; ++i) {
    const auto value = static_cast<double>(values[i]);
    sums[0] += value * value;
  }
  return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

}  // namespace learn
