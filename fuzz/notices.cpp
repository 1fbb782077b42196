// What a peer posts to an exchange, and to the making of a segment.
//
// input: what to do (1 byte), then the peer's two notices
#include "wild_peer.hpp"

namespace fuzz {

void run(Input input) {
  static const WildPeer peer;
  const auto what = input.take<std::uint8_t>();
  peer.post((what & 1) != 0 ? "segment 'w', step 1" : "barrier");
  const auto notices = std::as_writable_bytes(std::span(peer.member().notices));
  // Past the end of the input the peer says what it should.
  const auto given = input.bytes(notices.size());
  if (!given.empty()) std::memcpy(notices.data(), given.data(), given.size());
  is_refused([&] {
    if ((what & 1) != 0) {
      const dstorm::Segment segment(peer.group(), {.name = "w", .slot_bytes = 8});
    } else {
      const auto posts = peer.group()->exchange("barrier", {});
      require(posts.size() == kRanks && posts[kPeer].has_value(), "everyone's bytes, by rank");
      require(posts[kPeer]->size() <= dstorm::Group::kMostExchanged, "no more than there can be");
    }
  });
}

}  // namespace fuzz
