#include "vol/array_changes.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace vol {
namespace {

template <class T>
struct Found {
  Found(const std::vector<T>& array, const std::vector<T>& copy)
      : places(array.size()), values(array.size()) {
    const std::size_t n =
        find_changes(array.data(), copy.data(), array.size(), places.data(), values.data());
    places.resize(n);
    values.resize(n);
  }

  std::vector<std::uint32_t> places;
  std::vector<T> values;
};

TEST(ArrayChanges, FindsElementsInGroupsAndBehindThem) {
  for (std::size_t n : {0U, 1U, 15U, 16U, 17U, 100U}) {
    for (std::size_t at = 0; at < n; ++at) {
      const std::vector<std::int64_t> copy(n, 7);
      std::vector<std::int64_t> array = copy;
      array[at] = 5;
      const Found<std::int64_t> found(array, copy);
      ASSERT_EQ(found.places, std::vector<std::uint32_t>{static_cast<std::uint32_t>(at)});
      ASSERT_EQ(found.values, std::vector<std::int64_t>{-2});
    }
  }
}

TEST(ArrayChanges, AddedToTheCopyGiveTheArray) {
  std::vector<std::int32_t> copy(1000);
  std::vector<std::int32_t> array(1000);
  for (int i = 0; i < 1000; ++i) {
    copy[static_cast<std::size_t>(i)] = i;
    array[static_cast<std::size_t>(i)] = i % 3 == 0 ? i : i * i;
  }
  const Found<std::int32_t> found(array, copy);
  add_changes(copy.data(), found.places.data(), found.values.data(), found.places.size());
  EXPECT_EQ(copy, array);
}

TEST(ArrayChanges, IntegersWrapAround) {
  constexpr auto kMost = std::numeric_limits<std::int32_t>::max();
  constexpr auto kLeast = std::numeric_limits<std::int32_t>::min();
  std::vector<std::int32_t> copy{kMost};
  const Found<std::int32_t> found({kLeast}, copy);
  EXPECT_EQ(found.values, std::vector<std::int32_t>{1});
  add_changes(copy.data(), found.places.data(), found.values.data(), 1);
  EXPECT_EQ(copy, std::vector<std::int32_t>{kLeast});
}

TEST(ArrayChanges, NaNIsAChange) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(Found<float>({nan, 1}, {nan, 1}).places, std::vector<std::uint32_t>{0});
}

}  // namespace
}  // namespace vol
