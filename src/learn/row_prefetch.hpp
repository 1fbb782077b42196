// Loads rows into the caches before their turn. Internal to linear models.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "learn/row_view.hpp"

namespace learn {

// How many rows ahead a loop prefetches: first the row's position and target, then the row itself.
// In a shuffled order the processor cannot predict these. Always inlined, because to GCC a function
// that only prefetches does nothing, and it drops calls of it.
inline constexpr std::int64_t kStartAhead = 16;
inline constexpr std::int64_t kRowAhead = 8;
inline constexpr std::uintptr_t kLineBytes = 64;

[[gnu::always_inline]] inline void prefetch_bytes(const void* from, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(from);
  for (std::uintptr_t line = begin & ~(kLineBytes - 1); line < begin + bytes; line += kLineBytes) {
    __builtin_prefetch(reinterpret_cast<const void*>(line));
  }
}
template <class T>
[[gnu::always_inline]] inline void prefetch_start(const Csr<T>& matrix, std::size_t row) {
  __builtin_prefetch(&matrix.starts[row]);
}
template <class T>
void prefetch_start(const Dense<T>&, std::size_t) {}
template <class T>
[[gnu::always_inline]] inline void prefetch_row(const Csr<T>& matrix, std::size_t row) {
  const SparseView<T> view = view_of(matrix, row);
  prefetch_bytes(view.columns, view.count * sizeof(std::int32_t));
  prefetch_bytes(view.values, view.count * sizeof(T));
}
// The processor follows a long row by itself once it has begun.
template <class T>
[[gnu::always_inline]] inline void prefetch_row(const Dense<T>& matrix, std::size_t row) {
  constexpr std::size_t kBegun = 4 * kLineBytes;
  const DenseView<T> view = view_of(matrix, row);
  prefetch_bytes(view.values, std::min(kBegun, view.count * sizeof(T)));
}

}  // namespace learn
