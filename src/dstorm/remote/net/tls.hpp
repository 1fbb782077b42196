// Encryption of streams by TLS, so that nobody on the way can read or change what they carry. Both
// ends prove that they belong together: by the job's key, or where GroupOptions::tls, by default
// MALT_TLS, names a folder with three PEM files of the user's own, by these as well:
//   cert.pem  this rank's certificate, followed by the intermediate ones if there are any
//   key.pem   its private key, not encrypted
//   ca.pem    the certificates of the authorities that the ranks' certificates come from
// Both ends present a certificate that leads to ca.pem and is good for a client and for a server.
// The names in it do not matter: ranks move, and the handshake inside proves by the job's key which
// process belongs to the job. The version is 1.3; with certificates also 1.2.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dstorm/remote/net/kept_key.hpp"
#include "dstorm/remote/net/stream.hpp"

// Types of OpenSSL, whose headers only tls.cpp needs.
struct bio_method_st;
struct ssl_ctx_st;
struct ssl_st;

namespace dstorm::net {

// Throws ConfigError that says what to install, if TLS cannot be used here.
void check_tls();

// Shared by all TLS streams of this process, both callers' and callees'. Any thread may use it.
class TlsContext {
 public:
  // Throws ConfigError that names the file and what is wrong with it. Unless it `reads_ahead`, a
  // stream takes one record at a time from the system. So the descriptor stays readable as long as
  // something is left to be received, but for the rest of a record.
  explicit TlsContext(const std::string& folder, bool reads_ahead = true);
  // By a key that is made from the job's (RFC 8446, section 2.2), without certificates.
  explicit TlsContext(const KeptKey& key);
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  bio_method_st* method() const noexcept { return method_.get(); }
  ssl_ctx_st* get() const noexcept { return context_.get(); }

 private:
  struct Free {
    void operator()(bio_method_st* method) const;
    void operator()(ssl_ctx_st* context) const;
  };

  TlsContext();

  KeptKey shared_;                               // that both ends have; unused with certificates
  std::unique_ptr<bio_method_st, Free> method_;  // how sessions reach their sockets
  std::unique_ptr<ssl_ctx_st, Free> context_;
};

// The socket that OpenSSL reads from and writes to. Records are kept and written several at a time.
struct TlsSocket {
  int fd;
  int error = 0;           // errno of its last system call, 0 if that went well
  bool is_at_end = false;  // the peer has closed it
  std::vector<std::byte> kept = {};
  std::size_t written = 0;  // of those kept
};

// The TLS side of one Stream. The members do what those of Stream do.
class TlsSession {
 public:
  TlsSession(const TlsContext& context, int fd, bool calls);
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  Moved send(std::span<const iovec> parts);
  Moved receive(std::span<const iovec> parts);
  Moved end_writing();
  bool wants_write() const noexcept;
  bool awaits_peer() const noexcept;
  bool has_buffered() const noexcept;
  std::array<std::byte, 32> binding() const;
  const std::string& error() const noexcept { return error_; }
  // The peer has closed the connection, with a close_notify or without.
  bool is_closed_there() const noexcept { return is_closed_there_; }

 private:
  struct Free {
    void operator()(ssl_st* session) const;
  };

  bool shake_hands();
  bool flush();  // whether OpenSSL has taken all
  void write_kept();
  std::size_t stage(std::span<const iovec> parts, std::size_t skip);
  void judge(int result);  // finds out why an OpenSSL operation stopped

  TlsSocket socket_;
  std::unique_ptr<ssl_st, Free> session_;
  bool awaits_room_ = false;  // the last operation stopped for want of room
  bool is_ending_ = false;    // close_notify is due
  std::size_t staged_ = 0;    // bytes of record_ that are taken and not yet written
  std::vector<std::byte> record_;
  bool is_drained_ = true;  // OpenSSL has no whole record that has not been received
  Flow flow_ = Flow::kOpen;
  bool is_closed_there_ = false;
  std::string error_;
};

}  // namespace dstorm::net
