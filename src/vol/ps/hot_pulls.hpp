// Pulls of hot rows, and a server's place in the trees through which they come (P12, in
// hot_rows.hpp).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "vol/ps/held_ranges.hpp"
#include "vol/ps/hot_rows.hpp"
#include "vol/ps/replication.hpp"
#include "vol/ps/server_state.hpp"

namespace vol::ps {

class HotPulls {
 public:
  HotPulls(ServerState& state, HeldRanges& held, Replication& replication)
      : state_(state), held_(held), replication_(replication), rows_(state.options.row_bytes()) {}

  // `sender`: a client, or a server further from the root.
  void take(int sender, const Head& head, const Rows& rows);
  // The answers of a server nearer to the root: rows, or that one is lost.
  void take_values(const Head& head, const Rows& rows, const std::byte* values);
  void take_lost(const Head& head);
  // Answers those that wait, as far as their rows are here now, and there is room for the answers.
  void answer_due();
  // Asks other servers the questions to dead ones.
  void drop_dead();
  void forget_rows() { rows_ = HotRows(state_.options.row_bytes()); }
  // How many it has answered. Any thread may ask.
  std::uint64_t answers() const { return answers_.load(std::memory_order_relaxed); }

 private:
  struct HotPull {
    int asker;
    Head head;
    std::vector<std::int64_t> keys;
  };

  bool has_room(int asker) const;
  bool answer(HotPull& pull);
  void ask(const std::vector<std::int64_t>& keys, std::uint64_t clock, int parent);

  ServerState& state_;
  HeldRanges& held_;
  Replication& replication_;
  HotRows rows_;
  std::vector<HotPull> waiting_;
  std::atomic<std::uint64_t> answers_{0};
};

}  // namespace vol::ps
