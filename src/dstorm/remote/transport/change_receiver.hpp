// The interface between a downlink and a transport: how the changes of segments that a rank of
// another host makes reach the memory of this host. Each transport implements it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "dstorm/remote/transport/attachment.hpp"
#include "dstorm/remote/transport/frame.hpp"
#include "dstorm/remote/transport/origin.hpp"

namespace dstorm::remote {

// Used under the engine's lock. Nothing blocks. One for each connection. Functions throw BrokenRule
// if the sender broke the protocol, and Error if this rank cannot do its part.
class ChangeReceiver {
 public:
  using Attached = std::shared_ptr<Attachment>;  // nullptr: this host has removed the segment

  struct Payload {
    std::byte* to;  // where the next byte goes; nullptr if the update is not wanted
    std::size_t missing;
  };

  ChangeReceiver() = default;
  ChangeReceiver(const ChangeReceiver&) = delete;
  ChangeReceiver& operator=(const ChangeReceiver&) = delete;
  virtual ~ChangeReceiver() = default;

  // An update has begun to arrive. `body` is the frame's body without the payload. Returns where
  // the payload goes, or nothing if the frame has to be taken again later, because it waits for
  // another rank of this host.
  virtual std::optional<Payload> begin_update(const FrameHead& head,
                                              std::span<const std::byte> body,
                                              const Attached& attachment) = 0;
  // The whole payload has arrived.
  virtual void finish_update() = 0;
  // The sender's clock, without an update. Returns false if it has to be taken again later.
  virtual bool take_clock(std::uint64_t clock, const Attached& attachment) = 0;
  // The body of kEndpoint, its proof included.
  virtual void take_endpoint(std::span<const std::byte> body) = 0;
  // Tells the sender what it must know of segments that have been attached since the last call.
  // Throws Error too if the adapter has made the connection useless.
  virtual void announce(const Attachments&) {}
  // Releases what it holds of segments that have been removed. Returns false if it still needs one.
  virtual bool keep_only(const Attachments& attachments) = 0;
  // Whether begin_update() waits for nobody, but has more to do here than it does at a time: it is
  // to be called again at once.
  virtual bool is_at_work() const noexcept { return false; }
  // Whether updates come beside the connection.
  virtual bool has_adapter() const noexcept { return false; }
  // The connection has ended: from now on nothing is written for it.
  virtual void end() noexcept = 0;
};

}  // namespace dstorm::remote
