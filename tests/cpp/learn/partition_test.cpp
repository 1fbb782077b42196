#include "learn/partition.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>
#include <string>

#include "dstorm/errors.hpp"
#include "learn/splitmix.hpp"

namespace learn {
namespace {

struct Matrix {
  std::vector<std::int64_t> starts{0};
  std::vector<std::int32_t> columns;
  std::int64_t width = 0;

  Pattern view() const { return {starts, columns, width}; }
  std::int64_t rows() const { return std::ssize(starts) - 1; }
  void add_row(const std::vector<std::int32_t>& row) {
    columns.insert(columns.end(), row.begin(), row.end());
    starts.push_back(std::ssize(columns));
  }
};

// Row i has some of the ten columns of group i mod `groups`.
Matrix groups_apart(int groups, int rows) {
  Matrix matrix;
  matrix.width = 10 * groups;
  SplitMix random(3);
  for (int i = 0; i < rows; ++i) {
    std::vector<std::int32_t> row;
    for (std::int32_t c = 0; c < 10; ++c) {
      if (random.below(2) == 0) row.push_back(10 * (i % groups) + c);
    }
    matrix.add_row(row);
  }
  return matrix;
}

// Few columns are in many rows; some rows are empty, some columns in none.
Matrix drawn(SplitMix& random, std::int64_t rows, std::int64_t width) {
  Matrix matrix;
  matrix.width = width;
  for (std::int64_t i = 0; i < rows; ++i) {
    std::vector<std::int32_t> row(random.below(12));
    for (std::int32_t& column : row) {
      const auto bound = random.below(static_cast<std::uint64_t>(width)) + 1;
      column = static_cast<std::int32_t>(random.below(bound));
    }
    matrix.add_row(row);
  }
  return matrix;
}

// The parts whose rows have each column.
std::vector<std::set<std::int32_t>> needed_by(const Matrix& matrix,
                                              const std::vector<std::int32_t>& rows) {
  std::vector<std::set<std::int32_t>> needed(static_cast<std::size_t>(matrix.width));
  for (std::int64_t i = 0; i < matrix.rows(); ++i) {
    for (const std::int32_t column : matrix.view().row(i)) {
      needed[static_cast<std::size_t>(column)].insert(rows[static_cast<std::size_t>(i)]);
    }
  }
  return needed;
}

std::int64_t sum(const std::vector<std::int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const dstorm::ConfigError& error) {
    return error.what();
  }
  return "none";
}

TEST(Partition, RowsThatShareNoColumnAreKeptApart) {
  const Matrix matrix = groups_apart(4, 400);
  const auto rows = partition_rows(matrix.view(), {.parts = 4, .passes = 10});
  const auto columns = partition_columns(matrix.view(), rows, 4);
  const PartTraffic traffic = partition_traffic(matrix.view(), rows, columns.owners, 4);
  EXPECT_EQ(sum(traffic.received), 0);
  EXPECT_EQ(std::ranges::count(columns.is_shared, 0), matrix.width);
}

TEST(Partition, SameSeedGivesTheSame) {
  SplitMix random(5);
  const Matrix matrix = drawn(random, 500, 300);
  const PartitionOptions options{.parts = 7, .seed = 9};
  EXPECT_EQ(partition_rows(matrix.view(), options), partition_rows(matrix.view(), options));
}

// Whatever the matrix: all rows and columns are placed, the balance holds, no owner costs more than
// another would, and the counted traffic is that of a plain count.
TEST(Partition, InvariantsHoldOnRandomMatrices) {
  SplitMix random(11);
  for (int turn = 0; turn < 300; ++turn) {
    const Matrix matrix = drawn(random, 1 + static_cast<std::int64_t>(random.below(150)),
                                1 + static_cast<std::int64_t>(random.below(200)));
    const int most = static_cast<int>(std::min<std::int64_t>(matrix.rows(), 140));
    const PartitionOptions options{
        .parts = 1 + static_cast<int>(random.below(static_cast<std::uint64_t>(most))),
        .slack = static_cast<double>(random.below(4)) / 10,
        .by_values = random.below(2) == 0,
        .passes = 1 + static_cast<int>(random.below(4)),
        .seed = random.next()};
    const auto parts = static_cast<std::size_t>(options.parts);
    SCOPED_TRACE("turn " + std::to_string(turn));

    const auto rows = partition_rows(matrix.view(), options);
    ASSERT_EQ(std::ssize(rows), matrix.rows());
    std::vector<double> loads(parts);
    double total = 0;
    double longest = 0;
    for (std::int64_t i = 0; i < matrix.rows(); ++i) {
      const std::int32_t part = rows[static_cast<std::size_t>(i)];
      ASSERT_TRUE(part >= 0 && part < options.parts);
      const double load =
          options.by_values ? static_cast<double>(matrix.view().row(i).size()) : 1.0;
      loads[static_cast<std::size_t>(part)] += load;
      total += load;
      longest = std::max(longest, load);
    }
    const double mean = total / options.parts;
    const double limit = std::max((1 + options.slack) * mean, std::ceil(mean));
    // Only by elements a row may have no room anywhere. It then goes to the emptiest part.
    EXPECT_LE(std::ranges::max(loads), options.by_values ? std::max(limit, mean + longest) : limit);

    const auto columns = partition_columns(matrix.view(), rows, options.parts);
    const PartTraffic traffic =
        partition_traffic(matrix.view(), rows, columns.owners, options.parts);
    const auto needed = needed_by(matrix, rows);
    std::vector<std::int64_t> received(parts);
    std::vector<std::int64_t> sent(parts);
    for (std::size_t column = 0; column < needed.size(); ++column) {
      const std::int32_t owner = columns.owners[column];
      ASSERT_TRUE(owner >= 0 && owner < options.parts);
      ASSERT_TRUE(needed[column].empty() || needed[column].contains(owner));
      EXPECT_EQ(columns.is_shared[column] != 0, needed[column].size() > 1);
      for (const std::int32_t part : needed[column]) {
        if (part == owner) continue;
        ++received[static_cast<std::size_t>(part)];
        ++sent[static_cast<std::size_t>(owner)];
      }
    }
    EXPECT_EQ(traffic.received, received);
    EXPECT_EQ(traffic.sent, sent);
  }
}

TEST(Partition, EmptyRowsAreSpreadEvenlyByValuesToo) {
  for (const int full : {0, 4}) {  // one of the full rows has more than all others
    Matrix matrix;
    matrix.width = 9;
    for (std::int32_t i = 0; i < full; ++i) {
      matrix.add_row(i == 0 ? std::vector<std::int32_t>{0, 1, 2, 3, 4} : std::vector{5 + i});
    }
    for (int i = 0; i < 12; ++i) matrix.add_row({});
    const auto rows =
        partition_rows(matrix.view(), {.parts = 4, .slack = 1, .by_values = true, .passes = 3});
    for (std::int32_t part = 0; part < 4; ++part) {
      const auto held = std::ranges::count(rows, part);
      EXPECT_LE(held, full == 0 ? 3 : 8) << "part " << part << ", full rows: " << full;
    }
  }
}

TEST(Partition, ColumnsOfNoRowAreSpreadEvenly) {
  Matrix matrix;
  matrix.width = 100;
  for (int i = 0; i < 4; ++i) matrix.add_row({});
  const auto rows = partition_rows(matrix.view(), {.parts = 4});
  const auto owners = partition_columns(matrix.view(), rows, 4).owners;
  for (std::int32_t part = 0; part < 4; ++part) EXPECT_EQ(std::ranges::count(owners, part), 25);
}

TEST(Partition, ColumnsThatAllPartsNeedAreSpreadEvenly) {
  Matrix matrix;
  matrix.width = 90;
  std::vector<std::int32_t> all(90);
  std::iota(all.begin(), all.end(), 0);
  for (int i = 0; i < 3; ++i) matrix.add_row(all);
  const auto rows = partition_rows(matrix.view(), {.parts = 3});
  const auto owners = partition_columns(matrix.view(), rows, 3).owners;
  for (std::int32_t part = 0; part < 3; ++part) EXPECT_EQ(std::ranges::count(owners, part), 30);
}

TEST(Partition, NamesWhatIsWrong) {
  Matrix one;
  one.width = 3;
  one.add_row({0, 2});
  const auto parted = [](const Matrix& matrix, PartitionOptions options) {
    return refusal([&] { partition_rows(matrix.view(), options); });
  };
  EXPECT_EQ(parted(one, {.parts = 1}), "none");
  EXPECT_EQ(parted(one, {.parts = 2}),
            "parts is 2, but the matrix has 1 rows: ask for at most so many parts, or give more "
            "rows");
  EXPECT_EQ(parted(one, {.parts = 0}), "parts is 0; it is 1 to 1024");
  EXPECT_EQ(parted(one, {.parts = 1025}), "parts is 1025; it is 1 to 1024");
  EXPECT_EQ(parted(one, {.slack = -0.1}), "slack is -0.100000; it is 0 to 1");
  EXPECT_EQ(parted(one, {.slack = std::nan("")}), "slack is nan; it is 0 to 1");
  EXPECT_EQ(parted(one, {.passes = 0}), "passes is 0; it is at least 1");

  Matrix none;
  none.width = 3;
  EXPECT_EQ(parted(none, {}),
            "the matrix has 0 rows and 3 columns; a partition needs one of each at least");
  Matrix outside = one;
  outside.columns[1] = 3;
  EXPECT_EQ(parted(outside, {}), "the matrix has an element in column 3; its columns are 0 to 2");
  outside.columns[1] = -1;
  EXPECT_EQ(parted(outside, {}), "the matrix has an element in column -1; its columns are 0 to 2");
  Matrix cut = one;
  cut.starts[1] = 3;
  EXPECT_EQ(parted(cut, {}),
            "the rows of the matrix begin at 0 and end at 3 of 2 columns; they lie one after the "
            "other, from 0 to the end");

  const std::vector<std::int32_t> rows{0};
  const std::vector<std::int32_t> wrong{2};
  EXPECT_EQ(refusal([&] { partition_columns(one.view(), wrong, 2); }),
            "the part of row 0 is 2; it is 0 to 1");
  EXPECT_EQ(refusal([&] { partition_columns(one.view(), {}, 2); }),
            "there are parts for 0 rows, but the matrix has 1");
  EXPECT_EQ(refusal([&] { partition_traffic(one.view(), rows, rows, 2); }),
            "there are parts for 1 columns, but the matrix has 3");
}

}  // namespace
}  // namespace learn
