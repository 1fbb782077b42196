// The downlink: a connection by which the writes of a rank of another host arrive in the memory of
// this host.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dstorm/host/control.hpp"
#include "dstorm/remote/net/stream.hpp"
#include "dstorm/remote/transport/attachment.hpp"
#include "dstorm/remote/transport/change_receiver.hpp"
#include "dstorm/remote/transport/frame.hpp"
#include "dstorm/remote/transport/origin.hpp"
#include "dstorm/remote/uplink.hpp"

namespace dstorm::remote {

// Used under the engine's lock. Nothing blocks.
class Downlink {
 public:
  // The caller has proved that it is `sender`. From now on older connections take in no more of its
  // writes. But a rank of this host that was stopped while it took them in may still be about to
  // write. It keeps the copies that it writes, and this connection goes on in others
  // (slot/copies.hpp). `unparsed` are bytes that have arrived already, after `parsed_bytes` that
  // count as taken in.
  Downlink(host::Control& control, const Settings& settings, std::shared_ptr<net::Stream> stream,
           const net::Introduction& caller, Clock::time_point now,
           std::span<const std::byte> unparsed = {}, std::uint64_t parsed_bytes = 0);
  ~Downlink() { release_board(); }
  Downlink(const Downlink&) = delete;
  Downlink& operator=(const Downlink&) = delete;
  // This rank's own writes go over the same connection.
  void join(Uplink& partner) noexcept { partner_ = &partner; }
  void partner_is_over();

  enum class End : std::uint8_t {
    kNot,           // the connection goes on
    kLeft,          // the sender has left the job and said so
    kDisconnected,  // the sender's process seems to have ended
    kBroken,        // the sender broke the rules
    kReplaced,      // a newer connection is in use, or none is needed any more
    kRefused        // this rank cannot take it in; the sender may call another
  };
  // The number of bytes that one connection may take in before the next one's turn.
  static constexpr std::size_t kTurn = 4 * 1024 * 1024;
  // Takes in what has arrived, and answers. Returns the number of bytes; from kTurn on there may be
  // more. `to_the_end`: reads on until it sees the end of the connection, if that has arrived.
  std::size_t take_in(const Attachments& attachments, std::uint32_t last_attached, bool to_the_end,
                      Clock::time_point now);
  // This rank exchanges heartbeats with those of the sender's host, or no longer does.
  void watch(bool is_watched, Clock::time_point now) noexcept;
  // Time goes by. Ends a connection from which heartbeats are due and nothing comes. `detached` is
  // the number of attachments that have been removed so far.
  void tend(const Attachments& attachments, std::uint64_t detached,
            std::chrono::nanoseconds suspect_after, Clock::time_point now);

  std::uint64_t updates() const noexcept { return updates_; }  // taken in
  End end() const noexcept { return end_; }
  // Bytes that have arrived wait for another rank of this host; the engine looks again soon.
  bool is_held_up() const noexcept { return held_up_since_.has_value(); }
  // Bytes that have arrived wait until this rank has done more; the engine looks again at once.
  bool is_at_work() const noexcept { return end_ == End::kNot && changes_->is_at_work(); }
  // Updates come beside the connection.
  bool has_adapter() const noexcept { return changes_->has_adapter(); }
  int sender() const noexcept { return origin_.sender; }
  int fd() const noexcept { return stream_->fd(); }
  const std::shared_ptr<net::Stream>& stream() const noexcept { return stream_; }
  const net::Introduction& call() const noexcept { return origin_.caller; }
  const std::string& reason() const noexcept { return reason_; }

 private:
  struct BoardCopy {
    CopyTable::Taken taken;
    host::Board* board;
    bool is_first;  // no notice has come over this connection yet
  };

  void parse_whole(const Attachments& attachments, std::uint32_t last_attached);
  void parse(const Attachments& attachments, std::uint32_t last_attached);
  std::size_t length_of_fixed(const FrameHead& head) const;
  bool take(const FrameHead& head, std::span<const std::byte> body,
            const std::shared_ptr<Attachment>& attachment);
  bool take_notice(std::span<const std::byte> body);
  void take_abandoned(std::uint64_t number);
  void take_record(std::span<const std::byte> body);
  void take_cursors(std::span<const std::byte> body, const host::SegmentMemory& memory);
  bool begin_update(const FrameHead& head, std::span<const std::byte> body,
                    const std::shared_ptr<Attachment>& attachment);
  std::size_t place_payload(std::size_t bytes);
  void finish_payload();
  void hold_up();
  void release_board() noexcept;
  void answer(bool is_due, Clock::time_point now);
  void hear(Clock::time_point now);
  void over(End end, std::string reason, bool in_order = false);
  bool is_current() const;
  bool has_part_of_frame() const;

  host::Control& control_;
  const Settings& settings_;
  std::shared_ptr<net::Stream> stream_;
  Uplink* partner_ = nullptr;
  bool is_at_end_ = false;  // of what its sender writes
  Answers answers_;
  Origin origin_;
  std::unique_ptr<ChangeReceiver> changes_;
  End end_ = End::kNot;
  bool has_left_ = false;
  std::string reason_;
  std::optional<BoardCopy> board_;
  std::uint64_t let_go_ = 0;  // removed attachments whose copies have been dropped
  std::optional<ChangeReceiver::Payload> payload_;  // of the update that is arriving
  bool has_unparsed_ = false;  // parts of buffer_ from before it was made, or held up
  std::optional<Clock::time_point> held_up_since_;
  bool is_long_ = false;  // the last update, or the one that is arriving
  std::vector<std::byte> buffer_;
  std::size_t begin_ = 0, end_of_data_ = 0;  // the part of the buffer that is not parsed yet
  std::uint64_t taken_in_ = 0;               // bytes of frames
  std::uint64_t answered_ = 0;
  std::uint64_t updates_ = 0;
  bool is_watched_ = true;
  bool owes_answer_ = false;  // bytes of other frames than answers came after the last answer
  Clock::time_point last_heard_, last_answer_, watched_since_;
};

}  // namespace dstorm::remote
