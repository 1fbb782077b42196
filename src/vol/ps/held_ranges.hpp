// The ranges of rows that a server holds, as their primary or as a copy.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "vol/ps/range.hpp"
#include "vol/ps/server_state.hpp"
#include "vol/ps/shown_rows.hpp"

namespace vol::ps {

struct Held {
  std::shared_ptr<Range> range;   // null: this server does not have it
  std::unique_ptr<Range> coming;  // a copy whose bytes are arriving; `range` stays until then
  bool is_primary = false;
  int source = 0;             // place in the order of the latest primary known (P4)
  std::uint64_t applied = 0;  // a copy: the clock of its source's last kApplied (P6)
  int mover = -1;           // the server that hands it to this one; -1: none, or it has come (P10)
  std::vector<int> copies;  // primary: the servers that are to have every push
};

struct Stretch {  // rows of one range among those of a message
  std::size_t begin, end;
  std::size_t range;
};

// By number.
class HeldRanges {
 public:
  // The ranges that are this server's by the placement. `are_empty`: none has any rows yet.
  HeldRanges(ServerState& state, bool are_empty);

  std::size_t size() const { return held_.size(); }
  Held& operator[](std::size_t range) { return held_[range]; }
  const Held& operator[](std::size_t range) const { return held_[range]; }
  std::unique_ptr<Range> make(std::size_t range) const;
  std::vector<Stretch> stretches_of(const Rows& rows) const;

  // Applies a push that a range has noted, or keeps it for a later clock (P6). `failure`: what the
  // user's function has thrown. Returns false, and does neither, if the range's server keeps too
  // much of the client already (P16); `failure` says so.
  bool change(std::size_t range, const Head& head, const Rows& rows, const std::byte* gradients,
              std::string& failure);
  // Returns false, and keeps nothing, if that is too much (P16).
  bool keep(Range& range, const Head& head, const Rows& rows, const std::byte* gradients,
            bool is_primary);
  // Takes the kept pushes of clocks below `clock` out of a range.
  std::vector<Range::Kept> take_kept(std::size_t range, std::uint64_t clock);
  // Applies the kept pushes of clocks below `clock` (P6). `tells`: clients whose push fails are
  // told.
  void apply_kept(std::size_t range, std::uint64_t clock, bool tells);
  // Of an edition, whose lowest clock may be higher than that of the last one.
  void apply_kept_at_start(std::size_t range);

  // P9. Shows the rows to the clients of this host, if that is possible.
  void show();
  // Shows a range before this server first changes it as its primary.
  void show(std::size_t range);
  void show_clock();
  // See Server.
  void hide(bool is_stopped) noexcept;

 private:
  void apply(std::size_t range, const Rows& rows, const std::byte* gradients);
  // In words, for the client.
  std::string failure_of(const std::exception& error) const;
  // The bytes that are kept of the client as its primary, or in all copies.
  std::size_t count_kept(std::optional<int> client) const;

  ServerState& state_;
  std::vector<Held> held_;     // without a range where this server has none
  std::size_t most_kept_ = 0;  // bytes of a client, as its primary (P16)
  // The bytes that are kept of each client, as its primary, and in copies: those of the last count,
  // and those that have come since.
  std::vector<std::size_t> kept_;
  std::vector<bool> is_counted_;  // by client: kept_ is, and since then nothing has been taken out
  std::size_t kept_in_copies_ = 0;
  std::optional<ShownRows> shown_;  // none: clients pull by messages only
  bool is_full_ = false;            // shown_ has found no room: it gets no more ranges
};

}  // namespace vol::ps
