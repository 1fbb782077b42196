// Median and trimmed mean. The vectors of the inputs are sorted lane by lane with Batcher's merge
// exchange (Knuth, The Art of Computer Programming 3, 5.2.2, algorithm M), which needs no branch on
// data. A median is the trimmed mean that leaves one value or two.
#pragma once

#include <new>
#include <utility>

#include "vol/kernels_simd.hpp"

namespace vol {
namespace {

// Up to this many inputs a network is laid out in registers; more inputs are sorted in memory. A
// trimmed mean needs most of its network, and networks of 16 inputs for every type would double the
// code.
inline constexpr std::size_t kMaxMedianInputs = 16;
inline constexpr std::size_t kMaxTrimmedInputs = 9;
inline constexpr std::size_t kMaxStackInputs = 64;

// Calls exchange(i, j), i < j, for every comparator over n values, in order.
template <class Exchange>
[[gnu::always_inline]] constexpr void merge_exchange(std::size_t n, Exchange exchange) {
  std::size_t top = 1;
  while (2 * top < n) top *= 2;
  if (n < 2) return;
  for (std::size_t p = top; p > 0; p /= 2) {
    std::size_t r = 0;
    for (std::size_t q = top, d = p;; d = q - p, q /= 2, r = p) {
      // All i with (i & p) == r, in runs of p.
      for (std::size_t run = r; run + d < n; run += 2 * p) {
        for (std::size_t i = run; i < run + p && i + d < n; ++i) exchange(i, i + d);
      }
      if (q == p) break;
    }
  }
}

template <std::size_t K>
struct Network {
  std::size_t low[K * K]{};
  std::size_t high[K * K]{};
  std::size_t size = 0;
  constexpr Network() {
    merge_exchange(K, [this](std::size_t i, std::size_t j) {
      low[size] = i;
      high[size] = j;
      ++size;
    });
  }
};
template <std::size_t K>
inline constexpr Network<K> kNetwork;

// If the two are equal, each keeps its own, so of two zeros neither sign is lost.
template <class V>
[[gnu::always_inline]] inline void sort_two(V& low, V& high) {
  const V a = low;
  const V b = high;
  low = a < b ? a : b;
  high = b > a ? b : a;
}

template <std::size_t K, class V, std::size_t... I>
[[gnu::always_inline]] inline void sort_registers(V (&x)[K], std::index_sequence<I...>) {
  (sort_two(x[kNetwork<K>.low[I]], x[kNetwork<K>.high[I]]), ...);
}

// (a + b) / 2 toward zero, without overflow.
template <class T, class V>
[[gnu::always_inline]] inline V midpoint(V a, V b) {
  const V differing = a ^ b;
  const V floor = (a & b) + (differing >> 1);
  return floor + ((floor >> static_cast<int>(8 * sizeof(T) - 1)) & differing & 1);
}

// The mean of value(begin) ... value(end - 1), which are vectors in ascending order.
template <class T, std::size_t L, class Value>
[[gnu::always_inline]] inline Vector<T, L> mean_of(std::size_t begin, std::size_t end,
                                                   Value value) {
  const std::size_t kept = end - begin;
  if (kept == 1) return value(begin);
  if constexpr (kIsFloat<T>) {
    Vector<T, L> sum = value(begin);
    for (std::uint32_t j = 1; j < kept; ++j) sum += value(begin + j);
    return sum / splat<T, L>(static_cast<T>(kept));
  } else {
    if (kept == 2) return midpoint<T>(value(begin), value(begin + 1));
    Vector<T, L> result{};
    for (std::size_t lane = 0; lane < L; ++lane) {
      __extension__ typedef __int128 Wide;
      Wide sum = 0;
      for (std::size_t j = begin; j < end; ++j) sum += value(j)[lane];
      const auto narrow = static_cast<std::int64_t>(sum);
      const auto divisor = static_cast<std::int64_t>(kept);
      result[lane] = static_cast<T>(narrow == sum ? narrow / divisor
                                                  : static_cast<std::int64_t>(sum / divisor));
    }
    return result;
  }
}

// For any number of inputs and any values: sorts in memory, two vectors of each input at a time.
template <class T, std::size_t VectorBytes>
class MemorySort {
 public:
  explicit MemorySort(std::size_t k)
      : k_(k),
        rows_(k <= kMaxStackInputs
                  ? stack_
                  : static_cast<Row*>(::operator new(k * sizeof(Row), kAlignment))) {}
  ~MemorySort() {
    if (rows_ != stack_) ::operator delete(rows_, kAlignment);
  }
  MemorySort(const MemorySort&) = delete;
  MemorySort& operator=(const MemorySort&) = delete;

  void fold(void* out, const void* const* in, std::size_t trim, std::size_t from, std::size_t to) {
    for (std::size_t i = from; i < to;) {
      const std::size_t count = to - i < kRowLanes ? to - i : kRowLanes;
      read(in, i, count);
      merge_exchange(k_, [this](std::size_t a, std::size_t b) {
        for (std::size_t v = 0; v < kRowVectors; ++v) sort_two(rows_[a].v[v], rows_[b].v[v]);
      });
      write(out, i, trim, count);
      i += count;
    }
  }

 private:
  static constexpr std::size_t kLanes = VectorBytes / sizeof(T);
  static constexpr std::size_t kRowVectors = 2;
  static constexpr std::size_t kRowLanes = kRowVectors * kLanes;
  static constexpr std::align_val_t kAlignment{VectorBytes};
  using V = Vector<T, kLanes>;
  struct Row {
    V v[kRowVectors];
  };

  // NaNs become infinities, which sort last too, and are counted.
  void read(const void* const* in, std::size_t i, std::size_t count) {
    for (V& nans : nans_.v) nans = V{};
    for (std::size_t j = 0; j < k_; ++j) {
      const auto* const from = static_cast<const unsigned char*>(in[j]) + i * sizeof(T);
      if (count == kRowLanes) {
        __builtin_memcpy(&rows_[j], from, sizeof(Row));
      } else {
        rows_[j] = Row{};
        __builtin_memcpy(&rows_[j], from, count * sizeof(T));
      }
      if constexpr (kIsFloat<T>) {
        for (std::size_t v = 0; v < kRowVectors; ++v) {
          const V x = rows_[j].v[v];
          nans_.v[v] += x == x ? V{} : splat<T, kLanes>(1);
          rows_[j].v[v] = x == x ? x : splat<T, kLanes>(static_cast<T>(__builtin_inf()));
        }
      }
    }
  }

  void write(void* out, std::size_t i, std::size_t trim, std::size_t count) {
    Row result;
    for (std::size_t v = 0; v < kRowVectors; ++v) {
      result.v[v] =
          mean_of<T, kLanes>(trim, k_ - trim, [this, v](std::size_t j) { return rows_[j].v[v]; });
      if constexpr (kIsFloat<T>) {
        const V dropped = splat<T, kLanes>(static_cast<T>(trim));
        const V nan = splat<T, kLanes>(static_cast<T>(__builtin_nan("")));
        result.v[v] = nans_.v[v] > dropped ? nan : result.v[v];
      }
    }
    __builtin_memcpy(static_cast<unsigned char*>(out) + i * sizeof(T), &result, count * sizeof(T));
  }

  std::size_t k_;
  Row nans_{};
  Row stack_[kMaxStackInputs];
  Row* rows_;
};

template <class T, std::size_t VectorBytes>
[[gnu::noinline]] void fold_in_memory(void* out, const void* const* in, std::size_t trim,
                                      std::size_t k, std::size_t from, std::size_t to) {
  MemorySort<T, VectorBytes>(k).fold(out, in, trim, from, to);
}

// Whether [from, to), a multiple of L, holds neither NaN nor infinity in any input: x - x is NaN
// for both, and so is every sum with it.
template <class T, std::size_t L>
[[gnu::noinline]] bool all_inputs_finite(const void* const* in, std::size_t k, std::size_t from,
                                         std::size_t to) {
  Vector<T, L> acc[4]{};
  for (std::size_t j = 0; j < k; ++j) {
    std::size_t i = from;
    for (; to - i >= 4 * L; i += 4 * L) {
      for (std::size_t u = 0; u < 4; ++u) {
        const auto v = load<T, L>(in[j], i + u * L);
        acc[u] += v - v;
      }
    }
    for (; i < to; i += L) {
      const auto v = load<T, L>(in[j], i);
      acc[0] += v - v;
    }
  }
  return sum_lanes<T, L>((acc[0] + acc[1]) + (acc[2] + acc[3])) == 0;
}

// K inputs in registers, for whole vectors of finite values; the rest goes through memory. For the
// median Trim is a constant, so comparators it does not need vanish.
template <class T, std::size_t VectorBytes, std::size_t K, class Trim>
void fold_in_registers(void* out, const void* const* in, Trim trim, std::size_t n) {
  constexpr std::size_t kLanes = VectorBytes / sizeof(T);
  constexpr std::size_t kBlockVectors = 16;
  using V = Vector<T, kLanes>;
  std::size_t i = 0;
  while (n - i >= kLanes) {
    const std::size_t vectors = (n - i) / kLanes;
    const std::size_t end = i + (vectors < kBlockVectors ? vectors : kBlockVectors) * kLanes;
    if constexpr (kIsFloat<T>) {
      if (!all_inputs_finite<T, kLanes>(in, K, i, end)) {
        fold_in_memory<T, VectorBytes>(out, in, trim, K, i, end);
        i = end;
        continue;
      }
    }
    for (; i < end; i += kLanes) {
      V x[K];
      for (std::size_t j = 0; j < K; ++j) {
        x[j] = load<T, kLanes>(in[j], i);
        // Sorting hides the wait for the next block.
        prefetch<VectorBytes>(in[j], (i + kBlockVectors * kLanes) * sizeof(T));
      }
      sort_registers(x, std::make_index_sequence<kNetwork<K>.size>{});
      // A copy: indexing x with a variable would keep all of x in memory.
      V sorted[K];
      for (std::size_t j = 0; j < K; ++j) sorted[j] = x[j];
      store<T>(out, i,
               mean_of<T, kLanes>(trim, K - trim, [&sorted](std::size_t j) { return sorted[j]; }));
    }
  }
  if (i < n) fold_in_memory<T, VectorBytes>(out, in, trim, K, i, n);
}

}  // namespace
}  // namespace vol
