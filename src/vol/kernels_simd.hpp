// Vectors of any width through the compilers' vector extension. One lane is the plain scalar, so
// the same expression serves the body and the tail of an array.
//
// Everything here and in the files that include it has internal linkage, and calls no inline
// function of the standard library. This code is compiled once per instruction set, and a linker
// that merged two copies could hand AVX-512 code to a processor that has none.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace vol {
namespace {

template <class T, std::size_t Lanes>
struct VectorOf {
  typedef T Type __attribute__((vector_size(sizeof(T) * Lanes)));
};
template <class T>
struct VectorOf<T, 1> {
  using Type = T;
};
template <class T, std::size_t Lanes>
using Vector = typename VectorOf<T, Lanes>::Type;

template <class T>
inline constexpr bool kIsFloat = false;
template <>
inline constexpr bool kIsFloat<float> = true;
template <>
inline constexpr bool kIsFloat<double> = true;

// Loads elements [i, i + Lanes) of an array that need not be aligned, even to T.
template <class T, std::size_t Lanes>
[[gnu::always_inline]] inline Vector<T, Lanes> load(const void* array, std::size_t i) {
  Vector<T, Lanes> v;
  __builtin_memcpy(&v, static_cast<const unsigned char*>(array) + i * sizeof(T), sizeof v);
  return v;
}

template <class T, class V>
[[gnu::always_inline]] inline void store(void* array, std::size_t i, V v) {
  __builtin_memcpy(static_cast<unsigned char*>(array) + i * sizeof(T), &v, sizeof v);
}

// `value` in every lane. Subtracting keeps the sign of a zero; adding would not.
template <class T, std::size_t Lanes>
[[gnu::always_inline]] inline Vector<T, Lanes> splat(T value) {
  return value - Vector<T, Lanes>{};
}

template <class To, std::size_t Lanes, class V>
[[gnu::always_inline]] inline Vector<To, Lanes> convert(V v) {
  if constexpr (Lanes == 1) {
    return static_cast<To>(v);
  } else {
    return __builtin_convertvector(v, Vector<To, Lanes>);
  }
}

template <class T, std::size_t Lanes>
[[gnu::always_inline]] inline T sum_lanes(Vector<T, Lanes> v) {
  if constexpr (Lanes == 1) {
    return v;
  } else {
    T sum = v[0];
    for (std::size_t lane = 1; lane < Lanes; ++lane) sum += v[lane];
    return sum;
  }
}

// Prefetches the cache lines of `Bytes` bytes. They may lie beyond the array's end, so addresses
// are integers.
template <std::size_t Bytes>
[[gnu::always_inline]] inline void prefetch(const void* base, std::size_t offset_bytes) {
  constexpr std::size_t kLineBytes = 64;
  const auto address = reinterpret_cast<std::uintptr_t>(base) + offset_bytes;
  for (std::size_t line = 0; line < Bytes; line += kLineBytes) {
    __builtin_prefetch(reinterpret_cast<const void*>(address + line));
  }
}

#if defined(__SSE2__)
[[gnu::always_inline]] inline void stream(void* to, Vector<long long, 2> v) {
  _mm_stream_si128(static_cast<__m128i*>(to), v);
}
#endif
#if defined(__AVX2__)
[[gnu::always_inline]] inline void stream(void* to, Vector<long long, 4> v) {
  _mm256_stream_si256(static_cast<__m256i*>(to), v);
}
#endif
#if defined(__AVX512F__)
[[gnu::always_inline]] inline void stream(void* to, Vector<long long, 8> v) {
  _mm512_stream_si512(static_cast<__m512i*>(to), v);
}
#endif

}  // namespace
}  // namespace vol
