#include "learn/matrix.hpp"

#include <string>

#include "dstorm/errors.hpp"

namespace learn {
namespace {

[[noreturn]] void refuse(std::int64_t row, const std::string& what) {
  throw dstorm::ConfigError("row " + std::to_string(row) + " of the CSR matrix " + what);
}

// Values of rows that are checked together, while the cache holds them.
constexpr std::int64_t kCheckedTogether = 1 << 14;

// Whether the columns of each of these rows rise within the features. All rows in one loop without
// a branch for each value: the columns may fall only from one row to the next.
template <class T>
bool do_rows_rise(const Csr<T>& matrix, std::int64_t first_row, std::int64_t last_row) {
  const auto start_of = [&](std::int64_t row) {
    return static_cast<std::size_t>(matrix.starts[static_cast<std::size_t>(row)]);
  };
  const std::size_t begin = start_of(first_row);
  const std::size_t count = start_of(last_row) - begin;
  if (count == 0) return true;
  const std::int32_t* const columns = matrix.columns.data() + begin;
  const auto last_feature = static_cast<std::uint32_t>(matrix.features - 1);
  std::uint32_t outside = 0;  // its highest bit is set by a column below 0 or beyond the last
  std::int32_t falls = 0;
  const auto look = [&](std::size_t i) {
    const auto column = static_cast<std::uint32_t>(columns[i]);
    outside |= column | (last_feature - column);
  };
  look(0);
  for (std::size_t i = 1; i < count; ++i) {
    look(i);
    falls += columns[i - 1] >= columns[i] ? 1 : 0;
  }
  for (std::int64_t row = first_row + 1; row < last_row; ++row) {
    const std::size_t at = start_of(row) - begin;
    const bool is_new = at < count && start_of(row - 1) - begin < at;
    if (is_new && columns[at - 1] >= columns[at]) --falls;
  }
  return falls == 0 && outside >> 31 == 0;
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
void Csr<T>::check(std::int64_t first_row, std::int64_t last_row) const {
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
  for (std::int64_t begin = first_row, row = first_row; row < last_row; begin = row) {
    for (std::int64_t count = 0; row < last_row && count < kCheckedTogether; ++row) {
      const std::int64_t first = starts[static_cast<std::size_t>(row)];
      const std::int64_t last = starts[static_cast<std::size_t>(row) + 1];
      if (first < 0 || first > last || last > end) {
        refuse(row, "goes from value " + std::to_string(first) + " to " + std::to_string(last) +
                        "; rows follow one another within " + std::to_string(end));
      }
      count += last - first;
    }
    if (do_rows_rise(*this, begin, row)) continue;
    for (std::int64_t i = begin; i < row; ++i) refuse_columns(i, this->row(i).columns, features);
  }
}

template struct Csr<float>;
template struct Csr<double>;

}  // namespace learn
