#include "dstorm/segment/channel.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "dstorm/group.hpp"
#include "dstorm/host/control.hpp"
#include "dstorm/host/roll_call.hpp"
#include "dstorm/remote/engine.hpp"
#include "dstorm/segment/rounds.hpp"

namespace dstorm {
namespace {

// The record that each rank posts while the ranks make a segment. For a rank that makes the memory
// of its host, it says where the others find that memory.
struct Offer {
  std::int32_t fd = -1;
  host::Token token{};
  std::uint8_t is_gone = 0;  // this rank has found no memory there
  char error[512] = {};
};

// Collective. If any rank has failed, throws the same error on all ranks; so it does if the maker
// has taken its offer back, which it does when its call ends by its time limit or an interrupt.
// Returns the maker's offer.
Offer agree(Group& group, std::string_view what, std::string_view step, const Offer& mine,
            int maker) {
  const auto posts = group.exchange(step, std::as_bytes(std::span(&mine, 1)));
  std::vector<Offer> offers(posts.size());
  for (std::size_t r = 0; r < posts.size(); ++r) {
    if (posts[r] && posts[r]->size() == sizeof(Offer)) {
      std::memcpy(&offers[r], posts[r]->data(), sizeof(Offer));
    }
  }
  throw_if_any_failed(offers);
  if (!posts[static_cast<std::size_t>(maker)]) {
    throw PeerError("rank " + std::to_string(maker) + " died while it made " + std::string(what) +
                        "; make it again",
                    {maker});
  }
  if (std::ranges::any_of(offers, [](const Offer& offer) { return offer.is_gone != 0; })) {
    throw TimeoutError(std::string(what) + ": rank " + std::to_string(maker) +
                           " gave up making it (at the time limit, or interrupted); make it again",
                       {maker});
  }
  return offers[static_cast<std::size_t>(maker)];
}

}  // namespace

Channel::Channel(Group& group, host::Control& control, remote::Engine* engine, std::uint32_t id,
                 std::string_view what, host::SegmentShape shape, const Graph& graph)
    : control_(control), engine_(engine) {
  if (engine != nullptr) {
    shape.copies = control.locals().size();
    shape.locals = control.locals();
  }
  const remote::Adapter* const adapter = engine == nullptr ? nullptr : engine->adapter();
  if (adapter != nullptr) shape.inbox_bytes = adapter->inbox_bytes(shape.mailbox);
  // The lowest live rank of each host makes the memory of that host.
  int maker = control.rank();
  for (int r : control.locals()) {
    if (r < maker && group.is_live(r)) maker = r;
  }
  const bool makes = maker == control.rank();
  Offer mine;
  attempt(mine, [&] {
    if (!makes) return;
    // An adapter may write to any inbox from the beginning.
    std::vector<int> senders =
        shape.inbox_bytes > 0 ? control.members()
                              : senders_to(control.locals(), graph, group.view(), control.size());
    std::erase_if(senders, [&](int r) { return control.is_here(r); });
    memory_ = std::make_shared<host::SegmentMemory>(
        host::SegmentMemory::create(shape, what, control.locals().size() + senders.size()));
    for (int r = 0; r < control.size(); ++r) {
      if (std::ranges::binary_search(senders, r)) {
        memory_->reserve(r, what);
      } else if (!control.is_here(r)) {
        memory_->reserve_words(r, what);
      }
    }
    mine.fd = memory_->fd();
    mine.token = memory_->token();
  });
  const std::string name(what);
  const Offer offer = agree(group, what, name + ", step 2", mine, maker);
  attempt(mine, [&] {
    if (!makes) {
      try {
        memory_ = std::make_shared<host::SegmentMemory>(
            host::SegmentMemory::open(shape, what, control.pid(maker), offer.fd, offer.token));
      } catch (const host::MemoryGone&) {
        mine.is_gone = 1;
        return;
      }
    }
    // Each rank reserves its own pages, so that the system takes them from memory near the rank.
    memory_->reserve_own(control.rank(), what);
    // Before this rank agrees, because a rank that has seen this rank agree may send to it.
    if (engine_ != nullptr) attachment_ = engine_->attach(id, memory_);
  });
  try {
    agree(group, what, name + ", step 3", mine, maker);
  } catch (...) {
    if (engine_ != nullptr) engine_->detach(id);
    throw;
  }
  memory_->close_fd();
  if (shape.inbox_bytes == 0) return;
  for (int r = 0; r < control.size(); ++r) {
    if (control.is_local(r) || !engine->goes_by_adapter(r)) continue;
    inboxes_.push_back(adapter->open_inbox(memory_, r));
  }
}

Channel::~Channel() = default;

SlotReader Channel::reader(int sender) const {
  if (!control_.is_local(sender)) return {memory_->copies(sender), control_.rank()};
  return {memory_->box(sender), control_.rank()};
}

void Channel::take_in() {
  bool has_come = false;
  for (const auto& inbox : inboxes_) has_come = inbox->take_in() || has_come;
  if (has_come) control_.ring(control_.neighbours());
}

void Channel::deliver(std::span<const int> to, std::size_t bytes, bool may_lag) noexcept {
  control_.ring(to);
  if (engine_ != nullptr) engine_->flush(*attachment_, bytes, may_lag);
}

void Channel::acknowledge(std::span<const int> senders, bool awaited) noexcept {
  if (awaited) control_.ring(senders);
  if (engine_ == nullptr) return;
  unacknowledged_ += senders.size();
  if (awaited && unacknowledged_ * 4 >= memory_->shape().mailbox.depth()) {
    unacknowledged_ = 0;
    engine_->acknowledge(*attachment_);
  } else {
    engine_->note(*attachment_);
  }
}

void Channel::wake(std::span<const int> ranks) noexcept { control_.ring(ranks); }

void Channel::tell(std::span<const int> ranks) noexcept {
  control_.ring(ranks);
  if (engine_ != nullptr) engine_->tell(*attachment_);
}

void Channel::wake_self() noexcept {
  const int own = control_.rank();
  control_.ring({&own, 1});
}

bool Channel::make_room() noexcept {
  return engine_ != nullptr && engine_->make_room(*attachment_);
}

int Channel::host_of(int rank) const { return control_.host_of(rank); }
const std::vector<int>& Channel::locals() const noexcept { return control_.locals(); }

int Channel::pidfd(int rank) const noexcept { return control_.pidfd(rank); }

void Channel::leave(bool is_dropped) noexcept {
  memory_->closed(control_.rank())
      .store(is_dropped ? host::SegmentMemory::kDropped : host::SegmentMemory::kClosed,
             std::memory_order_release);
  control_.ring(control_.neighbours());
  if (engine_ != nullptr) engine_->flush(*attachment_, 0);
}

}  // namespace dstorm
