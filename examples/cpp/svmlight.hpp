// Labelled sparse rows, from a file or made up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

struct Rows {
  std::vector<float> labels;           // -1 or +1
  std::vector<std::size_t> starts{0};  // of each row in columns and values, and the end
  std::vector<std::uint32_t> columns;  // from 0, below dim
  std::vector<float> values;
  std::size_t dim = 0;

  std::size_t size() const { return labels.size(); }
  std::span<const std::uint32_t> columns_of(std::size_t row) const {
    return std::span(columns).subspan(starts[row], starts[row + 1] - starts[row]);
  }
  std::span<const float> values_of(std::size_t row) const {
    return std::span(values).subspan(starts[row], starts[row + 1] - starts[row]);
  }
};

// Lines of `label column:value ...`, columns from 1. `dim` is the number of columns, 0 for as many
// as there are; columns beyond it are ignored. Throws std::runtime_error with the file and line.
Rows read_svmlight(const std::string& path, std::size_t dim = 0);

// Two sets from one random plane, with one label in twenty flipped; the same on every rank.
struct Generated {
  Rows train, test;
};
Generated generate(std::size_t train_rows, std::size_t test_rows, std::size_t dim);
