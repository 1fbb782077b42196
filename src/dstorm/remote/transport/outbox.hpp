// The frames that wait to be sent over a connection, and where the long payloads among them lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <utility>
#include <vector>

#include "dstorm/remote/net/stream.hpp"
#include "dstorm/remote/transport/frame.hpp"
#include "dstorm/slot/carrier.hpp"

namespace dstorm::remote {

// Used under the engine's lock.
class Outbox {
 public:
  // Begins a batch; everything before it has been sent. A batch may stay in the socket until the
  // next one, unless hurry() is called.
  void begin();
  void hurry() noexcept { may_lag_ = false; }
  // The connection has ended: what waits is dropped.
  void clear();

  template <class Part>
  void put(const Part& part) {
    put_bytes(std::as_bytes(std::span(&part, 1)));
  }
  void put_bytes(std::span<const std::byte> bytes) {
    small_.insert(small_.end(), bytes.begin(), bytes.end());
  }
  void put_head(FrameKind kind, std::uint32_t segment, std::uint64_t bytes) {
    put(FrameHead{kind, segment, bytes});
  }
  // A frame of no segment, with a proof behind the body.
  void put_proved(const net::Key& key, const net::Introduction& call, FrameKind kind,
                  std::span<const std::byte> body);
  // A short payload is copied. A long one is read where it lies until it has been sent, so it must
  // not change before. Returns whether it was copied.
  bool put_payload(std::span<const std::byte> payload);
  // The last payload that was put lies in a slot of `segment` that `carrier` holds. The carrier
  // lets go when the payload has been sent.
  void let_go_after(SlotCarrier& carrier, std::uint32_t segment) noexcept {
    reading_ = &carrier;
    reading_segment_ = segment;
  }
  // If the payload of a slot of `segment` is being sent, copies the rest of it, which frees the
  // slot. Returns whether there was one.
  bool make_room(std::uint32_t segment);
  // Sends until the connection takes no more. Calls `on_sent` when it has taken something. Returns
  // how the connection fares.
  template <class OnSent>
  net::Flow send(net::Stream& stream, OnSent&& on_sent) {
    while (waits()) {
      const net::Moved moved = stream.send(parts(), may_lag_);
      if (moved.flow != net::Flow::kOpen || moved.bytes == 0) return moved.flow;
      lags_ = may_lag_;
      note_sent(moved.bytes);
      on_sent();
    }
    may_lag_ = false;
    return net::Flow::kOpen;
  }

  bool waits() const noexcept { return !pieces_.empty() || small_at_ < small_.size(); }
  // There is as much as one call of send() should take.
  bool is_full() const noexcept;
  // Something was sent in a batch that may lag, and nothing has pushed it on since.
  bool lags() const noexcept { return lags_; }
  void note_pushed() noexcept { lags_ = false; }
  // Bytes of frames over this connection: sent; and sent once all that waits has been sent.
  std::uint64_t sent_bytes() const noexcept { return sent_bytes_; }
  std::uint64_t end() const noexcept { return sent_bytes_ + small_.size() + long_bytes_; }

 private:
  struct Piece {
    std::size_t end;                     // the position in small_ before which the payload goes
    std::span<const std::byte> payload;  // in a slot or in staged_
  };

  std::span<const iovec> parts();
  void note_sent(std::size_t bytes);

  // frames to send, from small_at_ on, except the payloads in pieces_
  std::vector<std::byte> small_;
  std::size_t small_at_ = 0;
  std::deque<Piece> pieces_;
  std::size_t long_bytes_ = 0;      // of their payloads, when they were put there
  SlotCarrier* reading_ = nullptr;  // it holds the slot with the payload of the last piece
  std::uint32_t reading_segment_ = 0;
  std::vector<iovec> parts_;  // of one call
  std::vector<std::byte> staged_;
  std::uint64_t sent_bytes_ = 0;
  bool may_lag_ = false;  // holds for what waits
  bool lags_ = false;     // the socket has been told to wait for more
};

}  // namespace dstorm::remote
