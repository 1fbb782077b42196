// Rows that a server shows, and a client that reads them through a mapping of its own.
#include "vol/ps/shown_rows.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "dstorm/errors.hpp"
#include "stressed.hpp"

namespace vol::ps {
namespace {

TableOptions options_of(std::int64_t rows, std::size_t width, DType dtype) {
  TableOptions options;
  options.name = "t";
  options.rows = rows;
  options.width = width;
  options.dtype = dtype;
  return options;
}

class ShownRowsTest : public testing::TestWithParam<std::size_t> {
 protected:
  const TableOptions options_ = options_of(1000, GetParam(), DType::kFloat32);
  const Placement placement_{options_.rows, {0}, 0, 1};
  ShownRows server_{options_, placement_};
  const ShownRows client_{options_, placement_, server_.at()};

  // Sets all values of the range of row 0.
  void set(float value) {
    const ShownRange range = server_.reserve(0);
    const Change change(range.version);
    const auto rows = static_cast<std::size_t>(placement_.end_row(0));
    std::fill_n(reinterpret_cast<float*>(range.values), rows * options_.width, value);
  }
  std::vector<float> read(std::uint64_t clock, const Rows& rows) const {
    std::vector<float> values(rows.count * options_.width, -1);
    if (!client_.read(clock, rows, reinterpret_cast<std::byte*>(values.data()))) return {};
    return values;
  }
};
INSTANTIATE_TEST_SUITE_P(Width, ShownRowsTest, testing::Values(1, 2, 3, 16));

TEST_P(ShownRowsTest, AreReadOnceTheyAreShown) {
  const std::vector<std::int64_t> keys{0, 3, 5, 15};
  const Rows some{keys.data(), 0, keys.size()};
  EXPECT_TRUE(read(0, some).empty());
  set(7);
  EXPECT_EQ(read(0, some), std::vector<float>(4 * options_.width, 7));
  EXPECT_EQ(read(0, {nullptr, 2, 9}), std::vector<float>(9 * options_.width, 7));
}

TEST_P(ShownRowsTest, AreNotReadWhileTheyChange) {
  set(7);
  {
    const Change change(server_.reserve(0).version);
    EXPECT_TRUE(read(0, {nullptr, 0, 16}).empty());
  }
  EXPECT_FALSE(read(0, {nullptr, 0, 16}).empty());
}

TEST_P(ShownRowsTest, AreNotReadBeforeTheClockThatIsAskedFor) {
  set(7);
  server_.set_clock(4);
  EXPECT_FALSE(read(4, {nullptr, 0, 16}).empty());
  EXPECT_TRUE(read(5, {nullptr, 0, 16}).empty());
}

TEST_P(ShownRowsTest, AreNeverTorn) {
  set(0);
  std::atomic<bool> ends = false;
  std::thread writer([&] {
    for (float value = 1; !ends; ++value) {
      set(value);
      for (int i = 0; i < 50; ++i) std::this_thread::yield();
    }
  });
  std::uint64_t whole = 0;
  for (std::uint64_t i = 0; whole < stressed(20'000); ++i) {
    const std::vector<float> values = read(0, {nullptr, 0, 16});
    if (values.empty()) continue;
    ++whole;
    ASSERT_EQ(std::ranges::count(values, values.front()), static_cast<long>(values.size())) << i;
  }
  ends = true;
  writer.join();
}

TEST_P(ShownRowsTest, AreThoseOfTheServerThatWasMeant) {
  ShownAt at = server_.at();
  ++at.token[0];
  EXPECT_THROW(ShownRows(options_, placement_, at), dstorm::ConfigError);
}

}  // namespace
}  // namespace vol::ps
