// Which ranks this one sends to, and which send to it, round by round: the segment's graph, drawn
// among the members of the job.
#pragma once

#include <vector>

#include "dstorm/segment.hpp"

namespace dstorm {

// The ranks that send to one of `receivers` in some round of the graph's period; or in its first
// rounds, if the period is long or the graph is drawn anew each round. `view` has the members of
// the job of `size` ranks.
std::vector<int> senders_to(const std::vector<int>& receivers, const Graph& graph, const View& view,
                            int size);

// Each rank begins to use the graph of a new epoch at its own next scatter. Meanwhile a rank may
// send to a rank that does not expect it, or not send to one that does: Strays::take_in and
// Gathering::collect_own_iteration allow for both.
class Rounds {
 public:
  using Round = Segment::Round;

  explicit Rounds(const Graph& graph) : graph_(graph) {}

  // Draws the graph among the present members of `group`. `iteration` is that of this rank's last
  // scatter.
  void draw(const Group& group, std::uint64_t iteration);
  // Draws it again if the group has moved to another epoch and this rank is a member of that.
  void follow_epoch(std::uint64_t iteration);
  bool is_of_old_epoch() const { return group_->epoch() != view_.epoch; }

  // Round `number` (from 0) of `graph`, or of the segment's own graph if `graph` is null. Throws
  // ConfigError if `graph` does not fit the job. The reference is valid until the next call.
  const Round& round_of(const Graph* graph, std::uint64_t number) {
    if (graph != nullptr || repeating_.empty()) return other_round_of(graph, number);
    return repeating_[number % repeating_.size()];
  }
  // The round of this rank's last scatter; round 0 before the first.
  const Round& current() const { return *current_; }
  void set_current(const Round& round) { current_ = &round; }
  // Makes `round` current, which was current in the last group.
  void restore(Round round);

  // Round `number` of the segment's own graph.
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
  const Round& other_round_of(const Graph* graph, std::uint64_t number);
  Graph among_members(const Graph& graph) const;
  Round make_round(const Graph& graph, std::uint64_t number) const;
  void draw_rounds(std::uint64_t iteration);

  const Graph& graph_;  // the segment's own
  const Group* group_ = nullptr;
  View view_;                       // the view that the graph is drawn for
  std::vector<Round> repeating_;    // the graph over one period, if that is short
  Round other_;                     // any other round or graph
  const Round* current_ = nullptr;  // one of these
  bool is_in_step_ = false;
};

}  // namespace dstorm
