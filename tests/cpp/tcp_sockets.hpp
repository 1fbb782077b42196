// Connections over the loopback interface, and tools for their other end.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dstorm/remote/net/address.hpp"
#include "dstorm/remote/net/stream.hpp"
#include "dstorm/remote/net/tls.hpp"

namespace testing_sockets {

using dstorm::Descriptor;
using dstorm::UnforkedDescriptor;
using dstorm::net::Address;
using dstorm::net::Flow;
using dstorm::net::Moved;
using dstorm::net::Stream;
using dstorm::net::TlsContext;
using namespace std::chrono_literals;

inline Address loopback(int family) {
  return Address::parse(family == AF_INET ? "127.0.0.1" : "::1").value();
}

// This process's connections.
inline std::vector<int> connections() {
  std::vector<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename());
    sockaddr_in peer{};
    socklen_t bytes = sizeof(peer);
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &bytes) == 0) found.push_back(fd);
  }
  return found;
}

// A listening socket on the loopback interface.
struct ListeningSocket {
  explicit ListeningSocket(int family = AF_INET)
      : ListeningSocket(dstorm::net::listen_at(loopback(family))) {}
  explicit ListeningSocket(std::pair<UnforkedDescriptor, Address> made)
      : socket(std::move(made.first)), at(made.second) {}

  Descriptor accept() const {  // the next connection, which must come
    pollfd wait{socket.get(), POLLIN, 0};
    poll(&wait, 1, 5000);
    Descriptor accepted(accept4(socket.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    EXPECT_TRUE(accepted);
    return accepted;
  }

  UnforkedDescriptor socket;
  Address at;
};

// A connected socket that blocks for two seconds at most: that of an attacker, which does not use
// streams.
inline Descriptor raw_connect(const Address& to) {
  Descriptor made(socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval limit{2, 0};
  setsockopt(made.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  const int on = 1;
  setsockopt(made.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  EXPECT_EQ(connect(made.get(), to.get(), to.size()), 0) << to.text();
  return made;
}

inline bool raw_send(const Descriptor& to, std::string_view bytes) {
  return send(to.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(bytes.size());
}

// The bytes that are there now, without blocking; nullopt once the other end has closed.
inline std::optional<std::string> raw_take(const Descriptor& from) {
  char bytes[4096];
  const ssize_t got = recv(from.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
  if (got > 0) return std::string(bytes, static_cast<std::size_t>(got));
  if (got < 0 && errno == EAGAIN) return std::string();
  return std::nullopt;
}

inline Moved send_text(Stream& stream, std::string_view text) {
  const iovec part{const_cast<char*>(text.data()), text.size()};
  return stream.send({&part, 1});
}

inline std::pair<std::string, Flow> take_text(Stream& stream) {
  char bytes[4096];
  const iovec part{bytes, sizeof(bytes)};
  const Moved moved = stream.receive({&part, 1});
  return {std::string(bytes, moved.bytes), moved.flow};
}

// Calls step() until it returns true, but no longer than a busy machine needs.
template <class Step>
bool eventually(Step&& step) {
  const auto deadline = std::chrono::steady_clock::now() + 60s;
  while (std::chrono::steady_clock::now() < deadline) {
    if (step()) return true;
    poll(nullptr, 0, 0);
  }
  return false;
}

// A stream and the one at its other end.
struct Pair {
  explicit Pair(int family = AF_INET, const TlsContext* calling = nullptr,
                const TlsContext* called = nullptr) {
    const ListeningSocket listener(family);
    caller.emplace(Stream::connect(listener.at, loopback(family), calling, 5s));
    callee.emplace(Stream::accept(listener.accept(), called, 5s));
  }
  std::optional<Stream> caller, callee;
};

// A folder that is removed with its owner.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "malt-test-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::filesystem::filesystem_error(name, {});
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

// A certificate authority, made for the test, and the folders that it issues to ranks.
class Authority {
 public:
  Authority() {
    run("req -x509 " + kNewKey + " -keyout " + (folder_ / "ca-key.pem") + " -out " +
        (folder_ / "ca.pem") + " -subj /CN=authority -days 2");
  }
  // A folder as MALT_TLS wants it. `more`: further options of `openssl req`.
  void issue(const Folder& to, const std::string& more = "-days 2") const {
    run("req -x509 " + kNewKey + " -CA " + (folder_ / "ca.pem") + " -CAkey " +
        (folder_ / "ca-key.pem") + " -keyout " + (to / "key.pem") + " -out " + (to / "cert.pem") +
        " -subj /CN=rank -addext basicConstraints=critical,CA:FALSE " + more);
    std::filesystem::copy_file(folder_ / "ca.pem", to / "ca.pem",
                               std::filesystem::copy_options::overwrite_existing);
  }
  // Makes the certificate one that expired a day ago.
  void expire(const Folder& in) const {
    run("req -new -key " + (in / "key.pem") + " -subj /CN=rank -out " + (in / "request.pem"));
    run("x509 -req -in " + (in / "request.pem") + " -CA " + (folder_ / "ca.pem") + " -CAkey " +
        (folder_ / "ca-key.pem") + " -days -1 -out " + (in / "cert.pem"));
  }

 private:
  static inline const std::string kNewKey = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
  static void run(const std::string& command) {
    if (std::system(("openssl " + command + " 2>/dev/null").c_str()) != 0) {
      throw std::runtime_error("failed: openssl " + command);
    }
  }

  Folder folder_;
};

// A rank's context, issued by `authority`.
struct Credentials {
  explicit Credentials(const Authority& authority, const std::string& more = "-days 2") {
    authority.issue(folder, more);
    context.emplace(folder.path());
  }
  Folder folder;
  std::optional<TlsContext> context;
};

// Two ranks of one authority.
struct TlsEnds {
  Authority authority;
  Credentials caller{authority}, callee{authority};
};

}  // namespace testing_sockets
