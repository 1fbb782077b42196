// The interface between an uplink and a transport: how the changes of segments reach one other
// host. Each transport implements it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dstorm/host/control.hpp"
#include "dstorm/remote/net/handshake.hpp"
#include "dstorm/remote/transport/backlog.hpp"
#include "dstorm/remote/transport/outbox.hpp"
#include "dstorm/remote/transport/settings.hpp"

namespace dstorm::remote {

// The parts of an uplink that its transport uses. All of them outlive the transport.
struct Route {
  const host::Control& control;
  const Settings& settings;
  const std::vector<int>& host;  // the ranks of the other host
  Backlog& backlog;
  Outbox& outbox;
};

// Used under the engine's lock. Nothing blocks. It lives as long as its uplink, which makes one
// connection after another. Functions that throw Error do so if the connection is of no more use.
class ChangeSender {
 public:
  // How far send() has got with the changes that were due.
  enum class Progress : std::uint8_t {
    kDone,    // a rank that sees the next frame of the connection also sees all of them
    kFull,    // the outbox is full; there is more
    kPosted,  // all are on their way beside the connection, and not there yet
    kStuck,   // some can go on only when others have arrived
  };

  ChangeSender() = default;
  ChangeSender(const ChangeSender&) = delete;
  ChangeSender& operator=(const ChangeSender&) = delete;
  virtual ~ChangeSender() = default;

  // The connection that `call` asked for is up. Throws Error.
  virtual void begin(const net::Introduction& call) = 0;
  // The connection has ended: from now on no memory is read for it.
  virtual void end() noexcept = 0;
  // The connection fails, so what is on its way may not arrive. end() follows.
  virtual void note_failure() noexcept {}

  // Sends the changes that are due: updates, clocks, cursors, and which segments are closed.
  // Forgets segments that are not among `attachments`.
  virtual Progress send(const Attachments& attachments, Clock::time_point now) = 0;
  // Takes in what has arrived at the other host, and returns whether more can be sent since the
  // last call. `is_awaited`: makes fd() readable when that happens next. Throws Error.
  virtual bool reap(bool is_awaited, Clock::time_point now) = 0;
  // Time goes by while the connection is up. Throws Error if nothing gets through.
  virtual void tend(Clock::time_point now) = 0;
  // Takes an answer of the callee whose proof has been checked. Throws Error.
  virtual void take(const FrameHead& head, std::span<const std::byte> body) = 0;
  // The longest body of such an answer, without its proof.
  virtual std::size_t longest_answer() const { return 0; }
  // Under LATEST: frees the slot of the segment that is being read, if there is one. Returns
  // whether there was.
  virtual bool make_room(std::uint32_t segment) = 0;

  // Becomes readable when reap() would return true; -1 if that never happens without a frame.
  virtual int fd() const noexcept { return -1; }
  // The time since which nothing has got through beside the connection, over connections that
  // failed since; nullopt if all is well.
  virtual std::optional<Clock::time_point> stalled_since() const noexcept { return std::nullopt; }
  // Why nothing has; empty if all is well.
  virtual std::string trouble() const { return {}; }
};

// Says once that this rank has closed the segment, or dropped it.
inline void put_gone(Carried& carried, Outbox& outbox, int rank) {
  if (carried.closed_at != 0) return;
  const bool is_closed = carried.attachment->memory->is_closed(rank);
  outbox.put_head(is_closed ? FrameKind::kClosed : FrameKind::kDropped, carried.attachment->id, 0);
  carried.closed_at = outbox.end();
}

}  // namespace dstorm::remote
