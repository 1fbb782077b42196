// Sums in double over many values. Internal to the kernels.
#pragma once

#include <cstddef>

namespace learn {

// The sum of of(value) over the values. Several sums are kept at once: a single sum would wait for
// each addition to end.
template <class T, class Of>
double sum_of(const T* values, std::size_t count, Of of) {
  constexpr std::size_t kAtOnce = 8;
  double sums[kAtOnce]{};
  std::size_t i = 0;
  for (; count - i >= kAtOnce; i += kAtOnce) {
    for (std::size_t k = 0; k < kAtOnce; ++k) sums[k] += of(static_cast<double>(values[i + k]));
  }
  for (; i < count; ++i) sums[0] += of(static_cast<double>(values[i]));
  return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

template <class T>
double squares(const T* values, std::size_t count) {
  return sum_of(values, count, [](double value) { return value * value; });
}

}  // namespace learn
