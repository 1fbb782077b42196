// The mailbox of a peer whose memory is wild, as a gather reads it: clock, tickets, cursors,
// headers.
//
// input: what to do (1 byte), then the mailbox
#include "dstorm/segment.hpp"

#include "wild_peer.hpp"

namespace fuzz {
namespace {

constexpr std::size_t kSlotBytes = 40;  // ends within a line, so that what follows can be poisoned

void gather(dstorm::Segment& segment, const WildMailbox& mailbox,
            const dstorm::GatherOptions& options) {
  std::uint64_t before = 0;
  const std::size_t count = segment.gather(options, [&](std::span<const dstorm::Update> updates) {
    require(updates.size() <= static_cast<std::size_t>(segment.options().depth),
            "no more updates than slots");
    for (const dstorm::Update& update : updates) {
      require(update.rank == kPeer, "an update is its sender's");
      require(mailbox.gave(update.payload), "a payload lies in its slot, or was put by");
      require(update.iteration > before, "updates come in order, each once");
      before = update.iteration;
    }
  });
  const dstorm::Mailbox box(segment.parts().state.memory().mailbox(kPeer),
                            segment.parts().state.shape());
  require(count == 0 || box.cursor(0).consumed == before, "what is folded is consumed");
}

}  // namespace

void run(Input input) {
  static const WildPeer peer;
  const auto what = input.take<std::uint8_t>();
  peer.agree();
  dstorm::SegmentOptions options{.name = "w", .slot_bytes = kSlotBytes};
  options.policy = (what & 1) != 0 ? dstorm::Policy::kQueue : dstorm::Policy::kLatest;
  dstorm::Segment segment(peer.group(), options);
  const std::size_t scatters = what >> 1 & 3;
  for (std::size_t i = 0; i < scatters && i < 2; ++i) segment.scatter(std::span<const std::byte>());
  segment.parts().state.memory().closed(kPeer) = what >> 3 & 1;
  const WildMailbox mailbox(segment, input.rest());
  is_refused([&] {
    gather(segment, mailbox, gather_options(what >> 4));
    gather(segment, mailbox, gather_options(what >> 6));
    segment.scatter(std::span<const std::byte>());
  });
  segment.stats();
}

}  // namespace fuzz
