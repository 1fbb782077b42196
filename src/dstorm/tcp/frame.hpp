// What goes over a connection after the handshake. The caller's bytes are frames: a fixed header,
// then a body whose length the header gives. The callee answers with bare 64-bit numbers: how many
// bytes of frames it has taken in so far, at least one every kBeat; they are its heartbeat too.
//
// A frame says what one of the caller's own words in its host's memory now is, never what to do;
// a connection that is made anew says it all again, and what is known already changes nothing.
// Both ends are little-endian, which the handshake makes sure of (docs/transports.md).
#pragma once

#include <cstddef>
#include <cstdint>

#include "dstorm/slot.hpp"

namespace dstorm::tcp {

enum class FrameKind : std::uint32_t {
  kBeat = 1,    // the caller is well; no body
  kNotice = 2,  // its post for an exchange: NoticeHead, then what it is, then the bytes
  kUpdate = 3,  // its update, for ranks of the callee's host: SlotHeader, Ticketed..., payload
  kClock = 4,   // its clock, and no update: 64 bits
  kCursors = 5,  // what it has folded of senders on the callee's host: CursorBody...
  kClosed = 6,   // it has closed the segment; no body
  kLeave = 7,    // it leaves the job and sends nothing after this; no body
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

}  // namespace dstorm::tcp
