// The examples of a training kernel: rows of a sparse (CSR) or dense matrix, which the kernel only
// reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace learn {

// The non-zeros of one example: values[i] in column columns[i], columns rising.
template <class T>
struct SparseRow {
  std::span<const std::int32_t> columns;
  std::span<const T> values;
};

// Compressed sparse rows, as in SciPy. It borrows its arrays. T is float or double.
template <class T>
struct Csr {
  std::span<const std::int64_t> starts;   // rows + 1: where each row begins, and the last one ends
  std::span<const std::int32_t> columns;  // of each value
  std::span<const T> values;
  std::int64_t features = 0;  // columns of the matrix

  std::int64_t rows() const { return static_cast<std::int64_t>(starts.size()) - 1; }
  SparseRow<T> row(std::int64_t i) const {
    const auto first = static_cast<std::size_t>(starts[static_cast<std::size_t>(i)]);
    const auto count = static_cast<std::size_t>(starts[static_cast<std::size_t>(i) + 1]) - first;
    return {columns.subspan(first, count), values.subspan(first, count)};
  }

  // Throws dstorm::ConfigError unless the rows lie one after the other within the arrays and each
  // row's columns rise within the features; of rows first_row to last_row - 1, or of all. Reads
  // their columns once. A kernel that does not say that it checks its matrix itself has undefined
  // behaviour if it gets a wrong one.
  void check(std::int64_t first_row, std::int64_t last_row) const;
  void check() const { check(0, rows()); }
};

// Rows of `features` values, one after the other. It borrows its array. T is float or double.
template <class T>
struct Dense {
  std::span<const T> values;
  std::int64_t features = 0;

  std::int64_t rows() const {
    return features == 0 ? 0 : static_cast<std::int64_t>(values.size()) / features;
  }
  std::span<const T> row(std::int64_t i) const {
    return values.subspan(static_cast<std::size_t>(i * features),
                          static_cast<std::size_t>(features));
  }
};

}  // namespace learn
