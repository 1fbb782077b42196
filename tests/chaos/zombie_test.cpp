// A rank is stopped in the middle of a scatter, left out, and goes on where it was: what it writes
// then reaches nobody, and it is told so.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <tuple>
#include <utility>

#include "dstorm/dstorm.hpp"
#include "dstorm/host/wait.hpp"
#include "processes.hpp"

namespace dstorm {
namespace {

using namespace std::chrono_literals;
using testing_processes::Job;
using testing_processes::join;
using testing_processes::Shared;

constexpr int kRanks = 3;
constexpr int kZombie = 2;
constexpr std::size_t kWords = 8192;
constexpr std::uint64_t kBefore = 2;  // updates of its that all have

struct Notes {
  std::atomic<int> gone_on;                 // readers that are in an epoch without it
  std::atomic<std::uint64_t> sent_after;    // scatters that it took for good ones
  std::atomic<bool> has_been_told;          // by a PeerError
  std::atomic<std::uint64_t> last[kRanks];  // of its updates that each has folded
};

using Case = std::tuple<const char*, Policy>;

class Zombie : public testing::TestWithParam<Case> {
 protected:
  static std::uint64_t* words(std::span<std::byte> room) {
    return reinterpret_cast<std::uint64_t*>(room.data());
  }

  int be_rank(Bootstrap& bootstrap, Notes& notes) const {
    GroupOptions given;
    given.timeout = 60s;
    given.silence = 1s;
    given.transport = std::get<0>(GetParam());
    const auto group = join(bootstrap, given);
    SegmentOptions options;
    options.name = "s";
    options.slot_bytes = kWords * sizeof(std::uint64_t);
    options.depth = 4;
    options.policy = std::get<1>(GetParam());
    Segment segment(group, options);
    return group->rank() == kZombie ? be_zombie(*group, segment, notes)
                                    : be_reader(*group, segment, notes);
  }

  static int be_zombie(Group& group, Segment& segment, Notes& notes) {
    const auto scatter = [&](bool stops) {
      segment.scatter([&](std::span<std::byte> room) {
        const std::uint64_t number = segment.iteration() + 1;
        std::fill_n(words(room), kWords / 2, number);
        if (stops) raise(SIGSTOP);
        std::fill_n(words(room) + kWords / 2, kWords / 2, number);
        return std::pair(room.size(), Tag{});
      });
    };
    for (std::uint64_t i = 0; i < kBefore; ++i) scatter(false);
    group.barrier();
    group.barrier();  // whom it sees here has passed the first, and has them
    try {
      scatter(true);
      for (const auto end = Clock::now() + 30s; Clock::now() < end; scatter(false)) {
        ++notes.sent_after;
      }
    } catch (const PeerError&) {
      notes.has_been_told = true;
    }
    return 0;
  }

  static int be_reader(Group& group, Segment& segment, Notes& notes) {
    bool is_well = true;
    std::uint64_t last = 0;
    const auto gather = [&](const GatherOptions& when) {
      return segment.gather(when, [&](std::span<const Update> updates) {
        for (const Update& update : updates) {
          if (update.rank != kZombie) continue;
          const auto* word = reinterpret_cast<const std::uint64_t*>(update.payload.data());
          is_well = is_well && update.iteration > last &&
                    std::all_of(word, word + kWords,
                                [&](std::uint64_t each) { return each == update.iteration; });
          last = update.iteration;
        }
      });
    };
    group.barrier();
    group.barrier();
    while (group.epoch() == 0) gather({});
    ++notes.gone_on;
    while (!notes.has_been_told) gather({});
    for (const auto end = Clock::now() + 100ms; Clock::now() < end;) gather({});
    notes.last[group.rank()] = last;
    group.barrier();
    segment.scatter([&](std::span<std::byte> room) { return std::pair(room.size(), Tag{}); });
    CHECK_THAT(gather({.staleness = 0}) == 1);  // the other reader's
    CHECK_THAT(is_well);
    group.barrier();
    return 0;
  }
};

// Waits until the zombie has stopped itself and the others have gone on without it.
void wake_when_left_out(const Job& job, const Notes& notes) {
  int status = 0;
  ASSERT_EQ(waitpid(job.pid(kZombie), &status, WUNTRACED), job.pid(kZombie));
  ASSERT_TRUE(WIFSTOPPED(status));
  for (const auto end = Clock::now() + 60s; notes.gone_on < kRanks - 1;) {
    ASSERT_LT(Clock::now(), end) << "it is not left out";
    std::this_thread::sleep_for(1ms);
  }
  job.signal(kZombie, SIGCONT);
}

TEST_P(Zombie, ReachesNobodyAndIsTold) {
  Shared<Notes> notes;
  Job job(kRanks, [&](Bootstrap& bootstrap) { return be_rank(bootstrap, *notes); });
  ASSERT_NO_FATAL_FAILURE(wake_when_left_out(job, *notes));
  testing_processes::expect_all_well(job);
  EXPECT_TRUE(notes->has_been_told);
  for (const int reader : {0, 1}) EXPECT_EQ(notes->last[reader], kBefore);
  std::printf("row zombie, %s: wrote %lu whole updates after it was left out, 0 were folded\n",
              testing::UnitTest::GetInstance()->current_test_info()->name(),
              notes->sent_after.load());
}

// A reader that is stopped between two looks at what it waits for, and left out: its senders write
// what it holds.
TEST(ZombieReader, IsToldAndBlamesNoMemory) {
  Shared<Notes> notes;
  Job job(kRanks, [&](Bootstrap& bootstrap) {
    bool stops = false;
    GroupOptions given;
    given.timeout = 60s;
    given.silence = 1s;
    given.transport = "shm";
    given.interrupt = [&stops] {
      if (std::exchange(stops, false)) raise(SIGSTOP);
    };
    const auto group = join(bootstrap, given);
    Segment segment(group, {.name = "s", .slot_bytes = sizeof(std::uint64_t)});
    const auto scatter = [&] {
      segment.scatter([](std::span<std::byte> room) { return std::pair(room.size(), Tag{}); });
    };
    const auto nothing = [](std::span<const Update>) {};
    if (group->rank() != 1) scatter();
    group->barrier();
    if (group->rank() == kZombie) {
      stops = true;
      try {
        segment.gather({.staleness = 0}, nothing);  // waits for rank 1
      } catch (const PeerError&) {
        notes->has_been_told = true;
      }
      return 0;
    }
    while (group->epoch() == 0) std::this_thread::sleep_for(1ms);
    if (group->rank() == 0) {
      while (notes->gone_on < 1) std::this_thread::sleep_for(1ms);
      for (int i = 0; i < 20; ++i) scatter();  // into slots whose only reader left is through
    } else {
      segment.gather({}, nothing);
      scatter();
    }
    ++notes->gone_on;
    while (notes->gone_on < kRanks) std::this_thread::sleep_for(1ms);
    return 0;
  });
  ASSERT_NO_FATAL_FAILURE(wake_when_left_out(job, *notes));
  EXPECT_EQ(job.wait(kZombie), 0);
  EXPECT_TRUE(notes->has_been_told);
  ++notes->gone_on;
  for (const int survivor : {0, 1}) EXPECT_EQ(job.wait(survivor), 0);
}

std::string name_of(const Case& given) {
  const auto& [transport, policy] = given;
  return std::string(transport) + (policy == Policy::kLatest ? "Latest" : "Queue");
}

INSTANTIATE_TEST_SUITE_P(, Zombie,
                         testing::Combine(testing::Values("shm", "tcp"),
                                          testing::Values(Policy::kLatest, Policy::kQueue)),
                         [](const auto& given) { return name_of(given.param); });

}  // namespace
}  // namespace dstorm
