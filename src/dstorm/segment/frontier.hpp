// The frontier: the iteration up to which every update that a segment's rank expects has arrived.
//
// F1. An iteration is complete at a rank when the clock of each live in-neighbour of that
//     iteration's round has reached it. A sender's clock moves after its updates (S6), so all of
//     them have arrived then, or were replaced by newer ones under LATEST.
// F2. The frontier is the last iteration up to which all are complete. It never goes back: it is
//     kept, and clocks within a group only grow.
// F3. A dead rank is not waited for. Its last updates may still arrive, or never will.
// F4. So within an epoch no update of an iteration up to the frontier arrives any more. A new epoch
//     may bring earlier ones: a rejoining rank repeats the round that the slowest rank is in, and
//     in a repaired graph a rank gets in-neighbours that are behind. The frontier then stays as it
//     is until these ranks have passed it.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "dstorm/segment/state.hpp"

namespace dstorm {

class Frontier {
 public:
  explicit Frontier(SegmentState& state) : state_(state) {}

  // See Segment::frontier and Segment::wait_for.
  std::uint64_t reached();
  void wait_for(std::uint64_t iteration, std::chrono::nanoseconds timeout);

 private:
  bool is_static() const noexcept { return state_.options().graph.is_static(); }
  bool lacks(int rank, std::uint64_t iteration);
  std::vector<int> lacking(std::uint64_t iteration);
  bool has_live_peers() const;

  SegmentState& state_;
  std::uint64_t reached_ = 0;
};

}  // namespace dstorm
