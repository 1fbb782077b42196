// Strangers at the listener, several at once.
//
// input: pieces: which stranger (3 bits), whether it then hangs up (1 bit), length (4 bits, times
// 8), the bytes
#include "dstorm/remote/net/listener.hpp"

#include <sys/un.h>

#include "tcp_host.hpp"

namespace fuzz {
namespace {

// A listening_socket of no port, of which there are not enough for so many calls, at a name of the
// system's choice that no file has.
struct ListeningSocket {
  ListeningSocket() : socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) {
    const sa_family_t unnamed = AF_UNIX;
    require(bind(socket.get(), reinterpret_cast<const sockaddr*>(&unnamed), sizeof(unnamed)) == 0 &&
                listen(socket.get(), SOMAXCONN) == 0 &&
                getsockname(socket.get(), reinterpret_cast<sockaddr*>(&name), &bytes) == 0,
            "a listening_socket is made");
  }
  dstorm::Descriptor call() const {
    dstorm::Descriptor made(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    require(connect(made.get(), reinterpret_cast<const sockaddr*>(&name), bytes) == 0,
            "a stranger may call");
    return made;
  }
  dstorm::Descriptor socket;
  sockaddr_un name{};
  socklen_t bytes = sizeof(name);
};

}  // namespace

void run(Input input) {
  using dstorm::net::Listener;
  constexpr std::size_t kStrangers = 8;
  ListeningSocket listening_socket;
  const ListeningSocket& at = listening_socket;
  Listener listener(std::move(listening_socket.socket), {}, 7,
                    dstorm::net::Address::parse("192.0.2.9", 41000).value(), nullptr,
                    std::chrono::seconds(5), std::chrono::seconds(5));
  std::array<dstorm::Descriptor, kStrangers> strangers;
  std::uint64_t calls = 0;
  while (!input.empty()) {
    const auto head = input.take<std::uint8_t>();
    dstorm::Descriptor& stranger = strangers[head % kStrangers];
    if (!stranger) {
      stranger = at.call();
      ++calls;
    }
    raw_send(stranger, input.bytes(static_cast<std::size_t>(head >> 4) * 8));
    if ((head & 8) != 0) stranger = dstorm::Descriptor();
    require(listener.ready().empty(), "nobody comes in without the key");
    require(listener.half_open() <= Listener::kMostHalfOpen, "half-open connections are few");
    require(listener.refused() + listener.dropped() + listener.half_open() == calls,
            "no call is forgotten");
    require(listener.refused() == 0 || !listener.last_refusal().empty(), "a refusal has a reason");
  }
}

}  // namespace fuzz
