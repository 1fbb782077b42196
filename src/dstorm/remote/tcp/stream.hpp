// The bytes of one connection, plain or encrypted. Nothing here blocks, raises SIGPIPE or, on the
// way of plain bytes, allocates. A stream is for one thread at a time.
#pragma once

#include <sys/uio.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "dstorm/host/fork.hpp"
#include "dstorm/remote/tcp/address.hpp"

namespace dstorm::tcp {

class TlsContext;
class TlsSession;

enum class Flow {
  kOpen,
  kEnded,   // receiving only: the peer has sent all it will
  kFailed,  // refused, reset, timed out, TLS alert: Stream::error() says, and nothing moves any more
};

// What one call moved; its flow is kOpen unless `bytes` is 0. 0 bytes and kOpen: it would block.
struct Moved {
  std::size_t bytes;
  Flow flow;
};

class Stream {
 public:
  // Starts to connect, from a port of the system's choice at the address of `from`, one of this
  // host's. What fails at once is told by the first send or receive, and fd() may then be -1.
  // The connection fails if the peer does not acknowledge what is sent, or the call, for `limit`.
  // `tls` is null for plain bytes, and outlives the stream.
  static Stream connect(const Address& to, const Address& from, const TlsContext* tls,
                        std::chrono::nanoseconds limit);
  static Stream accept(UnforkedDescriptor accepted, const TlsContext* tls,
                       std::chrono::nanoseconds limit);
  Stream(Stream&& other) noexcept;
  Stream& operator=(Stream&& other) noexcept;
  ~Stream();  // what the system has taken still goes out

  // Moves what it can of `parts`, in order. Under TLS the stream keeps a copy of what it took.
  // `may_lag`: the system may keep it until push(), or for 0.2 s, so that what follows goes in the same
  // packet; it goes out even if this process is killed, unless it leaves bytes unread. Not under TLS.
  Moved send(std::span<const iovec> parts, bool may_lag = false);
  void push() noexcept;
  Moved receive(std::span<const iovec> parts);  // into room for at least one byte

  // The stream itself waits for room: it connects, or TLS holds bytes that it has taken. Call
  // send(), with no parts if there is nothing to send, when fd() is writable.
  bool wants_write() const noexcept;
  // Nothing can be sent before the peer's part of the TLS handshake has come: wait until fd() is
  // readable, even to send.
  bool awaits_peer() const noexcept;
  // Bytes are here already that make no descriptor readable: receive() before waiting.
  bool has_buffered() const noexcept;
  int fd() const noexcept { return socket_.get(); }
  const std::string& error() const noexcept { return error_; }  // empty unless failed
  // What has come can still be received, though sending may fail.
  bool is_readable() const noexcept { return state_ == State::kOpen; }
  // Refused, or at an end since the peer closed it, or so it looks: a firewall can say the same.
  bool is_closed_there() const noexcept { return is_closed_there_; }

  // Nothing will be sent after this: the peer sees kEnded once it has received all. Receiving goes
  // on. Under TLS, go on as long as wants_write().
  void end_writing();

  // What is unsent when the stream goes is dropped, and the peer sees kFailed at once: an orderly
  // end would be sent again and again, ever more slowly, to a peer that does not answer.
  void reset_at_end() noexcept;

  // What only the two ends of this very TLS connection know (RFC 9266); zeros if it is plain.
  // Meaningful once bytes have been received.
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
  bool is_closed_there_ = false;
  bool is_cut_ = false;  // nothing can be sent any more
};

}  // namespace dstorm::tcp
