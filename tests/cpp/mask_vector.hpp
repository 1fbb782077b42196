// A vector for tests of Allreduce. Every element of rank r's is 2^r, so a sum shows which ranks it
// contains.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "dstorm/collective/allreduce.hpp"

namespace testing_processes {

class MaskVector : public dstorm::Operand {
 public:
  MaskVector(std::size_t count, int rank) : values_(count), rank_(rank) { fill(); }

  void fill() { std::ranges::fill(values_, static_cast<float>(1 << rank_)); }
  // The ranks that the sum contains; 0 if its elements differ.
  int mask() const {
    const bool is_even = std::ranges::all_of(values_, [&](float v) { return v == values_[0]; });
    return is_even ? static_cast<int>(values_[0]) : 0;
  }
  // Called before a result is written next.
  void before_write(std::function<void()> wait) { before_write_ = std::move(wait); }

 protected:
  std::size_t size() const { return values_.size() * sizeof(float); }
  void read(std::byte* to, dstorm::ByteRange range) const {
    std::memcpy(to, bytes() + range.begin, range.size());
  }
  void write(const std::byte* from, dstorm::ByteRange range) {
    if (before_write_) std::exchange(before_write_, nullptr)();
    std::memcpy(bytes() + range.begin, from, range.size());
  }
  // As Operand::fold().
  void add(std::byte* to, std::span<const std::byte* const> inputs, dstorm::ByteRange range) {
    std::vector<float> sum(range.size() / sizeof(float));
    for (const std::byte* input : inputs) {
      const auto* from =
          reinterpret_cast<const float*>(input == nullptr ? bytes() + range.begin : input);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += from[i];
    }
    std::memcpy(to == nullptr ? bytes() + range.begin : to, sum.data(), range.size());
  }

 private:
  std::byte* bytes() { return reinterpret_cast<std::byte*>(values_.data()); }
  const std::byte* bytes() const { return reinterpret_cast<const std::byte*>(values_.data()); }

  std::vector<float> values_;
  int rank_;
  std::function<void()> before_write_;
};

}  // namespace testing_processes
