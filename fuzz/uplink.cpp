// What the rank that was called answers, once it has proved that it has the job's key.
//
// input: number of pieces (1 byte), the pieces' lengths (1 byte each), the answers
#include "dstorm/remote/uplink.hpp"
#include "dstorm/slot/writer.hpp"

#include "tcp_host.hpp"
#include "tcp_sockets.hpp"

namespace fuzz {
namespace {

using dstorm::net::Handshake;
using dstorm::remote::Uplink;

// A rank's own memory, with an update for the host of ranks 0 and 1.
struct Sender {
  Sender() : host(dstorm::Policy::kLatest) {
    const dstorm::host::SegmentMemory& memory = host.memory();
    dstorm::SlotWriter writer(host.box(kSender), kSender);
    const int slot = writer.claim(dstorm::Policy::kLatest, [](int) { return true; });
    dstorm::SlotHeader header{};
    header.iteration = 1;
    header.payload_bytes = memory.shape().mailbox.slot_bytes();
    writer.publish(slot, header, std::array{0, 1});
  }
  TcpHost host;
  testing_sockets::ListeningSocket listener;
  dstorm::remote::Settings settings = settings_at(listener.at);
};

}  // namespace

void run(Input input) {
  static const Sender sender;
  const auto now = dstorm::Clock::now();
  dstorm::host::Control& control = sender.host.control(kSender);
  Uplink uplink(control, sender.settings, control.hosts()[0]);
  uplink.call(1, now);
  dstorm::net::Stream stream =
      dstorm::net::Stream::accept(sender.listener.accept(), nullptr, sender.settings.suspect_after);
  stream.reset_at_end();  // leaves no port behind that cannot be used for a minute
  Handshake handshake = Handshake::callee(
      sender.settings.key, static_cast<std::uint32_t>(uplink.proxy()), sender.listener.at);
  require(testing_sockets::eventually([&] {
            uplink.pump(sender.host.attachments, false, true, false, now);
            return handshake.advance(stream) == Handshake::Step::kDone &&
                   uplink.state() == Uplink::State::kUp;
          }),
          "both have the key");
  uplink.pump(sender.host.attachments, false, true, false, now);

  const std::size_t pieces = input.take<std::uint8_t>() % 8;
  std::array<std::size_t, 9> lengths{};
  for (std::size_t i = 0; i < pieces; ++i) lengths[i] = input.take<std::uint8_t>();
  lengths[pieces] = 64 * 1024;  // the rest
  for (std::size_t i = 0; i <= pieces; ++i) {
    const std::span<const std::byte> piece = input.bytes(lengths[i]);
    const iovec part{const_cast<std::byte*>(piece.data()), piece.size()};
    if (!piece.empty()) stream.send({&part, 1});
    uplink.pump(sender.host.attachments, false, true, false, now);
    if (uplink.take_shared()) return;  // the rest is its partner's
    const bool is_over = uplink.state() == Uplink::State::kOver;
    require(is_over || uplink.state() == Uplink::State::kUp, "it goes on or is over");
    require(!is_over || !uplink.reason().empty(), "who gives up says why");
  }
}

}  // namespace fuzz
