#include "vol/ps/key_lists.hpp"

#include <gtest/gtest.h>

#include <numeric>

namespace vol::ps {
namespace {

std::vector<std::int64_t> list(std::int64_t first, std::size_t count) {
  std::vector<std::int64_t> keys(count);
  std::iota(keys.begin(), keys.end(), first);
  return keys;
}

std::uint64_t add(KeyLists& lists, const std::vector<std::int64_t>& keys) {
  return lists.add(keys, KeyLists::hash_of(keys));
}

std::optional<std::uint64_t> find(const KeyLists& lists, const std::vector<std::int64_t>& keys) {
  return lists.find(keys, KeyLists::hash_of(keys));
}

TEST(KeyLists, AListIsFoundByItsKeysAndItsNumber) {
  KeyLists lists(1000);
  const std::uint64_t number = add(lists, list(5, 100));
  EXPECT_EQ(find(lists, list(5, 100)), number);
  EXPECT_EQ(find(lists, list(5, 99)), std::nullopt);
  EXPECT_EQ(find(lists, list(6, 100)), std::nullopt);
  ASSERT_NE(lists.use(number), nullptr);
  EXPECT_EQ(*lists.use(number), list(5, 100));
  EXPECT_EQ(lists.use(number + 1), nullptr);
}

TEST(KeyLists, TheLeastRecentlyUsedListMakesRoom) {
  KeyLists lists(3 * (100 + KeyLists::kListKeys));
  const std::uint64_t one = add(lists, list(1, 100));
  const std::uint64_t two = add(lists, list(2, 100));
  const std::uint64_t three = add(lists, list(3, 100));
  lists.use(one);
  add(lists, list(4, 100));
  EXPECT_EQ(find(lists, list(2, 100)), std::nullopt);
  EXPECT_EQ(lists.use(two), nullptr);
  EXPECT_EQ(find(lists, list(1, 100)), one);
  EXPECT_EQ(find(lists, list(3, 100)), three);
}

TEST(KeyLists, ALongListMakesRoomForItselfOrDoesNotFit) {
  KeyLists lists(300);
  for (std::int64_t first = 0; first < 5; ++first) add(lists, list(first, 10));
  EXPECT_TRUE(lists.fits(300 - KeyLists::kListKeys));
  EXPECT_FALSE(lists.fits(301 - KeyLists::kListKeys));
  add(lists, list(0, 300 - KeyLists::kListKeys));
  for (std::int64_t first = 0; first < 5; ++first) {
    EXPECT_EQ(find(lists, list(first, 10)), std::nullopt);
  }
  EXPECT_FALSE(KeyLists(0).fits(0));
}

}  // namespace
}  // namespace vol::ps
