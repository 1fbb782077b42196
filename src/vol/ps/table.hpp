// The contract of a table's two sides: its shape, and the messages between a rank's client and the
// servers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dstorm/slot/layout.hpp"
#include "vol/codec.hpp"
#include "vol/dtype.hpp"
#include "vol/ps/rule.hpp"

namespace vol::ps {

// In a job of n ranks the group of a table has 2n members: member r is the client of rank r, member
// n + r its server. The two run in different threads of one process and share nothing but what
// the group gives, so that they wait independently, and end together.
struct TableOptions {
  std::string name;
  std::int64_t rows = 0;
  std::size_t width = 1;
  DType dtype = DType::kFloat32;  // or kFloat64
  double initial = 0;             // each value's, at first
  Rule rule;
  std::vector<int> ranks;   // of the edition that is made next, sorted
  std::vector<int> owners;  // by range: see Placement; empty: there are none
  int replicas = 0;
  std::optional<std::uint64_t> staleness = std::nullopt;  // none: asynchronous
  Codec codec;                    // of pushed gradients and pulled values; not top-k
  double threshold = 0;           // clients hold back rows whose gradients are below it
  std::size_t cached_keys = 0;    // in key lists, that each client and server keep of one another
  std::vector<std::int64_t> hot;  // rows that grow; pulled through trees between hosts (P12)
  int fan_out = 4;                // of these trees
  std::size_t most_kept = std::size_t{1} << 30;
  // Whether the ranks of the job move to another group. A call that waits for other ranks then
  // calls `look_again`, which may block, again and again. It ends with Superseded if that returns
  // false. `is_new`: this wait calls it for the first time. Null: the job has one group.
  std::function<bool()> is_superseded = nullptr;
  std::function<bool(bool is_new)> look_again = nullptr;

  std::size_t row_bytes() const { return width * dtype_size(dtype); }
  Coder coder(std::size_t count) const { return Coder(codec, dtype, count * width, name); }
  // Whether another server may have the rows of a server that is gone: a copy, or what was handed
  // over to it.
  bool may_send_again() const { return replicas > 0 || is_superseded != nullptr; }
  // How many bytes of a client's pushes a server may keep, that holds so many bytes of rows (P16).
  std::size_t most_kept_with(std::size_t held) const { return std::max(most_kept, 16 * held); }
  bool is_bsp() const { return staleness == std::uint64_t{0}; }
};

// The slots of a member: at least a row must fit, and a large message should not wait for a small
// one for long.
inline constexpr std::size_t kSlotBytes = 128 << 10;
inline constexpr int kDepth = 16;
inline constexpr std::size_t kMostRowBytes = 64 << 10;
// Messages of a client's pulls that wait at a server (P14), of a slot each. A client has six on
// their way. When servers die it asks the others, for a stretch of at least 1,024 rows by itself;
// of those a message has at most 32.
inline constexpr std::size_t kMostWaiting = 256;

// In BSP, how many clocks a client may be ahead of another one (P16).
inline constexpr std::uint64_t kMostAhead = 8;

// How a message says which rows it is about.
enum class KeyForm : std::uint32_t {
  kConsecutive,  // `first` is the first one
  kListed,       // their keys follow
  kKept,         // their keys follow; `first` is the number that the list has from now on (P7)
  kNumbered,     // `first` is the number of a list
};

// Answers of a server that a client has not taken (P15): more than a client of a few servers has on
// their way to it.
inline constexpr std::size_t kMostUntaken = kDepth - 4;

struct Head {
  enum class Kind : std::uint32_t {
    // A client to a server, which answers with kAck, kValues, kLost or kFailed of the same id.
    kPush = 1,
    kPull,
    kHotPull,  // P12; also a server to another one, which answers with kHotValues or kLost
    // A client to all servers, without an answer. `id`: how many restores came before (P13). A
    // server sends kClock, too, for the client of its rank.
    kClock,
    kBye,
    // A client to the server of its rank: to end its thread, or to hand over its ranges, which it
    // answers with kHandedOver (P11).
    kStop,
    kHandOver,
    // A client to the server of its rank, for checkpoints (P13); answered with kAck, kBytes or
    // kLost of the same id.
    kAwait,     // until the clients have reached the clocks that follow
    kRead,      // `count` bytes of range `first` from `clock` on: values, then states
    kWrite,     // bytes of range `first` that follow, to `clock` on
    kWritten,   // all bytes of range `first`: copies are to be made
    kContinue,  // from the clocks that follow
    // A server to a client.
    kAck,
    kValues,
    kLost,    // `first` is a row that this server does not have; also to a server
    kFailed,  // why follows, in words
    kAllBye,  // every live client has said kBye
    kShown,   // where the client can read the server's rows in place (P9): a ShownAt follows
    kHandedOver,
    kBytes,  // the answer to kRead
    // A server to another one: a push for its copy, answered with kForwarded of the same id.
    kForward,
    kForwarded,
    // A server to those that hold copies of its ranges: it has applied the pushes of clocks below
    // `clock` that it had kept (P6).
    kApplied,
    kHotValues,  // keys and values; `clock` is that of the rows
    // A server to one that is to hold a copy of range `first`: begins a copy without any push, has
    // a part of its bytes from `clock` on, or ends it with the numbers of the pushes that it has.
    // The end is answered with kForwarded if it has an id.
    kCopyBegin,
    kCopyPart,
    kCopyEnd,
    // A server to the others: it hands over its ranges; answered with kLeavingKnown of the same id.
    kLeaving,
    kLeavingKnown,
  };
  Kind kind;
  std::uint32_t client;  // whose push it is
  std::uint64_t id;      // of this message, by its sender; an answer has that of the question
  std::uint64_t push;    // the number of the client's push
  std::uint64_t clock;   // the client's; kPull: the clock that all clients must have reached
  std::int64_t first;
  std::uint64_t count;  // rows
  KeyForm keys;
  std::uint32_t unused;

  bool has_keys() const { return keys == KeyForm::kListed || keys == KeyForm::kKept; }
};
static_assert(sizeof(Head) == 56);
// The rest begins at a multiple of eight bytes: keys, then values.
inline constexpr std::size_t kHeadBytes = dstorm::kLine;
inline constexpr std::size_t kRoom = kSlotBytes - kHeadBytes;

// As the clock of a rank that Head::Kind::kAwait tells a server.
inline constexpr std::uint64_t kIsDead = std::numeric_limits<std::uint64_t>::max();

inline Head head_of(std::span<const std::byte> message) {  // of at least kHeadBytes
  Head head;
  std::memcpy(&head, message.data(), sizeof(head));
  return head;
}

// Encodes values, which lie one after the other.
inline void encode(Coder& coder, DType dtype, const std::byte* values, std::byte* to) {
  const std::size_t size = dtype_size(dtype);
  coder.encode(to, [=](std::byte* place, std::size_t first, std::size_t last) {
    std::memcpy(place, values + first * size, (last - first) * size);
  });
}

}  // namespace vol::ps
