// Notes of gathers and allreduces that had no rank to wait for, a mistake in most programs.
#pragma once

#include <algorithm>
#include <memory>

#include "callbacks.hpp"

namespace malt_bindings {

// How this rank has used one vector. It outlives the vector.
struct Uses {
  std::uint64_t scatters = 0;
  std::uint64_t gathers = 0;
  std::uint64_t allreduces = 0;
  std::uint64_t found = 0;   // updates folded here
  std::uint64_t folded = 0;  // this rank's updates that others have folded, when last looked at
};

// The notes of one vector. The rank logs them when it leaves the job (malt/_mistakes/missed.py).
class Missed {
 public:
  // To be called before the vector is closed, and before its uses are read.
  const std::shared_ptr<Uses>& look(const dstorm::Stats& stats) noexcept {
    uses_->folded = stats.folded;
    return uses_;
  }

  void note_scatter() noexcept { ++uses_->scatters; }

  // A gather with this staleness has folded `found` updates.
  void note_gather(dstorm::Segment& segment, std::optional<std::uint64_t> given_staleness,
                   std::size_t found) {
    ++uses_->gathers;
    uses_->found += found;
    const dstorm::Group& group = segment.group();
    if (!given_staleness || group.size() == 1) return;
    const std::uint64_t staleness = *given_staleness;
    const std::string& name = segment.options().name;
    if (segment.iteration() == 0 && ++unsent_ == 2) {  // one may begin a loop
      callbacks().note_unsent(name);
    }
    const bool is_one_missing = found < segment.in_neighbours().size() ||
                                static_cast<int>(segment.members().size()) < group.size();
    if (staleness != 0 || !is_one_missing || has_noted_left_ ||
        group.alive().front() != group.rank()) {
      return;
    }
    const std::vector<int> ranks = segment.left_behind();
    if (ranks.empty()) return;
    // Only one rank reports it. If a lower rank has left after as many scatters as this rank has
    // made, that rank has reported it.
    for (const int r : segment.peers()) {
      const bool is_lower = r < group.rank() && group.has_left(r);
      if (is_lower && segment.clock_of(r) >= segment.iteration()) return;
    }
    has_noted_left_ = true;
    callbacks().note_left(name, ranks, segment.clock_of(ranks[0]));
  }

  // An allreduce with these other ranks has ended. The lowest rank that took part reports.
  void note_allreduce(const dstorm::Segment& segment, const std::vector<int>& others) {
    ++uses_->allreduces;
    const dstorm::Group& group = segment.group();
    if (static_cast<int>(others.size()) + 1 == group.size() || has_noted_left_) return;
    std::vector<int> left;
    for (int r = 0; r < group.size(); ++r) {
      // A rank that took part in this allreduce and has left since is no mistake.
      if (group.has_left(r) && !std::ranges::count(others, r)) left.push_back(r);
    }
    const bool is_lowest = others.empty() || group.rank() < others.front();
    if (left.empty() || !is_lowest) return;
    has_noted_left_ = true;
    callbacks().note_left_allreduce(segment.options().name, left);
  }

 private:
  std::shared_ptr<Uses> uses_ = std::make_shared<Uses>();
  int unsent_ = 0;  // gathers that were to wait, before any scatter
  bool has_noted_left_ = false;
};

}  // namespace malt_bindings
