// Compiled without the compilers' own vectorisation. For loops over sparse rows compilers pack and
// unpack vectors, which takes a third longer than loads one by one. The processor's gathers
// (AVX-512) were no faster than those loads, and its scatters slower.
#include "learn/row_view.hpp"

namespace learn {
namespace {

// This many sums are kept at once: a single sum would wait for each addition to end.
constexpr std::size_t kAtOnce = 8;

}  // namespace

template <class T>
T dot(const SparseView<T>& row, const T* weights) {
  const std::int32_t* columns = row.columns;
  const T* values = row.values;
  T sums[kAtOnce]{};
  std::size_t left = row.count;
  for (; left >= kAtOnce; left -= kAtOnce, columns += kAtOnce, values += kAtOnce) {
    for (std::size_t i = 0; i < kAtOnce; ++i) sums[i] += values[i] * weights[columns[i]];
  }
  for (std::size_t i = 0; i < left; ++i) sums[i] += values[i] * weights[columns[i]];
  return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

// Loads before it stores, which is right because no feature comes twice. A compiler cannot know
// that.
template <class T>
void add(const SparseView<T>& row, T step, T* weights) {
  const std::int32_t* columns = row.columns;
  const T* values = row.values;
  std::size_t left = row.count;
  for (; left >= kAtOnce; left -= kAtOnce, columns += kAtOnce, values += kAtOnce) {
    T sums[kAtOnce];
    for (std::size_t i = 0; i < kAtOnce; ++i) sums[i] = weights[columns[i]] + step * values[i];
    for (std::size_t i = 0; i < kAtOnce; ++i) weights[columns[i]] = sums[i];
  }
  for (std::size_t i = 0; i < left; ++i) weights[columns[i]] += step * values[i];
}

template <class T>
T dot(const DenseView<T>& row, const T* weights) {
  // Vectors that every x86-64 has, through the compilers' extension; plain C++ elsewhere.
  constexpr std::size_t kLanes = 16 / sizeof(T);
  typedef T Lanes __attribute__((vector_size(16)));
  constexpr std::size_t kVectors = 4;
  Lanes sums[kVectors]{};
  std::size_t i = 0;
  for (; row.count - i >= kVectors * kLanes; i += kVectors * kLanes) {
    __builtin_prefetch(row.ahead + i, 0, 2);
    for (std::size_t v = 0; v < kVectors; ++v) {
      Lanes x;
      Lanes w;
      __builtin_memcpy(&x, row.values + i + v * kLanes, sizeof x);
      __builtin_memcpy(&w, weights + i + v * kLanes, sizeof w);
      sums[v] += x * w;
    }
  }
  const Lanes total = (sums[0] + sums[2]) + (sums[1] + sums[3]);
  T sum = 0;
  for (; i < row.count; ++i) sum += row.values[i] * weights[i];
  for (std::size_t lane = 0; lane < kLanes; ++lane) sum += total[lane];
  return sum;
}

template <class T>
void add(const DenseView<T>& row, T step, T* weights) {
  constexpr std::size_t kLanes = 16 / sizeof(T);
  typedef T Lanes __attribute__((vector_size(16)));
  std::size_t i = 0;
  for (; row.count - i >= kLanes; i += kLanes) {
    Lanes x;
    Lanes w;
    __builtin_memcpy(&x, row.values + i, sizeof x);
    __builtin_memcpy(&w, weights + i, sizeof w);
    w += step * x;
    __builtin_memcpy(weights + i, &w, sizeof w);
  }
  for (; i < row.count; ++i) weights[i] += step * row.values[i];
}

template float dot(const SparseView<float>&, const float*);
template double dot(const SparseView<double>&, const double*);
template float dot(const DenseView<float>&, const float*);
template double dot(const DenseView<double>&, const double*);
template void add(const SparseView<float>&, float, float*);
template void add(const SparseView<double>&, double, double*);
template void add(const DenseView<float>&, float, float*);
template void add(const DenseView<double>&, double, double*);

}  // namespace learn
