// Lets the adapter of a rank of another host write its changes of segments into the inboxes here
// (inbox.hpp), from which the ranks of this host take them in.
#pragma once

#include <cstdint>
#include <optional>

#include "dstorm/remote/transport/change_receiver.hpp"
#include "dstorm/remote/verbs/adapter.hpp"
#include "dstorm/remote/verbs/queue.hpp"

namespace dstorm::verbs {

class ChangeReceiver final : public remote::ChangeReceiver, Adapter::EventListener {
 public:
  ChangeReceiver(Adapter& adapter, const remote::Origin& origin)
      : EventListener(adapter), origin_(origin) {}

  std::optional<Payload> begin_update(const remote::FrameHead& head,
                                      std::span<const std::byte> body,
                                      const Attached& attachment) override;
  void finish_update() override {}
  bool take_clock(std::uint64_t clock, const Attached& attachment) override;
  void take_endpoint(std::span<const std::byte> body) override;
  void announce(const remote::Attachments& attachments) override;
  bool keep_only(const remote::Attachments&) override { return true; }
  void hear(const DeviceEvent& event) override {
    if (queue_) queue_->hear(event);
  }
  bool has_adapter() const noexcept override { return queue_.has_value(); }
  void end() noexcept override { queue_.reset(); }  // the sender's adapter can write nothing more

 private:
  const remote::Origin& origin_;
  std::optional<Queue> queue_;   // the sender's adapter writes over it; this end only listens
  std::uint32_t announced_ = 0;  // windows of the segments up to this one
};

}  // namespace dstorm::verbs
