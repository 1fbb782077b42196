// The segments of a rank in which something has changed since the engine last looked, so that a look costs
// as much as has changed, and not as much as there is.
//
// Any thread adds; one at a time takes. No change is forgotten:
//  C1 An attachment is in the list once at most: is_listed tells, and only the thread that has set it puts
//     the attachment there. So only that thread writes next_listed and keeps_listed, until take() has read
//     them and cleared is_listed.
//  C2 A change is numbered before its attachment is added, and take() clears is_listed before it hands the
//     attachment over. So either add() finds is_listed cleared and lists the attachment again, or who takes
//     it sees the change.
//  C3 What is listed keeps itself alive: its segment may be closed, and be gone everywhere else.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "dstorm/tcp/attachment.hpp"

namespace dstorm::tcp {

class ChangeList {
 public:
  ChangeList() = default;
  ~ChangeList() {
    take([](const std::shared_ptr<Attachment>&) {});  // C3
  }
  ChangeList(const ChangeList&) = delete;
  ChangeList& operator=(const ChangeList&) = delete;

  void add(Attachment& attachment) noexcept {
    if (attachment.is_listed.exchange(true)) return;
    attachment.keeps_listed = attachment.shared_from_this();
    attachment.next_listed = last_.load();
    while (!last_.compare_exchange_weak(attachment.next_listed, &attachment)) {
    }
  }

  // Empties it: `visit(attachment)` for each, in the order in which they were added.
  template <class Visit>
  void take(Visit&& visit) {
    if (last_.load() == nullptr) return;
    Attachment* next = nullptr;
    for (Attachment* one = last_.exchange(nullptr); one != nullptr;) {
      Attachment* const before = std::exchange(one->next_listed, next);
      next = std::exchange(one, before);
    }
    while (next != nullptr) {
      const std::shared_ptr<Attachment> one = std::move(next->keeps_listed);
      next = one->next_listed;
      one->is_listed.exchange(false);  // C1, C2
      visit(one);
    }
  }

 private:
  std::atomic<Attachment*> last_{nullptr};
};

}  // namespace dstorm::tcp
