// The segments with changes that one other host does not have yet.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "dstorm/host/control.hpp"
#include "dstorm/remote/transport/attachment.hpp"
#include "dstorm/remote/transport/frame.hpp"
#include "dstorm/slot/carrier.hpp"

namespace dstorm::remote {

// One segment, and how much of it has been sent over the present connection.
struct Carried {
  struct Change {
    std::uint64_t clock;   // of the segment, when the change was seen
    std::uint64_t number;  // that of the attachment's last change then
  };

  std::shared_ptr<const Attachment> attachment;  // keeps its memory mapped
  SlotCarrier carrier;
  std::uint64_t changes = 0;    // the attachment's last change that has been sent
  std::deque<Change> due = {};  // changes that were seen and not sent, one a clock
  std::uint64_t sent = 0;       // updates up to this iteration have been sent, or replaced before
  std::uint64_t clock = 0;      // the clock that was sent last
  std::vector<CursorBody> cursors = {};  // one per rank of the host, as last sent
  std::uint64_t closed_at = 0;           // the frame that says so ends at this byte; 0: not said

  // Everything up to this change has been sent.
  void note_through(std::uint64_t change) {
    changes = change;
    due.clear();
  }
};

// Used under the engine's lock.
class Backlog {
 public:
  // `host`: the ranks of the other host.
  Backlog(const host::Control& control, const std::vector<int>& host)
      : control_(control), host_(host) {}

  // A new connection looks at all segments once; later calls do nothing.
  void begin(const Attachments& attachments);
  // The connection has ended: nothing counts as sent any more, and no slot is held.
  void clear();
  // This rank has changed something in the segment. There is no need to call this before begin().
  void note(const std::shared_ptr<Attachment>& changed);
  // The segment has been removed: nothing of it is due any more.
  void forget(std::uint32_t segment);
  // Releases the slot of this segment that is held.
  void let_go(std::uint32_t segment);
  // Drops the segments that have been removed. Their memory may then be unmapped.
  void keep_only(const Attachments& attachments);

  // The oldest change goes first, whatever its size, and no segment keeps the others waiting. So
  // over TCP a rank that has an update of this rank also has what this rank wrote elsewhere before
  // it. That holds as far as the engine looked in between, and unless that update has replaced an
  // older one that was due.
  //
  // Calls `send` for one segment after the other until it returns false. Returns whether all
  // segments had their turn.
  template <class Send>
  bool send_in_turn(Send&& send) {
    while (!due_.empty()) {
      Carried& first = *due_.front();
      ++looks_;
      const bool goes_on = send(first);
      due_.pop_front();
      if (!first.due.empty()) {
        drop_passed(first);
        insert(first);  // its next change may come after others
      }
      if (!goes_on) return false;
    }
    return true;
  }
  // Calls `send` once for each segment. Returns whether it returned true for all.
  template <class Send>
  bool send_each(Send&& send) {
    bool all_through = true;
    looks_ += due_.size();
    for (Carried* const carried : due_) all_through = send(*carried) && all_through;
    std::erase_if(due_, [](const Carried* carried) { return carried->due.empty(); });
    for (Carried* const carried : due_) drop_passed(*carried);
    sort();
    return all_through;
  }

  // nullptr if nothing of the segment has ever been due on this connection.
  const Carried* find(std::uint32_t segment) const;
  const std::map<std::uint32_t, Carried>& all() const noexcept { return carried_; }
  // Whether all changes of the segment have been sent.
  bool is_through(const Attachment& attachment) const;
  // Whether `rank` receives updates of the segment, by the rule that its sender uses.
  bool is_live(const Attachment& attachment, int rank) const {
    return control_.is_live(rank) && !attachment.memory->has_gone(rank);
  }
  // Whether a rank of the host receives updates of the segment.
  bool has_receiver(const Attachment& attachment) const;
  // Reads how far this rank has folded the rank at index `place` of the host. Returns false if that
  // is not at least `least` updates more than was sent.
  bool changed_cursor(Carried& carried, std::size_t place, std::uint64_t least,
                      CursorBody& body) const;
  // How many times it has looked at a segment to see what there is to send.
  std::uint64_t looks() const noexcept { return looks_; }

 private:
  Carried& carried(const std::shared_ptr<Attachment>& attachment);
  static void note_change(Carried& carried);
  static void drop_passed(Carried& carried);
  std::deque<Carried*>::iterator place_of(const Carried& carried);
  void insert(Carried& carried);
  void sort();

  const host::Control& control_;
  const std::vector<int>& host_;
  std::map<std::uint32_t, Carried> carried_;
  std::deque<Carried*> due_;  // segments with something to send, oldest change first
  bool has_begun_ = false;
  std::uint64_t looks_ = 0;
};

}  // namespace dstorm::remote
