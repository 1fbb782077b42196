// Rows in the form that the kernels of linear models read, and their products with weights of one
// output. Internal to linear models.
#pragma once

#include <cstddef>
#include <cstdint>

#include "learn/matrix.hpp"

namespace learn {

// A row of either matrix: its values, and the features they belong to, no two the same.
template <class T>
struct SparseView {
  const std::int32_t* columns;
  const T* values;
  std::size_t count;
  std::size_t feature(std::size_t i) const { return static_cast<std::size_t>(columns[i]); }
};
template <class T>
struct DenseView {
  const T* values;
  std::size_t count;
  const T* ahead;  // the values of a row that comes soon, which dot() prefetches in passing
  std::size_t feature(std::size_t i) const { return i; }
};

template <class T>
SparseView<T> view_of(const Csr<T>& matrix, std::size_t row) {
  const auto first = static_cast<std::size_t>(matrix.starts[row]);
  return {matrix.columns.data() + first, matrix.values.data() + first,
          static_cast<std::size_t>(matrix.starts[row + 1]) - first};
}
template <class T>
DenseView<T> view_of(const Dense<T>& matrix, std::size_t row) {
  const auto features = static_cast<std::size_t>(matrix.features);
  const T* values = matrix.values.data() + row * features;
  return {values, features, values};
}

// The sum of values[i] * weights[feature(i)].
template <class T>
T dot(const SparseView<T>& row, const T* weights);
template <class T>
T dot(const DenseView<T>& row, const T* weights);

// weights[feature(i)] += step * values[i]
template <class T>
void add(const SparseView<T>& row, T step, T* weights);
template <class T>
void add(const DenseView<T>& row, T step, T* weights);

}  // namespace learn
