// The bytes of one connection, plain or encrypted. Nothing here blocks or raises SIGPIPE, and for
// plain bytes nothing allocates. One thread at a time may use a stream.
#pragma once

#include <sys/uio.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "dstorm/host/fork.hpp"
#include "dstorm/remote/net/address.hpp"

namespace dstorm::net {

class TlsContext;
class TlsSession;

enum class Flow {
  kOpen,
  kEnded,  // receiving only: the peer has sent everything
  // Refused, reset, timed out, or ended by a TLS alert: nothing moves any more; see
  // Stream::error().
  kFailed,
};

// The result of one call. `flow` is kOpen unless `bytes` is 0. With 0 bytes and kOpen the call
// would block.
struct Moved {
  std::size_t bytes;
  Flow flow;
};

class Stream {
 public:
  // Starts to connect, from a port of the system's choice at `from`, an address of this host. If
  // that fails at once, the first send or receive reports it, and fd() may be -1 until then. The
  // connection fails if the peer acknowledges nothing, neither data nor the call, for `limit`.
  // `tls` is null for plain bytes; it must outlive the stream.
  static Stream connect(const Address& to, const Address& from, const TlsContext* tls,
                        std::chrono::nanoseconds limit);
  // Takes over a connection that is open, and that does not block: one that this end has called, or
  // accepted.
  static Stream adopt(UnforkedDescriptor called, const TlsContext* tls,
                      std::chrono::nanoseconds limit);
  static Stream accept(UnforkedDescriptor accepted, const TlsContext* tls,
                       std::chrono::nanoseconds limit);
  Stream(Stream&& other) noexcept;
  Stream& operator=(Stream&& other) noexcept;
  ~Stream();  // bytes that the system has taken still go out

  // Moves as much of `parts` as it can, in order. Under TLS the stream keeps a copy of what it
  // took. `may_lag`: the system may keep the bytes until push(), or for 0.2 s, so that later bytes
  // go in the same packet. They go out even if this process is killed, unless the process leaves
  // received bytes unread. Has no effect under TLS.
  Moved send(std::span<const iovec> parts, bool may_lag = false);
  void push() noexcept;
  Moved receive(std::span<const iovec> parts);  // into room for at least one byte

  // The stream itself waits for room: it is connecting, or TLS holds bytes that it has taken. Call
  // send(), without parts if there is nothing to send, when fd() is writable.
  bool wants_write() const noexcept;
  // Nothing can be sent before the peer's part of the TLS handshake has arrived: wait until fd() is
  // readable, even to send.
  bool awaits_peer() const noexcept;
  // Bytes that make no descriptor readable have arrived already: call receive() before waiting.
  bool has_buffered() const noexcept;
  int fd() const noexcept { return socket_.get(); }
  const std::string& error() const noexcept { return error_; }  // empty unless failed
  int code() const noexcept { return code_; }  // the system's, of errno.h; 0 if it gave none
  // Bytes that have arrived can still be received, though sending may fail.
  bool is_readable() const noexcept { return state_ == State::kOpen; }
  // The call was refused, or the peer closed the connection. A firewall can cause the same.
  bool is_closed_there() const noexcept { return is_closed_there_; }

  // Ends the sending direction: the peer sees kEnded once it has received everything. Receiving
  // goes on. Under TLS, keep calling send() while wants_write() is true.
  void end_writing();

  // When the stream is destroyed, unsent bytes are dropped and the peer sees kFailed at once.
  // Without this, the system would send an orderly end to a silent peer again and again, ever more
  // slowly.
  void reset_at_end() noexcept;

  // Bytes that only the two ends of this TLS connection know (RFC 9266); zeros for plain bytes.
  // Valid once bytes have been received.
  std::array<std::byte, 32> binding() const;

 private:
  enum class State { kConnecting, kOpen, kFailed };

  Stream(UnforkedDescriptor socket, State state);
  void prepare(const TlsContext* tls, bool calls, std::chrono::nanoseconds limit);
  bool settle();  // whether the stream is connected
  Moved fail(int error);
  Moved fail_to_send(int error);
  void note_sent(std::size_t bytes, bool is_full);
  Moved moved_by_tls(Moved moved);

  UnforkedDescriptor socket_;
  State state_;
  std::unique_ptr<TlsSession> tls_;
  int most_unsent_ = 32 * 1024;
  std::size_t unlooked_ = 0;  // bytes sent since the last look at how fast the network is
  std::string error_;
  int code_ = 0;
  bool is_closed_there_ = false;
  bool is_cut_ = false;  // nothing can be sent any more
};

}  // namespace dstorm::net
