#include "learn/matrix.hpp"

#include <string>

#include "dstorm/errors.hpp"

namespace learn {
namespace {

[[noreturn]] void refuse(std::int64_t row, const std::string& what) {
  throw dstorm::ConfigError("row " + std::to_string(row) + " of the CSR matrix " + what);
}

// Without a branch for each value, which takes four times as long.
bool are_rising(std::span<const std::int32_t> columns, std::int64_t features) {
  if (columns.empty()) return true;
  const std::int32_t* const all = columns.data();
  std::int32_t falls = 0;
  for (std::size_t i = 1; i < columns.size(); ++i) falls += all[i - 1] >= all[i] ? 1 : 0;
  return falls == 0 && columns.front() >= 0 && columns.back() < features;
}

void refuse_columns(std::int64_t row, std::span<const std::int32_t> columns,
                    std::int64_t features) {
  std::int64_t before = -1;
  for (const std::int32_t column : columns) {
    if (column < 0 || column >= features) {
      refuse(row, "has column " + std::to_string(column) + "; it has " + std::to_string(features) +
                      " columns, counted from 0");
    }
    if (column <= before) {
      refuse(row, "has column " + std::to_string(column) + " after " + std::to_string(before) +
                      "; columns rise (SciPy: X.sum_duplicates())");
    }
    before = column;
  }
}

}  // namespace

template <class T>
void Csr<T>::check() const {
  if (columns.size() != values.size()) {
    throw dstorm::ConfigError("the CSR matrix has " + std::to_string(columns.size()) +
                              " columns for " + std::to_string(values.size()) +
                              " values; it needs one for each");
  }
  const auto end = static_cast<std::int64_t>(values.size());
  if (starts.empty() || starts.front() != 0 || starts.back() != end) {
    throw dstorm::ConfigError("the rows of the CSR matrix do not begin at 0 and end at its " +
                              std::to_string(end) + " values");
  }
  for (std::int64_t i = 0; i < rows(); ++i) {
    const std::int64_t first = starts[static_cast<std::size_t>(i)];
    const std::int64_t last = starts[static_cast<std::size_t>(i) + 1];
    if (first > last || last > end) {
      refuse(i, "goes from value " + std::to_string(first) + " to " + std::to_string(last) +
                    "; rows follow one another within " + std::to_string(end));
    }
    if (!are_rising(row(i).columns, features)) refuse_columns(i, row(i).columns, features);
  }
}

template struct Csr<float>;
template struct Csr<double>;

}  // namespace learn
