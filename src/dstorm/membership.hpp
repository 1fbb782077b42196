// Who is in the job: ranks that lose sight of one another agree on the next epoch without a master.
//
// A view is an epoch and its members. Where a member is accused of silence, or has ended, the lowest
// member that nobody accuses proposes the next view; if it does not get on, the others do in their
// turn. One decision an epoch, by Paxos (Lamport, "Paxos Made Simple", 2001, section 2) among the
// members of the epoch that ends.
//
// Invariants:
//  M1 An epoch has one view: two live ranks that are in the same epoch agree on its members. A quorum
//     is more than half of the members of the epoch that ends; or half of them with the lowest
//     (TieRule); or a set of which each knows for certain that all others have ended. Two quorums
//     have a member in common, unless one is of the last kind and the other has ended as a whole;
//     but then nobody can come to know what that one decided: its last words have been heard, and
//     who had acted on them would be in the next epoch and not in the quorum.
//  M2 A rank's epoch only grows, and a view has only members of the one before it.
//  M3 Who is not in the view that its peers have moved to learns so, and takes part no more; who
//     finds no quorum in time is cut off, and stops.
//
// A state machine and nothing else: time and messages come from outside, and messages may be lost,
// late, doubled, or out of order. What it costs without trouble is the beats.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

namespace dstorm {

struct View {
  std::uint64_t epoch = 0;
  std::vector<int> members;  // sorted

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

struct MembershipMessage {
  enum class Kind : std::uint8_t {
    kBeat,      // ranks: whom the sender accuses of silence
    kPrepare,   // ballot
    kPromise,   // ballot; accepted, ranks: what the sender has accepted before, if anything
    kAccept,    // ballot; ranks: the members to be
    kAccepted,  // ballot
    kRefused,   // ballot: the higher one that the sender has promised
    kView       // ranks: the members of this epoch
  };
  Kind kind = Kind::kBeat;
  std::uint64_t epoch = 0;
  Ballot ballot = {}, accepted = {};
  std::vector<int> ranks = {};
  std::vector<int> ended = {};  // with a promise or an acceptance: who has, for certain
};

struct MembershipOptions {
  int rank = 0;
  View first;
  TieRule tie = TieRule::kLowest;
  // Who hears nothing of a member for so long accuses it, and who finds no quorum for so long after
  // that is cut off.
  std::chrono::nanoseconds timeout = std::chrono::seconds(5);
};

// One thread, or under one lock.
class Membership {
 public:
  using Time = std::chrono::nanoseconds;  // of a clock that only goes forward
  struct Envelope {
    int to;
    MembershipMessage message;
  };
  enum class Standing : std::uint8_t { kMember, kEvicted, kCutOff };

  Membership(MembershipOptions options, Time now);

  // `rank` has ended for certain: its process is gone, or has said that it leaves. To be called when
  // everything from it has been received; what comes later is not looked at.
  void bury(int rank, Time now);
  void receive(int from, const MembershipMessage& message, Time now);
  // Time goes by. To be called several times in `timeout`.
  void tick(Time now);
  // What there is to send, once.
  std::vector<Envelope> take_outgoing();

  const View& view() const noexcept { return view_; }
  Standing standing() const noexcept { return standing_; }

 private:
  enum class Phase : std::uint8_t { kIdle, kPreparing, kProposing };
  struct Proposal {
    Phase phase = Phase::kIdle;
    Ballot ballot;
    std::set<int> agreed;
    std::vector<int> ended;  // as all of them say
    Ballot best;             // the highest accepted before, of those who promised, and its value
    std::vector<int> members;
    Time since{};
  };

  bool is_member() const noexcept { return standing_ == Standing::kMember; }
  void answer(int from, const MembershipMessage& message, Time now);
  void promise(int from, const MembershipMessage& message);
  void accept(int from, const MembershipMessage& message);
  void propose(Time now);
  void count_promise(int from, const MembershipMessage& message, Time now);
  void count_accepted(int from, const MembershipMessage& message, Time now);
  void adopt(View view, Time now);
  void send(int to, MembershipMessage message);
  void send_to_others(const MembershipMessage& message);
  void beat(Time now);
  void count(int from, const std::vector<int>& ended);
  bool has_quorum() const;
  std::vector<int> accused(Time now) const;
  std::vector<int> next_members() const;
  bool has_trouble() const;
  bool has_ended(int rank) const;
  Time turn_of_this_rank() const;

  MembershipOptions options_;
  View view_;
  Standing standing_ = Standing::kMember;
  std::map<int, Time> heard_;                    // of other members
  std::vector<int> ended_;                       // for certain; sorted
  std::map<int, std::vector<int>> accusations_;  // by accuser, this rank's own among them
  std::optional<Time> troubled_since_;
  Time last_beat_{};
  Time last_tick_{};
  Ballot promised_, accepted_;
  std::vector<int> accepted_members_;
  std::uint32_t round_ = 0;  // the highest seen in this epoch
  Proposal proposal_;
  std::vector<Envelope> outgoing_;
};

}  // namespace dstorm
