// Membership: the ranks of a job agree, without a master, on which of them are in the next epoch.
//
// A view is an epoch and its members. When a member is suspected of silence or has died, the lowest
// member that nobody accuses proposes the next view. If it makes no progress, the others propose in
// their turn. Each epoch takes one decision, by Paxos (Lamport, "Paxos Made Simple", 2001, section
// 2) among the members of the epoch that ends.
//
// Ranks send no messages. Each rank keeps one record of where it stands, and the others read it (as
// in Gafni and Lamport, "Disk Paxos", 2003). Only the newest record of a rank counts, so a later
// record makes up for one that was lost on the way.
//
// A rank watches a few others (neighbourhood.hpp), and only they get its heartbeats. While there is
// trouble, that is from when a rank reads of an accusation or an end until the next epoch, it sends
// heartbeats to all. A member that two hosts accuse, and from which nothing comes in a quarter of
// the limit, is accused by all: then the accusers outnumber the accused as they do where all watch
// all. A member from which nothing comes in the whole limit is accused too: if half of a large job
// is cut off, the other half goes on without all of it within two silences, though no rank watches
// more than a few.
//
// Invariants:
//  M1 An epoch has one view: two live ranks that are in the same epoch agree on its members. A
//     quorum is more than half of the members of the epoch that ends; or half of them including the
//     lowest one (TieRule); or a set in which each member knows for certain that all members
//     outside the set have ended. Two quorums have a member in common, unless one is of the last
//     kind and all members of the other have ended. In that case no rank can learn what the other
//     quorum decided. For a member that acted on that decision while the ranks of the first quorum
//     lived is in the next epoch already, and therefore not in the first quorum; and nobody looks
//     at a record of a rank that has been buried, so a last record does no harm if it arrives late
//     or never.
//     An end is certain only if the news of it cannot be forged on the way. Three things make it
//     certain: the end of a process, reported by the system of its host to the ranks there or to
//     the rank's witness; the rank's own goodbye; and the record of a live member, whose `ended`
//     set is made of these. A refused or reset connection is no certainty, nor is silence.
//  M2 A rank's epoch only grows, and a view has only members of the view before it.
//  M3 A rank that is not in the view its peers have moved to learns this from their records, and
//     takes part no more. A rank that finds no quorum in time is cut off, and stops.
//
// This class is a state machine and nothing else: its caller brings it the time and the records.
// Records may be lost, late, doubled, or out of order.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "dstorm/membership/accusations.hpp"
#include "dstorm/view.hpp"

namespace dstorm {

// The number of a proposal. The proposals of one epoch are ordered by it.
struct Ballot {
  std::uint32_t round = 0;  // 0: none
  std::int32_t rank = 0;

  friend auto operator<=>(const Ballot&, const Ballot&) = default;
};

// The state of one rank that the others read. All sets are sorted.
struct MembershipRecord {
  std::uint64_t beat = 0;  // grows with every change, and with time while the rank is well
  // The beat of the last record that all members are to see. A later one only says that the rank is
  // well, to ranks that read it in the memory of its host.
  std::uint64_t news = 0;
  View view = {};
  std::vector<int> accused = {};  // suspected of silence by this rank
  std::vector<int> ended = {};    // dead, or has left, for certain
  // As an acceptor of this epoch.
  Ballot promised = {}, accepted = {};
  std::vector<int> accepted_members = {};
  // As a proposer of this epoch; no members while promises are being gathered.
  Ballot proposed = {};
  std::vector<int> proposed_members = {};
};

struct MembershipOptions {
  int rank = 0;
  View first = {};
  std::vector<int> hosts = {};  // by rank: the number of its host; empty: each rank is one
  TieRule tie = TieRule::kLowest;
  // A rank accuses a member that it watches and has not heard, or that it has not reached, for this
  // long. A rank that then finds no quorum for twice as long is cut off.
  std::chrono::nanoseconds timeout = std::chrono::seconds(5);
};

// Not thread-safe: one thread uses it, or several under one lock. No call blocks or throws.
class Membership {
 public:
  using Time = std::chrono::nanoseconds;  // of a clock that only goes forward
  enum class Standing : std::uint8_t { kMember, kEvicted, kCutOff };

  Membership(MembershipOptions options, Time now);

  // `rank` has ended for certain: its process has ended, or it has said that it leaves. Records of
  // it that arrive later are ignored.
  void bury(int rank, Time now);
  // Something has arrived from `rank`.
  void hear(int rank, Time now);
  // Sets since when nothing that this rank sends gets through to `rank`; nullopt if it gets
  // through.
  void reach(int rank, std::optional<Time> unreached_since);
  // Takes in the newest known record of `rank`. The members of its view matter only if that view is
  // newer than this rank's.
  void observe(int rank, MembershipRecord record, Time now);
  // Time goes by. All consequences of what has been observed and buried since the last tick are
  // drawn here, so they do not depend on the order in which the caller goes through the records.
  // The caller ticks several times in `timeout`, and more often while there is trouble. `worked` is
  // the processor time that the caller has spent since the last tick: a caller that was computing
  // has not been stopped.
  void tick(Time now, Time worked = Time::zero());

  // Members that another member has buried and this rank has not, sorted. They have ended, as
  // surely as if this rank had seen it itself. The caller buries them when it has taken in
  // everything they sent.
  const std::vector<int>& ended_elsewhere() const noexcept { return ended_elsewhere_; }

  // The record that the others are to see. The caller publishes it whenever its beat has changed.
  const MembershipRecord& record() const noexcept { return own_; }
  const View& view() const noexcept { return own_.view; }
  // The members that this rank watches, sorted.
  std::vector<int> watched() const;
  Standing standing() const noexcept { return standing_; }
  // Whether some member is accused, or has ended and is still in the view.
  bool has_trouble() const;

 private:
  enum class Phase : std::uint8_t { kIdle, kPreparing, kProposing };
  struct Peer {
    int rank = 0;
    MembershipRecord record = {};  // of this epoch, without its view, or empty
    bool is_watched = true;
    // It owes a sign of life, and this is when it gave the last one, or when it began to owe one.
    std::optional<Time> owes_since = {};
    std::optional<Time> unreached_since = {};
  };

  bool is_member() const noexcept { return standing_ == Standing::kMember; }
  bool has_ended(int rank) const;
  Peer* find(int rank);
  void begin_trouble(Time now);
  void end_trouble();
  std::vector<Peer> peers_of(const View& view, Time now) const;
  void accuse(int accuser, const std::vector<int>& accused, Time now);
  void note_ended(const std::vector<int>& ranks);
  void vote(Ballot proposed, const std::vector<int>& members);
  void propose(Time now);
  void go_on(Time now);
  bool agrees(const MembershipRecord& record) const;
  bool has_quorum() const;
  void adopt(View view, Time now);
  std::vector<int> silent(Time now);
  bool is_doubted(int rank);
  const std::vector<int>& next_members();
  Time turn();

  MembershipOptions options_;
  MembershipRecord own_;
  Standing standing_ = Standing::kMember;
  std::vector<Peer> peers_;  // the other members, sorted
  bool watches_all_ = true;
  Accusations accusations_{0};
  // Kept until something changes that it depends on.
  std::optional<std::vector<int>> next_members_;
  std::optional<std::vector<bool>> doubted_;
  std::vector<int> ended_elsewhere_;
  std::optional<Time> troubled_since_;
  Time accused_at_{};  // when a member last changed whom it accuses
  Time last_beat_{};
  Time last_tick_{};
  Time listens_since_ = Time::min();  // silence before this time does not count
  std::uint32_t round_ = 0;           // the highest seen in this epoch
  Phase phase_ = Phase::kIdle;
  // The members that the proposal is to name, if it is free to choose; as of its beginning.
  std::vector<int> draft_;
  Time proposed_at_{};
};

}  // namespace dstorm
