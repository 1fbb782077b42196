// Sum, mean, weighted sum and sum of squares. Every input is read once, accumulators stay in
// registers, and the result is written once. The first three share one loop, and each gives it an
// Op on vectors of L lanes:
//   Element, Acc       the type in memory, and the type summed in or that of the words of a sum
//   start<L>(j, x)     the accumulators after input j as the first
//   add<L>(acc, j, x)  ... after a further input j
//   finish<L>(acc)     the result
#pragma once

#include "vol/kernels_simd.hpp"

namespace vol {
namespace {

// Inputs of this many bytes in all mostly come from beyond the second-level cache. Then prefetching
// pays: the processor's own prefetchers stop at page ends and follow few streams.
inline constexpr std::size_t kPrefetchBytes = std::size_t{1} << 20;
inline constexpr std::size_t kPrefetchAhead = 1024;

template <class T>
struct Sum {
  using Element = T;
  using Acc = T;
  template <std::size_t L>
  Vector<T, L> start(std::size_t, Vector<T, L> x) const {
    return x;
  }
  template <std::size_t L>
  Vector<T, L> add(Vector<T, L> acc, std::size_t, Vector<T, L> x) const {
    return acc + x;
  }
  template <std::size_t L>
  Vector<T, L> finish(Vector<T, L> acc) const {
    return acc;
  }
};

// For k a power of two: the product has the same bits as the quotient, in a fraction of the time.
template <class T>
struct MeanByProduct : Sum<T> {
  T inverse;
  template <std::size_t L>
  Vector<T, L> finish(Vector<T, L> acc) const {
    return acc * splat<T, L>(inverse);
  }
};

template <class T>
struct MeanByQuotient : Sum<T> {
  T k;
  template <std::size_t L>
  Vector<T, L> finish(Vector<T, L> acc) const {
    return acc / splat<T, L>(k);
  }
};

// Fewer than 2^21 int32 sum exactly in double, and such a small quotient cannot be rounded up to a
// whole number; the conversion truncates.
template <class Mean>
struct MeanInt32 {
  using Element = std::int32_t;
  using Acc = double;
  Mean mean;
  template <std::size_t L>
  Vector<double, L> start(std::size_t, Vector<std::int32_t, L> x) const {
    return convert<double, L>(x);
  }
  template <std::size_t L>
  Vector<double, L> add(Vector<double, L> acc, std::size_t, Vector<std::int32_t, L> x) const {
    return acc + convert<double, L>(x);
  }
  template <std::size_t L>
  Vector<std::int32_t, L> finish(Vector<double, L> acc) const {
    return convert<std::int32_t, L>(mean.template finish<L>(acc));
  }
};

// The sum of fewer than 2^20 int64 in two words, upper * 2^32 + lower. Neither word overflows: one
// adds the upper halves of the numbers, counted from -2^63, and the other the lower halves.
template <std::size_t L>
struct HalfSums {
  Vector<std::uint64_t, L> upper, lower;
};

struct SumInt64 {
  using Element = std::uint64_t;  // the bits of an int64
  using Acc = std::uint64_t;
  static constexpr int kHalf = 32;
  template <std::size_t L>
  HalfSums<L> start(std::size_t, Vector<std::uint64_t, L> x) const {
    const auto counted = x ^ splat<std::uint64_t, L>(std::uint64_t{1} << 63);
    return {counted >> kHalf, counted & splat<std::uint64_t, L>(UINT32_MAX)};
  }
  template <std::size_t L>
  HalfSums<L> add(HalfSums<L> acc, std::size_t j, Vector<std::uint64_t, L> x) const {
    const HalfSums<L> halves = start<L>(j, x);
    return {acc.upper + halves.upper, acc.lower + halves.lower};
  }
};

// Rounds a mean that was rounded down toward zero instead.
template <std::size_t L, class Rest>
[[gnu::always_inline]] inline Vector<std::uint64_t, L> toward_zero(Vector<std::uint64_t, L> bits,
                                                                   Rest rest) {
  const auto mean = __builtin_bit_cast(Vector<std::int64_t, L>, bits);
  const auto up = __builtin_bit_cast(Vector<std::int64_t, L>, bits + splat<std::uint64_t, L>(1));
  const auto lifted = rest > Rest{} ? up : mean;
  return __builtin_bit_cast(Vector<std::uint64_t, L>,
                            mean < Vector<std::int64_t, L>{} ? lifted : mean);
}

// k = 2^shift.
struct MeanInt64ByShift : SumInt64 {
  int shift;
  template <std::size_t L>
  Vector<std::uint64_t, L> finish(HalfSums<L> acc) const {
    const auto low_bits = splat<std::uint64_t, L>((std::uint64_t{1} << shift) - 1);
    const auto offset = splat<std::uint64_t, L>(std::uint64_t{1} << (shift + kHalf - 1));
    const auto lower = acc.lower + ((acc.upper & low_bits) << kHalf);
    // The quotient of the upper halves, still counted from -2^31, in its place.
    const auto upper = ((acc.upper & ~low_bits) - offset) << (kHalf - shift);
    const auto rest = __builtin_bit_cast(Vector<std::int64_t, L>, lower & low_bits);
    return toward_zero<L>(upper + (lower >> shift), rest);
  }
};

// Converts whole numbers from -2^51 to below 2^51, and back, by the bits of 1.5 * 2^52 plus the
// number. (Most processors have no vector instruction for this.)
inline constexpr double kWhole = 6755399441055744.0;
template <std::size_t L>
[[gnu::always_inline]] inline Vector<double, L> to_double(Vector<std::uint64_t, L> x) {
  const auto base = splat<std::uint64_t, L>(__builtin_bit_cast(std::uint64_t, kWhole));
  return __builtin_bit_cast(Vector<double, L>, x + base) - splat<double, L>(kWhole);
}
template <std::size_t L>
[[gnu::always_inline]] inline Vector<std::uint64_t, L> to_bits(Vector<double, L> x) {
  const auto base = splat<std::uint64_t, L>(__builtin_bit_cast(std::uint64_t, kWhole));
  return __builtin_bit_cast(Vector<std::uint64_t, L>, x + splat<double, L>(kWhole)) - base;
}

// For |x| below 2^51.
template <std::size_t L>
[[gnu::always_inline]] inline Vector<double, L> round_down(Vector<double, L> x) {
  const auto near = (x + splat<double, L>(kWhole)) - splat<double, L>(kWhole);
  const auto below = near - splat<double, L>(1.0);
  return near > x ? below : near;
}

// Long division by k, with digits of 32 bits. All numbers are whole and below 2^53, so they are
// exact in double. If the quotient of such a number by k is not whole, it is further from the next
// whole number than rounding can move it.
struct MeanInt64ByQuotient : SumInt64 {
  std::uint64_t k;
  template <std::size_t L>
  Vector<std::uint64_t, L> finish(HalfSums<L> acc) const {
    const auto divisor = splat<double, L>(static_cast<double>(k));
    const auto digit = splat<double, L>(4294967296.0);
    // A lower sum has up to 52 bits; the bits above a digit are carried up.
    const auto low_bits = splat<std::uint64_t, L>(UINT32_MAX);
    const auto offset = splat<std::uint64_t, L>(k << (kHalf - 1));
    const auto upper = to_double<L>(acc.upper + (acc.lower >> kHalf) - offset);
    const auto lower = to_double<L>(acc.lower & low_bits);
    const auto high = round_down<L>(upper / divisor);
    const auto left = (upper - high * divisor) * digit + lower;
    const auto low = round_down<L>(left / divisor);
    return toward_zero<L>((to_bits<L>(high) << kHalf) + to_bits<L>(low), left - low * divisor);
  }
};

// Rounds halfway cases to even, as the processor does; beyond 2^52 doubles are whole already.
template <std::size_t L>
[[gnu::always_inline]] inline Vector<double, L> round_to_nearest(Vector<double, L> x) {
  const auto big = splat<double, L>(4503599627370496.0);
  const auto up = (x + big) - big;
  const auto down = (x - big) + big;
  const auto rounded = x < 0.0 ? down : up;
  const auto magnitude = x < 0.0 ? -x : x;
  return magnitude < big ? rounded : x;
}

template <class T>
struct Weighted {
  using Element = T;
  using Acc = T;
  const double* weights;
  template <std::size_t L>
  Vector<T, L> start(std::size_t j, Vector<T, L> x) const {
    return splat<T, L>(static_cast<T>(weights[j])) * x;
  }
  template <std::size_t L>
  Vector<T, L> add(Vector<T, L> acc, std::size_t j, Vector<T, L> x) const {
    return acc + start<L>(j, x);
  }
  template <std::size_t L>
  Vector<T, L> finish(Vector<T, L> acc) const {
    return acc;
  }
};

template <class T>
struct WeightedInt {
  using Element = T;
  using Acc = double;
  Weighted<double> weighted;
  template <std::size_t L>
  Vector<double, L> start(std::size_t j, Vector<T, L> x) const {
    return weighted.template start<L>(j, convert<double, L>(x));
  }
  template <std::size_t L>
  Vector<double, L> add(Vector<double, L> acc, std::size_t j, Vector<T, L> x) const {
    return weighted.template add<L>(acc, j, convert<double, L>(x));
  }
  template <std::size_t L>
  Vector<T, L> finish(Vector<double, L> acc) const {
    constexpr double kBound = sizeof(T) == 4 ? 2147483648.0 : 9223372036854775808.0;
    // The greatest double that can be converted; for int64 the next one is the bound itself.
    constexpr double kTop = sizeof(T) == 4 ? 2147483647.0 : 9223372036854774784.0;
    const Vector<double, L> zero{};
    const auto number = acc == acc ? acc : zero;
    const auto low = splat<double, L>(-kBound);
    const auto top = splat<double, L>(kTop);
    auto rounded = round_to_nearest<L>(number);
    rounded = rounded < low ? low : rounded;
    const auto result = convert<T, L>(rounded > top ? top : rounded);
    if constexpr (sizeof(T) == 4) {
      return result;
    } else {
      return rounded > top ? splat<T, L>(INT64_MAX) : result;
    }
  }
};

// Folds elements [i, i + Unroll * L) of all inputs.
template <std::size_t L, std::size_t Unroll, bool Prefetch, class Op>
[[gnu::always_inline]] inline void fold_chunk(const Op& op, void* out, const void* const* in,
                                              std::size_t k, std::size_t i) {
  using T = typename Op::Element;
  const auto at = [in, i](std::size_t j, std::size_t u) { return load<T, L>(in[j], i + u * L); };
  decltype(op.template start<L>(0, at(0, 0))) acc[Unroll];
  for (std::size_t u = 0; u < Unroll; ++u) acc[u] = op.template start<L>(0, at(0, u));
  for (std::size_t j = 1; j < k; ++j) {
    for (std::size_t u = 0; u < Unroll; ++u) acc[u] = op.template add<L>(acc[u], j, at(j, u));
    if constexpr (Prefetch) {
      prefetch<Unroll * L * sizeof(T)>(in[j], i * sizeof(T) + kPrefetchAhead);
    }
  }
  for (std::size_t u = 0; u < Unroll; ++u) store<T>(out, i + u * L, op.template finish<L>(acc[u]));
}

template <std::size_t VectorBytes, bool Prefetch, class Op>
[[gnu::always_inline]] inline void fold_range(const Op& op, void* out, const void* const* in,
                                              std::size_t k, std::size_t n) {
  constexpr std::size_t kLanes = VectorBytes / sizeof(typename Op::Acc);
  using First = Vector<typename Op::Element, kLanes>;
  // As many accumulators as eight registers hold.
  constexpr std::size_t kUnroll = 8 * VectorBytes / sizeof(op.template start<kLanes>(0, First{}));
  constexpr std::size_t kStep = kUnroll * kLanes;
  std::size_t i = 0;
  for (; n - i >= kStep; i += kStep) fold_chunk<kLanes, kUnroll, Prefetch>(op, out, in, k, i);
  for (; n - i >= kLanes; i += kLanes) fold_chunk<kLanes, 1, false>(op, out, in, k, i);
  for (; i < n; ++i) fold_chunk<1, 1, false>(op, out, in, k, i);
}

template <std::size_t VectorBytes, class Op>
void fold(const Op& op, void* out, const void* const* in, std::size_t k, std::size_t n) {
  if (k == 2) {  // the commonest case, without the loop over inputs
    fold_range<VectorBytes, false>(op, out, in, 2, n);
  } else if (k * n * sizeof(typename Op::Element) < kPrefetchBytes) {
    fold_range<VectorBytes, false>(op, out, in, k, n);
  } else {
    fold_range<VectorBytes, true>(op, out, in, k, n);
  }
}

// The number of sums. It is the same for every width of the vectors, so the width does not show in
// the bits.
inline constexpr std::size_t kSquareSums = 16;

template <class T, std::size_t VectorBytes>
double add_squares(const void* in, std::size_t n) {
  constexpr std::size_t kLanes = VectorBytes / sizeof(double);
  constexpr std::size_t kVectors = kSquareSums / kLanes;
  Vector<double, kLanes> acc[kVectors]{};
  std::size_t i = 0;
  for (; n - i >= kSquareSums; i += kSquareSums) {
    for (std::size_t v = 0; v < kVectors; ++v) {
      const auto x = convert<double, kLanes>(load<T, kLanes>(in, i + v * kLanes));
      acc[v] += x * x;
    }
  }
  double sums[kSquareSums];
  __builtin_memcpy(sums, acc, sizeof sums);
  for (std::size_t lane = 0; i < n; ++i, ++lane) {
    const auto x = convert<double, 1>(load<T, 1>(in, i));
    sums[lane] += x * x;
  }
  double total = sums[0];
  for (std::size_t lane = 1; lane < kSquareSums; ++lane) total += sums[lane];
  return total;
}

}  // namespace
}  // namespace vol
