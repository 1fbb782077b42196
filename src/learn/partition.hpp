// Placing data and keys together: which part has a row of a sparse matrix, and which part owns a
// column, so that few columns are used by parts that do not own them.
//
// The cost is that of Parsa (Li, Andersen, Smola, "Graph partitioning via parallel submodular
// approximation", 2015, section 2): a part needs each column that one of its rows has, and gets it
// from the column's owner, once for all its rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace learn {

// Which elements of a matrix are not 0, as compressed sparse rows. It borrows its arrays.
struct Pattern {
  std::span<const std::int64_t> starts;   // rows + 1, from 0: where each row begins, and the end
  std::span<const std::int32_t> columns;  // of each element, in any order
  std::int64_t width = 0;                 // columns of the matrix

  std::int64_t rows() const { return std::ssize(starts) - 1; }
  std::span<const std::int32_t> row(std::int64_t i) const {
    const auto first = static_cast<std::size_t>(starts[static_cast<std::size_t>(i)]);
    const auto end = static_cast<std::size_t>(starts[static_cast<std::size_t>(i) + 1]);
    return columns.subspan(first, end - first);
  }
  // Throws dstorm::ConfigError unless there is a row and a column, the rows lie one after the other
  // in `columns`, and these are below `width`.
  void check() const;
};

struct PartitionOptions {
  static constexpr int kMostParts = 1024;

  int parts = 1;
  // A part has at most (1 + slack) times the mean of the rows, rounded up, or, by_values, of the
  // elements. A row for which no part has room goes to the part that has fewest.
  double slack = 0.05;
  bool by_values = false;
  int passes = 2;  // over the rows
  std::uint64_t seed = 0;
};

// The part of each row. The same arguments give the same parts.
//
// In the first pass a row goes to the part that has most of its columns already, in an order drawn
// from the seed (linear deterministic greedy: Stanton, Kliot, KDD 2012). Columns of few rows count
// more, because one of those is easier to keep in one part. Later passes take each row out and
// place it anew, then by the cost alone, until hardly any moves (restreaming: Nishimura, Ugander,
// KDD 2013).
//
// Takes 4 bytes for each part and each column that two rows or more have, 8 to 12 for each column,
// and 4 for each element.
// Throws dstorm::ConfigError as Pattern::check() does, or if an option is out of range.
std::vector<std::int32_t> partition_rows(const Pattern& matrix, const PartitionOptions& options);

struct PartitionedColumns {
  std::vector<std::int32_t> owners;     // by column
  std::vector<std::uint8_t> is_shared;  // by column: whether rows of two parts or more have it
};

// A column's owner is one of the parts that need it, as any other would cost one transfer more:
// the one that so far sends and gets fewest (Parsa, section 4.3). A column that no row has goes to
// the part with fewest columns. Takes a bit for each part and column, in words of 64, and some 12
// bytes a column. Throws dstorm::ConfigError as Pattern::check() does, or unless there
// is a part in [0, parts) for each row.
PartitionedColumns partition_columns(const Pattern& matrix, std::span<const std::int32_t> rows,
                                     int parts);

// How many columns each part gets from others, and sends to others, to use each of its columns
// once. Both have the same sum. Throws dstorm::ConfigError as partition_columns() does, also about
// owners.
struct PartTraffic {
  std::vector<std::int64_t> received;  // by part
  std::vector<std::int64_t> sent;      // by part
};
PartTraffic partition_traffic(const Pattern& matrix, std::span<const std::int32_t> rows,
                              std::span<const std::int32_t> owners, int parts);

}  // namespace learn
