#include "dstorm/remote/verbs/adapter.hpp"

#include <algorithm>

#include "dstorm/remote/verbs/change_receiver.hpp"
#include "dstorm/remote/verbs/change_sender.hpp"
#include "dstorm/remote/verbs/inbox.hpp"
#include "dstorm/remote/verbs/proof.hpp"
#include "dstorm/remote/verbs/registration.hpp"

namespace dstorm::verbs {
namespace {

// The inbox of one sender in the memory of a segment, for this rank.
class SegmentInbox final : public remote::Inbox {
 public:
  SegmentInbox(const host::Control& control, std::shared_ptr<host::SegmentMemory> memory,
               const InboxShape& shape, int sender)
      : control_(control),
        memory_(std::move(memory)),
        inbox_(memory_->inbox(sender), shape, memory_->copies(sender), memory_->shape().policy,
               sender, control.locals(), control.rank()) {}

  bool take_in() override {
    return inbox_.take_in(
        [this](int r) { return control_.is_live(r) && !memory_->has_gone(r); },
        [this](int r) { return control_.state(r) == host::State::kDead; },
        [this](std::size_t copy) { memory_->reserve_copy(inbox_.sender(), copy); });
  }

 private:
  const host::Control& control_;
  std::shared_ptr<host::SegmentMemory> memory_;
  verbs::Inbox inbox_;
};

std::size_t count_most(const host::Control& control) {
  std::size_t most = 0;
  for (const std::vector<int>& host : control.hosts()) most = std::max(most, host.size());
  return most;
}

}  // namespace

Adapter::Adapter(const host::Control& control, const RdmaOptions& options)
    : control_(control),
      most_ranks_(count_most(control)),
      device_(Device::open(Library::load(), options)) {}

std::unique_ptr<remote::Proof> Adapter::begin_proof(int rank, std::vector<int> partners,
                                                    std::chrono::milliseconds limit) const {
  return std::make_unique<Proof>(device_, rank, std::move(partners), limit);
}

std::size_t Adapter::inbox_bytes(const MailboxShape& mailbox) const {
  return InboxShape(mailbox, most_ranks_).bytes();
}

std::shared_ptr<remote::Registration> Adapter::enlist(
    std::shared_ptr<const host::SegmentMemory> memory) const {
  return std::make_shared<Registration>(device_, control_, std::move(memory), most_ranks_);
}

std::unique_ptr<remote::Inbox> Adapter::open_inbox(std::shared_ptr<host::SegmentMemory> memory,
                                                   int sender) const {
  const InboxShape shape(memory->shape().mailbox, most_ranks_);
  return std::make_unique<SegmentInbox>(control_, std::move(memory), shape, sender);
}

std::unique_ptr<remote::ChangeSender> Adapter::make_sender(const remote::Route& route) {
  return std::make_unique<ChangeSender>(*this, route);
}

std::unique_ptr<remote::ChangeReceiver> Adapter::make_receiver(const remote::Origin& origin) {
  return std::make_unique<ChangeReceiver>(*this, origin);
}

bool Adapter::take_events() {
  while (const auto event = device_.next_event()) {
    for (EventListener* const one : listeners_) one->hear(*event);
    if (event->is_last) return false;
  }
  return true;
}

}  // namespace dstorm::verbs
