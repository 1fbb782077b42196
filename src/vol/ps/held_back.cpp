#include "vol/ps/held_back.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

namespace vol::ps {

void HeldBack::take_over(HeldBack& before) {
  places_ = std::exchange(before.places_, {});
  sums_ = std::exchange(before.sums_, {});
  free_ = std::exchange(before.free_, {});
}

HeldBack::Sifted HeldBack::add(const Rows& rows, const std::byte* gradients) {
  return options_.dtype == DType::kFloat32
             ? add_of(rows, reinterpret_cast<const float*>(gradients))
             : add_of(rows, reinterpret_cast<const double*>(gradients));
}

template <class T>
HeldBack::Sifted HeldBack::add_of(const Rows& rows, const T* gradients) {
  const std::size_t width = options_.width;
  const std::size_t row_bytes = options_.row_bytes();
  const T threshold = static_cast<T>(options_.threshold);
  const auto is_small = [&](const T* sum) {  // false with a NaN
    return std::all_of(sum, sum + width, [=](T value) { return std::abs(value) < threshold; });
  };
  Sifted sifted;
  std::vector<T> sum(width);
  for (std::size_t i = 0; i < rows.count; ++i) {
    const std::int64_t row = rows.at(i);
    std::copy_n(gradients + i * width, width, sum.begin());
    const auto held = places_.find(row);
    if (held != places_.end()) {
      const T* const before = reinterpret_cast<const T*>(sums_.data() + held->second * row_bytes);
      for (std::size_t j = 0; j < width; ++j) sum[j] += before[j];
    }
    const auto* const bytes = reinterpret_cast<const std::byte*>(sum.data());
    if (!is_small(sum.data())) {
      sifted.keys.push_back(row);
      sifted.gradients.insert(sifted.gradients.end(), bytes, bytes + row_bytes);
      if (held == places_.end()) continue;
      free_.push_back(held->second);
      places_.erase(held);
      continue;
    }
    std::size_t place = 0;
    if (held != places_.end()) {
      place = held->second;
    } else if (!free_.empty()) {
      place = free_.back();
      free_.pop_back();
      places_.emplace(row, place);
    } else {
      place = sums_.size() / row_bytes;
      sums_.resize(sums_.size() + row_bytes);
      places_.emplace(row, place);
    }
    std::memcpy(sums_.data() + place * row_bytes, bytes, row_bytes);
  }
  return sifted;
}

HeldBack::Sifted HeldBack::take(std::size_t most) {
  const std::size_t row_bytes = options_.row_bytes();
  std::vector<std::pair<std::int64_t, std::size_t>> taken;
  while (taken.size() < most && !places_.empty()) {
    const auto next = places_.begin();
    taken.emplace_back(*next);
    free_.push_back(next->second);
    places_.erase(next);
  }
  std::ranges::sort(taken);
  Sifted all;
  for (const auto& [row, place] : taken) {
    const auto* const sum = sums_.data() + place * row_bytes;
    all.keys.push_back(row);
    all.gradients.insert(all.gradients.end(), sum, sum + row_bytes);
  }
  return all;
}

}  // namespace vol::ps
