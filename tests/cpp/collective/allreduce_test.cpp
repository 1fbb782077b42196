// The protocol of Allreduce, with real processes as ranks.
#include "dstorm/collective/allreduce.hpp"

#include <gtest/gtest.h>

#include <random>

#include "dstorm/segment/parts.hpp"
#include "mask_vector.hpp"
#include "processes.hpp"

namespace dstorm {
namespace {

using namespace std::chrono_literals;
using testing_processes::expect_all_well;
using testing_processes::Job;
using testing_processes::join;
using testing_processes::Shared;

constexpr std::size_t kLong = 20'000;  // floats: divided among three ranks or more
constexpr std::size_t kShort = 100;
constexpr std::size_t kManyParts = 900'000;  // floats: in three parts between two ranks
constexpr int kRounds = 8;
const Operation kSum{1, "SUM"};

enum class Step : std::uint8_t { kNone, kFirstPart, kLastPart, kFold, kWrite };

class Vector final : public testing_processes::MaskVector {
 public:
  using MaskVector::MaskVector;

  // The process ends in the middle of the next round, before it writes this message.
  void die_at(Step step) { dies_at_ = step; }
  // Called before the vector is sent next.
  void before_send(std::function<void()> wait) { before_send_ = std::move(wait); }

  void copy_out(std::byte* to, ByteRange range) const override {
    end_at(range.begin == 0 ? Step::kFirstPart : Step::kNone);
    end_at(range.end == size() ? Step::kLastPart : Step::kNone);
    if (before_send_) std::exchange(before_send_, nullptr)();
    read(to, range);
  }
  void fold(std::byte* to, std::span<const std::byte* const> inputs, ByteRange range) override {
    end_at(to == nullptr ? Step::kWrite : Step::kFold);
    add(to, inputs, range);
  }
  void copy_in(const std::byte* from, ByteRange range) override {
    end_at(Step::kWrite);
    write(from, range);
  }

 private:
  void end_at(Step step) const {
    if (step != Step::kNone && step == dies_at_) kill(getpid(), SIGKILL);
  }

  Step dies_at_ = Step::kNone;
  mutable std::function<void()> before_send_;
};

Allreduce make(const std::shared_ptr<Group>& group, std::size_t count) {
  return {group, "allreduce of vector 'w'", "floats", count * sizeof(float)};
}

// The result of each rank, by round.
struct Results {
  std::array<std::array<std::atomic<int>, kRounds>, 4> masks;
  std::array<std::atomic<bool>, 4> flags;
};

void await(const std::atomic<bool>& flag) {
  for (int looks = 0; !flag && looks < 20'000; ++looks) std::this_thread::sleep_for(1ms);
}

// In every round all survivors get the same result. It contains all of them, and no rank that an
// earlier result left out.
void expect_agreement(const Results& results, const std::vector<int>& survivors) {
  int least = 15;
  for (std::size_t round = 0; round < kRounds; ++round) {
    const int mask = results.masks[static_cast<std::size_t>(survivors[0])][round];
    for (int r : survivors) {
      EXPECT_EQ(results.masks[static_cast<std::size_t>(r)][round], mask)
          << "rank " << r << ", round " << round;
      EXPECT_TRUE((mask & 1 << r) != 0) << "rank " << r << ", round " << round;
    }
    EXPECT_EQ(mask & least, mask) << "round " << round;
    least = mask;
  }
}

int run_rounds(
    Allreduce& allreduce, Vector& vector, int rank, Results& results,
    const std::function<void(int)>& before = [](int) {}) {
  for (int round = 0; round < kRounds; ++round) {
    vector.fill();
    before(round);
    const std::vector<int>& ranks = allreduce.run(vector, kSum, 20s);
    int members = 0;
    for (int r : ranks) members |= 1 << r;
    CHECK_THAT(vector.mask() == members);
    results.masks[static_cast<std::size_t>(rank)][static_cast<std::size_t>(round)] = members;
  }
  return 0;
}

TEST(Allreduce, RanksThatAreFastAndSlowGetTheSumOfAllInEveryRound) {
  for (const std::size_t count : {kShort, kLong}) {
    Job job(4, [&](Bootstrap& bootstrap) {
      const auto group = join(bootstrap);
      Allreduce allreduce = make(group, count);
      Vector vector(count, group->rank());
      std::minstd_rand random(static_cast<unsigned>(group->rank()) + 1);
      for (int round = 0; round < 25; ++round) {
        vector.fill();
        if (random() % 8 == 0) std::this_thread::sleep_for(2ms);
        CHECK_THAT(allreduce.run(vector, kSum, 20s).size() == 4);
        CHECK_THAT(vector.mask() == 15);
      }
      return 0;
    });
    expect_all_well(job);
  }
}

TEST(Allreduce, EachRankWritesTwoVectorsLessTwoPartsHoweverManyThereAre) {
  for (const int size : {2, 3, 5}) {
    Job job(size, [&](Bootstrap& bootstrap) {
      const auto group = join(bootstrap);
      Allreduce allreduce = make(group, kLong);
      Vector vector(kLong, group->rank());
      constexpr int kTimes = 4;
      for (int round = 0; round < kTimes; ++round) allreduce.run(vector, kSum, 20s);
      const double vectors =
          static_cast<double>(allreduce.stats().bytes_out) / (kTimes * kLong * sizeof(float));
      const double least = size == 2 ? 1 : 2 - 2.0 / size;
      CHECK_THAT(vectors >= least - 0.01 && vectors < least + 0.05);
      return 0;
    });
    expect_all_well(job);
  }
}

TEST(Allreduce, RankThatDiesAtAnyStepIsInTheResultOfAllOrOfNone) {
  for (const std::size_t count : {kLong, kShort}) {
    for (const Step step : {Step::kFirstPart, Step::kLastPart, Step::kFold, Step::kWrite}) {
      if (count == kShort && step == Step::kFold) continue;  // no rank folds for others
      Shared<Results> results;
      Job job(4, [&](Bootstrap& bootstrap) {
        const auto group = join(bootstrap);
        const int rank = group->rank();
        Allreduce allreduce = make(group, count);
        Vector vector(count, rank);
        return run_rounds(allreduce, vector, rank, *results, [&](int round) {
          if (rank == 1 && round == 3) vector.die_at(step);
        });
      });
      EXPECT_EQ(job.wait_all(), (std::vector<int>{0, 137, 0, 0}));
      expect_agreement(*results, {0, 2, 3});
      EXPECT_EQ(results->masks[0][kRounds - 1], 13);
    }
  }
}

TEST(Allreduce, OneOfTwoThatDiesBetweenItsPartsIsInTheResultOrNot) {
  for (const Step step : {Step::kFirstPart, Step::kLastPart, Step::kWrite}) {
    Shared<Results> results;
    Job job(2, [&](Bootstrap& bootstrap) {
      const auto group = join(bootstrap);
      const int rank = group->rank();
      Allreduce allreduce = make(group, kManyParts);
      Vector vector(kManyParts, rank);
      return run_rounds(allreduce, vector, rank, *results, [&](int round) {
        if (rank == 1 && round == 3) vector.die_at(step);
      });
    });
    EXPECT_EQ(job.wait_all(), (std::vector<int>{0, 137}));
    expect_agreement(*results, {0});
    // Rank 1 has ended round 2, so rank 0 began it, so rank 0 had round 1 whole. Rank 1's parts of
    // round 2 may between hosts be lost with their sender.
    EXPECT_EQ(results->masks[0][1], 3);
    if (step != Step::kWrite) {
      EXPECT_EQ(results->masks[0][3], 1);
    }
    EXPECT_EQ(results->masks[0][kRounds - 1], 1);
  }
}

// The parts get longer as ranks end. Two ranks remain, which write whole vectors to each other, and
// then one.
TEST(Allreduce, ThreeDieAtDifferentStepsAndTheLastGoesOn) {
  Shared<Results> results;
  Job job(4, [&](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    const int rank = group->rank();
    Allreduce allreduce = make(group, kLong);
    Vector vector(kLong, rank);
    return run_rounds(allreduce, vector, rank, *results, [&](int round) {
      if (rank == 3 && round == 1) vector.die_at(Step::kFold);
      if (rank == 0 && round == 1) vector.die_at(Step::kWrite);
      if (rank == 2 && round == 5) vector.die_at(Step::kLastPart);
    });
  });
  EXPECT_EQ(job.wait_all(), (std::vector<int>{137, 0, 137, 137}));
  expect_agreement(*results, {1});
  EXPECT_EQ(results->masks[1][kRounds - 1], 2);
}

TEST(Allreduce, SurvivorsOfKillsAtAnyMomentAgree) {
  const char* const given = std::getenv("MALT_SEEDS");
  const unsigned seeds = given == nullptr ? 6 : static_cast<unsigned>(std::atoi(given));
  for (unsigned seed = 0; seed < seeds; ++seed) {
    SCOPED_TRACE(seed);
    Shared<Results> results;
    Job job(4, [&](Bootstrap& bootstrap) {
      const auto group = join(bootstrap);
      const int rank = group->rank();
      const std::size_t count = seed % 3 == 0 ? kShort : kLong;
      Allreduce allreduce = make(group, count);
      Vector vector(count, rank);
      results->flags[static_cast<std::size_t>(rank)] = true;
      return run_rounds(allreduce, vector, rank, *results);
    });
    for (const std::atomic<bool>& flag : results->flags) await(flag);
    std::minstd_rand random(seed + 1);
    for (const int victim : {1, 2}) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 4000));
      job.signal(victim, SIGKILL);
    }
    EXPECT_EQ(job.wait(0), 0);
    EXPECT_EQ(job.wait(3), 0);
    expect_agreement(*results, {0, 3});
  }
}

// A rank whose round the test makes step by step.
class ByHand {
 public:
  ByHand(std::shared_ptr<Group> group, std::size_t count)
      : bytes_(count * sizeof(float)),
        parts_(group->size() == 2 ? 1 : static_cast<std::size_t>(group->size())),
        head_bytes_(AllreduceMessage::head_bytes(group->size())),
        segment_(group, options()),
        writer_(mailbox(group->rank()), group->rank()),
        members_(group->size()) {
    for (int r = 0; r < group->size(); ++r) members_.add(r);
  }

  void say(AllreduceHead::Kind kind, const std::vector<int>& to, std::size_t part = 0,
           std::span<const std::byte> bytes = {}) {
    const int slot = writer_.claim(Policy::kQueue, [](int) { return true; });
    const AllreduceHead head{round(), 0, kSum.code, kind, static_cast<std::uint32_t>(part), 0};
    AllreduceMessage{head, members_}.write(writer_.payload(slot));
    if (!bytes.empty()) {
      std::memcpy(writer_.payload(slot) + head_bytes_, bytes.data(), bytes.size());
    }
    SlotHeader header{};
    header.iteration = ++iteration_;
    header.payload_bytes = head_bytes_ + bytes.size();
    writer_.publish(slot, header, to);
    segment_.parts().state.channel().deliver(to, header.payload_bytes);
  }
  // As a rank that has committed the round with rank 0.
  void mark() {
    SegmentState& state = segment_.parts().state;
    state.channel().reader(0).mark(round());
    const std::array ranks{0};
    state.channel().wake(ranks);
    state.channel().acknowledge(ranks, true);
  }
  void write_part(std::size_t part, const std::vector<int>& to, float value) {
    const ByteRange range = part_range(bytes_, part, parts_);
    const std::vector<float> values((range.end - range.begin) / sizeof(float), value);
    say(AllreduceHead::Kind::kPart, to, part, std::as_bytes(std::span(values)));
  }
  // All messages of rank 3 of 4 except its "have all".
  void write_all_parts() {
    for (int r = 0; r < 3; ++r) write_part(static_cast<std::size_t>(r), {r}, 8);
    await_inputs();
    write_part(3, {0, 1, 2}, 15);
  }

 private:
  std::uint64_t round() const { return (segment_.group().posted() << 32) + 1; }
  // Waits until the others have written their first message.
  void await_inputs() {
    const auto all_here = [&] {
      return std::ranges::all_of(segment_.peers(), [&](int r) {
        return SlotReader(mailbox(r), segment_.group().rank()).oldest(0, kMostIteration) >= 0;
      });
    };
    segment_.wait(all_here, 20s);
  }
  SegmentOptions options() const {
    SegmentOptions options;
    options.name = options.call = "allreduce of vector 'w'";
    options.kind = "floats";
    options.slot_bytes = head_bytes_ + round_up((bytes_ + parts_ - 1) / parts_, kLine);
    options.depth = static_cast<int>(parts_) + (parts_ == 1 ? 1 : 3);
    options.policy = Policy::kQueue;
    return options;
  }
  Mailbox mailbox(int rank) const { return segment_.parts().state.memory().box(rank); }

  std::size_t bytes_, parts_, head_bytes_;
  Segment segment_;
  SlotWriter writer_;
  RankSet members_;
  std::uint64_t iteration_ = 0;
};

// Rank 3's last message, "have all", reaches only rank 0, which commits and then pauses. The
// others, which have lost rank 3 and begun again without it, learn of the commit.
TEST(Allreduce, OneThatHasHeardTheLastWordOfTheDyingTellsTheOthers) {
  Shared<Results> results;
  Job job(4, [&](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    const int rank = group->rank();
    if (rank == 3) {
      ByHand hand(group, kLong);
      hand.write_all_parts();
      hand.say(AllreduceHead::Kind::kHaveAll, {0});
      await(results->flags[3]);
      kill(getpid(), SIGKILL);
    }
    Allreduce allreduce = make(group, kLong);
    Vector vector(kLong, rank);
    if (rank == 0) {
      vector.before_write([&] {
        results->flags[3] = true;
        while (group->is_live(3)) std::this_thread::sleep_for(1ms);
        std::this_thread::sleep_for(50ms);  // until the others have noticed
      });
    }
    CHECK_THAT(allreduce.run(vector, kSum, 20s).size() == 4);
    CHECK_THAT(vector.mask() == 15);
    results->flags[static_cast<std::size_t>(rank)] = true;
    for (std::size_t r = 0; r < 3; ++r) await(results->flags[r]);
    vector.fill();
    CHECK_THAT(allreduce.run(vector, kSum, 20s).size() == 3);
    CHECK_THAT(vector.mask() == 7);
    return 0;
  });
  EXPECT_EQ(job.wait_all(), (std::vector<int>{0, 0, 0, 137}));
}

// The same, but rank 0 leaves the job after its commit: its last message arrives before its leave.
TEST(Allreduce, OthersCommitTheResultOfARankThatLeaves) {
  Shared<Results> results;
  Job job(4, [&](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    const int rank = group->rank();
    if (rank == 3) {
      ByHand hand(group, kLong);
      hand.write_all_parts();
      hand.say(AllreduceHead::Kind::kHaveAll, {0});
      await(results->flags[0]);
      kill(getpid(), SIGKILL);
    }
    Allreduce allreduce = make(group, kLong);
    Vector vector(kLong, rank);
    CHECK_THAT(allreduce.run(vector, kSum, 20s).size() == 4);
    CHECK_THAT(vector.mask() == 15);
    results->flags[static_cast<std::size_t>(rank)] = true;
    return 0;
  });
  EXPECT_EQ(job.wait_all(), (std::vector<int>{0, 0, 0, 137}));
}

// Each rank has everything that rank 3 had to give, but no rank has heard that rank 3 has
// everything, too.
TEST(Allreduce, WithoutTheLastWordOfTheDyingNobodyCommitsWithIt) {
  Job job(4, [&](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    const int rank = group->rank();
    if (rank == 3) {
      ByHand hand(group, kLong);
      hand.write_all_parts();
      std::this_thread::sleep_for(50ms);
      kill(getpid(), SIGKILL);
    }
    Allreduce allreduce = make(group, kLong);
    Vector vector(kLong, rank);
    CHECK_THAT(allreduce.run(vector, kSum, 20s).size() == 3);
    CHECK_THAT(vector.mask() == 7);
    return 0;
  });
  EXPECT_EQ(job.wait_all(), (std::vector<int>{0, 0, 0, 137}));
}

// A8. Rank 0 has said "have all" when its time is up, so the others commit without it.
TEST(Allreduce, NextCallOfARankThatGaveUpReturnsTheResultThatOthersCommitted) {
  Shared<Results> results;
  Job job(4, [&](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    const auto rank = static_cast<std::size_t>(group->rank());
    if (rank == 3) {
      ByHand hand(group, kLong);
      hand.write_all_parts();
      await(results->flags[0]);
      hand.say(AllreduceHead::Kind::kHaveAll, {0, 1, 2});
      group->barrier();
      return 0;
    }
    Allreduce allreduce = make(group, kLong);
    Vector vector(kLong, group->rank());
    if (rank == 0) {
      try {
        allreduce.run(vector, kSum, 200ms);
        return 1;
      } catch (const TimeoutError& error) {
        CHECK_THAT(error.ranks() == std::vector<int>{3});
      }
      CHECK_THAT(vector.mask() == 1);
      results->flags[0] = true;
      try {
        allreduce.run(vector, Operation{2, "AVG"}, 20s);
        return 2;
      } catch (const ConfigError& error) {
        CHECK_THAT(std::string(error.what()).find("repeat that first") != std::string::npos);
      }
      await(results->flags[1]), await(results->flags[2]);
    }
    Vector other(kLong, 3);  // what the next call is given does not count
    CHECK_THAT(allreduce.run(rank == 0 ? other : vector, kSum, 20s).size() == 4);
    CHECK_THAT((rank == 0 ? other : vector).mask() == 15);
    results->flags[rank] = true;
    group->barrier();
    return 0;
  });
  expect_all_well(job);
}

// A8. Rank 1 of two is late, and a program that goes on with other values after a time-out gets no
// result of what it gave to a call that failed.
TEST(Allreduce, OneOfTwoThatComesLateToACallGivenUpDoesNotEndItAlone) {
  for (const std::size_t count : {kShort, kManyParts}) {
    Shared<Results> results;
    Job job(2, [&](Bootstrap& bootstrap) {
      const auto group = join(bootstrap);
      const int rank = group->rank();
      Allreduce allreduce = make(group, count);
      for (int step = 0; step < 6; ++step) {
        Vector vector(count, rank + 2 * step);
        const bool is_missed = step < 3;  // more often than there are slots
        if (rank == 1 && step == 0) await(results->flags[0]);
        try {
          allreduce.run(vector, kSum, rank == 0 && is_missed ? 50ms : 20s);
          CHECK_THAT(!is_missed);
        } catch (const TimeoutError& error) {
          CHECK_THAT(is_missed && error.ranks() == std::vector<int>{1 - rank});
        }
        CHECK_THAT(vector.mask() == (is_missed ? 1 << (rank + 2 * step) : 3 << 2 * step));
        if (step == 2) results->flags[static_cast<std::size_t>(rank)] = true;
      }
      return 0;
    });
    expect_all_well(job);
  }
}

// A8. Its vector and word that it gave up have come when this one has sent its own.
TEST(Allreduce, OneOfTwoDoesNotCommitWhatTheOtherGaveUp) {
  Shared<Results> results;
  Job job(2, [&](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    if (group->rank() == 1) {
      ByHand hand(group, kShort);
      await(results->flags[0]);
      hand.write_part(0, {0}, 2);
      hand.say(AllreduceHead::Kind::kGaveUp, {0});
      results->flags[1] = true;
      await(results->flags[2]);
      return 0;
    }
    Allreduce allreduce = make(group, kShort);
    Vector vector(kShort, 0);
    vector.before_send([&] {
      results->flags[0] = true;
      await(results->flags[1]);
      std::this_thread::sleep_for(100ms);  // until they are here
    });
    try {
      allreduce.run(vector, kSum, 20s);
      return 1;
    } catch (const TimeoutError& error) {
      CHECK_THAT(error.ranks() == std::vector<int>{1});
    }
    CHECK_THAT(vector.mask() == 1);
    results->flags[2] = true;
    return 0;
  });
  expect_all_well(job);
}

// Rank 2 comes to no call. Rank 0 leaves the first at its limit, and the second because it is
// interrupted: then it is the one to blame.
TEST(Allreduce, RankThatWasInterruptedIsNamedAndNotOneThatHadNotCome) {
  struct Interrupt {};
  Shared<Results> results;
  Job job(3, [&](Bootstrap& bootstrap) {
    bool is_due = false;
    GroupOptions options;
    options.interrupt = [&] {
      if (is_due) throw Interrupt{};
    };
    const auto group = join(bootstrap, options);
    Allreduce allreduce = make(group, kLong);
    for (const bool is_interrupted : {false, true}) {
      const auto flag = static_cast<std::size_t>(is_interrupted);
      if (group->rank() == 2) {
        await(results->flags[flag]);
        continue;
      }
      Vector vector(kLong, group->rank());
      is_due = is_interrupted && group->rank() == 0;
      try {
        allreduce.run(vector, kSum, group->rank() == 0 && !is_interrupted ? 100ms : 20s);
        return 1;
      } catch (const TimeoutError& error) {
        CHECK_THAT(error.ranks() == std::vector<int>{is_interrupted ? 0 : 2});
      } catch (const Interrupt&) {
        CHECK_THAT(is_interrupted && group->rank() == 0);
      }
      is_due = false;
      if (group->rank() == 1) results->flags[flag] = true;
    }
    group->barrier();
    return 0;
  });
  expect_all_well(job);
}

// Rank 1 gave up because rank 2 was interrupted, and its word of that is here before rank 2's own.
TEST(Allreduce, RankThatWasInterruptedIsNamedByOthers) {
  Shared<Results> results;
  Job job(3, [&](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    if (group->rank() > 0) {
      ByHand hand(group, kLong);
      if (group->rank() == 1) hand.say(AllreduceHead::Kind::kGaveUp, {0}, 3);
      await(results->flags[0]);
      return 0;
    }
    Allreduce allreduce = make(group, kLong);
    Vector vector(kLong, 0);
    try {
      allreduce.run(vector, kSum, 20s);
      return 1;
    } catch (const TimeoutError& error) {
      CHECK_THAT(error.ranks() == std::vector<int>{2});
    }
    results->flags[0] = true;
    return 0;
  });
  expect_all_well(job);
}

// A6, A7. Rank 3 is slow in writing the result of the first call, and holds its messages, when rank
// 0 is interrupted in the second.
TEST(Allreduce, RankThatIsInterruptedHasASlotToSaySo) {
  struct Interrupt {};
  Shared<Results> results;
  Job job(4, [&](Bootstrap& bootstrap) {
    GroupOptions options;
    bool is_due = false;
    options.interrupt = [&] {
      if (is_due) throw Interrupt{};
    };
    const auto group = join(bootstrap, options);
    const int rank = group->rank();
    Allreduce allreduce = make(group, kLong);
    Vector vector(kLong, rank);
    if (rank == 3) {
      vector.before_write([&] {
        await(results->flags[1]);
        await(results->flags[2]);
      });
    }
    allreduce.run(vector, kSum, 20s);
    is_due = rank == 0;
    try {
      allreduce.run(vector, kSum, 20s);
      return 1;
    } catch (const TimeoutError& error) {
      CHECK_THAT(error.ranks() == std::vector<int>{0});
    } catch (const Interrupt&) {
      CHECK_THAT(rank == 0);
    }
    is_due = false;
    results->flags[static_cast<std::size_t>(rank)] = true;
    group->barrier();
    return 0;
  });
  expect_all_well(job);
}

// A8. The other one of two committed before it could hear that this one gave up, and makes no
// further call; or it has left.
TEST(Allreduce, OneOfTwoThatGaveUpLearnsThatTheOtherCommitted) {
  for (const bool leaves : {false, true}) {
    Shared<Results> results;
    Job job(2, [&](Bootstrap& bootstrap) {
      const auto group = join(bootstrap);
      if (group->rank() == 1) {
        ByHand hand(group, kShort);
        await(results->flags[0]);
        hand.write_part(0, {0}, 2);
        await(results->flags[1]);
        if (leaves) return 0;
        hand.mark();
        await(results->flags[2]);
        return 0;
      }
      Allreduce allreduce = make(group, kShort);
      Vector vector(kShort, 0);
      for (const auto& flag : {std::ref(results->flags[0]), std::ref(results->flags[1])}) {
        try {
          allreduce.run(vector, kSum, 100ms);
          return 1;  // it may not commit on rank 1's vector alone
        } catch (const TimeoutError& error) {
          CHECK_THAT(error.ranks() == std::vector<int>{1});
        }
        CHECK_THAT(vector.mask() == 1);
        flag.get() = true;
      }
      CHECK_THAT(allreduce.run(vector, kSum, 20s).size() == 2);
      CHECK_THAT(vector.mask() == 3);
      results->flags[2] = true;
      return 0;
    });
    expect_all_well(job);
  }
}

TEST(Allreduce, MessageThatCannotBeIsRefused) {
  Job job(3, [&](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    if (group->rank() == 2) {
      ByHand hand(group, kLong);
      hand.write_part(2, {0, 1}, 4);  // a result
      hand.write_part(2, {0, 1}, 4);  // the same once more
      group->barrier();
      return 0;
    }
    Allreduce allreduce = make(group, kLong);
    Vector vector(kLong, group->rank());
    try {
      allreduce.run(vector, kSum, 20s);
      return 1;
    } catch (const TimeoutError&) {
      CHECK_THAT(group->rank() == 0 || group->rank() == 1);  // the other rank was first
    } catch (const Error& error) {
      CHECK_THAT(std::string(error.what()).find("rank 2 wrote part 2") != std::string::npos);
    }
    CHECK_THAT(vector.mask() == 1 << group->rank());
    group->barrier();
    return 0;
  });
  expect_all_well(job);
}

TEST(Allreduce, CallThatFailsIsOverForAllAndTheNextWorks) {
  for (const std::size_t count : {kShort, kLong}) {
    Shared<Results> results;
    Job job(3, [&](Bootstrap& bootstrap) {
      const auto group = join(bootstrap);
      const int rank = group->rank();
      Allreduce allreduce = make(group, count);
      Vector vector(count, rank);
      for (int time = 0; time < 3; ++time) {  // more often than one late rank has slots
        if (rank == 2) break;
        try {
          allreduce.run(vector, kSum, 30ms);
          return 1;
        } catch (const TimeoutError& error) {
          CHECK_THAT(error.ranks().back() == 2);
        }
        CHECK_THAT(vector.mask() == 1 << rank);
        results->flags[static_cast<std::size_t>(rank)] = time == 2;
      }
      if (rank == 2) {
        await(results->flags[0]), await(results->flags[1]);
        for (int time = 0; time < 3; ++time) {
          try {
            allreduce.run(vector, kSum, 20s);
            return 1;
          } catch (const TimeoutError&) {  // the others have given up this round
            CHECK_THAT(vector.mask() == 4);
          }
        }
      }
      CHECK_THAT(allreduce.run(vector, kSum, 20s).size() == 3);
      CHECK_THAT(vector.mask() == 7);
      return 0;
    });
    expect_all_well(job);
  }
}

// A9.
TEST(Allreduce, RankThatIsACallBehindMeetsTheOthersOnceTheyHaveMetElsewhere) {
  for (const auto& [ranks, count] :
       {std::pair{2, kShort}, {2, kManyParts}, {3, kShort}, {3, kLong}}) {
    Job job(ranks, [&, count = count](Bootstrap& bootstrap) {
      const auto group = join(bootstrap);
      Allreduce allreduce = make(group, count);
      Vector vector(count, group->rank());
      for (int step = 0; step < 4; ++step) {
        vector.fill();
        const bool is_missed = step == 0 || step == 2;
        try {
          if (!is_missed || group->rank() > 0) allreduce.run(vector, kSum, is_missed ? 50ms : 20s);
          CHECK_THAT(!is_missed || group->rank() == 0);
        } catch (const TimeoutError&) {
          CHECK_THAT(is_missed);
        }
        CHECK_THAT(vector.mask() == (is_missed ? 1 << group->rank() : (1 << group->size()) - 1));
        group->barrier();
      }
      return 0;
    });
    expect_all_well(job);
  }
}

// A9. Rank 0 gives up a barrier to which the others come only after they have made a call with it.
TEST(Allreduce, RankThatGaveUpAnExchangeAloneIsInNoLaterRound) {
  for (const int ranks : {2, 3}) {
    Shared<Results> results;
    Job job(ranks, [&](Bootstrap& bootstrap) {
      const auto group = join(bootstrap);
      Allreduce allreduce = make(group, kShort);
      Vector vector(kShort, group->rank());
      const auto run = [&] {
        vector.fill();
        allreduce.run(vector, kSum, 20s);
        return vector.mask() == (1 << group->size()) - 1;
      };
      CHECK_THAT(run());
      if (group->rank() == 0) {
        try {
          group->barrier(30ms);
          return 1;
        } catch (const TimeoutError&) {
          results->flags[0] = true;
        }
      }
      await(results->flags[0]);
      CHECK_THAT(run());
      if (group->rank() > 0) group->barrier(20s);
      if (group->rank() == 0) {  // it may have to make a call to learn that the others are there
        try {
          CHECK_THAT(run());
        } catch (const TimeoutError&) {
          CHECK_THAT(run());
        }
      } else {
        CHECK_THAT(run());
      }
      return 0;
    });
    expect_all_well(job);
  }
}

TEST(Allreduce, OneThatGivesUpEndsTheOthersWaits) {
  Shared<Results> results;
  Job job(3, [&](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    const auto rank = static_cast<std::size_t>(group->rank());
    Allreduce allreduce = make(group, kLong);
    Vector vector(kLong, group->rank());
    try {
      if (rank != 2) allreduce.run(vector, kSum, rank == 0 ? 30ms : 1h);
    } catch (const TimeoutError& error) {
      CHECK_THAT(error.ranks().back() == 2);
      results->flags[rank] = true;
    }
    await(results->flags[1]);
    CHECK_THAT(results->flags[1]);
    group->barrier();
    return 0;
  });
  expect_all_well(job);
}

TEST(Allreduce, DifferentOperationsAreAnErrorOnEveryRankAndTheNextCallWorks) {
  Job job(3, [&](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    Allreduce allreduce = make(group, kLong);
    Vector vector(kLong, group->rank());
    try {
      allreduce.run(vector, group->rank() == 1 ? Operation{2, "AVG"} : kSum, 20s);
      return 1;
    } catch (const ConfigError& error) {
      CHECK_THAT(std::string(error.what()).find("different folds") != std::string::npos);
    }
    CHECK_THAT(vector.mask() == 1 << group->rank());
    allreduce.run(vector, kSum, 20s);
    CHECK_THAT(vector.mask() == 7);
    return 0;
  });
  expect_all_well(job);
}

}  // namespace
}  // namespace dstorm
