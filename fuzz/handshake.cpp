// Someone on the way between a caller and the rank it calls, who changes what they say and cuts it
// into pieces; or who is all there is at the other end.
//
// input: who is real (1 byte), then pieces: towards whom (1 bit) and length (7 bits), changes to
// the first bytes of the piece, or the piece itself
#include "dstorm/remote/net/handshake.hpp"

#include "tcp_host.hpp"

namespace fuzz {
namespace {

using dstorm::net::Handshake;
using dstorm::net::Stream;
using Step = Handshake::Step;

constexpr std::uint32_t kCaller = 3, kCallee = 7;
constexpr std::size_t kMostBytes = 64;  // of a piece

// One end's handshake, over a stream whose other end the target has.
struct End {
  explicit End(Handshake made)
      : handshake(std::move(made)),
        stream(Stream::accept(std::move(ends.here), nullptr, std::chrono::seconds(5))) {}
  void go() {
    if (step == Step::kWaiting) step = handshake.advance(stream);
    require(step != Step::kRefused || !handshake.reason().empty(), "who refuses says why");
  }
  std::vector<std::byte> said(std::size_t most) const {
    std::vector<std::byte> bytes(most);
    const ssize_t got = recv(ends.there.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    bytes.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
    return bytes;
  }

  Ends ends;
  Handshake handshake;
  Stream stream;
  Step step = Step::kWaiting;
};

}  // namespace

void run(Input input) {
  static const auto place = dstorm::net::Address::parse("192.0.2.9", 41000).value();
  const bool is_relayed = (input.take<std::uint8_t>() & 1) != 0;
  const dstorm::net::Key key{};
  End caller(Handshake::caller(key, {.rank = kCaller, .to = kCallee, .number = 11}, place));
  End callee(Handshake::callee(key, kCallee, place));
  bool is_changed = !is_relayed;
  while (!input.empty()) {
    const auto head = input.take<std::uint8_t>();
    const std::size_t length = std::min<std::size_t>(head >> 1, kMostBytes);
    End& to = (head & 1) != 0 ? callee : caller;
    caller.go();
    callee.go();
    const std::span<const std::byte> given = input.bytes(length);
    if (!is_relayed) {
      raw_send(to.ends.there, given);
    } else {
      std::vector<std::byte> piece = (&to == &callee ? caller : callee).said(kMostBytes);
      for (std::size_t i = 0; i < std::min(piece.size(), given.size()); ++i) {
        piece[i] ^= given[i];
        is_changed = is_changed || given[i] != std::byte{0};
      }
      raw_send(to.ends.there, piece);
    }
  }
  caller.go();
  callee.go();
  require(!is_changed || caller.step != Step::kDone, "a changed word convinces no caller");
  if (callee.step != Step::kDone) return;
  const dstorm::net::Introduction& who = callee.handshake.introduction();
  require(is_relayed && who.rank == kCaller && who.to == kCallee && who.number == 11,
          "who is let in is who called");
}

}  // namespace fuzz
