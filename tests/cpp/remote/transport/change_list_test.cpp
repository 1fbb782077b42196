// Each changed item is handed over once for all its changes, even if threads change it meanwhile.
#include "dstorm/remote/transport/change_list.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <thread>
#include <vector>

namespace dstorm::remote {
namespace {

struct Item : Listed<Item> {
  explicit Item(std::size_t given) : number(given) {}
  std::size_t number;
  std::atomic<std::uint64_t> changes{0};
};

std::vector<std::size_t> taken(ChangeList<Item>& list) {
  std::vector<std::size_t> numbers;
  list.take([&](const std::shared_ptr<Item>& item) { numbers.push_back(item->number); });
  return numbers;
}

TEST(ChangeList, HandsOverEachOnceInTheOrderOfTheFirstChanges) {
  ChangeList<Item> list;
  std::vector<std::shared_ptr<Item>> items;
  for (std::size_t i = 0; i < 4; ++i) items.push_back(std::make_shared<Item>(i));
  for (const std::size_t i : {2U, 0U, 2U, 3U, 0U}) list.add(*items[i]);
  EXPECT_EQ(taken(list), (std::vector<std::size_t>{2, 0, 3}));
  EXPECT_TRUE(taken(list).empty());
  list.add(*items[0]);
  EXPECT_EQ(taken(list), std::vector<std::size_t>{0});
}

TEST(ChangeList, ItemThatChangesWhileItIsHandedOverComesAgain) {
  ChangeList<Item> list;
  const auto item = std::make_shared<Item>(1);
  list.add(*item);
  list.take([&](const std::shared_ptr<Item>& changed) { list.add(*changed); });
  EXPECT_EQ(taken(list), std::vector<std::size_t>{1});
}

TEST(ChangeList, ListedItemLivesUntilItIsTakenOrTheListEnds) {
  auto list = std::make_unique<ChangeList<Item>>();
  auto item = std::make_shared<Item>(7);
  const std::weak_ptr<Item> seen = item;
  list->add(*item);
  item.reset();
  EXPECT_EQ(taken(*list), std::vector<std::size_t>{7});
  EXPECT_TRUE(seen.expired());

  auto other = std::make_shared<Item>(8);
  const std::weak_ptr<Item> never_taken = other;
  list->add(*other);
  other.reset();
  list.reset();
  EXPECT_TRUE(never_taken.expired());
}

TEST(ChangeList, NoChangeIsForgottenWhileThreadsAddAndOneTakes) {
  constexpr std::size_t kItems = 3;  // few, so that add() and take() often meet in one item
  constexpr int kChanges = 200'000;
  ChangeList<Item> list;
  std::array<std::shared_ptr<Item>, kItems> items;
  for (std::size_t i = 0; i < kItems; ++i) items[i] = std::make_shared<Item>(i);
  std::array<std::uint64_t, kItems> seen{};
  const auto look = [&] {
    list.take([&](const std::shared_ptr<Item>& item) {
      seen[item->number] = item->changes.load(std::memory_order_relaxed);
    });
  };
  {
    std::atomic<int> running = 2;
    std::vector<std::jthread> threads;
    for (unsigned seed = 0; seed < 2; ++seed) {
      threads.emplace_back([&, seed] {
        std::minstd_rand random(seed + 1);
        for (int i = 0; i < kChanges; ++i) {
          Item& item = *items[random() % kItems];
          item.changes.fetch_add(1, std::memory_order_relaxed);
          list.add(item);
        }
        running.fetch_sub(1);
      });
    }
    while (running.load() > 0) look();
  }
  look();
  for (std::size_t i = 0; i < kItems; ++i) EXPECT_EQ(seen[i], items[i]->changes.load()) << i;
}

}  // namespace
}  // namespace dstorm::remote
