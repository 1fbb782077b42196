// The arithmetic of codecs: floats to and from fewer bits, without branches. kernels_simd.hpp
// explains why everything here has internal linkage.
#pragma once

#include "vol/kernels_level.hpp"
#include "vol/kernels_simd.hpp"

namespace vol {
namespace {

template <class To, class From>
[[gnu::always_inline]] inline To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

constexpr std::uint32_t kSign = 0x80000000U;
constexpr std::uint32_t kInfinite = 0x7F800000U;  // NaN is above it
constexpr std::uint32_t kQuietNan = 0x7FC00000U;
constexpr std::uint32_t kNotFinite = 0x80U;  // of int8: -128, which no finite element becomes

template <std::size_t VectorBytes>
struct Wire {
  static constexpr std::size_t kLanes = VectorBytes / sizeof(float);

  // Calls `body` for each vector of n elements, and for the rest one by one.
  template <std::size_t Most = kLanes, class Body>
  [[gnu::always_inline]] static void each(std::size_t n, Body body) {
    std::size_t i = 0;
    for (; n - i >= Most; i += Most) body(Lanes<Most>{}, i);
    for (; i < n; ++i) body(Lanes<1>{}, i);
  }
  template <std::size_t Count>
  struct Lanes {
    static constexpr std::size_t kCount = Count;
    using Floats = Vector<float, Count>;
    using Words = Vector<std::uint32_t, Count>;
  };

  static void to_float16(void* out, const void* in, std::size_t n) {
    each(n, [=](auto lanes, std::size_t i) {
      using L = decltype(lanes);
      using W = typename L::Words;
      const W word = bits_as<W>(load<float, L::kCount>(in, i));
      const W sign = word & kSign;
      const W size = word ^ sign;
      // From 2^-14 on: another bias of the exponent, and 13 bits less, rounded.
      const W odd = (size >> 13) & 1U;
      const W normal = (size - ((127U - 15U) << 23) + 0xFFFU + odd) >> 13;
      // Below that the addition shifts and rounds.
      constexpr float kShift = 0.5F;
      const W small =
          bits_as<W>(bits_as<typename L::Floats>(size) + kShift) - bits_as<std::uint32_t>(kShift);
      constexpr std::uint32_t kLeastNormal = (127U - 14U) << 23;
      constexpr std::uint32_t kTooLarge = (127U + 16U) << 23;
      const W large = size > splat<std::uint32_t, L::kCount>(kInfinite)
                          ? splat<std::uint32_t, L::kCount>(0x7E00U)
                          : splat<std::uint32_t, L::kCount>(0x7C00U);
      W half = size < splat<std::uint32_t, L::kCount>(kLeastNormal) ? small : normal;
      half = size >= splat<std::uint32_t, L::kCount>(kTooLarge) ? large : half;
      store<std::uint16_t>(out, i, convert<std::uint16_t, L::kCount>(half | (sign >> 16)));
    });
  }

  static void from_float16(void* out, const void* in, std::size_t n) {
    each(n, [=](auto lanes, std::size_t i) {
      using L = decltype(lanes);
      using W = typename L::Words;
      using F = typename L::Floats;
      const W half = convert<std::uint32_t, L::kCount>(load<std::uint16_t, L::kCount>(in, i));
      const W size = (half & 0x7FFFU) << 13;
      // The product has the right bias, and subnormal numbers become normal.
      const W finite = bits_as<W>(bits_as<F>(size) * 0x1p112F);
      const W value =
          size >= splat<std::uint32_t, L::kCount>(0x7C00U << 13) ? size | kInfinite : finite;
      store<float>(out, i, bits_as<F>(value | ((half & 0x8000U) << 16)));
    });
  }

  static void to_bfloat16(void* out, const void* in, std::size_t n) {
    each(n, [=](auto lanes, std::size_t i) {
      using L = decltype(lanes);
      using W = typename L::Words;
      const W word = bits_as<W>(load<float, L::kCount>(in, i));
      const W rounded = (word + 0x7FFFU + ((word >> 16) & 1U)) >> 16;
      const W nan = (word >> 16) | 0x40U;
      const W half = (word & ~kSign) > splat<std::uint32_t, L::kCount>(kInfinite) ? nan : rounded;
      store<std::uint16_t>(out, i, convert<std::uint16_t, L::kCount>(half));
    });
  }

  static void from_bfloat16(void* out, const void* in, std::size_t n) {
    each(n, [=](auto lanes, std::size_t i) {
      using L = decltype(lanes);
      using W = typename L::Words;
      const W half = convert<std::uint32_t, L::kCount>(load<std::uint16_t, L::kCount>(in, i));
      store<float>(out, i, bits_as<typename L::Floats>(half << 16));
    });
  }

  // Of the finite ones. Compares bits: the magnitudes of floats have the order of their bits, and
  // those that are not finite are beyond all.
  static std::uint32_t largest(const void* in, std::size_t n) {
    const auto larger = [](std::uint32_t size, std::uint32_t most) {
      return size > most && size < kInfinite ? size : most;
    };
    Vector<std::uint32_t, kLanes> most{};
    std::size_t i = 0;
    for (; n - i >= kLanes; i += kLanes) {
      const Vector<std::uint32_t, kLanes> size = load<std::uint32_t, kLanes>(in, i) & ~kSign;
      const Vector<std::uint32_t, kLanes> finite =
          size < splat<std::uint32_t, kLanes>(kInfinite) ? size : most;
      most = finite > most ? finite : most;
    }
    std::uint32_t all = 0;
    for (std::size_t lane = 0; lane < kLanes; ++lane) all = larger(most[lane], all);
    for (; i < n; ++i) all = larger(load<std::uint32_t, 1>(in, i) & ~kSign, all);
    return all;
  }

  static void to_int8(void* out, void* scales, const void* in, std::size_t n) {
    constexpr std::size_t kScaled = WireKernels::kScaled;
    for (std::size_t first = 0; first < n; first += kScaled) {
      const std::size_t count = n - first < kScaled ? n - first : kScaled;
      const auto* const values = static_cast<const unsigned char*>(in) + first * sizeof(float);
      const std::uint32_t most = largest(values, count);
      // If numbers are so small that their scale has no inverse, zeros are sent.
      constexpr float kLeast = 0x1p-100F;
      const bool is_plain = bits_as<float>(most) >= kLeast;
      const float scale = is_plain ? bits_as<float>(most) / 127 : 0;
      store<float>(scales, first / kScaled, scale);
      const float inverse = is_plain ? 1 / scale : 0;
      auto* const bytes = static_cast<unsigned char*>(out) + first;
      each(count, [=](auto lanes, std::size_t i) {
        using L = decltype(lanes);
        using W = typename L::Words;
        constexpr float kRound = 0x1.8p23F;  // its last bit is worth 1
        const auto value = load<float, L::kCount>(values, i);
        const W size = bits_as<W>(value) & ~kSign;
        const W word = bits_as<W>(value * inverse + kRound) & 0xFFU;
        const W byte = size < splat<std::uint32_t, L::kCount>(kInfinite)
                           ? word
                           : splat<std::uint32_t, L::kCount>(kNotFinite);
        store<std::uint8_t>(bytes, i, convert<std::uint8_t, L::kCount>(byte));
      });
    }
  }

  static void from_int8(void* out, const void* in, const void* scales, std::size_t n) {
    constexpr std::size_t kScaled = WireKernels::kScaled;
    for (std::size_t first = 0; first < n; first += kScaled) {
      const std::size_t count = n - first < kScaled ? n - first : kScaled;
      const float scale = load<float, 1>(scales, first / kScaled);
      const auto* const bytes = static_cast<const unsigned char*>(in) + first;
      auto* const values = static_cast<unsigned char*>(out) + first * sizeof(float);
      each(count, [=](auto lanes, std::size_t i) {
        using L = decltype(lanes);
        using W = typename L::Words;
        const auto value = convert<float, L::kCount>(load<std::int8_t, L::kCount>(bytes, i));
        const W number = bits_as<W>(value * scale);
        const W word = value == splat<float, L::kCount>(-128)
                           ? splat<std::uint32_t, L::kCount>(kQuietNan)
                           : number;
        store<float>(values, i, bits_as<typename L::Floats>(word));
      });
    }
  }

  static void narrow(void* out, const void* in, std::size_t n) {
    each<kLanes / 2>(n, [=](auto lanes, std::size_t i) {
      constexpr std::size_t kCount = decltype(lanes)::kCount;
      store<float>(out, i, convert<float, kCount>(load<double, kCount>(in, i)));
    });
  }

  static void widen(void* out, const void* in, std::size_t n) {
    each<kLanes / 2>(n, [=](auto lanes, std::size_t i) {
      constexpr std::size_t kCount = decltype(lanes)::kCount;
      store<double>(out, i, convert<double, kCount>(load<float, kCount>(in, i)));
    });
  }

  static constexpr WireKernels kTable{to_float16, from_float16, to_bfloat16, from_bfloat16,
                                      to_int8,    from_int8,    narrow,      widen};
};

}  // namespace
}  // namespace vol
