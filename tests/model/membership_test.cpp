// Membership with a simulated network and clock: a whole job in one thread, with delays, deaths,
// stops and cuts drawn from a seed. Its invariants (membership.hpp) are checked after every step.
// Other tests check single rules.
//
//   membership_test                         10,000 seeds
//   MALT_SEEDS=1000000 membership_test      a million
//   MALT_SEED=1234 membership_test          this one, step by step
#include "dstorm/membership/membership.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <queue>
#include <random>
#include <sstream>
#include <string>
#include <tuple>

#include "sanitizers.hpp"

namespace dstorm {
namespace {

using namespace std::chrono_literals;
using Time = Membership::Time;
using Standing = Membership::Standing;

constexpr Time kTimeout = 1s;
constexpr Time kTick = 40ms;
constexpr Time kFaultsUntil = 12s;
constexpr Time kQuietUntil = 30s;
constexpr std::int64_t kMostRanks = 24;
constexpr std::int64_t kAll = (1 << kMostRanks) - 1;  // a mask of ranks

std::string text_of(const View& view) {
  std::ostringstream text;
  text << view.epoch << ":{";
  for (int r : view.members) text << ' ' << r;
  text << " }";
  return text.str();
}

class Simulation {
 public:
  // A job of `least` to `most` ranks.
  Simulation(std::uint64_t seed, std::int64_t least, std::int64_t most, bool trace)
      : random_(seed), trace_(trace), size_(static_cast<int>(draw(least, most))) {
    tie_ = draw(0, 3) == 0 ? TieRule::kNeither : TieRule::kLowest;
    View first;
    for (int r = 0; r < size_; ++r) first.members.push_back(r);
    const auto ranks = static_cast<std::size_t>(size_);
    cut_.assign(ranks * ranks, false);
    streams_.resize(ranks * ranks);
    for (int r = 0; r < size_; ++r) {
      ranks_.push_back(
          {std::make_unique<Membership>(MembershipOptions{r, first, {}, tie_, kTimeout}, Time{0}),
           first, 0, std::vector<MembershipRecord>(ranks), std::vector<std::uint64_t>(ranks), 0,
           false, Time{0}});
    }
    for (int r = 0; r < size_; ++r) at(Time(draw(0, kTick.count())), [this, r] { tick(r); });
    plan_faults();
  }

  // Runs the job. Returns the first violation, or nothing.
  std::string run() {
    while (!events_.empty() && wrong_.empty() && now_ < kQuietUntil) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.when;
      event.what();
    }
    if (wrong_.empty()) check_end();
    return wrong_;
  }

 private:
  struct Rank {
    std::unique_ptr<Membership> membership;
    View last;                             // the view after the step before
    std::uint64_t said = 0;                // the beat of the last record the others may see
    std::vector<MembershipRecord> copies;  // the records of the others, as they have arrived here
    std::vector<std::uint64_t> seen;       // the beats of the records that it has looked at
    std::uint64_t told = 0;                // mask of ranks that other members have reported dead
    bool is_dead = false;
    Time stopped_until{0};
  };
  struct Event {
    Time when;
    std::uint64_t number;  // in the order in which the events were made
    std::function<void()> what;
    bool operator<(const Event& other) const {
      return std::pair(when, number) > std::pair(other.when, other.number);
    }
  };
  // Messages from one rank to another, in order as over TCP. The last one says that the sender has
  // ended.
  struct Stream {
    Time last{0};
  };

  std::int64_t draw(std::int64_t least, std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(random_);
  }
  void at(Time when, std::function<void()> what) {
    events_.push({when, ++numbers_, std::move(what)});
  }
  Rank& rank(int r) { return ranks_[static_cast<std::size_t>(r)]; }
  std::size_t pair(int from, int to) const {
    return static_cast<std::size_t>(from) * static_cast<std::size_t>(size_) +
           static_cast<std::size_t>(to);
  }
  template <class... Parts>
  void say(const Parts&... parts) {
    if (!trace_) return;
    std::ostringstream text;
    text << static_cast<double>(now_.count()) / 1e9 << ' ';
    (text << ... << parts);
    std::puts(text.str().c_str());
  }

  // ---- faults ----
  void plan_faults() {
    const std::int64_t faults = draw(0, 6);
    // Often all faults happen while the ranks still deal with the first.
    const Time from(draw(0, kFaultsUntil.count()));
    const Time span = draw(0, 2) == 0   ? kFaultsUntil
                      : draw(0, 1) == 0 ? kTimeout / 20
                                        : 2 * kTimeout;
    for (std::int64_t i = 0; i < faults; ++i) {
      const Time when = from + Time(draw(0, span.count()));
      const int victim = static_cast<int>(draw(0, size_ - 1));
      switch (draw(0, 4)) {
        case 0:
        case 1:
          at(when, [this, victim] { kill(victim); });
          break;
        case 2:
          at(when, [this, victim] { stop(victim, Time(draw(0, 5 * kTimeout.count()))); });
          break;
        case 3:
          at(when, [this, victim] {
            cut_some([victim](int a, int b) { return a == victim || b == victim; });
          });
          break;
        default: {
          const auto side = static_cast<std::uint64_t>(draw(0, kAll));
          const bool one_way = draw(0, 1) == 0;
          at(when, [this, side, one_way] {
            cut_some([side, one_way](int a, int b) {
              return one_way ? (side >> a & 1) != 0 && (side >> b & 1) == 0
                             : (side >> a & 1) != (side >> b & 1);
            });
          });
        }
      }
    }
  }
  void kill(int victim) {
    if (rank(victim).is_dead) return;
    rank(victim).is_dead = true;
    say("rank ", victim, " dies");
    // All ranks learn of the death from its host, or only some (its neighbours), or none, as when
    // the host itself has died.
    const std::int64_t kind = draw(0, 3);
    const auto told = static_cast<std::uint64_t>(kind == 0 ? 0 : kind == 1 ? draw(0, kAll) : kAll);
    for (int r = 0; r < size_; ++r) {
      if (r == victim) continue;
      if ((told >> r & 1) == 0) {
        only_deaths_ = false;  // to some ranks such a death shows only as silence
        continue;
      }
      deliver(victim, r, [this, victim, r] {
        look(r, victim);
        bury(r, victim);
      });
    }
  }
  void bury(int r, int ended) {
    say("rank ", r, " learns that ", ended, " has ended");
    rank(r).membership->bury(ended, now_);
  }
  void stop(int victim, Time span) {
    say("rank ", victim, " is stopped for ", static_cast<double>(span.count()) / 1e9);
    rank(victim).stopped_until = now_ + span;
    only_deaths_ = false;
  }
  template <class Which>
  void cut_some(Which&& which) {
    const bool for_good = draw(0, 3) == 0;
    const Time span(draw(0, 6 * kTimeout.count()));
    for (int a = 0; a < size_; ++a) {
      for (int b = 0; b < size_; ++b) {
        if (a == b || !which(a, b) || draw(0, 9) == 0) continue;
        cut_[pair(a, b)] = true;
        say("cut ", a, " -> ", b);
        if (!for_good) at(now_ + span, [this, a, b] { mend(a, b); });
      }
    }
    only_deaths_ = false;
  }

  // A new connection begins with the newest record.
  void mend(int from, int to) {
    cut_[pair(from, to)] = false;
    if (rank(from).is_dead) return;
    deliver_record(from, to, rank(from).membership->record());
  }

  // ---- steps ----
  void deliver_record(int from, int to, const MembershipRecord& record) {
    deliver(from, to, [this, from, to, record] {
      rank(to).copies[static_cast<std::size_t>(from)] = record;
      if (draw(0, 7) != 0) look(to, from);  // at times the next one arrives before any look
    });
  }
  void deliver(int from, int to, std::function<void()> what) {
    if (cut_[pair(from, to)]) return;
    // Mostly at once, at times late, but never out of order.
    const Time delay(draw(0, 9) == 0 ? draw(0, kTimeout.count() / 4) : draw(0, 1'000'000));
    Stream& stream = streams_[pair(from, to)];
    stream.last = std::max(stream.last, now_ + delay);
    at(stream.last, [this, to, what = std::move(what)] { arrive(to, what); });
  }
  void arrive(int to, const std::function<void()>& what) {
    Rank& there = rank(to);
    if (there.is_dead) return;
    if (there.stopped_until > now_)
      return at(there.stopped_until, [this, to, what] { arrive(to, what); });
    what();
    after_step(to);
  }
  void look(int r, int other) {
    const MembershipRecord& record = rank(r).copies[static_cast<std::size_t>(other)];
    std::uint64_t& seen = rank(r).seen[static_cast<std::size_t>(other)];
    rank(r).membership->observe(other, record, now_);
    if (record.beat > std::exchange(seen, record.beat)) rank(r).membership->hear(other, now_);
    // It counts a rank as dead that other ranks have reported dead, though the last message of that
    // rank may not have arrived.
    for (int ended : rank(r).membership->ended_elsewhere()) {
      if ((std::exchange(rank(r).told, rank(r).told | std::uint64_t{1} << ended) >> ended & 1) ==
          0) {
        at(now_ + Time(draw(0, kTimeout.count() / 4)),
           [this, r, ended] { arrive(r, [this, r, ended] { bury(r, ended); }); });
      }
    }
  }
  void tick(int r) {
    Rank& own = rank(r);
    if (own.is_dead) return;
    if (own.stopped_until > now_) return at(own.stopped_until, [this, r] { tick(r); });
    for (int other = 0; other < size_; ++other) look(r, other);
    own.membership->tick(now_);
    after_step(r);
    at(now_ + kTick, [this, r] { tick(r); });
  }
  void after_step(int r) {
    Rank& own = rank(r);
    const MembershipRecord& record = own.membership->record();
    const std::vector<int> watched = own.membership->watched();
    for (int to = 0; to < size_ && record.beat != own.said; ++to) {
      if (to == r || (record.news <= own.said && !std::ranges::binary_search(watched, to)))
        continue;
      deliver_record(r, to, record);
    }
    own.said = record.beat;
    const View& view = own.membership->view();
    if (view == own.last) return;
    say("rank ", r, " is in ", text_of(view));
    if (view.epoch <= own.last.epoch)
      wrong("M2: the epoch of rank ", r, " does not grow: ", text_of(view));
    if (!std::includes(own.last.members.begin(), own.last.members.end(), view.members.begin(),
                       view.members.end())) {
      wrong("M2: new members in ", text_of(view));
    }
    if (!view.has(r) && own.membership->standing() != Standing::kEvicted) {
      wrong("M3: rank ", r, " goes on, and is not in ", text_of(view));
    }
    own.last = view;
    for (const Rank& other : ranks_) {  // M1
      if (!other.is_dead && other.last.epoch == view.epoch && other.last != view) {
        wrong("M1: both ", text_of(view), " and ", text_of(other.last));
      }
    }
  }

  // Long after the last fault all ranks in the job agree, and the view has exactly these ranks.
  void check_end() {
    std::optional<View> view;
    bool cut = std::find(cut_.begin(), cut_.end(), true) != cut_.end();
    for (int r = 0; r < size_; ++r) {
      Rank& own = rank(r);
      if (own.is_dead) continue;
      const Standing standing = own.membership->standing();
      if (only_deaths_ && standing != Standing::kMember)
        wrong("rank ", r, " is out, and all that happened is deaths");
      if (standing != Standing::kMember) continue;
      if (!view) view = own.last;
      if (*view != own.last)
        wrong("two views at the end: ", text_of(*view), ", ", text_of(own.last));
    }
    if (!view) {
      const bool all_dead =
          std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.is_dead; });
      if (only_deaths_ && !all_dead) wrong("nobody is left");
      return;
    }
    for (int r : view->members) {
      Rank& own = rank(r);
      if (own.is_dead && !cut) wrong("rank ", r, " is dead, and a member of ", text_of(*view));
      if (!own.is_dead && own.membership->standing() != Standing::kMember && !cut) {
        wrong("rank ", r, " is out, and a member of ", text_of(*view));
      }
    }
  }
  template <class... Parts>
  void wrong(const Parts&... parts) {
    if (!wrong_.empty()) return;
    std::ostringstream text;
    (text << ... << parts);
    wrong_ = text.str();
    say(wrong_);
  }

  std::mt19937_64 random_;
  bool trace_;
  int size_;
  TieRule tie_ = TieRule::kLowest;
  Time now_{0};
  std::uint64_t numbers_ = 0;
  std::priority_queue<Event> events_;
  std::vector<Rank> ranks_;
  std::vector<bool> cut_;
  std::vector<Stream> streams_;
  bool only_deaths_ = true;
  std::string wrong_;
};

// ---- single rules that few schedules need ----
constexpr Time kNow{0};

Membership member(int rank, int size, TieRule tie = TieRule::kLowest) {
  View first;
  for (int r = 0; r < size; ++r) first.members.push_back(r);
  return {MembershipOptions{rank, first, {}, tie, kTimeout}, kNow};
}

// The newest known record of another rank in the first epoch.
MembershipRecord record_of(const Membership& own, std::uint64_t beat) {
  return {.beat = beat, .view = {0, own.view().members}};
}

TEST(Membership, AcceptorKeepsItsPromise) {
  Membership own = member(2, 5);
  MembershipRecord higher = record_of(own, 1);
  higher.proposed = {2, 1};
  own.observe(1, higher, kNow);
  MembershipRecord lower = record_of(own, 1);
  lower.proposed = {1, 0};
  lower.proposed_members = {0, 1, 2};
  own.observe(0, lower, kNow);
  EXPECT_EQ(own.record().promised, (Ballot{2, 1}));
  EXPECT_EQ(own.record().accepted, Ballot{});
}

TEST(Membership, AcceptorPromisesWhatItAccepts) {
  Membership own = member(2, 5);
  MembershipRecord higher = record_of(own, 1);
  higher.proposed = {2, 1};
  higher.proposed_members = {1, 2, 3};
  own.observe(1, higher, kNow);
  MembershipRecord lower = record_of(own, 1);
  lower.proposed = {1, 0};
  own.observe(0, lower, kNow);
  EXPECT_EQ(own.record().promised, (Ballot{2, 1}));
  EXPECT_EQ(own.record().accepted, (Ballot{2, 1}));
}

TEST(Membership, ProposerIsBoundToTheNewestThatWasAccepted) {
  Membership own = member(0, 5);
  MembershipRecord newer = record_of(own, 1);
  newer.promised = newer.accepted = {4, 1};
  newer.accepted_members = {0, 1, 2};
  MembershipRecord older = record_of(own, 1);
  older.promised = older.accepted = {3, 2};
  older.accepted_members = {0, 2, 3};
  own.observe(1, newer, kNow);
  own.observe(2, older, kNow);
  own.bury(4, kNow);
  own.tick(kNow);
  const Ballot ballot = own.record().proposed;
  ASSERT_EQ(ballot, (Ballot{5, 0}));
  for (auto [rank, record] : {std::pair(1, newer), std::pair(2, older)}) {
    ++record.beat;
    record.promised = ballot;
    own.observe(rank, record, kNow);
  }
  own.tick(kNow);
  EXPECT_EQ(own.record().proposed_members, newer.accepted_members);
}

TEST(Membership, HalfGoesOnAsTheTieRuleSays) {
  for (const TieRule tie : {TieRule::kLowest, TieRule::kNeither}) {
    Membership own = member(0, 4, tie);
    for (const int silent : {2, 3}) own.reach(silent, kNow - 2 * kTimeout);
    MembershipRecord other = record_of(own, 1);
    other.accused = {2, 3};
    own.observe(1, other, kNow);
    own.tick(kNow);
    own.tick(kTimeout / 4);
    for (int step = 0; step < 2; ++step) {
      ++other.beat;
      other.promised = own.record().proposed;
      if (!own.record().proposed_members.empty()) other.accepted = other.promised;
      own.observe(1, other, kTimeout / 4);
      own.tick(kTimeout / 4);
    }
    const View expected = tie == TieRule::kLowest ? View{1, {0, 1}} : View{0, {0, 1, 2, 3}};
    EXPECT_EQ(own.view(), expected);
  }
}

// Two pairs of ranks notice the same cut, one later than the other: rank 1 is cut off, not rank 2.
TEST(Membership, RankUnreachedForLongIsAccusedSoonerOnceAnotherIs) {
  Membership own = member(0, 3);
  own.reach(1, kNow - kTimeout * 4 / 5);
  own.tick(kNow);
  EXPECT_FALSE(own.has_trouble());
  MembershipRecord other = record_of(own, 1);
  other.accused = {1};
  own.observe(2, other, kNow);
  own.tick(kNow);
  EXPECT_EQ(own.record().accused, std::vector{1});
  own.tick(kNow + kTimeout / 4);
  ++other.beat;
  other.promised = own.record().proposed;
  own.observe(2, other, kNow + kTimeout / 4);
  own.tick(kNow + kTimeout / 4);
  EXPECT_EQ(own.record().proposed_members, (std::vector{0, 2}));
}

TEST(Membership, RankBuriedByOneOfAFewMembersIsWaitedFor) {
  Membership own = member(1, 5);
  for (const int ended : {0, 3, 4}) own.bury(ended, kNow);
  own.tick(kNow);
  MembershipRecord other = record_of(own, 1);
  other.promised = own.record().proposed;
  other.ended = {3, 4};
  own.observe(2, other, kNow);
  own.tick(kNow);
  EXPECT_TRUE(own.record().proposed_members.empty());
  ++other.beat;
  other.ended = {0, 3, 4};
  own.observe(2, other, kNow);
  own.tick(kNow);
  EXPECT_EQ(own.record().proposed_members, (std::vector{1, 2}));
}

TEST(Membership, RankThatAnotherMemberHasBuriedIsToBeBuried) {
  Membership own = member(1, 5);
  MembershipRecord other = record_of(own, 1);
  other.ended = {0, 3, 4};
  own.observe(2, other, kNow);
  EXPECT_EQ(own.ended_elsewhere(), (std::vector{0, 3, 4}));
  EXPECT_FALSE(own.has_trouble());  // their records may still be on their way
  for (const int ended : {3, 0, 4}) own.bury(ended, kNow);
  EXPECT_TRUE(own.ended_elsewhere().empty());
  ++other.beat;
  own.observe(2, other, kNow);
  EXPECT_TRUE(own.ended_elsewhere().empty());
  own.tick(kNow);
  ++other.beat;
  other.promised = own.record().proposed;
  own.observe(2, other, kNow);
  own.tick(kNow);
  EXPECT_EQ(own.record().proposed_members, (std::vector{1, 2}));
}

TEST(Membership, OnlyMembersOfTheEpochSayWhoHasEnded) {
  Membership own = member(1, 3);
  MembershipRecord other = record_of(own, 1);
  other.ended = {0};
  own.bury(2, kNow);
  own.observe(2, other, kNow);  // records of a dead rank do not count
  EXPECT_TRUE(own.ended_elsewhere().empty());
  other.ended = {1};  // this rank lives
  own.observe(0, other, kNow);
  EXPECT_TRUE(own.ended_elsewhere().empty());
}

TEST(Membership, ProposerThatDoesNotGetOnMakesAnotherProposal) {
  Membership own = member(0, 3);
  own.bury(2, kNow);
  own.tick(kNow);
  EXPECT_EQ(own.record().proposed, (Ballot{1, 0}));
  own.tick(kTimeout / 4);
  EXPECT_EQ(own.record().proposed, (Ballot{2, 0}));
}

// One rank suspects two more ranks before the others do, so it would be at odds with more ranks
// than they are.
TEST(Membership, ProposalLeavesOutThoseWhoWereAccusedWhenItBegan) {
  Membership own = member(0, 6);
  for (const bool is_begun : {false, true}) {
    for (const int r : {1, 4}) {
      MembershipRecord other = record_of(own, is_begun ? 2 : 1);
      other.accused = {5};
      if (is_begun && r == 1) other.accused = {2, 3, 5};
      other.promised = own.record().proposed;
      own.observe(r, other, kNow);
    }
    own.tick(is_begun ? kTimeout / 4 : kNow);
    own.tick(kTimeout / 4);
    ASSERT_EQ(own.record().proposed, (Ballot{1, 0}));
  }
  for (const int r : {2, 3}) {
    MembershipRecord other = record_of(own, 1);
    other.promised = own.record().proposed;
    own.observe(r, other, kTimeout / 4);
  }
  own.tick(kTimeout / 4);
  EXPECT_EQ(own.record().proposed_members, (std::vector{0, 1, 2, 3, 4}));
}

TEST(Membership, ProposalWaitsUntilNobodyIsAccusedAnewForAWhile) {
  Membership own = member(0, 6);
  Time now = kNow;
  for (const auto& accused : {std::vector{5}, std::vector{4, 5}, std::vector{3, 4, 5}}) {
    MembershipRecord other = record_of(own, accused.size());
    other.accused = accused;
    own.hear(1, now);
    own.observe(1, other, now);
    own.tick(now);
    now += kTimeout / 10;
    own.tick(now);
    EXPECT_EQ(own.record().proposed, Ballot{}) << accused.size() << " accused";
  }
  own.tick(now + kTimeout / 10);
  EXPECT_EQ(own.record().proposed, (Ballot{1, 0}));
}

// While the proposer waits, rank 1 hears rank 4 again and no longer hears rank 3.
TEST(Membership, ProposalLeavesOutThoseWhoWereAccusedLast) {
  Membership own = member(0, 5);
  MembershipRecord other = record_of(own, 1);
  other.accused = {4};
  own.observe(1, other, kNow);
  own.tick(kNow);
  ++other.beat;
  other.accused = {3};
  own.observe(1, other, kNow);
  own.tick(kTimeout / 4);
  const Ballot ballot = own.record().proposed;
  ASSERT_EQ(ballot, (Ballot{1, 0}));
  for (const int r : {1, 2}) {
    MembershipRecord promise = record_of(own, 3);
    if (r == 1) promise.accused = {3};
    promise.promised = ballot;
    own.observe(r, promise, kTimeout / 4);
  }
  own.tick(kTimeout / 4);
  EXPECT_EQ(own.record().proposed_members, (std::vector{0, 1, 2, 4}));
}

// The last rank that is left has no rank to hear from.
TEST(Membership, DeathOfTheOnlyOtherRankIsActedOnAtTheNextTick) {
  Membership own = member(0, 2, TieRule::kNeither);
  own.bury(1, kNow);
  own.tick(kNow);
  EXPECT_EQ(own.view(), (View{1, {0}}));
}

// Each single tick takes longer than half of the timeout, on a processor that is too slow.
TEST(Membership, RankThatComputesForLongHasNotBeenStopped) {
  constexpr Time kStep = kTimeout * 3 / 5;
  for (const Time worked : {kStep, Time(0)}) {
    Membership own = member(0, 3);
    MembershipRecord other = record_of(own, 0);
    for (Time now = kNow; now <= 3 * kStep; now += kStep) {
      ++other.beat;
      own.hear(1, now);
      own.observe(1, other, now);
      own.tick(now, now == kNow ? Time(0) : worked);
    }
    const bool is_accused = own.record().accused == std::vector{2};
    EXPECT_EQ(is_accused, worked == kStep) << "worked " << worked.count();
  }
}

TEST(Membership, NothingIsHeardOfWhoHasEnded) {
  Membership own = member(0, 3);
  own.bury(2, kNow);
  MembershipRecord late = record_of(own, 9);
  late.view = {1, {0, 2}};
  own.observe(2, late, kNow);
  EXPECT_EQ(own.view().epoch, 0U);
}

// A job of 20 ranks, in which rank 0 watches eight others, and 6 is none of them.
TEST(Membership, RankThatIsNotWatchedOwesNothingButInTrouble) {
  Membership own = member(0, 20);
  EXPECT_EQ(own.watched(), (std::vector<int>{1, 2, 4, 8, 12, 16, 18, 19}));
  Time now = kNow;
  const auto pass = [&](Time span, bool all_speak) {
    for (const Time end = now + span; now < end; now += kTick) {
      for (int r = 1; r < 20; ++r) {
        const bool is_heard = all_speak || std::ranges::binary_search(own.watched(), r);
        if (r != 6 && is_heard) own.hear(r, now);
      }
      own.tick(now);
    }
  };
  pass(5 * kTimeout, false);
  EXPECT_FALSE(own.has_trouble());
  MembershipRecord other = record_of(own, 1);
  other.accused = {9};
  own.observe(1, other, now);
  pass(kTimeout / 2, true);
  EXPECT_EQ(own.record().news, own.record().beat);
  other.beat = 2;
  other.accused.clear();
  own.observe(1, other, now);
  pass(2 * kTimeout, false);
  EXPECT_EQ(own.record().accused, std::vector<int>());
  other.beat = 3;
  other.accused = {9};
  own.observe(1, other, now);
  pass(kTimeout + 2 * kTick, true);
  EXPECT_EQ(own.record().accused, std::vector<int>{6});
}

// So the accusers of rank 6 outnumber the ranks that one of them accuses.
TEST(Membership, RankThatTwoHostsAccuseIsAccusedAfterAQuarterOfTheLimit) {
  for (const auto& [is_heard, accusers, second_accused] :
       {std::tuple(false, 2, false), std::tuple(true, 2, false), std::tuple(false, 1, false),
        std::tuple(false, 2, true)}) {
    Membership own = member(0, 20);
    MembershipRecord other = record_of(own, 1);
    other.accused = {6};
    own.observe(5, other, kNow);
    if (accusers == 2) own.observe(7, other, kNow);
    other.accused = {7};
    if (second_accused) own.observe(3, other, kNow);
    Time now = kNow;
    for (; now < kTimeout / 4 + 3 * kTick; now += kTick) {
      for (int r = 1; r < 20; ++r) {
        if (r != 6 || is_heard) own.hear(r, now);
      }
      if (now <= kTimeout / 4) {
        EXPECT_EQ(own.record().accused, std::vector<int>());
      }
      EXPECT_EQ(own.record().proposed, Ballot{});
      own.tick(now);
    }
    const bool is_accused = !is_heard && accusers == 2 && !second_accused;
    EXPECT_EQ(own.record().accused, is_accused ? std::vector<int>{6} : std::vector<int>());
  }
}

// It has not heard rank 6 in the trouble that ended with a new epoch. Every member says that it has
// moved there, so rank 6 still owes that.
TEST(Membership, RankThatSaidNothingInTroubleOwesASignInTheNextEpoch) {
  for (const bool speaks_later : {false, true}) {
    Membership own = member(0, 20);
    own.tick(kNow);
    own.bury(9, kNow);
    own.tick(kNow);
    std::vector<int> members = own.view().members;
    std::erase(members, 9);
    own.observe(1, {.beat = 1, .view = {1, members}}, kNow + kTick);
    ASSERT_EQ(own.view().epoch, 1U);
    for (int r : members) {
      if (r != 6 || speaks_later) own.hear(r, kNow + kTick);
    }
    for (Time now = kNow + kTick; now < kTimeout + 2 * kTick; now += kTick) {
      for (int r : own.watched()) own.hear(r, now);
      own.tick(now);
    }
    EXPECT_EQ(own.record().accused, speaks_later ? std::vector<int>() : std::vector<int>{6});
  }
}

TEST(Membership, OnlyTheNewestOfTheEpochCounts) {
  Membership own = member(0, 3);
  MembershipRecord other = record_of(own, 2);
  own.observe(1, other, kNow);
  other.beat = 1;
  other.accused = {2};
  own.observe(1, other, kNow);
  EXPECT_FALSE(own.has_trouble());
  MembershipRecord next = record_of(own, 3);
  next.view = {1, {0, 1}};
  own.observe(1, next, kNow);
  ASSERT_EQ(own.view().epoch, 1U);
  other.beat = 4;
  own.observe(1, other, kNow);
  EXPECT_FALSE(own.has_trouble());
}

// ---- whole jobs ----
// A sanitizer needs ten times as long, and finds what it can in fewer.
constexpr std::uint64_t kSeeds = kSanitized ? 200 : 10'000;

void run_seeds(std::uint64_t seeds, std::int64_t least, std::int64_t most) {
  const char* one = std::getenv("MALT_SEED");
  const char* many = std::getenv("MALT_SEEDS");
  if (one != nullptr) {
    EXPECT_EQ(Simulation(std::strtoull(one, nullptr, 10), least, most, true).run(), "");
    return;
  }
  if (many != nullptr) seeds = std::strtoull(many, nullptr, 10);
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    const std::string wrong = Simulation(seed, least, most, false).run();
    ASSERT_EQ(wrong, "") << "MALT_SEED=" << seed << " shows how";
  }
}

TEST(Membership, ManySeeds) { run_seeds(kSeeds, 2, 7); }

// Each rank watches a few of the others only.
TEST(Membership, ManySeedsOfManyRanks) { run_seeds(kSeeds / 100, 10, kMostRanks); }

}  // namespace
}  // namespace dstorm
