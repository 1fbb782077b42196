// Rows that a server shows to the clients on its host, which read them in its memory.
//
// The memory is an array of the table's values, of which a server backs with pages those of the
// ranges that it has changed as their primary.
//  P9 A pull that reads in place gets, for each range, what the server's thread would have answered
//     at some time during the pull. Otherwise it goes by a message.
//     (a) A range has a version: 0 until the server shows it, and odd while its values change. A
//         client takes what it has copied if the version was even before and is the same after
//         (Boehm, "Can seqlocks get along with programming language memory models?", MSPC 2012).
//         Only the primary shows a range, and it stays the primary as long as it is live (P4).
//     (b) The server stores its lowest clock after it has applied the pushes that this clock lets
//         through. A client loads it before the values. So it has what P5 says, and at staleness 0
//         no more (P6), because the lowest clock is not above the client's own.
//     (c) A client reads in place only when the server has acknowledged all its pushes. So its
//         pushes come before the pull.
//     (d) After the copy the client finds that the server is live, and at the end of the pull that
//         the client is so itself. All ranks are on one host, which has one record of who is live.
//         So no other server has taken over yet, and no server has gone on without the client.
//     A server that is stopped or dies during a change leaves an odd version: the client looks a
//     few times, then sends a message, which waits and ends as every pull does. If the server was
//     evicted and goes on later, it writes to memory that nobody takes values from (d). The memory
//     stays as long as a client maps it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "dstorm/host/memory.hpp"
#include "vol/ps/placement.hpp"
#include "vol/ps/rule.hpp"
#include "vol/ps/table.hpp"

namespace vol::ps {

// The body of Head::Kind::kShown: where a client finds the memory.
struct ShownAt {
  std::int32_t process;
  std::int32_t descriptor;
  dstorm::host::Token token;
};

// Of a range: see P9 (a).
using Version = std::atomic<std::uint64_t>;

// The place of the values of a range that is shown.
struct ShownRange {
  std::byte* values;
  Version* version;
};

// A change of a range by the server's thread, from the constructor to the destructor. The writes in
// between are plain: a fence comes before them and a release after them. The clients read through
// mappings of their own, so no compiler sees both sides.
class Change {
 public:
  explicit Change(Version* version);  // null: the range is not shown
  ~Change();
  Change(const Change&) = delete;
  Change& operator=(const Change&) = delete;

 private:
  Version* version_;
};

// In this order: a token, a clock, a version for each range, the rows.
class ShownRows {
 public:
  // The server's. Throws ConfigError.
  ShownRows(const TableOptions& options, const Placement& placement);
  // A client's. Throws ConfigError if this process may not open the memory.
  ShownRows(const TableOptions& options, const Placement& placement, const ShownAt& at);

  // ---- the server
  ShownAt at() const;
  // Backs the rows of a range with pages. The first Change shows it. Throws ConfigError if there is
  // no room.
  ShownRange reserve(std::size_t range);
  void set_clock(std::uint64_t clock) { this->clock().store(clock, std::memory_order_release); }

  // ---- a client
  // Copies rows of one range, if all clients have reached `clock`. Returns false if they have to be
  // asked for.
  bool read(std::uint64_t clock, const Rows& rows, std::byte* to) const;

 private:
  ShownRows(const TableOptions& options, const Placement& placement, dstorm::host::Memory memory);

  std::atomic<std::uint64_t>& clock() const;
  Version& version(std::size_t range) const;
  const std::byte* row(std::int64_t number) const {
    return rows_ + static_cast<std::size_t>(number) * row_bytes_;
  }
  void copy(const Rows& rows, std::byte* to) const;

  const Placement& placement_;
  std::string what_;
  std::size_t row_bytes_;
  dstorm::host::Memory memory_;
  std::byte* rows_;
};

}  // namespace vol::ps
