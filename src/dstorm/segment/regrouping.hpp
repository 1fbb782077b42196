// Opens a segment in its first group, and moves it from one group to the next.
#pragma once

#include "dstorm/segment/state.hpp"
#include "dstorm/segment/strays.hpp"

namespace dstorm {

class Regrouping {
 public:
  Regrouping(SegmentState& state, Strays& strays) : state_(state), strays_(strays) {}

  // Collective: opens the segment in the group that it was made for.
  void open();
  // Collective: see Segment::regroup.
  void move_to(const std::shared_ptr<Group>& group);

 private:
  void agree_on_iterations(Group& group);
  void await_updates(const Group& next);
  bool comes_along(int rank) const;
  std::uint64_t last_ordinal(int rank) const;

  SegmentState& state_;
  Strays& strays_;
  std::vector<int> along_;  // the ranks that bring an iteration with them, sorted
};

}  // namespace dstorm
