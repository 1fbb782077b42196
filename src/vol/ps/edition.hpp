// The ranks' agreement when a table moves to the next group of the job: see P10 in server.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace vol::ps {

// A rank's state from the last edition, after its server has stopped. A rank that joins brings
// nothing.
struct Brought {
  struct Range {
    std::uint32_t number;
    std::uint16_t place;   // of this server in the order of the last edition
    std::uint16_t source;  // the place of the latest primary that this server knows
    // Of the numbers of the pushes in it. Two primaries may apply the same pushes in another order;
    // so rows are equal where both this and the source are.
    std::uint64_t check;
  };
  std::uint64_t clock = 0;
  std::uint64_t has_closed = 0;          // 1: its client has begun to close the table
  std::vector<std::uint64_t> pushes;     // by client: the last one that this rank knows
  std::vector<std::uint32_t> ranks;      // of the last edition
  std::vector<std::uint32_t> dead;       // servers of the last edition, as far as this rank knows
  std::vector<std::uint32_t> lost_with;  // ranks whose deaths have lost rows before
  std::vector<Range> ranges;             // that this server has whole

  std::vector<std::byte> pack() const;
  // Throws Error if they are not the bytes of one.
  static Brought unpack(std::span<const std::byte> bytes);
};

// All ranks make the same one.
struct Edition {
  // `brought`: by rank; none: the rank joins, or is not there.
  Edition(std::span<const std::optional<Brought>> brought, std::size_t ranges);

  struct Range {
    int sender = -1;          // the server whose rows count; -1: the rows are lost
    std::vector<int> having;  // servers with the same rows, the sender among them
  };
  std::vector<std::uint64_t> clocks;  // by client
  std::vector<std::uint64_t> pushes;  // by client: its next push has a greater number
  std::vector<int> lost_with;         // ranks; empty unless rows are lost
  std::vector<Range> ranges;

 private:
  bool find_senders(std::span<const std::optional<Brought>> brought,
                    const std::vector<bool>& is_dead);
};

}  // namespace vol::ps
