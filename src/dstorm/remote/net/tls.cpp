// TLS by OpenSSL, over sockets that do not block. OpenSSL reads and writes through a BIO of our own
// (socket_of(), read(), write()), because its own socket BIO raises SIGPIPE.
//
// send() and receive() first move the handshake on (shake_hands()). send() copies bytes into one
// TLS record at a time (stage()) and writes it (flush()). receive() reads as much as has arrived.
// If OpenSSL stops, judge() finds out why: it needs the socket to become readable or writable, the
// peer has closed the connection, or the connection has failed.
#include "dstorm/remote/net/tls.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>

#include "dstorm/errors.hpp"
#include "dstorm/remote/net/mac.hpp"
#include "dstorm/remote/net/openssl.hpp"

namespace dstorm::net {
namespace {

constexpr std::size_t kRecordBytes = 16384;  // the most that one TLS record carries
// Records that go through one system call: kernel and process would change places for each.
constexpr std::size_t kMostKept = 4 * kRecordBytes;
constexpr std::size_t kReadBytes = 8 * kRecordBytes;
constexpr std::size_t kBindingBytes = 32;
constexpr char kIdentity[] = "MALT";  // of the key that is shared: there is one

template <class T>
T* made(T* object) {
  if (object == nullptr) throw std::bad_alloc();
  return object;
}

std::string openssl_reason() {
  const unsigned long code = openssl().ERR_peek_last_error();
  const char* reason = openssl().ERR_reason_error_string(code);
  if (reason != nullptr) return reason;
  return ERR_SYSTEM_ERROR(code) ? std::strerror(ERR_GET_REASON(code)) : "unknown TLS error";
}

[[noreturn]] void throw_unusable(const std::string& file, const std::string& why) {
  throw ConfigError("MALT_TLS: " + file + ": " + why);
}

std::string file_in(const std::string& folder, const char* name) {
  const std::string file = folder + "/" + name;
  if (!std::ifstream(file)) {
    throw_unusable(file, std::string(std::strerror(errno)) +
                             "; the folder must have cert.pem, key.pem and ca.pem");
  }
  return file;
}

// Checks what every peer would check of this rank's certificate, so that this rank reports it at
// once.
void check_own_certificate(SSL_CTX* context, const std::string& file) {
  struct Free {
    void operator()(X509_STORE_CTX* check) const { openssl().X509_STORE_CTX_free(check); }
  };
  STACK_OF(X509)* chain = nullptr;
  openssl().SSL_CTX_ctrl(context, SSL_CTRL_GET_CHAIN_CERTS, 0, static_cast<void*>(&chain));
  for (const int purpose : {X509_PURPOSE_SSL_CLIENT, X509_PURPOSE_SSL_SERVER}) {
    const std::unique_ptr<X509_STORE_CTX, Free> check(made(openssl().X509_STORE_CTX_new()));
    openssl().X509_STORE_CTX_init(check.get(), openssl().SSL_CTX_get_cert_store(context),
                                  openssl().SSL_CTX_get0_certificate(context), chain);
    openssl().X509_STORE_CTX_set_purpose(check.get(), purpose);
    if (openssl().X509_verify_cert(check.get()) == 1) continue;
    const int error = openssl().X509_STORE_CTX_get_error(check.get());
    throw_unusable(file, std::string(openssl().X509_verify_cert_error_string(error)) +
                             "; it must lead to ca.pem, be in date, and be good for both ends");
  }
}

// How sessions reach their sockets. OpenSSL's own way raises SIGPIPE.
TlsSocket& socket_of(BIO* bio) { return *static_cast<TlsSocket*>(openssl().BIO_get_data(bio)); }

int note(BIO* bio, ssize_t bytes, int retry) {
  socket_of(bio).error = bytes < 0 ? errno : 0;
  openssl().BIO_clear_flags(bio, BIO_FLAGS_RWS | BIO_FLAGS_SHOULD_RETRY);
  if (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
    openssl().BIO_set_flags(bio, retry | BIO_FLAGS_SHOULD_RETRY);
  }
  return static_cast<int>(bytes);
}
// Returns whether nothing is kept any more; errno says why something is.
bool write_kept_of(TlsSocket& socket) {
  while (socket.written < socket.kept.size()) {
    const ssize_t bytes = ::send(socket.fd, socket.kept.data() + socket.written,
                                 socket.kept.size() - socket.written, MSG_NOSIGNAL);
    if (bytes < 0) return false;
    socket.written += static_cast<std::size_t>(bytes);
  }
  socket.kept.clear();
  socket.written = 0;
  return true;
}
int write(BIO* bio, const char* data, int bytes) {
  TlsSocket& socket = socket_of(bio);
  if (socket.kept.size() >= kMostKept && !write_kept_of(socket)) {
    return note(bio, -1, BIO_FLAGS_WRITE);
  }
  const auto* const from = reinterpret_cast<const std::byte*>(data);
  socket.kept.insert(socket.kept.end(), from, from + bytes);
  return note(bio, bytes, BIO_FLAGS_WRITE);
}
int read(BIO* bio, char* data, int bytes) {
  const auto size = static_cast<std::size_t>(bytes);
  const ssize_t got = ::recv(socket_of(bio).fd, data, size, 0);
  socket_of(bio).is_at_end = got == 0;
  return note(bio, got, BIO_FLAGS_READ);
}
long control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

// OpenSSL's callbacks give both ends the key that they share.
const KeptKey& key_of(SSL* session) {
  const SSL_CTX* const context = openssl().SSL_get_SSL_CTX(session);
  return *static_cast<const KeptKey*>(openssl().SSL_CTX_get_ex_data(context, 0));
}
unsigned give_key(SSL* session, unsigned char* to, unsigned most) {
  const Key& key = key_of(session);
  if (key.size() > most) return 0;
  std::memcpy(to, key.data(), key.size());
  return static_cast<unsigned>(key.size());
}
unsigned give_key_to_caller(SSL* session, const char*, char* identity, unsigned most_identity,
                            unsigned char* to, unsigned most) {
  if (sizeof(kIdentity) > most_identity) return 0;
  std::memcpy(identity, kIdentity, sizeof(kIdentity));
  return give_key(session, to, most);
}
unsigned give_key_to_callee(SSL* session, const char*, unsigned char* to, unsigned most) {
  return give_key(session, to, most);  // whatever key the caller means: another one fails
}

}  // namespace

void check_tls() { openssl(); }

void TlsContext::Free::operator()(bio_method_st* method) const { openssl().BIO_meth_free(method); }
void TlsContext::Free::operator()(ssl_ctx_st* context) const { openssl().SSL_CTX_free(context); }
void TlsSession::Free::operator()(ssl_st* session) const { openssl().SSL_free(session); }

TlsContext::TlsContext()
    : method_(made(openssl().BIO_meth_new(openssl().BIO_get_new_index() | BIO_TYPE_SOURCE_SINK,
                                          "malt socket"))),
      context_(made(openssl().SSL_CTX_new(openssl().TLS_method()))) {
  openssl().BIO_meth_set_write(method_.get(), write);
  openssl().BIO_meth_set_read(method_.get(), read);
  openssl().BIO_meth_set_ctrl(method_.get(), control);

  SSL_CTX* context = context_.get();
  openssl().SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_TICKET);
  // No session is resumed: each connection proves itself anew.
  openssl().SSL_CTX_ctrl(context, SSL_CTRL_SET_SESS_CACHE_MODE, SSL_SESS_CACHE_OFF, nullptr);
  openssl().SSL_CTX_set_num_tickets(context, 0);
  openssl().SSL_CTX_ctrl(context, SSL_CTRL_SET_READ_AHEAD, 1, nullptr);
  openssl().SSL_CTX_set_default_read_buffer_len(context, kReadBytes);
}

TlsContext::TlsContext(const KeptKey& key) : TlsContext() {
  constexpr std::string_view kPurpose = "MALT TLS 1.3 pre-shared key";
  shared_ = authenticate(key, std::as_bytes(std::span(kPurpose)));
  SSL_CTX* context = context_.get();
  openssl().SSL_CTX_ctrl(context, SSL_CTRL_SET_MIN_PROTO_VERSION, TLS1_3_VERSION, nullptr);
  // The fastest on processors of servers, which have instructions for it.
  openssl().SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256");
  // A peer that would rather present a certificate is refused: there are no authorities.
  openssl().SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  openssl().SSL_CTX_set_ex_data(context, 0, &shared_);
  openssl().SSL_CTX_set_psk_client_callback(context, give_key_to_caller);
  openssl().SSL_CTX_set_psk_server_callback(context, give_key_to_callee);
}

TlsContext::TlsContext(const std::string& folder, bool reads_ahead) : TlsContext() {
  SSL_CTX* context = context_.get();
  openssl().SSL_CTX_ctrl(context, SSL_CTRL_SET_READ_AHEAD, reads_ahead ? 1 : 0, nullptr);
  openssl().SSL_CTX_ctrl(context, SSL_CTRL_SET_MIN_PROTO_VERSION, TLS1_2_VERSION, nullptr);
  // Of TLS 1.2, only what 1.3 has too: forward secrecy and authenticated encryption.
  openssl().SSL_CTX_set_cipher_list(context, "ECDHE+AESGCM:ECDHE+CHACHA20");
  openssl().SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  // There is no terminal at which to ask for a passphrase.
  openssl().SSL_CTX_set_default_passwd_cb(context, [](char*, int, int, void*) { return 0; });

  const std::string certificate = file_in(folder, "cert.pem");
  const std::string key = file_in(folder, "key.pem");
  const std::string authorities = file_in(folder, "ca.pem");
  openssl().ERR_clear_error();
  if (openssl().SSL_CTX_use_certificate_chain_file(context, certificate.c_str()) != 1) {
    throw_unusable(certificate, openssl_reason() + "; it must be a certificate in PEM");
  }
  if (openssl().SSL_CTX_use_PrivateKey_file(context, key.c_str(), SSL_FILETYPE_PEM) != 1 ||
      openssl().SSL_CTX_check_private_key(context) != 1) {
    throw_unusable(key, openssl_reason() +
                            "; it must be the private key of cert.pem in PEM, "
                            "without a passphrase");
  }
  if (openssl().SSL_CTX_load_verify_locations(context, authorities.c_str(), nullptr) != 1) {
    throw_unusable(authorities, openssl_reason() + "; it must be certificates in PEM");
  }
  check_own_certificate(context, certificate);
}

TlsSession::TlsSession(const TlsContext& context, int fd, bool calls)
    : socket_{.fd = fd}, session_(made(openssl().SSL_new(context.get()))) {
  BIO* bio = made(openssl().BIO_new(context.method()));
  openssl().BIO_set_data(bio, &socket_);
  openssl().BIO_set_init(bio, 1);
  openssl().SSL_set_bio(session_.get(), bio, bio);  // the session owns it now
  if (calls) {
    openssl().SSL_set_connect_state(session_.get());
  } else {
    openssl().SSL_set_accept_state(session_.get());
    // OpenSSL takes a shared key for a session that is resumed, and asks a callee whose it is.
    openssl().SSL_set_session_id_context(
        session_.get(), reinterpret_cast<const unsigned char*>(kIdentity), sizeof(kIdentity));
  }
}

void TlsSession::judge(int result) {
  switch (openssl().SSL_get_error(session_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      return;
    case SSL_ERROR_WANT_WRITE:
      awaits_room_ = true;
      return;
    case SSL_ERROR_ZERO_RETURN:
      flow_ = Flow::kEnded;
      is_closed_there_ = true;
      return;
    case SSL_ERROR_SYSCALL:
      flow_ = Flow::kFailed;
      is_closed_there_ = is_closed_there_ || socket_.is_at_end || socket_.error == ECONNRESET ||
                         socket_.error == EPIPE;
      error_ = socket_.error != 0 ? std::strerror(socket_.error) : "the connection broke off";
      return;
    default:
      flow_ = Flow::kFailed;
      is_closed_there_ = is_closed_there_ ||
                         socket_.is_at_end;  // some versions report an end without a goodbye here
      error_ = "TLS: " + openssl_reason();
      if (const long verified = openssl().SSL_get_verify_result(session_.get());
          verified != X509_V_OK) {
        error_ += std::string(": ") + openssl().X509_verify_cert_error_string(verified);
      }
  }
}

bool TlsSession::shake_hands() {
  if (flow_ == Flow::kFailed) return false;
  if (openssl().SSL_is_init_finished(session_.get()) != 0) return true;
  openssl().ERR_clear_error();  // SSL_get_error looks at what others have left there
  awaits_room_ = false;
  const int result = openssl().SSL_do_handshake(session_.get());
  if (result != 1) judge(result);
  write_kept();
  return result == 1;
}

// Writes the records that OpenSSL has made, as far as there is room.
void TlsSession::write_kept() {
  if (socket_.kept.empty() || write_kept_of(socket_)) return;
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return;
  is_closed_there_ = is_closed_there_ || errno == ECONNRESET || errno == EPIPE;
  if (flow_ == Flow::kFailed) return;
  flow_ = Flow::kFailed;
  error_ = std::strerror(errno);
}

bool TlsSession::flush() {
  awaits_room_ = false;
  if (staged_ > 0) {
    openssl().ERR_clear_error();
    const int result =
        openssl().SSL_write(session_.get(), record_.data(), static_cast<int>(staged_));
    if (result <= 0) {
      judge(result);
      return false;
    }
    staged_ = 0;
  }
  if (is_ending_) {
    openssl().ERR_clear_error();
    const int result =
        openssl().SSL_shutdown(session_.get());  // 0: sent; the peer's has not arrived
    if (result < 0) {
      judge(result);
      return false;
    }
    is_ending_ = false;
  }
  return true;
}

// Copies one record's worth of `parts`, from byte `skip` on.
std::size_t TlsSession::stage(std::span<const iovec> parts, std::size_t skip) {
  for (const iovec& part : parts) {
    const std::size_t skipped = std::min(skip, part.iov_len);
    skip -= skipped;
    const std::size_t bytes = std::min(part.iov_len - skipped, kRecordBytes - staged_);
    if (bytes == 0) continue;
    if (record_.empty()) record_.resize(kRecordBytes);
    std::memcpy(record_.data() + staged_, static_cast<const std::byte*>(part.iov_base) + skipped,
                bytes);
    staged_ += bytes;
  }
  return staged_;
}

// A record that OpenSSL has once tried to write must be written, whatever the caller would rather
// send by then. So a record is copied here, and counts as sent.
Moved TlsSession::send(std::span<const iovec> parts) {
  std::size_t taken = 0;
  if (shake_hands()) {
    while (flush()) {
      const std::size_t bytes = stage(parts, taken);
      taken += bytes;
      if (bytes == 0) break;
    }
    write_kept();
  }
  return {taken, taken == 0 && flow_ == Flow::kFailed ? Flow::kFailed : Flow::kOpen};
}

Moved TlsSession::receive(std::span<const iovec> parts) {
  std::size_t moved = 0;
  if (shake_hands()) {
    for (const iovec& part : parts) {
      for (std::size_t filled = 0; filled < part.iov_len && flow_ == Flow::kOpen;) {
        std::size_t bytes = 0;
        openssl().ERR_clear_error();
        const int result =
            openssl().SSL_read_ex(session_.get(), static_cast<std::byte*>(part.iov_base) + filled,
                                  part.iov_len - filled, &bytes);
        is_drained_ = result != 1;
        if (result != 1) {
          judge(result);
          return {moved, moved == 0 ? flow_ : Flow::kOpen};
        }
        filled += bytes;
        moved += bytes;
      }
    }
  }
  return {moved, moved == 0 ? flow_ : Flow::kOpen};
}

Moved TlsSession::end_writing() {
  is_ending_ = openssl().SSL_is_init_finished(session_.get()) != 0 && flow_ != Flow::kFailed;
  return send({});
}

bool TlsSession::wants_write() const noexcept {
  return awaits_room_ || !socket_.kept.empty() || ((staged_ > 0 || is_ending_) && !awaits_peer());
}

bool TlsSession::awaits_peer() const noexcept {
  return !awaits_room_ && openssl().SSL_is_init_finished(session_.get()) == 0;
}

bool TlsSession::has_buffered() const noexcept {
  return !is_drained_ && openssl().SSL_has_pending(session_.get()) != 0;
}

std::array<std::byte, kBindingBytes> TlsSession::binding() const {
  constexpr std::string_view kLabel = "EXPORTER-Channel-Binding";
  std::array<std::byte, kBindingBytes> bytes{};
  if (openssl().SSL_export_keying_material(
          session_.get(), reinterpret_cast<unsigned char*>(bytes.data()), bytes.size(),
          kLabel.data(), kLabel.size(), nullptr, 0, 1) != 1) {
    throw ConfigError("this OpenSSL does not give what binds the job's key to a TLS connection: " +
                      openssl_reason());
  }
  return bytes;
}

}  // namespace dstorm::net
