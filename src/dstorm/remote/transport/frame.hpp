// The frames that a connection carries after the handshake, in both directions: a fixed header,
// then a body whose length the header gives.
//
// The rank that made the connection is the caller, the other one the callee. The caller sends the
// present value of words of its own in its host's memory, never commands. On a new connection it
// sends all of them again; receiving one twice changes nothing. The callee answers with the number
// of bytes of frames that it has taken in. If the two hosts exchange heartbeats (Membership), it
// answers at least four times in suspect_after, so its answers are also its heartbeat; if not, only
// while something comes.
//
// Two ranks that are each other's proxies share one connection. Frames of either then acknowledge
// those of the other in the same packet.
//
// If updates go by adapters, both ends introduce theirs, and the callee says what the caller has to
// know of each segment. Updates, clocks and cursors then go beside the connection; everything else
// stays on it. The frames that introduce carry a proof of their own (authenticate() over the frame
// and both ranks), because an adapter would write to a forged address.
//
// Both ends are little-endian; the handshake checks that (docs/transports.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "dstorm/errors.hpp"
#include "dstorm/remote/net/handshake.hpp"
#include "dstorm/slot/layout.hpp"

namespace dstorm::remote {

enum class FrameKind : std::uint32_t {
  kBeat = 1,    // heartbeat of the caller; no body
  kNotice = 2,  // the caller's post for an exchange: NoticeHead, the call's name, the bytes
  // an update of the caller, for ranks of the callee's host: SlotHeader, Ticketed..., payload
  kUpdate = 3,
  kClock = 4,     // the caller's clock, without an update: 64 bits
  kCursors = 5,   // how far the caller has folded senders of the callee's host: CursorBody...
  kClosed = 6,    // the caller has closed the segment; no body
  kLeave = 7,     // the caller leaves the job and sends nothing after this; no body
  kEndpoint = 8,  // the adapter of either end, in the transport's own form, then a Mac
  kTaken = 9,     // from the callee: bytes taken in so far, 64 bits
  // From the callee: what the caller's adapter has to know of a segment, in the transport's own
  // form, then a Mac.
  kWindow = 10,
  kRecord = 11,  // the caller's membership record (membership/record.hpp)
  // From the callee: from here on it also speaks as a caller, and this is the number of its call,
  // 64 bits. Its answers to the first caller come in between.
  kShare = 12,
  kDropped = 13,  // the caller has dropped the segment, unused; no body
  // the number of an exchange that the caller has given up, 64 bits; after its notice
  kAbandoned = 14,
};

struct FrameHead {
  FrameKind kind;
  std::uint32_t segment;  // in the order in which the job made them; 0: none
  std::uint64_t bytes;    // of the body
};
static_assert(sizeof(FrameHead) == 16);

struct NoticeHead {
  std::uint64_t number;
  std::uint32_t what_bytes;
  std::uint32_t bytes;
};
static_assert(sizeof(NoticeHead) == 16);

// One receiver of an update. The lengths in the frame say how many follow the SlotHeader.
struct Ticketed {
  std::uint64_t ordinal;
  std::uint32_t receiver;
  std::uint32_t unused;
};
static_assert(sizeof(Ticketed) == 16);

// The Cursor of one sender.
struct CursorBody {
  std::uint64_t consumed, folded, overwritten, rejected, ordinal;
  std::uint32_t sender;
  std::uint32_t unused;
};
static_assert(sizeof(CursorBody) == 48);

// The longest body of kEndpoint.
constexpr std::size_t kMostEndpointBytes = 256;

// The proof of a frame on the connection that `call` made, over the whole frame but the proof
// itself.
net::Mac prove(const net::Key& key, const FrameHead& head, std::span<const std::byte> body,
               const net::Introduction& call);
bool is_proof(std::span<const std::byte> given,
              const net::Mac& right);  // takes the same time for all

// A frame breaks the protocol. A rank with the job's key cannot cause it, unless its memory is
// damaged.
class BrokenRule : public Error {
 public:
  using Error::Error;
};

inline void require(bool condition, const char* rule) {
  if (!condition) throw BrokenRule(std::string("it sent a frame with ") + rule);
}

template <class Part>
Part get(std::span<const std::byte> bytes, std::size_t at = 0) {
  Part part;
  std::memcpy(&part, bytes.data() + at, sizeof(part));
  return part;
}

}  // namespace dstorm::remote
