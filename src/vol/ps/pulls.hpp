// Pulls, which wait until the clients have reached the clocks that they ask for (P5, P14).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "vol/ps/held_ranges.hpp"
#include "vol/ps/replication.hpp"
#include "vol/ps/server_state.hpp"

namespace vol::ps {

// Leaves room for one more, if `most` of them may be of the member that `is_same` knows (P14).
template <class Pull, class IsSame>
void drop_oldest(std::vector<Pull>& pulls, std::size_t most, IsSame&& is_same) {
  if (static_cast<std::size_t>(std::ranges::count_if(pulls, is_same)) < most) return;
  pulls.erase(std::ranges::find_if(pulls, is_same));
}

class Pulls {
 public:
  Pulls(ServerState& state, HeldRanges& held, Replication& replication)
      : state_(state), held_(held), replication_(replication) {}

  void take(const Head& head, const Rows& rows);
  // Answers those that the clients' clocks now allow.
  void answer_due();

 private:
  struct Waiting {
    Head head;
    std::vector<std::int64_t> keys;  // none: consecutive rows
  };

  void answer(const Head& head, const Rows& rows);

  ServerState& state_;
  HeldRanges& held_;
  Replication& replication_;
  std::vector<Waiting> waiting_;
  std::vector<std::byte> values_;  // of the answer being written, without its codec
};

}  // namespace vol::ps
