// What goes over a connection after the handshake, both ways: frames, a fixed header and then a body
// whose length the header gives.
//
// What the caller says is what one of its own words in its host's memory now is, never what to do; a
// connection that is made anew says it all again, and what is known already changes nothing. The
// callee answers with how many bytes of frames it has taken in so far, at least four times in the
// time after which it would count as silent: that is its heartbeat too.
//
// Two ranks that are each other's proxies share a connection, so that what one says acknowledges what
// the other has said, in the same packet.
//
// Where both ends have RDMA, they introduce their queue pairs, the callee says where the caller may
// write, and updates, clocks and cursors go that way instead; the rest stays here. These frames bear
// a proof of their own (authenticate() over the frame and both ranks), since a forged address would
// be written to.
//
// Both ends are little-endian, which the handshake makes sure of (docs/transports.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "dstorm/remote/tcp/handshake.hpp"
#include "dstorm/remote/verbs/queue.hpp"
#include "dstorm/slot/layout.hpp"

namespace dstorm::remote {

enum class FrameKind : std::uint32_t {
  kBeat = 1,      // the caller is well; no body
  kNotice = 2,    // its post for an exchange: NoticeHead, then what it is, then the bytes
  kUpdate = 3,    // its update, for ranks of the callee's host: SlotHeader, Ticketed..., payload
  kClock = 4,     // its clock, and no update: 64 bits
  kCursors = 5,   // what it has folded of senders on the callee's host: CursorBody...
  kClosed = 6,    // it has closed the segment; no body
  kLeave = 7,     // it leaves the job and sends nothing after this; no body
  kEndpoint = 8,  // either end's queue pair: EndpointBody
  kTaken = 9,     // of the callee: bytes taken in, 64 bits
  kWindow = 10,   // of the callee: where a segment may be written: verbs::Target of the caller's
                  // inbox, then of the cursors of each rank of the host, then Mac
  kRecord = 11,   // where it stands in the membership (membership_record.hpp)
  kShare = 12,    // of the callee: from here on it speaks as a caller, too, whose call has this
                  // number, 64 bits; what answers the caller comes in between
};

struct FrameHead {
  FrameKind kind;
  std::uint32_t segment;  // by the order in which the job made them; 0 where none is concerned
  std::uint64_t bytes;    // of the body
};
static_assert(sizeof(FrameHead) == 16);

struct NoticeHead {
  std::uint64_t number;
  std::uint32_t what_bytes;
  std::uint32_t bytes;
};
static_assert(sizeof(NoticeHead) == 16);

// One receiver of an update. How many follow the SlotHeader is what the lengths leave room for.
struct Ticketed {
  std::uint64_t ordinal;
  std::uint32_t receiver;
  std::uint32_t unused;
};
static_assert(sizeof(Ticketed) == 16);

// One sender's Cursor.
struct CursorBody {
  std::uint64_t consumed, folded, overwritten, rejected, ordinal;
  std::uint32_t sender;
  std::uint32_t unused;
};
static_assert(sizeof(CursorBody) == 48);

struct EndpointBody {
  verbs::Endpoint endpoint;
  tcp::Mac proof;
};
static_assert(sizeof(EndpointBody) == 64);

// The proof of a frame on the connection that `call` made: over all of it but the proof itself.
tcp::Mac prove(const tcp::Key& key, const FrameHead& head, std::span<const std::byte> body,
               const tcp::Introduction& call);
bool is_proof(std::span<const std::byte> given,
              const tcp::Mac& right);  // takes the same time for all

}  // namespace dstorm::remote
