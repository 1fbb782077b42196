// Sends the changes of segments as frames of the TCP connection itself.
#pragma once

#include <cstdint>
#include <vector>

#include "dstorm/remote/transport/change_sender.hpp"

namespace dstorm::tcp {

class ChangeSender final : public remote::ChangeSender {
 public:
  explicit ChangeSender(const remote::Route& route) : route_(route) {}

  void begin(const net::Introduction&) override {}
  void end() noexcept override {}
  Progress send(const remote::Attachments& attachments, Clock::time_point now) override;
  bool reap(bool, Clock::time_point) override { return false; }
  void tend(Clock::time_point) override {}
  void take(const remote::FrameHead& head, std::span<const std::byte> body) override;
  bool make_room(std::uint32_t segment) override { return route_.outbox.make_room(segment); }

 private:
  bool send_segment(remote::Carried& carried);
  bool send_updates(remote::Carried& carried, std::uint64_t clock);
  void send_cursors(remote::Carried& carried);

  remote::Route route_;
  std::vector<remote::CursorBody> cursors_;  // of one frame
};

}  // namespace dstorm::tcp
