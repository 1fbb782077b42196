// The list of items that have changed since it was last emptied. So a look at the changes costs as
// much as has changed, and not as much as there is.
//
// Any thread may add; one thread at a time may take. No change is forgotten:
//  C1 An item is in the list at most once. is_listed says whether it is, and only the thread that
//     has set is_listed puts the item there. So that thread alone writes next_listed and
//     keeps_listed, until take() has read them and cleared is_listed.
//  C2 An item is changed before it is added, and take() clears is_listed before it hands the item
//     over. So either add() finds is_listed cleared and lists the item again, or the visitor that
//     is handed the item sees the change.
//  C3 A listed item keeps itself alive.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

namespace dstorm::remote {

// The base of an item. An item lives in a shared_ptr.
template <class Item>
struct Listed : std::enable_shared_from_this<Item> {
  std::atomic<bool> is_listed{false};
  Item* next_listed = nullptr;
  std::shared_ptr<Item> keeps_listed;

 private:
  friend Item;
  Listed() = default;
};

template <class Item>
class ChangeList {
 public:
  ChangeList() = default;
  ~ChangeList() {
    take([](const std::shared_ptr<Item>&) {});  // C3
  }
  ChangeList(const ChangeList&) = delete;
  ChangeList& operator=(const ChangeList&) = delete;

  // To be called after the change.
  void add(Item& item) noexcept {
    if (item.is_listed.exchange(true)) return;  // C1, C2
    item.keeps_listed = item.shared_from_this();
    item.next_listed = last_.load();
    while (!last_.compare_exchange_weak(item.next_listed, &item)) {
    }
  }

  // Empties the list, and calls `visit(item)` for each item in the order in which they were added.
  template <class Visit>
  void take(Visit&& visit) {
    if (last_.load() == nullptr) return;
    Item* next = nullptr;
    for (Item* one = last_.exchange(nullptr); one != nullptr;) {
      Item* const before = std::exchange(one->next_listed, next);
      next = std::exchange(one, before);
    }
    while (next != nullptr) {
      const std::shared_ptr<Item> one = std::move(next->keeps_listed);
      next = one->next_listed;
      one->is_listed.exchange(false);  // C1, C2
      visit(one);
    }
  }

 private:
  std::atomic<Item*> last_{nullptr};
};

}  // namespace dstorm::remote
