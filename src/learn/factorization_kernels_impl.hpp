// The factorisation's inner loops on vectors of VectorBytes. Each level's translation unit
// instantiates them once. vol/kernels_simd.hpp explains why everything here has internal linkage.
#pragma once

#include "learn/factorization_kernels.hpp"
#include "vol/kernels_simd.hpp"

namespace learn {
namespace {

// The number of elements that are summed side by side, a cache line. It is the same for every width
// of the vectors, so the width does not show in the bits.
inline constexpr std::size_t kLine = 16;

// The loop prefetches the rows of the rating that comes this much later. At 10 ns a rating that is
// the time that main memory takes.
inline constexpr std::size_t kAhead = 16;

template <std::size_t VectorBytes>
struct FactorRows {
  static constexpr std::size_t kLanes = VectorBytes / sizeof(float);
  static constexpr std::size_t kVectors = kLine / kLanes;
  using Lanes = vol::Vector<float, kLanes>;

  struct Sums {
    Lanes of[kVectors]{};
  };

  [[gnu::always_inline]] static void add_line(Sums& sums, const float* p, const float* q) {
    for (std::size_t v = 0; v < kVectors; ++v) {
      sums.of[v] +=
          vol::load<float, kLanes>(p, v * kLanes) * vol::load<float, kLanes>(q, v * kLanes);
    }
  }

  // Adds the upper half to the lower half until one element is left.
  template <std::size_t Count, class V>
  [[gnu::always_inline]] static float halve(V sums) {
    if constexpr (Count == 1) {
      return sums[0];
    } else {
      using Half = vol::Vector<float, Count / 2>;
      Half halves[2];
      __builtin_memcpy(halves, &sums, sizeof halves);
      if constexpr (Count == 2) {
        return halves[0] + halves[1];
      } else {
        return halve<Count / 2>(halves[0] + halves[1]);
      }
    }
  }

  [[gnu::always_inline]] static float total(const Sums& sums) {
    if constexpr (kVectors == 4) {
      return halve<kLanes>((sums.of[0] + sums.of[2]) + (sums.of[1] + sums.of[3]));
    } else if constexpr (kVectors == 2) {
      return halve<kLanes>(sums.of[0] + sums.of[1]);
    } else {
      return halve<kLanes>(sums.of[0]);
    }
  }

  static float dot(const float* p, const float* q, std::size_t n) {
    Sums sums;
    std::size_t i = 0;
    for (; n - i >= kLine; i += kLine) add_line(sums, p + i, q + i);
    if (i < n) {
      float rest_p[kLine]{};
      float rest_q[kLine]{};
      __builtin_memcpy(rest_p, p + i, (n - i) * sizeof(float));
      __builtin_memcpy(rest_q, q + i, (n - i) * sizeof(float));
      add_line(sums, rest_p, rest_q);
    }
    return total(sums);
  }

  // p = keep * p + step * q, and q = keep * q + step * p.
  [[gnu::always_inline]] static void update_line(float* p, float* q, float keep, float step) {
    for (std::size_t v = 0; v < kVectors; ++v) {
      const Lanes old_p = vol::load<float, kLanes>(p, v * kLanes);
      const Lanes old_q = vol::load<float, kLanes>(q, v * kLanes);
      vol::store<float>(p, v * kLanes, keep * old_p + step * old_q);
      vol::store<float>(q, v * kLanes, keep * old_q + step * old_p);
    }
  }

  // Lines is the number of lines of a row, or 0 if it is known only at run time.
  template <std::size_t Lines>
  static double train(const FactorLoop& given, const RatingBlocks::Rating* ratings, std::size_t n) {
    const FactorLoop loop = given;  // in registers: the stores below cannot reach it
    const std::size_t stride = Lines == 0 ? loop.stride : Lines * kLine;
    const float keep = 1 - loop.rate * loop.l2;
    double squares = 0;
    for (std::size_t i = 0; i < n; ++i) {
      prefetch_rows(loop, ratings[i + kAhead < n ? i + kAhead : n - 1], stride);
      const auto user = static_cast<std::size_t>(ratings[i].user);
      const auto item = static_cast<std::size_t>(ratings[i].item);
      float* const p = loop.user_factors + user * stride;
      float* const q = loop.item_factors + item * stride;
      Sums sums;
      for (std::size_t at = 0; at < stride; at += kLine) add_line(sums, p + at, q + at);
      float error = (loop.implicit ? (ratings[i].value > 0 ? 1.0F : 0.0F) : ratings[i].value) -
                    loop.mean - total(sums);
      if (loop.user_biases != nullptr) error -= loop.user_biases[user] + loop.item_biases[item];
      const float confidence = loop.implicit ? 1 + loop.alpha * ratings[i].value : 1.0F;
      const float step = loop.rate * confidence * error;
      if (loop.user_biases != nullptr) {
        loop.user_biases[user] = keep * loop.user_biases[user] + step;
        loop.item_biases[item] = keep * loop.item_biases[item] + step;
      }
      for (std::size_t at = 0; at < stride; at += kLine) update_line(p + at, q + at, keep, step);
      squares += static_cast<double>(confidence * error * error);
    }
    return squares;
  }

  [[gnu::always_inline]] static void prefetch_rows(const FactorLoop& loop,
                                                   const RatingBlocks::Rating& rating,
                                                   std::size_t stride) {
    const float* const p = loop.user_factors + static_cast<std::size_t>(rating.user) * stride;
    const float* const q = loop.item_factors + static_cast<std::size_t>(rating.item) * stride;
    for (std::size_t at = 0; at < stride; at += kLine) {
      __builtin_prefetch(p + at, 1);
      __builtin_prefetch(q + at, 1);
    }
  }

  static double train_any(const FactorLoop& loop, const RatingBlocks::Rating* ratings,
                          std::size_t n) {
    switch (loop.stride / kLine) {
      case 1:
        return train<1>(loop, ratings, n);
      case 2:
        return train<2>(loop, ratings, n);
      case 4:
        return train<4>(loop, ratings, n);
      case 8:
        return train<8>(loop, ratings, n);
      default:
        return train<0>(loop, ratings, n);
    }
  }

  static constexpr FactorKernels kTable{train_any, dot};
};

}  // namespace
}  // namespace learn
