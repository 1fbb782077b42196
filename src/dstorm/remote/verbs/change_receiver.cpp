#include "dstorm/remote/verbs/change_receiver.hpp"

#include <vector>

#include "dstorm/remote/verbs/registration.hpp"

namespace dstorm::verbs {
namespace {

using remote::BrokenRule;
using remote::FrameKind;
using remote::require;

[[noreturn]] void refuse_change() {
  throw BrokenRule("it sent a frame with an update that its adapter should have written");
}

}  // namespace

std::optional<ChangeReceiver::Payload> ChangeReceiver::begin_update(const remote::FrameHead&,
                                                                    std::span<const std::byte>,
                                                                    const Attached&) {
  refuse_change();
}

bool ChangeReceiver::take_clock(std::uint64_t, const Attached&) { refuse_change(); }

void ChangeReceiver::take_endpoint(std::span<const std::byte> body) {
  require(!queue_, "an adapter's address where none is due");
  require(body.size() == sizeof(Endpoint) + sizeof(net::Mac),
          "an adapter's address of another length");
  const remote::FrameHead head{FrameKind::kEndpoint, 0, body.size()};
  const auto said = body.first(sizeof(Endpoint));
  require(remote::is_proof(body.subspan(said.size()),
                           remote::prove(origin_.settings.key, head, said, origin_.caller)),
          "an adapter's address that was changed on the way");
  queue_.emplace(adapter_.device(), QueueOptions{.depth = 1});
  queue_->connect(remote::get<Endpoint>(said));
  const Endpoint own = queue_->local();
  origin_.answers.put_proved(origin_.settings.key, origin_.caller, FrameKind::kEndpoint, 0,
                             std::as_bytes(std::span(&own, 1)));
}

// Tells the sender where it may write: its own inbox, and its cursors in the mailboxes of this
// host.
void ChangeReceiver::announce(const remote::Attachments& attachments) {
  if (!queue_) return;
  if (queue_->failed()) throw Error("RDMA: " + queue_->failed()->what);
  for (auto next = attachments.upper_bound(announced_); next != attachments.end(); ++next) {
    auto& registration = static_cast<Registration&>(*next->second->registration);
    const Region& inbox = registration.inbox_of(origin_.sender);
    std::vector<Target> targets{{inbox.address(), inbox.rkey()}};
    for (const Region& cursors : registration.cursors()) {
      targets.push_back({cursors.address(), cursors.rkey()});
    }
    origin_.answers.put_proved(origin_.settings.key, origin_.caller, FrameKind::kWindow,
                               next->first, std::as_bytes(std::span(targets)));
    announced_ = next->first;
  }
}

}  // namespace dstorm::verbs
