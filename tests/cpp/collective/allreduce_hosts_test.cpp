// Allreduce by messages where hosts have several ranks each: the vectors of a host are added up
// there.
#include <gtest/gtest.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <random>

#include "dstorm/collective/allreduce.hpp"
#include "mask_vector.hpp"
#include "placed.hpp"

namespace dstorm {
namespace {

using namespace std::chrono_literals;
using testing_processes::expect_all_well;
using testing_processes::hosts_of;
using testing_processes::Job;
using testing_processes::join_placed;
using testing_processes::Shared;

constexpr std::size_t kCount = 40'000;  // floats: long enough to be added up by host
constexpr int kRounds = 6;
constexpr int kMostRanks = 16;
const Operation kSum{1, "SUM"};

enum class Step : std::uint8_t { kNone, kInput, kAdd, kFold, kWrite };

class Vector final : public testing_processes::MaskVector {
 public:
  using MaskVector::MaskVector;

  void die_at(Step step) { dies_at_ = step; }
  // Called after a sum of the host's vectors is made.
  void after_add(std::function<void()> note) { after_add_ = std::move(note); }
  void be_no_sum() { is_sum_ = false; }
  int adds() const { return adds_; }
  int folds() const { return folds_; }

  void copy_out(std::byte* to, ByteRange range) const override {
    end_at(Step::kInput);
    read(to, range);
  }
  void fold(std::byte* to, std::span<const std::byte* const> inputs, ByteRange range) override {
    ++folds_;
    add(to, inputs, range);
  }
  bool is_made_of_sums() const override { return is_sum_; }
  void add_up(std::byte* to, std::span<const std::byte* const> inputs, ByteRange range,
              std::size_t total) override {
    end_at(total == 0 ? Step::kAdd : Step::kFold);
    add(to, inputs, range);
    if (total != 0) return;
    ++adds_;
    if (after_add_) after_add_();
  }
  void copy_in(const std::byte* from, ByteRange range) override {
    end_at(Step::kWrite);
    write(from, range);
  }

 private:
  void end_at(Step step) const {
    if (step == dies_at_) kill(getpid(), SIGKILL);
  }

  bool is_sum_ = true;
  int adds_ = 0, folds_ = 0;
  Step dies_at_ = Step::kNone;
  std::function<void()> after_add_;
};

Allreduce make(const std::shared_ptr<Group>& group, std::size_t count = kCount) {
  return {group, "allreduce of vector 'w'", "floats", count * sizeof(float)};
}

struct Results {
  std::array<std::array<std::atomic<int>, kRounds>, kMostRanks> masks;
  std::array<std::atomic<int>, kMostRanks> flags;
};

void await(const std::atomic<int>& flag, int least = 1) {
  for (int looks = 0; flag < least && looks < 20'000; ++looks) std::this_thread::sleep_for(1ms);
}

// As in allreduce_test.cpp.
void expect_agreement(const Results& results, const std::vector<int>& survivors) {
  int least = (1 << kMostRanks) - 1;
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
    int members = 0;
    for (int r : allreduce.run(vector, kSum, 20s)) members |= 1 << r;
    CHECK_THAT(vector.mask() == members);
    results.masks[static_cast<std::size_t>(rank)][static_cast<std::size_t>(round)] = members;
  }
  return 0;
}

TEST(AllreduceOfHosts, RanksThatAreFastAndSlowGetTheSumOfAllInEveryRound) {
  for (const std::vector<int>& hosts : {std::vector{0, 1, 0, 1}, {0, 0, 1, 1, 1, 2}}) {
    Job job(static_cast<int>(hosts.size()), [&](Bootstrap& bootstrap) {
      const auto group = join_placed(bootstrap, hosts);
      Allreduce allreduce = make(group);
      Vector vector(kCount, group->rank());
      std::minstd_rand random(static_cast<unsigned>(group->rank()) + 1);
      for (int round = 0; round < 25; ++round) {
        vector.fill();
        if (random() % 8 == 0) std::this_thread::sleep_for(2ms);
        allreduce.run(vector, kSum, 20s);
        CHECK_THAT(vector.mask() == (1 << group->size()) - 1);
      }
      CHECK_THAT(vector.adds() > 0 && vector.folds() == 0);
      return 0;
    });
    expect_all_well(job);
  }
}

// Short vectors, and those whose fold is not made of sums, are folded as between hosts of one rank.
TEST(AllreduceOfHosts, OthersAreNotAddedUp) {
  Job job(4, [](Bootstrap& bootstrap) {
    const auto group = join_placed(bootstrap, hosts_of(2, 2));
    for (const bool is_short : {true, false}) {
      const std::size_t count = is_short ? 20'000 : kCount;
      Allreduce allreduce = make(group, count);
      Vector vector(count, group->rank());
      if (!is_short) vector.be_no_sum();
      allreduce.run(vector, kSum, 20s);
      CHECK_THAT(vector.mask() == 15 && vector.adds() == 0 && vector.folds() == 1);
      group->barrier();
    }
    return 0;
  });
  expect_all_well(job);
}

// Bytes that the TCP connections of this process have sent.
std::uint64_t sent_bytes() {
  std::uint64_t bytes = 0;
  for (int fd = 0; fd < 1024; ++fd) {
    tcp_info info{};
    socklen_t length = sizeof(info);
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0) bytes += info.tcpi_bytes_acked;
  }
  return bytes;
}

TEST(AllreduceOfHosts, TwoVectorsLessTwoPartsLeaveAHostHoweverManyRanksItHas) {
  constexpr std::size_t kLong = 1'000'000;
  constexpr int kTimes = 5;
  for (const auto& [count, ranks] : {std::pair{2, 2}, {4, 2}, {3, 4}}) {
    Shared<std::array<std::atomic<std::uint64_t>, kMostRanks>> bytes;
    Job job(count * ranks, [&, count = count, ranks = ranks](Bootstrap& bootstrap) {
      const auto group = join_placed(bootstrap, hosts_of(count, ranks));
      Allreduce allreduce = make(group, kLong);
      Vector vector(kLong, group->rank());
      group->barrier();
      const std::uint64_t before = sent_bytes();
      for (int round = 0; round < kTimes; ++round) allreduce.run(vector, kSum, 20s);
      group->barrier();
      (*bytes)[static_cast<std::size_t>(group->rank())] = sent_bytes() - before;
      // In memory or not, a rank writes what it writes without the hosts.
      const double vectors =
          static_cast<double>(allreduce.stats().bytes_out) / (kTimes * kLong * sizeof(float));
      CHECK_THAT(std::abs(vectors - (2 - 2.0 / group->size())) < 0.01);
      group->barrier();
      return 0;
    });
    expect_all_well(job);
    for (int host = 0; host < count; ++host) {
      double sum = 0;
      for (int r = 0; r < ranks; ++r) {
        const int rank = host * ranks + r;
        sum += static_cast<double>((*bytes)[static_cast<std::size_t>(rank)]);
      }
      const double vectors = sum / (kTimes * kLong * sizeof(float));
      EXPECT_GT(vectors, 2.0 * (count - 1) / count - 0.01);
      EXPECT_LT(vectors, 2.0 * (count - 1) / count + 0.03);
    }
  }
}

// Each rank owns a part, and collects others.
TEST(AllreduceOfHosts, RankThatDiesAtAnyStepIsInTheResultOfAllOrOfNone) {
  for (const Step step : {Step::kInput, Step::kAdd, Step::kFold, Step::kWrite}) {
    for (const std::vector<int>& hosts : {std::vector{0, 0, 1, 1, 1}, {0, 1, 1}, {0, 1, 0, 1}}) {
      Shared<Results> results;
      Job job(static_cast<int>(hosts.size()), [&](Bootstrap& bootstrap) {
        const auto group = join_placed(bootstrap, hosts);
        const int rank = group->rank();
        Allreduce allreduce = make(group);
        Vector vector(kCount, rank);
        return run_rounds(allreduce, vector, rank, *results, [&](int round) {
          if (rank == 1 && round == 3) vector.die_at(step);
        });
      });
      std::vector<int> expected(hosts.size(), 0), survivors;
      expected[1] = 137;
      EXPECT_EQ(job.wait_all(), expected);
      for (int r = 0; r < static_cast<int>(hosts.size()); ++r) {
        if (r != 1) survivors.push_back(r);
      }
      expect_agreement(*results, survivors);
      EXPECT_EQ(results->masks[0][kRounds - 1], (1 << hosts.size()) - 1 - 2);
    }
  }
}

TEST(AllreduceOfHosts, HostsThatDieAtDifferentStepsAndTheRestGoOn) {
  Shared<Results> results;
  const std::vector<int> hosts{0, 0, 1, 1, 2, 2, 2};
  Job job(7, [&](Bootstrap& bootstrap) {
    const auto group = join_placed(bootstrap, hosts);
    const int rank = group->rank();
    Allreduce allreduce = make(group);
    Vector vector(kCount, rank);
    return run_rounds(allreduce, vector, rank, *results, [&](int round) {
      if (rank == 2 && round == 1) vector.die_at(Step::kAdd);
      if (rank == 3 && round == 1) vector.die_at(Step::kFold);
      if (rank == 5 && round == 3) vector.die_at(Step::kWrite);
      if (rank == 0 && round == 4) vector.die_at(Step::kAdd);
    });
  });
  EXPECT_EQ(job.wait_all(), (std::vector<int>{137, 0, 137, 137, 0, 137, 0}));
  expect_agreement(*results, {1, 4, 6});
  EXPECT_EQ(results->masks[1][kRounds - 1], 1 << 1 | 1 << 4 | 1 << 6);
}

TEST(AllreduceOfHosts, SurvivorsOfKillsAtAnyMomentAgree) {
  const char* const given = std::getenv("MALT_SEEDS");
  const unsigned seeds = given == nullptr ? 6 : static_cast<unsigned>(std::atoi(given));
  for (unsigned seed = 0; seed < seeds; ++seed) {
    SCOPED_TRACE(seed);
    Shared<Results> results;
    Job job(6, [&](Bootstrap& bootstrap) {
      const auto group = join_placed(bootstrap, {0, 0, 1, 1, 2, 2});
      const int rank = group->rank();
      Allreduce allreduce = make(group);
      Vector vector(kCount, rank);
      results->flags[static_cast<std::size_t>(rank)] = 1;
      return run_rounds(allreduce, vector, rank, *results);
    });
    for (std::size_t r = 0; r < 6; ++r) await(results->flags[r]);
    std::minstd_rand random(seed + 1);
    for (const int victim : {1, 2}) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 6000));
      job.signal(victim, SIGKILL);
    }
    for (const int r : {0, 3, 4, 5}) EXPECT_EQ(job.wait(r), 0);
    expect_agreement(*results, {0, 3, 4, 5});
  }
}

// Rank 3 comes to no call. Owners on the other host wait for a sum that waits for it.
TEST(AllreduceOfHosts, RankThatDoesNotComeIsNamedAlsoByOwnersOnOtherHosts) {
  for (const std::vector<int>& hosts : {hosts_of(2, 2), {0, 1, 2, 2, 1}, {0, 0, 1, 1, 1, 2}}) {
    Shared<Results> results;
    const int size = static_cast<int>(hosts.size());
    Job job(size, [&](Bootstrap& bootstrap) {
      const auto group = join_placed(bootstrap, hosts);
      Allreduce allreduce = make(group);
      Vector vector(kCount, group->rank());
      for (int call = 0; call < 6; ++call) {
        vector.fill();
        const bool is_missed = call % 3 == 1;
        if (group->rank() == 3 && is_missed) {
          for (int r = 0; r < size; ++r) {
            if (r != 3) await(results->flags[static_cast<std::size_t>(r)], call);
          }
          try {
            allreduce.run(vector, kSum, 20s);
            return 1;
          } catch (const TimeoutError&) {
            continue;
          }
        }
        try {
          allreduce.run(vector, kSum, is_missed ? 500ms : 20s);
          CHECK_THAT(!is_missed && vector.mask() == (1 << size) - 1);
        } catch (const TimeoutError& error) {
          CHECK_THAT(is_missed);
          CHECK_THAT(error.ranks() == std::vector<int>{3});
          CHECK_THAT(vector.mask() == 1 << group->rank());
        }
        results->flags[static_cast<std::size_t>(group->rank())] = call;
      }
      return 0;
    });
    expect_all_well(job);
  }
}

// A6. Rank 0 has committed a round and not yet written its vector, and so holds the results, the
// "have all" and the "committed" of the others, while these write all that they can in the next
// round.
TEST(AllreduceOfHosts, RanksThatAreARoundAheadHaveASlotForEachSumOfTheirHost) {
  Shared<Results> results;
  Job job(4, [&](Bootstrap& bootstrap) {
    const auto group = join_placed(bootstrap, hosts_of(2, 2));
    Allreduce allreduce = make(group);
    Vector vector(kCount, group->rank());
    if (group->rank() == 0) {
      vector.before_write([&] {
        for (std::size_t r = 2; r < 4; ++r) await(results->flags[r], 2);  // one each round
        results->flags[4] = results->flags[2] == 2 && results->flags[3] == 2;
      });
    }
    vector.after_add([&] { ++results->flags[static_cast<std::size_t>(group->rank())]; });
    for (int round = 0; round < 3; ++round) {
      vector.fill();
      allreduce.run(vector, kSum, 60s);
      CHECK_THAT(vector.mask() == 15);
    }
    return 0;
  });
  expect_all_well(job);
  EXPECT_EQ(results->flags[4], 1);
}

}  // namespace
}  // namespace dstorm
