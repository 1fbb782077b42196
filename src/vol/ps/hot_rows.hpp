// Hot rows, which many ranks pull: each comes to them through a tree of servers that keep it, so
// that no server is asked by all ranks (Karger et al., "Consistent hashing and random trees:
// distributed caching protocols for relieving hot spots", STOC 1997).
//  P12 A pull of hot rows is as fresh as the staleness asks for (P5, P6). Its rows may be older
//     than the primary's.
//     (a) Each range has a tree of its own. Its places are the live servers in the range's order:
//         the primary is the root, and place i asks place (i - 1) / TableOptions::fan_out. A client
//         asks where its rank's server would; the root's client asks the root. Each asks an earlier
//         place of the order, so no question goes in a circle, whichever deaths are known where.
//     (b) A primary sends a row with the clock that all clients have reached. A server that is sent
//         a row keeps it with that clock. It gives the row to those that ask for this clock or an
//         earlier one; for a later one it asks its own parent. At staleness 0 a client that asks
//         for its clock t has not passed t, so no row has a later clock than t then.
//     (c) A server asks once for a row and clock, however many ask it meanwhile, and not before all
//         clients have reached the clock. So whoever waits for the answer to another one's
//         question does not wait for a clock to which no rank may come without that answer.
//     (d) Questions to a dead server go to the one that has its place in the tree now.
//     (e) A server is answered with the rows that are here, and with the others when they come. For
//         a question is about rows of several ranges, whose trees differ, and servers that waited
//         for whole answers could wait for one another in a circle.
//     The client's own pushes of later clocks than the one it asks for may not be in the rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace vol::ps {

// The hot rows that a server has of others, and what it has asked for.
class HotRows {
 public:
  explicit HotRows(std::size_t row_bytes) : row_bytes_(row_bytes) {}

  // Copies the row to `to` and returns its clock; none if it is not here or of an earlier clock.
  std::optional<std::uint64_t> read(std::int64_t key, std::uint64_t clock, std::byte* to) const;
  // Notes that the row is asked for in question `id` to `server`; returns false if it has been
  // asked for already, at this clock or a later one (P12 (c)).
  bool ask(std::int64_t key, std::uint64_t clock, int server, std::uint64_t id);
  // Keeps a row that has come in the answer to question `id`.
  void take(std::int64_t key, std::uint64_t clock, std::span<const std::byte> values,
            std::uint64_t id);
  // Forgets what was asked in questions that get no answer, or have got it.
  void forget(const std::function<bool(int server, std::uint64_t id)>& is_over);

 private:
  struct Asked {
    std::uint64_t clock;
    int server;
    std::uint64_t id;
  };
  struct Row {
    std::uint64_t clock = 0;
    std::vector<std::byte> values = {};  // empty: it has not come yet
    std::optional<Asked> asked = std::nullopt;
  };

  std::size_t row_bytes_;
  std::unordered_map<std::int64_t, Row> rows_;  // by key; as many as the table has hot rows
};

}  // namespace vol::ps
