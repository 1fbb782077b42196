// Loads rows into the caches before their turn. Internal to linear models.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "learn/row_view.hpp"

namespace learn {

// How many rows ahead a loop prefetches: first the row's position and target, then the row itself.
// In a shuffled order the processor cannot predict these. For dense rows in blocks it can, but
// reads 8 GB/s where a loop that prefetches reads 10. Always inlined, because to GCC a function
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

// The row, while the row `ahead` begins to be loaded.
template <class T>
[[gnu::always_inline]] inline SparseView<T> view_and_prefetch(const Csr<T>& matrix, std::size_t row,
                                                              std::size_t ahead) {
  const SparseView<T> next = view_of(matrix, ahead);
  prefetch_bytes(next.columns, next.count * sizeof(std::int32_t));
  prefetch_bytes(next.values, next.count * sizeof(T));
  return view_of(matrix, row);
}
// The head of a long row at once, and the rest by dot(): more loads at once than the processor can
// have under way would stop it.
template <class T>
[[gnu::always_inline]] inline DenseView<T> view_and_prefetch(const Dense<T>& matrix,
                                                             std::size_t row, std::size_t ahead) {
  constexpr std::size_t kHead = 4 * kLineBytes;
  DenseView<T> view = view_of(matrix, row);
  view.ahead = view_of(matrix, ahead).values;
  prefetch_bytes(view.ahead, std::min(kHead, view.count * sizeof(T)));
  return view;
}

}  // namespace learn
