// Notes of gathers and allreduces that had no rank to wait for, a mistake in most programs.
#pragma once

#include <algorithm>

#include "callbacks.hpp"

namespace malt_bindings {

// The notes of one vector. The rank logs them when it leaves the job (malt/_job/missed.py).
class Missed {
 public:
  // A gather with this staleness has found so many updates.
  void note(dstorm::Segment& segment, std::uint64_t staleness, std::size_t found) {
    const dstorm::Group& group = segment.group();
    if (group.size() == 1) return;
    const std::string& name = segment.options().name;
    if (segment.iteration() == 0 && ++unsent_ == 2) {  // one may begin a loop
      callbacks().note_unsent(name);
    }
    const bool is_one_gone = found < segment.in_neighbours().size() ||
                             static_cast<int>(segment.members().size()) < group.size();
    if (staleness != 0 || !is_one_gone || has_noted_left_ ||
        group.alive().front() != group.rank()) {
      return;
    }
    const std::vector<int> ranks = segment.left_behind();
    if (ranks.empty()) return;
    // One tells: not this rank, if a lower one has, and has left since, after as many scatters.
    for (const int r : segment.peers()) {
      const bool is_lower = r < group.rank() && group.has_left(r);
      if (is_lower && segment.clock_of(r) >= segment.iteration()) return;
    }
    has_noted_left_ = true;
    callbacks().note_left(name, ranks, segment.clock_of(ranks[0]));
  }

  // An allreduce with these other ranks has come to its end. The lowest of all tells.
  void note_allreduce(const dstorm::Segment& segment, const std::vector<int>& others) {
    const dstorm::Group& group = segment.group();
    if (static_cast<int>(others.size()) + 1 == group.size() || has_noted_left_) return;
    std::vector<int> left;
    for (int r = 0; r < group.size(); ++r) {
      // Who has left since it took part in this one leaves nobody alone.
      if (group.has_left(r) && !std::ranges::count(others, r)) left.push_back(r);
    }
    const bool is_lowest = others.empty() || group.rank() < others.front();
    if (left.empty() || !is_lowest) return;
    has_noted_left_ = true;
    callbacks().note_left_allreduce(segment.options().name, left);
  }

 private:
  int unsent_ = 0;  // gathers that were to wait, before any scatter
  bool has_noted_left_ = false;
};

}  // namespace malt_bindings
