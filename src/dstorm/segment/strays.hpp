// Frees slots while this rank waits, so that ranks which wait for one another's slots all go on.
#pragma once

#include <vector>

#include "dstorm/segment/state.hpp"

namespace dstorm {

class Strays {
 public:
  explicit Strays(SegmentState& state) : state_(state) {}

  // Removes updates from their slots that the next gather may not expect: those sent by the graph
  // of another epoch, or by a neighbour that ran behind while the graph had come apart. Their
  // sender may be waiting for these very slots. Under QUEUE the updates are stashed. Under LATEST a
  // gather at staleness 0 (`exact`) will never fold them, so they count as rejected.
  void take_in(bool exact) {
    if (!state_.rounds.is_repaired() && !state_.rounds.is_of_old_epoch()) return;
    if (exact || state_.is_queue()) remove_unexpected();
  }

  // QUEUE, between hosts: stashes up to `depth` updates of each sender. On one host a rank sees
  // each update at once, so ranks that gather before each scatter never block one another for good.
  // Over a network all ranks could fill their slots before any sees an update; all would then wait
  // in scatter, and no rank would fold. A rank that stashes while it waits for a slot gives each
  // other rank as much room as that rank has slots.
  void relieve_senders();

  // QUEUE, while this rank waits for senders that are behind: stashes what they have sent, so that
  // they find slots for the iterations that they lack. A sender may be behind by more than it has
  // slots if this rank has gone on without it.
  void help_up();

  // Stashes updates of `rank` up to iteration `limit`, until `most` of its updates are stashed. The
  // sender is not told. Returns whether there were any.
  bool stash(int rank, std::uint64_t limit, std::size_t most);

 private:
  void remove_unexpected();
  bool drop_oldest(int rank, bool is_due, std::uint64_t limit);
  template <class Free>
  void for_each_peer(Free&& free);

  SegmentState& state_;
  std::vector<int> freed_;  // senders whose slots have been freed
};

}  // namespace dstorm
