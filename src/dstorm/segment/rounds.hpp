// Which ranks this one sends to, and which send to it, round by round: the segment's graph, drawn
// among the members of the job.
#pragma once

#include <vector>

#include "dstorm/segment.hpp"

namespace dstorm {

// The ranks take up the graph of a new epoch each by itself, at a scatter. Meanwhile a rank may
// send where it is not expected, or be expected where it does not send: Strays::take_in and
// Gathering::collect_own_iteration allow for both.
class Rounds {
 public:
  using Round = Segment::Round;

  explicit Rounds(const Graph& graph) : graph_(graph) {}

  // Draws the graph for a group, as of this rank's last scatter, that of `iteration`.
  void draw(const Group& group, std::uint64_t iteration);
  // The same if the group is in another epoch by now, of which this rank is a member.
  void follow_epoch(std::uint64_t iteration);
  bool is_of_old_epoch() const { return group_->epoch() != view_.epoch; }

  // The round in which this rank scatters as `number` (from 0): of `graph`, or, where that is null,
  // of the segment's own. Throws ConfigError if `graph` does not fit the job. The reference is
  // valid until the next call.
  const Round& round_of(const Graph* graph, std::uint64_t number);
  // The round of this rank's last scatter; before any, round 0.
  const Round& current() const { return *current_; }
  void set_current(const Round& round) { current_ = &round; }
  // `round` was current in the group before.
  void restore(Round round);

  // Of the segment's own graph.
  Round make(std::uint64_t number) const { return make_round(graph_, number); }
  // The ranks that the graph is drawn among.
  const std::vector<int>& members() const { return view_.members; }
  // Whether the graph has been drawn anew without ranks that died, left or were evicted.
  bool is_repaired() const {
    return view_.members.size() < static_cast<std::size_t>(group_->size());
  }
  // Whether this rank has the same out-neighbours as in-neighbours, and the same in every round.
  bool is_in_step() const { return is_in_step_; }

 private:
  Graph among_members(const Graph& graph) const;
  Round make_round(const Graph& graph, std::uint64_t number) const;
  void draw_rounds(std::uint64_t iteration);

  const Graph& graph_;  // the segment's own
  const Group* group_ = nullptr;
  View view_;                       // that the graph is drawn for
  std::vector<Round> repeating_;    // the graph over one period, if that is short
  Round other_;                     // any other round or graph
  const Round* current_ = nullptr;  // one of these
  bool is_in_step_ = false;
};

}  // namespace dstorm
