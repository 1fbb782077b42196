#include "dstorm/remote/net/stream.hpp"

#include <linux/tcp.h>  // netinet/tcp.h knows no delivery rates
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

#include "dstorm/remote/net/tls.hpp"

namespace dstorm::net {
namespace {

// How much may wait in a socket beyond what the network has taken: as much as the network takes in
// a millisecond. So a fast network is kept busy, and updates for a slow one wait where newer ones
// can still replace them.
constexpr std::uint64_t kUnsentPerSecond = 1000;
constexpr int kLeastUnsent = 32 * 1024;
constexpr int kMostUnsent = 1024 * 1024;
// Bytes sent between two looks at how fast the network is.
constexpr std::size_t kBetweenLooks = 256 * 1024;

msghdr message_of(std::span<const iovec> parts) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts.data());  // neither call writes to it
  message.msg_iovlen = std::min<std::size_t>(parts.size(), IOV_MAX);
  return message;
}

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

void set_option(int fd, int level, int name, int value) {
  setsockopt(fd, level, name, &value, sizeof(value));
}

}  // namespace

Stream::Stream(UnforkedDescriptor socket, State state)
    : socket_(std::move(socket)), state_(state) {}
Stream::Stream(Stream&&) noexcept = default;
Stream& Stream::operator=(Stream&&) noexcept = default;
Stream::~Stream() = default;

Stream Stream::connect(const Address& to, const Address& from, const TlsContext* tls,
                       std::chrono::nanoseconds limit) {
  const Address there = to.with_scope_of(from);
  Stream stream(UnforkedDescriptor([&] {
                  return ::socket(there.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
                }),
                State::kConnecting);
  if (!stream.socket_) {
    stream.fail(errno);
    return stream;
  }
  stream.prepare(tls, true, limit);
  // The port is chosen by connect(), so two connections to different peers may share it.
  set_option(stream.fd(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
  const Address here = from.with_port(0);
  if (::bind(stream.fd(), here.get(), here.size()) != 0 ||
      (::connect(stream.fd(), there.get(), there.size()) != 0 && errno != EINPROGRESS)) {
    stream.fail(errno);
  }
  return stream;
}

Stream Stream::adopt(UnforkedDescriptor called, const TlsContext* tls,
                     std::chrono::nanoseconds limit) {
  Stream stream(std::move(called), State::kOpen);
  stream.prepare(tls, true, limit);
  return stream;
}

Stream Stream::accept(UnforkedDescriptor accepted, const TlsContext* tls,
                      std::chrono::nanoseconds limit) {
  Stream stream(std::move(accepted), State::kOpen);
  stream.prepare(tls, false, limit);
  return stream;
}

void Stream::prepare(const TlsContext* tls, bool calls, std::chrono::nanoseconds limit) {
  set_option(fd(), IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, most_unsent_);
  const auto limit_ms = std::chrono::ceil<std::chrono::milliseconds>(limit).count();
  set_option(fd(), IPPROTO_TCP, TCP_USER_TIMEOUT,
             static_cast<int>(std::clamp<std::int64_t>(limit_ms, 1, INT_MAX)));
  // The death of a host is noticed within 30 s even while nothing is sent.
  set_option(fd(), SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd(), IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set_option(fd(), IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(fd(), IPPROTO_TCP, TCP_KEEPCNT, 4);
  if (tls != nullptr) tls_ = std::make_unique<TlsSession>(*tls, fd(), calls);
}

Moved Stream::send(std::span<const iovec> parts, bool may_lag) {
  if (state_ != State::kOpen && !settle()) return fail(0);
  if (is_cut_) return {0, Flow::kFailed};
  Moved moved{};
  if (tls_) {
    moved = moved_by_tls(tls_->send(parts));
  } else {
    ssize_t bytes = 0;
    const int flags = MSG_NOSIGNAL | (may_lag ? MSG_MORE : 0);
    if (parts.size() == 1) {  // the kernel has less to look at
      bytes = ::send(fd(), parts[0].iov_base, parts[0].iov_len, flags);
    } else {
      const msghdr message = message_of(parts);
      bytes = sendmsg(fd(), &message, flags);
    }
    moved = bytes >= 0 ? Moved{static_cast<std::size_t>(bytes), Flow::kOpen} : fail_to_send(errno);
  }
  std::size_t given = 0;
  for (const iovec& part : parts) given += part.iov_len;
  note_sent(moved.bytes, moved.bytes < given);
  return moved;
}

// Setting TCP_NODELAY sends what the system has kept, even if the option is already set.
void Stream::push() noexcept { set_option(fd(), IPPROTO_TCP, TCP_NODELAY, 1); }

void Stream::note_sent(std::size_t bytes, bool is_full) {
  unlooked_ += bytes;
  if (bytes == 0 || (unlooked_ < kBetweenLooks && !is_full)) return;
  unlooked_ = 0;
  tcp_info info{};
  socklen_t length = sizeof(info);
  if (getsockopt(fd(), IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return;
  const auto unsent = static_cast<int>(std::clamp<std::uint64_t>(
      info.tcpi_delivery_rate / kUnsentPerSecond, kLeastUnsent, kMostUnsent));
  // A small change is not worth a system call.
  if (unsent > most_unsent_ / 2 && unsent < most_unsent_ * 2) return;
  most_unsent_ = unsent;
  set_option(fd(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, most_unsent_);
}

Moved Stream::receive(std::span<const iovec> parts) {
  if (state_ != State::kOpen && !settle()) return fail(0);
  if (tls_) return moved_by_tls(tls_->receive(parts));
  ssize_t bytes = 0;
  if (parts.size() == 1) {
    bytes = recv(fd(), parts[0].iov_base, parts[0].iov_len, 0);
  } else {
    msghdr message = message_of(parts);
    bytes = recvmsg(fd(), &message, 0);
  }
  if (bytes == 0 && is_cut_) state_ = State::kFailed;
  if (bytes == 0) {
    is_closed_there_ = true;
    return {0, is_cut_ ? Flow::kFailed : Flow::kEnded};
  }
  return bytes > 0 ? Moved{static_cast<std::size_t>(bytes), Flow::kOpen} : fail(errno);
}

bool Stream::settle() {
  if (state_ == State::kFailed) return false;
  sockaddr_storage peer{};
  socklen_t bytes = sizeof(peer);
  if (getpeername(fd(), reinterpret_cast<sockaddr*>(&peer), &bytes) == 0) {
    state_ = State::kOpen;
    return true;
  }
  int error = 0;
  bytes = sizeof(error);
  getsockopt(fd(), SOL_SOCKET, SO_ERROR, &error, &bytes);
  fail(error);
  return false;
}

// A peer to which nothing can be sent any more may have sent something before, so receiving goes
// on.
Moved Stream::fail_to_send(int error) {
  if (error != EPIPE && error != ECONNRESET) return fail(error);
  is_cut_ = true;
  error_ = std::strerror(error);
  code_ = error;
  is_closed_there_ = true;
  return {0, Flow::kFailed};
}

Moved Stream::fail(int error) {
  if (error != 0 && !would_block(error) && state_ != State::kFailed) {
    state_ = State::kFailed;
    if (!is_cut_) {
      error_ = std::strerror(error);
      code_ = error;
    }
    is_closed_there_ = error == ECONNREFUSED || error == ECONNRESET || error == EPIPE;
  }
  return {0, state_ == State::kFailed ? Flow::kFailed : Flow::kOpen};
}

Moved Stream::moved_by_tls(Moved moved) {
  if (moved.flow == Flow::kFailed) {
    state_ = State::kFailed;
    error_ = tls_->error();
  }
  is_closed_there_ = tls_->is_closed_there();
  return moved;
}

bool Stream::wants_write() const noexcept {
  return state_ == State::kConnecting || (state_ == State::kOpen && tls_ && tls_->wants_write());
}

bool Stream::awaits_peer() const noexcept {
  return state_ == State::kOpen && tls_ && tls_->awaits_peer();
}

bool Stream::has_buffered() const noexcept {
  return state_ == State::kOpen && tls_ && tls_->has_buffered();
}

void Stream::reset_at_end() noexcept {
  const linger at_once{1, 0};
  setsockopt(fd(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
}

void Stream::end_writing() {
  if (state_ != State::kOpen) return;
  if (tls_) {
    moved_by_tls(tls_->end_writing());
  } else {
    ::shutdown(fd(), SHUT_WR);
  }
}

std::array<std::byte, 32> Stream::binding() const {
  return tls_ ? tls_->binding() : std::array<std::byte, 32>{};
}

}  // namespace dstorm::net
