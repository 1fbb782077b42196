#include "learn/matrix.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "dstorm/errors.hpp"

namespace learn {
namespace {

struct Arrays {
  std::vector<std::int64_t> starts{0, 2, 2, 3};
  std::vector<std::int32_t> columns{0, 4, 1};
  std::vector<float> values{1, 2, 3};
  std::int64_t features = 5;

  Csr<float> csr() const { return {starts, columns, values, features}; }
};

void expect_refused(const Arrays& arrays, const std::string& words) {
  try {
    arrays.csr().check();
    ADD_FAILURE() << "taken; expected: " << words;
  } catch (const dstorm::ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
}

TEST(Csr, HasItsRows) {
  const Arrays arrays;
  const Csr<float> csr = arrays.csr();
  csr.check();
  ASSERT_EQ(csr.rows(), 3);
  EXPECT_EQ(csr.row(0).columns[1], 4);
  EXPECT_EQ(csr.row(0).values[1], 2);
  EXPECT_TRUE(csr.row(1).columns.empty());
  EXPECT_EQ(csr.row(2).values[0], 3);
}

TEST(Csr, RefusesRowsThatDoNotFollowOneAnother) {
  Arrays arrays;
  arrays.starts = {0, 2, 1, 3};
  expect_refused(arrays, "row 1 of the CSR matrix goes from value 2 to 1");
  arrays.starts = {0, 9, 2, 3};
  expect_refused(arrays, "row 0 of the CSR matrix goes from value 0 to 9");
  arrays.starts = {0, -2, 2, 3};
  expect_refused(arrays, "row 0 of the CSR matrix goes from value 0 to -2");
  EXPECT_THROW(arrays.csr().check(1, 2), dstorm::ConfigError);
  arrays.starts = {1, 2, 2, 3};
  expect_refused(arrays, "do not begin at 0 and end at its 3 values");
  arrays.starts = {0, 2, 2, 2};
  expect_refused(arrays, "do not begin at 0 and end at its 3 values");
  arrays.starts = {};
  expect_refused(arrays, "do not begin at 0");
}

TEST(Csr, RefusesColumnsOutsideOrOutOfOrder) {
  Arrays arrays;
  arrays.columns = {0, 5, 1};
  expect_refused(arrays, "row 0 of the CSR matrix has column 5; it has 5 columns");
  arrays.columns = {-1, 4, 1};
  expect_refused(arrays, "row 0 of the CSR matrix has column -1");
  arrays.columns = {4, 4, 1};
  expect_refused(arrays, "row 0 of the CSR matrix has column 4 after 4");
  arrays.columns = {0, 4};
  expect_refused(arrays, "2 columns for 3 values");
}

// So many values that they are checked in several parts, with empty rows between them.
TEST(Csr, NamesTheOneWrongRowOfMany) {
  Arrays arrays;
  arrays.starts = {0};
  arrays.columns.clear();
  for (int row = 0; row < 40'000; ++row) {
    const int end = std::min(row % 7, 5);
    for (int column = row % 5; column < end; ++column) arrays.columns.push_back(column);
    arrays.starts.push_back(std::ssize(arrays.columns));
  }
  arrays.values.assign(arrays.columns.size(), 1);
  arrays.csr().check();
  for (const std::size_t row : {6UL, 20'005UL, 39'996UL}) {
    const auto last = static_cast<std::size_t>(arrays.starts[row + 1]) - 1;
    const auto named = "row " + std::to_string(row) + " of the CSR matrix has column ";
    const std::int32_t right = arrays.columns[last];
    for (const std::int32_t wrong : {-1, 0, 5, std::numeric_limits<std::int32_t>::max()}) {
      if (wrong == right) continue;
      arrays.columns[last] = wrong;
      expect_refused(arrays, named + std::to_string(wrong));
    }
    arrays.columns[last] = right;
  }
  EXPECT_TRUE(arrays.csr().row(0).columns.empty());
}

TEST(Dense, HasItsRows) {
  const std::vector<double> values{1, 2, 3, 4, 5, 6};
  const Dense<double> dense{values, 3};
  ASSERT_EQ(dense.rows(), 2);
  EXPECT_EQ(dense.row(1)[0], 4);
  EXPECT_EQ((Dense<double>{{}, 0}.rows()), 0);
}

}  // namespace
}  // namespace learn
