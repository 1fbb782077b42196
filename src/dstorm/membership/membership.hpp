// Who is in the job: ranks that lose sight of one another agree on the next epoch without a master.
//
// A view is an epoch and its members. Where a member is accused of silence, or has ended, the lowest
// member that nobody accuses proposes the next view; if it does not get on, the others do in their
// turn. One decision an epoch, by Paxos (Lamport, "Paxos Made Simple", 2001, section 2) among the
// members of the epoch that ends.
//
// Nobody sends messages: each rank keeps one record of where it stands, and the others look at it
// (as in Gafni and Lamport, "Disk Paxos", 2003), so what is lost on the way is made up for by whatever
// comes next. Only the newest record counts.
//
// Invariants:
//  M1 An epoch has one view: two live ranks that are in the same epoch agree on its members. A quorum
//     is more than half of the members of the epoch that ends; or half of them with the lowest
//     (TieRule); or a set of which each knows for certain that all others have ended. Two quorums
//     have a member in common, unless one is of the last kind and the other has ended as a whole;
//     but then nobody can come to know what that one decided. A member that has acted on it while the
//     others lived is in the next epoch, and not in the quorum; and no record of a rank that has been
//     buried is looked at, so it does no harm when a last one comes late, or never.
//     Certain is only what cannot be made up on the way: the end of a process that the system of its host
//     tells of, there, or by the rank's witness; the rank's own goodbye; and the word of a live member,
//     whose `ended` is made of these. A refused or reset connection, and silence, are none of them.
//  M2 A rank's epoch only grows, and a view has only members of the one before it.
//  M3 Who is not in the view that its peers have moved to learns so, and takes part no more; who
//     finds no quorum in time is cut off, and stops.
//
// A state machine and nothing else: time and records come from outside, and records may be lost, late,
// doubled, or out of order.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "dstorm/membership/accusations.hpp"

namespace dstorm {

struct View {
  std::uint64_t epoch = 0;
  std::vector<int> members = {};  // sorted

  bool has(int rank) const;
  friend bool operator==(const View&, const View&) = default;
};

// Which half goes on when a job falls into two equal ones.
enum class TieRule : std::uint8_t { kLowest /* the one with the lowest rank */, kNeither };

// Proposals of one epoch, in order.
struct Ballot {
  std::uint32_t round = 0;  // 0: none
  std::int32_t rank = 0;

  friend auto operator<=>(const Ballot&, const Ballot&) = default;
};

// Where one rank stands. All sets are sorted.
struct MembershipRecord {
  std::uint64_t beat = 0;  // grows with every change, and with time while the rank is well
  View view = {};
  std::vector<int> accused = {};  // of silence
  std::vector<int> ended = {};    // for certain
  // As acceptor of this epoch.
  Ballot promised = {}, accepted = {};
  std::vector<int> accepted_members = {};
  // As proposer of it; no members while promises are being gathered.
  Ballot proposed = {};
  std::vector<int> proposed_members = {};
};

struct MembershipOptions {
  int rank = 0;
  View first = {};
  TieRule tie = TieRule::kLowest;
  // Who hears nothing of a member for so long accuses it, or does not reach it; and who finds no
  // quorum for twice as long after that is cut off.
  std::chrono::nanoseconds timeout = std::chrono::seconds(5);
};

// One thread, or under one lock.
class Membership {
 public:
  using Time = std::chrono::nanoseconds;  // of a clock that only goes forward
  enum class Standing : std::uint8_t { kMember, kEvicted, kCutOff };

  Membership(MembershipOptions options, Time now);

  // `rank` has ended for certain: its process has, or it has said that it leaves. What comes of it later is not
  // looked at.
  void bury(int rank, Time now);
  // Something has come from `rank`.
  void hear(int rank, Time now);
  // Since when nothing of this rank's gets through to `rank`; nullopt: it does.
  void reach(int rank, std::optional<Time> unreached_since);
  // The newest that is known of `rank`. The members of its view matter only if it is newer than this rank's.
  void observe(int rank, MembershipRecord record, Time now);
  // Time goes by: what follows from all that has been observed and buried since the last tick is done here, so that
  // it does not depend on the order in which one look goes through the records. To be called several times in
  // `timeout`, and more often while there is trouble. `worked` is the processor time that the caller has spent
  // since the last tick: a caller that computes has not been stopped.
  void tick(Time now, Time worked = Time::zero());

  // Members that another member has buried and this rank has not, sorted: they have ended, as surely as if
  // this rank had seen it itself, and are to be buried when what they have sent has been taken in.
  const std::vector<int>& ended_elsewhere() const noexcept { return ended_elsewhere_; }

  // What the others shall see: anew whenever its beat has changed.
  const MembershipRecord& record() const noexcept { return own_; }
  const View& view() const noexcept { return own_.view; }
  Standing standing() const noexcept { return standing_; }
  // Somebody is accused, or has ended and is in the view still.
  bool has_trouble() const;

 private:
  enum class Phase : std::uint8_t { kIdle, kPreparing, kProposing };
  struct Peer {
    int rank = 0;
    MembershipRecord record = {};  // of this epoch, without its view, or empty
    Time heard{};
    std::optional<Time> unreached_since = {};
  };

  bool is_member() const noexcept { return standing_ == Standing::kMember; }
  bool has_ended(int rank) const;
  Peer* find(int rank);
  void accuse(int accuser, const std::vector<int>& accused, Time now);
  void note_ended(const std::vector<int>& ranks);
  void vote(Ballot proposed, const std::vector<int>& members);
  void propose(Time now);
  void go_on(Time now);
  bool agrees(const MembershipRecord& record) const;
  bool has_quorum() const;
  void adopt(View view, Time now);
  std::vector<int> silent(Time now) const;
  const std::vector<int>& next_members();
  Time turn();

  MembershipOptions options_;
  MembershipRecord own_;
  Standing standing_ = Standing::kMember;
  std::vector<Peer> peers_;  // the other members, sorted
  Accusations accusations_{0};
  std::optional<std::vector<int>>
      next_members_;  // as long as nothing that it follows from has changed
  std::vector<int> ended_elsewhere_;
  std::optional<Time> troubled_since_;
  Time accused_at_{};  // when somebody last changed whom it accuses
  Time last_beat_{};
  Time last_tick_{};
  Time listens_since_ = Time::min();  // what it has not heard before counts for nothing
  std::uint32_t round_ = 0;           // the highest seen in this epoch
  Phase phase_ = Phase::kIdle;
  std::vector<int>
      draft_;  // whom the proposal is to name, if it may; as things stood when it began
  Time proposed_at_{};
};

}  // namespace dstorm
