#include "dstorm/remote/verbs/change_receiver.hpp"

#include <vector>

#include "dstorm/remote/verbs/frames.hpp"
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
  const auto given = remote::get<EndpointBody>(body);
  const remote::FrameHead head{FrameKind::kEndpoint, 0, body.size()};
  require(!queue_, "an adapter's address where none is due");
  const auto said = std::as_bytes(std::span(&given.endpoint, 1));
  require(remote::is_proof(std::as_bytes(std::span(given.proof)),
                           remote::prove(origin_.settings.key, head, said, origin_.caller)),
          "an adapter's address that was changed on the way");
  queue_.emplace(*origin_.settings.device, QueueOptions{.depth = 1});
  queue_->connect(given.endpoint);
  const Endpoint own = queue_->local();
  origin_.answers.put_proved(origin_.settings.key, origin_.caller, FrameKind::kEndpoint, 0,
                             std::as_bytes(std::span(&own, 1)));
}

// Tells the sender where it may write: its own inbox, and its cursors in the mailboxes of this
// host.
void ChangeReceiver::announce(const remote::Attachments& attachments) {
  if (!queue_) return;
  for (auto next = attachments.upper_bound(announced_); next != attachments.end(); ++next) {
    Registration& registration = *next->second->registration;
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

void ChangeReceiver::hear(const DeviceEvent& event) {
  if (!queue_) return;
  queue_->hear(event);
  if (queue_->failed()) throw Error("RDMA: " + queue_->failed()->what);
}

}  // namespace dstorm::verbs
