// What is a mistake in most programs: gathers and allreduces that were to wait, and had nobody to
// wait for.
#pragma once

#include "bindings.hpp"

namespace malt_bindings {

// Of one vector. Notes it, to be told when the rank leaves the job (malt/_job/missed.py).
class Missed {
 public:
  // A gather with this staleness has found so many updates.
  void note(dstorm::Segment& segment, std::uint64_t staleness, std::size_t found) {
    const dstorm::Group& group = segment.group();
    if (group.size() == 1) return;
    const std::string& name = segment.options().name;
    if (segment.iteration() == 0 && ++unsent_ == 2) {  // one may begin a loop
      notes().attr("note_unsent")(name);
    }
    const bool is_one_gone = found < segment.in_neighbours().size() ||
                             static_cast<int>(segment.members().size()) < group.size();
    if (staleness != 0 || !is_one_gone || has_noted_left_ ||
        group.alive().front() != group.rank()) {
      return;
    }
    const std::vector<int> ranks = segment.left_behind();
    if (ranks.empty()) return;
    has_noted_left_ = true;
    notes().attr("note_left")(name, ranks, segment.clock_of(ranks[0]));
  }

  // An allreduce with so many other ranks has come to its end.
  void note_allreduce(const dstorm::Segment& segment, std::size_t others) {
    const dstorm::Group& group = segment.group();
    if (static_cast<int>(others) + 1 == group.size() || has_noted_left_) return;
    std::vector<int> left;
    for (int r = 0; r < group.size(); ++r) {
      if (group.has_left(r)) left.push_back(r);
    }
    if (left.empty() || group.alive().front() != group.rank()) return;
    has_noted_left_ = true;
    notes().attr("note_left_allreduce")(segment.options().name, left);
  }

 private:
  static py::module_ notes() { return py::module_::import("malt._job.missed"); }

  int unsent_ = 0;  // gathers that were to wait, before any scatter
  bool has_noted_left_ = false;
};

}  // namespace malt_bindings
