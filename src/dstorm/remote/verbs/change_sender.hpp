// Sends the changes of segments by writes of this rank's adapter into the memory of the other host.
//
// When the connection is up, both ends introduce their adapters, and the callee opens a window for
// each segment: the memory that may be written there. Only frames that say that a segment is closed
// go over the connection.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dstorm/remote/transport/change_sender.hpp"
#include "dstorm/remote/verbs/adapter.hpp"
#include "dstorm/remote/verbs/writer.hpp"

namespace dstorm::verbs {

class ChangeSender final : public remote::ChangeSender, Adapter::EventListener {
 public:
  ChangeSender(Adapter& adapter, const remote::Route& route)
      : EventListener(adapter), route_(route) {}

  void begin(const net::Introduction& call) override;
  void end() noexcept override;
  void note_failure() noexcept override;
  Progress send(const remote::Attachments& attachments, Clock::time_point now) override;
  bool reap(bool is_awaited, Clock::time_point now) override;
  void tend(Clock::time_point now) override;
  void take(const remote::FrameHead& head, std::span<const std::byte> body) override;
  std::size_t longest_answer() const override;
  bool make_room(std::uint32_t segment) override;
  void hear(const DeviceEvent& event) override {
    if (writer_) writer_->hear(event);
  }
  int fd() const noexcept override { return writer_ ? writer_->fd() : -1; }
  std::optional<Clock::time_point> stalled_since() const noexcept override {
    return stalled_since_;
  }
  std::string trouble() const override { return trouble_; }

 private:
  struct Written {                          // of one segment
    std::uint64_t in_flight = 0;            // the last write out of the slot held, or 0
    std::uint64_t last_update = 0;          // the last write of the last update
    std::vector<Addressee> receivers = {};  // of that update, sorted by rank
  };

  bool send_segment(remote::Carried& carried);
  bool send_updates(remote::Carried& carried, Written& written, std::uint64_t clock);
  bool may_go(const Written& written, std::span<const Addressee> to) const;
  bool send_cursors(remote::Carried& carried, std::uint64_t least, bool more_follows);
  void take_window(std::uint32_t segment, std::span<const std::byte> body);
  void send_clock_again();
  [[noreturn]] void fail(const std::string& why);

  remote::Route route_;
  std::unique_ptr<Writer> writer_;  // while the connection is up
  bool is_joined_ = false;          // connected with the other end's queue pair
  std::uint64_t reaped_ = 0;        // completed writes when reap() last looked
  std::map<std::uint32_t, Written> written_;
  // These outlast a connection.
  Clock::time_point moved_ = Clock::now();  // the adapter did something, or had nothing to do
  Clock::time_point tried_;                 // the adapter did something
  // Since when the adapter has failed, while no other connection has written what it was to write.
  std::optional<Clock::time_point> stalled_since_;
  std::string trouble_;
};

}  // namespace dstorm::verbs
