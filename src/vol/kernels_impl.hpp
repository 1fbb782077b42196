// The table of kernels for vectors of VectorBytes. Each level's translation unit instantiates it
// once. kernels_simd.hpp explains why everything here has internal linkage.
#pragma once

#include "vol/kernels_half.hpp"
#include "vol/kernels_level.hpp"
#include "vol/kernels_linear.hpp"
#include "vol/kernels_order.hpp"
#include "vol/kernels_wire.hpp"

namespace vol {
namespace {

template <class T>
struct Unsigned {
  using Type = T;
};
template <>
struct Unsigned<std::int32_t> {
  using Type = std::uint32_t;
};
template <>
struct Unsigned<std::int64_t> {
  using Type = std::uint64_t;
};

template <std::size_t Value>
struct Constant {
  // NOLINTNEXTLINE(google-explicit-constructor): it stands where a number would.
  constexpr operator std::size_t() const { return Value; }
};

template <class T, std::size_t VectorBytes>
struct Folds {
  static void sum(void* out, const void* const* in, std::size_t k, std::size_t n) {
    fold<VectorBytes>(Sum<typename Unsigned<T>::Type>{}, out, in, k, n);
  }

  static void mean(void* out, const void* const* in, std::size_t k, std::size_t n) {
    const bool by_power = (k & (k - 1)) == 0;
    if constexpr (kIsFloat<T>) {
      const T divisor = static_cast<T>(k);
      if (by_power) {
        fold<VectorBytes>(MeanByProduct<T>{{}, 1 / divisor}, out, in, k, n);
      } else {
        fold<VectorBytes>(MeanByQuotient<T>{{}, divisor}, out, in, k, n);
      }
    } else if constexpr (sizeof(T) == 4) {
      using ByProduct = MeanInt32<MeanByProduct<double>>;
      using ByQuotient = MeanInt32<MeanByQuotient<double>>;
      const double divisor = static_cast<double>(k);
      if (by_power) {
        fold<VectorBytes>(ByProduct{{{}, 1 / divisor}}, out, in, k, n);
      } else {
        fold<VectorBytes>(ByQuotient{{{}, divisor}}, out, in, k, n);
      }
    } else {
      if (by_power) {
        fold<VectorBytes>(MeanInt64ByShift{{}, __builtin_ctzll(k)}, out, in, k, n);
      } else {
        fold<VectorBytes>(MeanInt64ByQuotient{{}, k}, out, in, k, n);
      }
    }
  }

  static void weighted(void* out, const void* const* in, const double* weights, std::size_t k,
                       std::size_t n) {
    if constexpr (kIsFloat<T>) {
      fold<VectorBytes>(Weighted<T>{weights}, out, in, k, n);
    } else {
      fold<VectorBytes>(WeightedInt<T>{{weights}}, out, in, k, n);
    }
  }

  static void median(void* out, const void* const* in, std::size_t k, std::size_t n) {
    sorted(out, in, Median{}, k, n, std::make_index_sequence<kMaxMedianInputs>{});
  }

  static void trimmed_mean(void* out, const void* const* in, std::size_t trim, std::size_t k,
                           std::size_t n) {
    sorted(out, in, Trimmed{trim}, k, n, std::make_index_sequence<kMaxTrimmedInputs>{});
  }

  static bool all_finite(const void* in, std::size_t n) {
    if constexpr (kIsFloat<T>) {
      constexpr std::size_t kLanes = VectorBytes / sizeof(T);
      constexpr std::size_t kBlock = 64 * kLanes;
      std::size_t i = 0;
      for (; n - i >= kBlock; i += kBlock) {
        if (!all_inputs_finite<T, kLanes>(&in, 1, i, i + kBlock)) return false;
      }
      const std::size_t whole = n - n % kLanes;
      return all_inputs_finite<T, kLanes>(&in, 1, i, whole) &&
             all_inputs_finite<T, 1>(&in, 1, whole, n);
    } else {
      return true;
    }
  }

  static double sum_of_squares(const void* in, std::size_t n) {
    return add_squares<T, VectorBytes>(in, n);
  }

  static constexpr Kernels kTable{sum,          mean,       weighted,      median,
                                  trimmed_mean, all_finite, sum_of_squares};

 private:
  struct Median {
    template <std::size_t K>
    constexpr auto of() const {
      return Constant<(K - 1) / 2>{};
    }
    std::size_t of(std::size_t k) const { return (k - 1) / 2; }
  };
  struct Trimmed {
    std::size_t trim;
    template <std::size_t K>
    std::size_t of() const {
      return trim;
    }
    std::size_t of(std::size_t) const { return trim; }
  };

  template <class Trim, std::size_t... J>
  static void sorted(void* out, const void* const* in, Trim trim, std::size_t k, std::size_t n,
                     std::index_sequence<J...>) {
    using Fixed = void (*)(void*, const void* const*, Trim, std::size_t);
    static constexpr Fixed kFixed[] = {
        [](void* to, const void* const* from, Trim t, std::size_t m) {
          fold_in_registers<T, VectorBytes, J + 1>(to, from, t.template of<J + 1>(), m);
        }...};
    if (k <= sizeof...(J)) {
      kFixed[k - 1](out, in, trim, n);
    } else {
      fold_in_memory<T, VectorBytes>(out, in, trim.of(k), k, 0, n);
    }
  }
};

template <std::size_t VectorBytes>
using Float16Folds = HalfFolds<Folds<float, VectorBytes>, Wire<VectorBytes>::from_float16,
                               Wire<VectorBytes>::to_float16>;
template <std::size_t VectorBytes>
using Bfloat16Folds = HalfFolds<Folds<float, VectorBytes>, Wire<VectorBytes>::from_bfloat16,
                                Wire<VectorBytes>::to_bfloat16>;

#if defined(__SSE2__)
inline constexpr std::size_t kStreamBytes = 128;

// Copies kStreamBytes to an address that is a multiple of VectorBytes.
template <std::size_t VectorBytes>
[[gnu::always_inline]] inline void stream_lines(unsigned char* to, const unsigned char* from) {
  constexpr std::size_t kLanes = VectorBytes / sizeof(long long);
  for (std::size_t at = 0; at < kStreamBytes; at += VectorBytes) {
    stream(to + at, load<long long, kLanes>(from + at, 0));
  }
}

template <std::size_t VectorBytes>
void stream_copy(void* to, const void* from, std::size_t bytes) {
  // Four pages at a time with a short prefetch: a tenth faster than one page after the other,
  // because the memory then works on several of its own pages at once.
  constexpr std::size_t kPageBytes = 4096;
  constexpr std::size_t kPages = 4;
  constexpr std::size_t kAhead = 256;
  auto* d = static_cast<unsigned char*>(to);
  const auto* s = static_cast<const unsigned char*>(from);
  const std::size_t lead = -reinterpret_cast<std::uintptr_t>(d) & (VectorBytes - 1);
  std::size_t i = lead < bytes ? lead : bytes;
  __builtin_memcpy(d, s, i);
  for (; bytes - i >= kPages * kPageBytes; i += kPages * kPageBytes) {
    for (std::size_t line = i; line < i + kPageBytes; line += kStreamBytes) {
      for (std::size_t page = 0; page < kPages; ++page) {
        const std::size_t at = line + page * kPageBytes;
        prefetch<kStreamBytes>(s, at + kAhead);
        stream_lines<VectorBytes>(d + at, s + at);
      }
    }
  }
  for (; bytes - i >= kStreamBytes; i += kStreamBytes) {
    stream_lines<VectorBytes>(d + i, s + i);
  }
  __builtin_memcpy(d + i, s + i, bytes - i);
  _mm_sfence();  // before the caller's release store publishes the copy
}
#else
template <std::size_t>
inline constexpr decltype(nullptr) stream_copy = nullptr;
#endif

template <std::size_t VectorBytes>
inline constexpr LevelKernels kLevelKernels{Folds<float, VectorBytes>::kTable,
                                            Folds<double, VectorBytes>::kTable,
                                            Folds<std::int32_t, VectorBytes>::kTable,
                                            Folds<std::int64_t, VectorBytes>::kTable,
                                            Float16Folds<VectorBytes>::kTable,
                                            Bfloat16Folds<VectorBytes>::kTable,
                                            Wire<VectorBytes>::kTable,
                                            stream_copy<VectorBytes>};

}  // namespace
}  // namespace vol
