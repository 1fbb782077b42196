// Groups and segments with real processes as ranks.
#include "dstorm/segment.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <random>
#include <set>
#include <thread>

#include "dstorm/dstorm.hpp"
#include "dstorm/host/segment_memory.hpp"
#include "dstorm/host/wait.hpp"
#include "dstorm/segment/channel.hpp"
#include "dstorm/segment/parts.hpp"
#include "processes.hpp"
#include "sanitizers.hpp"
#include "stressed.hpp"

namespace dstorm {
namespace {

using namespace std::chrono_literals;
using testing_processes::expect_all_well;
using testing_processes::Job;
using testing_processes::join;
using testing_processes::Shared;

SegmentOptions small(const char* name = "s") {
  SegmentOptions options;
  options.name = name;
  options.slot_bytes = 8;
  return options;
}

std::span<const std::byte> bytes_of(const std::uint64_t& value) {
  return std::as_bytes(std::span(&value, 1));
}

std::uint64_t value_of(const Update& update) {
  std::uint64_t value = 0;
  std::memcpy(&value, update.payload.data(), sizeof(value));
  return value;
}

// The text of the error of type E, or "" if none is thrown.
template <class E, class Call>
std::string message_of(Call&& call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  }
  return "";
}

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

TEST(Group, OneProcessIsAJobOfOne) {
  SoloBootstrap bootstrap;
  const auto group = join(bootstrap);
  EXPECT_EQ(group->size(), 1);
  EXPECT_EQ(group->alive(), std::vector<int>{0});
  group->barrier();
  Segment segment(group, small());
  EXPECT_TRUE(segment.scatter(bytes_of(1)).empty());
  EXPECT_EQ(segment.gather({.staleness = 0}, [](auto) { FAIL(); }), 0U);
}

TEST(Group, ExchangeGivesEveryonesBytesByRank) {
  Job job(5, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    for (std::uint64_t round = 0; round < stressed(200); ++round) {
      const std::uint64_t mine = round * 100 + static_cast<std::uint64_t>(group->rank());
      const auto all = group->exchange("numbers", bytes_of(mine));
      for (std::uint64_t r = 0; r < 5; ++r) {
        std::uint64_t theirs = 0;
        CHECK_THAT(all[r] && all[r]->size() == sizeof(theirs));
        std::memcpy(&theirs, all[r]->data(), sizeof(theirs));
        CHECK_THAT(theirs == round * 100 + r);
      }
    }
    return 0;
  });
  expect_all_well(job);
}

TEST(Group, DifferentCollectivesAtOnceAreNamedOnEveryRank) {
  Job job(3, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    const std::string error = message_of<ConfigError>([&] {
      if (group->rank() == 1) {
        Segment segment(group, small("w"));
      } else {
        group->barrier();
      }
    });
    CHECK_THAT(has(error, "rank 1: segment 'w'") && has(error, "ranks 0, 2: barrier"));
    return 0;
  });
  expect_all_well(job);
}

TEST(Group, BarrierNamesWhoDoesNotCome) {
  const Shared<std::atomic<int>> told;
  Job job(3, [&](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    if (group->rank() == 2) {
      while (*told < 2) std::this_thread::sleep_for(1ms);
    } else {
      std::vector<int> missing;
      while (missing != std::vector<int>{2}) {  // until the other rank arrives, however slow it is
        try {
          group->barrier(100ms);
          return 1;
        } catch (const TimeoutError& error) {
          missing = error.ranks();
          CHECK_THAT(missing.back() == 2);
          CHECK_THAT(missing.size() > 1 || has(error.what(), "rank 2"));
        }
      }
      ++*told;
    }
    group->barrier();  // once more, and all ranks arrive
    return 0;
  });
  expect_all_well(job);
}

// On a busy machine, and far below the limit of waits, which is 30 s.
constexpr auto kAtOnce = 15s;

// Rank 0 gives up at the second step, and begins the call again. Rank 1 then finds that step done.
TEST(Group, CallOfSeveralExchangesThatIsBegunAnewFailsOnAllAndThenWorks) {
  const Shared<std::atomic<int>> told;
  Job job(2, [&](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    const auto exchange = [&](std::uint64_t step, std::chrono::nanoseconds timeout = 30s) {
      const std::string what = "making, step " + std::to_string(step);
      const auto posts = group->exchange(what, bytes_of(step), timeout);
      for (const auto& post : posts) {  // no post of another step counts for this one
        if (!post || std::memcmp(post->data(), &step, sizeof(step)) != 0) throw Error("wrong post");
      }
    };
    exchange(1);
    if (group->rank() == 0) {
      CHECK_THAT(has(message_of<TimeoutError>([&] { exchange(2, 50ms); }), "making: rank 1"));
      *told = 1;
      CHECK_THAT(
          has(message_of<BegunAnew>([&] { exchange(1); }),
              "making: the ranks are at different steps of it (rank 0: step 1; rank 1: step 3)"));
    } else {
      while (*told == 0) std::this_thread::sleep_for(1ms);
      exchange(2);
      CHECK_THAT(
          has(message_of<BegunAnew>([&] { exchange(3); }),
              "making: the ranks are at different steps of it (rank 0: step 1; rank 1: step 3)"));
    }
    for (std::uint64_t step = 1; step <= 3; ++step) exchange(step);
    group->barrier();
    return 0;
  });
  expect_all_well(job);
}

// Rank 0 makes the memory, and gives up before the others open it.
TEST(Group, MemoryWhoseMakerHasGivenUpFailsOnAllAndThenWorks) {
  Job job(3, [](Bootstrap& bootstrap) {
    GroupOptions options;
    options.transport = "shm";
    const auto group = Group::join(bootstrap, options);
    const host::SegmentShape shape{MailboxShape(3, 2, 64), Policy::kLatest, 0, 0};
    const auto make = [&](std::chrono::nanoseconds limit) {
      const Group::Within within(*group, limit);
      group->open_channel("making", shape, Graph::all());
    };
    if (group->rank() == 0) {
      CHECK_THAT(has(message_of<TimeoutError>([&] { make(50ms); }), "making: ranks 1, 2"));
      group->exchange("making, step 3", {}, 30s);
    } else {
      std::this_thread::sleep_for(500ms);
      const std::string text = message_of<TimeoutError>([&] { make(30s); });
      CHECK_THAT(has(text, "making: rank 0 gave up making it"));
    }
    make(30s);
    group->barrier();
    return 0;
  });
  expect_all_well(job);
}

TEST(Group, DeathIsSeenWhileWaitingAndRaisesTheEpoch) {
  Job job(4, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    group->barrier();
    if (group->rank() == 3) raise(SIGKILL);
    const auto start = Clock::now();
    group->barrier();
    CHECK_THAT(Clock::now() - start < kAtOnce);
    CHECK_THAT((group->alive() == std::vector<int>{0, 1, 2}));
    while (group->epoch() == 0) std::this_thread::sleep_for(1ms);  // until they agree
    CHECK_THAT(Clock::now() - start < kAtOnce);
    CHECK_THAT(group->epoch() == 1);
    group->barrier();  // no rank leaves before all have looked
    return 0;
  });
  EXPECT_EQ(job.wait_all(), (std::vector<int>{0, 0, 0, 128 + SIGKILL}));
}

TEST(Group, WaitThatIsRungAllTheTimeIsInterruptedAtANewEpoch) {
  const Shared<std::atomic<bool>> is_new, is_interrupted;
  Job job(3, [&](Bootstrap& bootstrap) {
    GroupOptions options;
    if (bootstrap.rank() == 0) {
      options.changed = [&] { *is_new = true; };
      options.interrupt = [&] { *is_interrupted = is_new->load(); };
    }
    const auto group = Group::join(bootstrap, options);
    Segment segment(group, small());
    group->barrier();
    if (group->rank() == 2) raise(SIGKILL);
    const auto start = Clock::now();
    while (group->rank() == 1 && !*is_interrupted) {
      CHECK_THAT(Clock::now() - start < kAtOnce);
      segment.scatter(bytes_of(1));
      std::this_thread::sleep_for(2ms);
    }
    group->barrier();  // rank 0 waits in this barrier
    return 0;
  });
  EXPECT_EQ(job.wait_all(), (std::vector<int>{0, 0, 128 + SIGKILL}));
}

TEST(Group, BarrierDoesNotWaitForARankThatLeft) {
  Job job(3, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    group->barrier();
    if (group->rank() == 0) {
      group->leave();
      CHECK_THAT(has(message_of<ConfigError>([&] { group->barrier(); }), "left the job"));
      std::this_thread::sleep_for(500ms);  // the process lives all the while
      return 0;
    }
    group->barrier();
    CHECK_THAT((group->alive() == std::vector<int>{1, 2}));
    group->barrier();  // no other rank leaves before both have looked
    return 0;
  });
  expect_all_well(job);
}

// Named semaphores do not count: other programs make some at any time, and this library none.
std::set<std::string> names_in_shm() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    if (!entry.path().filename().string().starts_with("sem.")) names.insert(entry.path());
  }
  return names;
}

bool is_new_in_shm(const std::set<std::string>& before) {
  const std::set<std::string> now = names_in_shm();
  return !std::includes(before.begin(), before.end(), now.begin(), now.end());
}

// A job leaves no files behind: none of its files has a name while it runs. The job is killed at
// random times from its start on.
TEST(Group, NothingIsEverInDevShmWhenItsRanksAreKilled) {
  const std::set<std::string> before = names_in_shm();
  std::minstd_rand random(7);
  const auto kills = static_cast<int>(stressed(10));
  for (int i = 0; i < kills; ++i) {
    Job job(4, [&](Bootstrap& bootstrap) {
      const auto group = join(bootstrap);
      Segment segment(group, small());
      for (;;) segment.scatter(bytes_of(1));
      return 0;
    });
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 40'000));
    ASSERT_FALSE(is_new_in_shm(before)) << "while it runs";
    for (int r = 0; r < 4; ++r) job.signal(r, SIGKILL);
    job.wait_all();
    ASSERT_FALSE(is_new_in_shm(before)) << "after kill -9 of all, number " << i;
  }
  std::printf("%d jobs of 4 ranks killed, 0 files left\n", kills);
}

// A rank needs several times as much processor time under a sanitizer.
constexpr std::int64_t kSlowdown = kSanitized ? 4 : 1;

TEST(Group, SixteenWaitersUseNoProcessorTime) {
  struct Times {
    std::atomic<std::int64_t> microseconds;
    std::atomic<int> measured;  // ranks
  };
  Shared<Times> times;
  const auto used = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1'000'000 + usage.ru_utime.tv_usec +
           usage.ru_stime.tv_usec;
  };
  Job job(17, [&](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    group->barrier();
    std::thread meter([&] {  // measures only the waiting, neither the start nor the end
      std::this_thread::sleep_for(300ms);
      const std::int64_t before = used();
      std::this_thread::sleep_for(1500ms);
      if (group->rank() == 0) return;  // the others wait for it
      times->microseconds += used() - before;
      ++times->measured;
    });
    while (group->rank() == 0 && times->measured < 16) std::this_thread::sleep_for(10ms);
    group->barrier();
    meter.join();
    return 0;
  });
  expect_all_well(job);
  // Half a percent of a core for each of 16 ranks.
  EXPECT_LT(times->microseconds.load(), 120'000 * kSlowdown);
  std::printf("16 waiters, 1.5 s: %ld us of processor time in all\n", times->microseconds.load());
}

TEST(Segment, BspFoldsExactlyItsOwnIterationOfEveryNeighbour) {
  for (const Graph& graph : {Graph::all(), Graph::ring(), Graph::exponential(), Graph::halton(),
                             Graph::one_peer(), Graph::random(2, 7), Graph::star()}) {
    for (const Policy policy : {Policy::kLatest, Policy::kQueue}) {
      Job job(6, [&](Bootstrap& bootstrap) {
        const auto group = join(bootstrap);
        SegmentOptions options = small();
        options.graph = graph;
        options.policy = policy;
        Segment segment(group, options);
        for (std::uint64_t i = 1; i <= stressed(300); ++i) {
          const std::uint64_t mine = i * 10 + static_cast<std::uint64_t>(group->rank());
          segment.scatter(bytes_of(mine));
          const std::vector<int> in = graph.in(group->rank(), 6, i - 1);
          std::size_t seen = 0;
          const std::size_t count =
              segment.gather({.staleness = 0}, [&](std::span<const Update> updates) {
                for (const Update& update : updates) {
                  if (update.iteration == i && update.rank == in[seen] &&
                      value_of(update) == i * 10 + static_cast<std::uint64_t>(update.rank)) {
                    ++seen;
                  }
                }
              });
          CHECK_THAT(count == in.size() && seen == in.size());
        }
        group->barrier();
        const Stats stats = segment.stats();
        CHECK_THAT(stats.sent == stats.folded && stats.overwritten == 0 && stats.pending == 0);
        group->barrier();  // no rank leaves before all have counted
        return 0;
      });
      expect_all_well(job);
    }
  }
}

// A directed path of ranks that send round a ring: without flow control the first would be ahead of
// the last by the length of the ring.
TEST(Segment, BspOverADirectedCircleOverwritesNothing) {
  std::vector<std::pair<int, int>> circle;
  for (int r = 0; r < 8; ++r) circle.emplace_back(r, (r + 1) % 8);
  Job job(8, [&](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    SegmentOptions options = small();
    options.graph = Graph::edges(circle);
    Segment segment(group, options);
    for (std::uint64_t i = 1; i <= stressed(500); ++i) {
      segment.scatter(bytes_of(i));
      if (group->rank() == 3 && i % 50 == 0) std::this_thread::sleep_for(2ms);
      CHECK_THAT(segment.gather({.staleness = 0}, [](auto) {}) == 1);
    }
    return 0;
  });
  expect_all_well(job);
}

TEST(Segment, SspLetsNeighboursBeBehindByItsBoundAndNoMore) {
  Job job(3, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    Segment segment(group, small());
    constexpr std::uint64_t kBound = 3;
    for (std::uint64_t i = 1; i <= 200; ++i) {
      if (group->rank() == 1 && i % 20 == 0) std::this_thread::sleep_for(1ms);
      segment.scatter(bytes_of(i));
      segment.gather({.staleness = kBound}, [](auto) {});
      for (int r = 0; r < 3; ++r) {
        if (r == group->rank()) continue;
        const auto& clock = *reinterpret_cast<std::atomic<std::uint64_t>*>(
            segment.parts().state.memory().mailbox(r));
        CHECK_THAT(clock.load() + kBound >= i);
      }
    }
    return 0;
  });
  expect_all_well(job);
}

TEST(Segment, LatestNeverBlocksAndGathersOnlyTheNewest) {
  Job job(2, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    Segment segment(group, small());
    if (group->rank() == 0) {
      for (std::uint64_t i = 1; i <= 1000; ++i) segment.scatter(bytes_of(i));
    }
    group->barrier();
    if (group->rank() == 1) {
      std::uint64_t got = 0;
      CHECK_THAT(segment.gather({}, [&](auto updates) { got = value_of(updates[0]); }) == 1);
      CHECK_THAT(got == 1000);
      CHECK_THAT(segment.gather({}, [](auto) {}) == 0);
    }
    group->barrier();
    if (group->rank() == 0) {
      const Stats stats = segment.stats();
      CHECK_THAT(stats.sent == 1000 && stats.folded == 1 && stats.overwritten == 999);
      CHECK_THAT(stats.pending == 0 && stats.to_dead == 0);
    }
    return 0;
  });
  expect_all_well(job);
}

TEST(Segment, AwaitUpdateWakesForAnUpdateAndADeathAndAtTheTimeLimit) {
  Job job(3, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    Segment segment(group, small());
    group->barrier();
    if (group->rank() == 0) {
      CHECK_THAT(!segment.await_update(3, 20ms));
      CHECK_THAT(segment.await_update(2, 20s));  // fewer ranks live than that, so this is news
    }
    group->barrier();
    if (group->rank() == 1) segment.scatter(bytes_of(7));
    if (group->rank() == 0) {
      CHECK_THAT(segment.await_update(3, 20s));
      std::uint64_t got = 0;
      CHECK_THAT(segment.gather({}, [&](auto updates) { got = value_of(updates[0]); }) == 1);
      CHECK_THAT(got == 7);
      CHECK_THAT(!segment.await_update(3, 20ms));
    }
    group->barrier();
    if (group->rank() == 2) raise(SIGKILL);
    if (group->rank() == 0) {
      CHECK_THAT(segment.await_update(3, 20s));
      CHECK_THAT((group->alive() == std::vector<int>{0, 1}));
    }
    group->barrier();
    return 0;
  });
  EXPECT_EQ(job.wait_all(), (std::vector<int>{0, 0, 128 + SIGKILL}));
}

TEST(Segment, FullQueueNamesWhoDidNotGather) {
  Job job(3, [](Bootstrap& bootstrap) {
    GroupOptions given;
    given.timeout = 2s;
    const auto group = join(bootstrap, given);
    SegmentOptions options = small();
    options.policy = Policy::kQueue;
    options.depth = 1;
    Segment segment(group, options);
    if (group->rank() == 0) {
      segment.scatter(bytes_of(1));
      try {
        segment.scatter(bytes_of(2));
        return 1;
      } catch (const TimeoutError& error) {
        CHECK_THAT(error.ranks() == std::vector<int>{2});
      }
      CHECK_THAT(segment.iteration() == 1);
    }
    if (group->rank() == 1) {
      while (segment.gather({}, [](auto) {}) == 0) std::this_thread::yield();
    }
    group->barrier(10s);
    if (group->rank() == 2) CHECK_THAT(segment.gather({}, [](auto) {}) == 1);
    return 0;
  });
  expect_all_well(job);
}

// Between hosts it may have been delayed for the sake of the update.
TEST(Segment, FoldIsToldThoughItsRankSendsAnUpdateAndThenDoesNothing) {
  Shared<std::atomic<bool>> is_told;
  Job job(2, [&](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    SegmentOptions options = small();
    options.policy = Policy::kQueue;
    options.depth = 16;
    Segment segment(group, options);
    if (group->rank() == 0) {
      segment.scatter(bytes_of(1));
      const auto end = std::chrono::steady_clock::now() + 20s;
      while (segment.stats().pending != 0 && std::chrono::steady_clock::now() < end) {
        std::this_thread::sleep_for(1ms);
      }
      *is_told = true;
      CHECK_THAT(segment.stats().folded == 1);
    } else {
      CHECK_THAT(segment.wait([&] { return segment.gather({}, [](auto) {}) == 1; }, 20s));
      segment.scatter(bytes_of(2));
      while (!*is_told) std::this_thread::sleep_for(1ms);
    }
    group->barrier();
    return 0;
  });
  expect_all_well(job);
}

TEST(Segment, QueueGoesOnWhenTheSlowReaderDies) {
  Job job(3, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    SegmentOptions options = small();
    options.policy = Policy::kQueue;
    options.depth = 1;
    Segment segment(group, options);
    if (group->rank() == 2) {
      std::this_thread::sleep_for(200ms);
      raise(SIGKILL);
    }
    for (std::uint64_t i = 1; i <= 50; ++i) {
      segment.scatter(bytes_of(i));
      CHECK_THAT(segment.gather({.staleness = 0}, [](auto) {}) >= 1);
    }
    group->barrier();
    const Stats stats = segment.stats();
    CHECK_THAT(stats.sent == stats.folded + stats.pending + stats.to_dead &&
               stats.overwritten == 0);
    CHECK_THAT(stats.to_dead >= 1);
    return 0;
  });
  EXPECT_EQ(job.wait_all(), (std::vector<int>{0, 0, 128 + SIGKILL}));
}

// Two ranks die while all others go on. Each other rank uses the repaired graph once it has learnt
// of the deaths, so for a while the ranks use different graphs.
TEST(Segment, GraphIsDrawnAnewAmongTheSurvivors) {
  constexpr int kRanks = 7;
  const std::uint64_t last = 20 + stressed(280);
  const std::vector<int> survivors{1, 2, 3, 5, 6};
  std::vector<std::pair<int, int>> circle;
  for (int r = 0; r < kRanks; ++r) circle.emplace_back(r, (r + 1) % kRanks);
  for (const Graph& graph :
       {Graph::all(), Graph::ring(), Graph::exponential(), Graph::halton(), Graph::one_peer(),
        Graph::random(2, 7), Graph::star(), Graph::edges(circle)}) {
    for (const Policy policy : {Policy::kLatest, Policy::kQueue}) {
      Job job(kRanks, [&](Bootstrap& bootstrap) {
        const auto group = join(bootstrap);
        SegmentOptions options = small();
        options.graph = graph;
        options.policy = policy;
        Segment segment(group, options);
        const int rank = group->rank();
        const bool dies = rank == 0 || rank == 4;
        for (std::uint64_t i = 1; i <= last; ++i) {
          segment.scatter(bytes_of(i));
          segment.gather({.staleness = 0}, [](auto) {});
          if (dies && i == 20) raise(SIGKILL);
        }
        while (group->view().members != survivors) std::this_thread::sleep_for(1ms);
        const Graph repaired = graph.repaired(survivors, kRanks);
        const auto place = static_cast<int>(std::find(survivors.begin(), survivors.end(), rank) -
                                            survivors.begin());
        for (std::uint64_t i = last + 1; i <= last + 20; ++i) {
          segment.scatter(bytes_of(i));
          std::vector<int> from;
          segment.gather({.staleness = 0}, [&](std::span<const Update> updates) {
            for (const Update& update : updates) {
              if (value_of(update) == i) from.push_back(update.rank);
            }
          });
          std::vector<int> expected;
          for (int p : repaired.in(place, 5, i - 1)) {
            expected.push_back(survivors[static_cast<std::size_t>(p)]);
          }
          CHECK_THAT(from == expected);
        }
        group->barrier();
        const Stats stats = segment.stats();
        CHECK_THAT(stats.sent == stats.folded + stats.overwritten + stats.rejected + stats.pending +
                                     stats.to_dead);
        CHECK_THAT(policy == Policy::kLatest || stats.overwritten + stats.rejected == 0);
        group->barrier();
        return 0;
      });
      std::vector<int> expected(kRanks, 0);
      expected[0] = expected[4] = 128 + SIGKILL;
      EXPECT_EQ(job.wait_all(), expected) << graph.name();
    }
  }
}

TEST(Segment, ReaderThatDiesWithAPinHoldsNobodyUp) {
  Job job(2, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    SegmentOptions options = small();
    options.depth = 1;
    Segment segment(group, options);
    if (group->rank() == 0) segment.scatter(bytes_of(1));
    group->barrier();
    if (group->rank() == 1) segment.gather({}, [](auto) { raise(SIGKILL); });
    while (group->is_live(1)) std::this_thread::sleep_for(1ms);
    segment.scatter(bytes_of(2));
    segment.parts().scattering.claim_room(1s);  // the only slot is free again
    segment.parts().scattering.release_room();
    CHECK_THAT(segment.stats().to_dead == 1);
    return 0;
  });
  EXPECT_EQ(job.wait_all(), (std::vector<int>{0, 128 + SIGKILL}));
}

TEST(Segment, FoldThatThrowsLeavesTheUpdatesPending) {
  Job job(2, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    Segment segment(group, small());
    segment.scatter(bytes_of(1));
    const std::string error = message_of<ConfigError>(
        [&] { segment.gather({.staleness = 0}, [](auto) { throw ConfigError("mine"); }); });
    CHECK_THAT(error == "mine");
    CHECK_THAT(segment.gather({.staleness = 0}, [](auto) {}) == 1);
    CHECK_THAT(segment.gather({.staleness = 0}, [](auto) {}) == 0);
    return 0;
  });
  expect_all_well(job);
}

TEST(Segment, FillThatThrowsSendsNothing) {
  Job job(2, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    Segment segment(group, small());
    const std::string error = message_of<ConfigError>([&] {
      segment.scatter(
          [](std::span<std::byte>) -> std::pair<std::size_t, Tag> { throw ConfigError("mine"); });
    });
    CHECK_THAT(error == "mine" && segment.iteration() == 0);
    segment.scatter(bytes_of(1));
    CHECK_THAT(segment.gather({.staleness = 0}, [](auto) {}) == 1);
    return 0;
  });
  expect_all_well(job);
}

// In whatever way the child leaves the fold.
TEST(Segment, ThreadsTakeTurnsAndTheCountersAddUp) {
  Job job(2, [&](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    Segment segment(group, small());
    const std::uint64_t value = 7;
    std::atomic<std::uint64_t> scatters{0};
    std::atomic<int> wrong{0};
    const auto start = Clock::now();
    const auto repeat = [&](auto&& call) {
      return std::thread([&, call] {
        while (Clock::now() - start < 200ms) {
          try {
            call();
          } catch (const Error& error) {
            if (!has(error.what(), "another thread") && !has(error.what(), "did not")) ++wrong;
          }
        }
      });
    };
    const auto scatter = [&] {
      segment.scatter(bytes_of(value));
      ++scatters;
    };
    std::thread threads[] = {
        repeat(scatter), repeat(scatter),
        repeat([&] { segment.gather({}, [](std::span<const Update>) {}); }),
        repeat([&] { segment.gather({0, 1ms}, [](std::span<const Update>) {}); }), repeat([&] {
          const Stats stats = segment.stats();
          if (stats.folded > stats.sent) ++wrong;
        })};
    for (std::thread& thread : threads) thread.join();
    CHECK_THAT(wrong == 0 && segment.iteration() == scatters);
    group->barrier();
    segment.gather({}, [](std::span<const Update>) {});
    group->barrier();
    const Stats stats = segment.stats();
    // Over a network the last updates may have found every slot being read, and then they stay
    // pending; or the other rank has ended by now.
    CHECK_THAT(stats.sent == scatters);
    CHECK_THAT(stats.sent == stats.folded + stats.overwritten + stats.pending + stats.to_dead);
    return 0;
  });
  expect_all_well(job);
}

TEST(Segment, CallInsideItsOwnFoldIsRefusedAndTheGatherEnds) {
  Job job(2, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    Segment segment(group, small());
    const std::uint64_t value = 7;
    segment.scatter(bytes_of(value));
    group->barrier();
    int refused = 0;
    const auto refuse = [&](auto&& call) {
      refused += has(message_of<ConfigError>(call), "inside the function") ? 1 : 0;
    };
    const std::size_t count = segment.gather({}, [&](std::span<const Update> updates) {
      refuse([&] { segment.scatter(bytes_of(value)); });
      refuse([&] { segment.gather({}, [](std::span<const Update>) {}); });
      refuse([&] { segment.close(); });
      refuse([&] { group->barrier(); });
      refuse([&] { Segment other(group, small("other")); });
      if (value_of(updates[0]) != value || segment.stats().sent != 1) refused = -1;
    });
    CHECK_THAT(count == 1 && refused == 5);
    group->barrier();
    CHECK_THAT(segment.stats().folded == 1 && segment.stats().pending == 0);
    return 0;
  });
  expect_all_well(job);
}

TEST(Segment, ChildForkedInAFoldTakesNothingFromTheRank) {
  struct Flags {
    std::atomic<bool> child_is_out, sent;
  };
  const auto await = [](const std::atomic<bool>& flag) {
    while (!flag) std::this_thread::sleep_for(1ms);
  };
  for (const bool throws : {false, true}) {
    Shared<Flags> flags;
    Job job(2, [&](Bootstrap& bootstrap) {
      const auto group = join(bootstrap);
      SegmentOptions options = small();
      options.depth = 1;
      Segment segment(group, options);
      if (group->rank() == 0) {
        segment.scatter(bytes_of(1));
        await(flags->child_is_out);
        for (int i = 0; i < 10; ++i) segment.scatter(bytes_of(2));
        CHECK_THAT(segment.stats().folded == 0);
        flags->sent = true;
        group->barrier();
        return 0;
      }
      pid_t child = -1;
      int status = -1;
      std::uint64_t seen = 0;
      const auto fold = [&](std::span<const Update> updates) {
        child = fork();
        if (child == 0 && throws) throw ConfigError("mine");
        if (child == 0) return;
        waitpid(child, &status, 0);
        flags->child_is_out = true;
        await(flags->sent);
        std::this_thread::sleep_for(50ms);  // until updates have arrived over a network
        seen = value_of(updates[0]);
      };
      const std::string error = message_of<ConfigError>([&] {
        while (segment.gather({}, fold) == 0) {
        }
      });
      if (child == 0) {
        const std::string next = message_of<ConfigError>([&] { segment.gather({}, fold); });
        _exit((error == "mine") == throws && has(next, "forked from rank 1") ? 0 : 1);
      }
      CHECK_THAT(status == 0 && seen == 1);
      group->barrier();
      return 0;
    });
    expect_all_well(job);
  }
}

TEST(Segment, GatherNamesTheNeighboursThatDidNotCome) {
  Job job(3, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    Segment segment(group, small());
    group->barrier();
    if (group->rank() == 0) {
      segment.scatter(bytes_of(1));
      try {
        segment.gather({.staleness = 0, .timeout = 100ms}, [](auto) {});
        return 1;
      } catch (const TimeoutError& error) {
        CHECK_THAT((error.ranks() == std::vector<int>{1, 2}));
      }
    }
    group->barrier();
    return 0;
  });
  expect_all_well(job);
}

TEST(Segment, DisagreementIsAnErrorOnEveryRank) {
  Job job(3, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    SegmentOptions options = small("w");
    if (group->rank() == 1) options.slot_bytes = 16;
    const std::string error = message_of<ConfigError>([&] { Segment segment(group, options); });
    CHECK_THAT(has(error, "slot_bytes is 16 on rank 1, 8 on ranks 0, 2"));
    Segment segment(group, small("w"));  // the job goes on
    return 0;
  });
  expect_all_well(job);
}

TEST(Segment, NoRoomIsAnErrorThatNamesBothSizes) {
  Job job(2, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    SegmentOptions options = small("huge");
    options.slot_bytes = std::size_t{1} << 44;
    const std::string error = message_of<ConfigError>([&] { Segment segment(group, options); });
    CHECK_THAT(has(error, "needs") && has(error, "MB") && has(error, "available"));
    group->barrier();
    return 0;
  });
  expect_all_well(job);
}

TEST(Segment, DepthOneCannotServeBspUnderLatest) {
  SoloBootstrap bootstrap;
  const auto group = join(bootstrap);
  SegmentOptions options = small();
  options.depth = 1;
  Segment segment(group, options);
  EXPECT_TRUE(has(message_of<ConfigError>([&] { segment.gather({.staleness = 0}, [](auto) {}); }),
                  "depth >= 2"));
}

TEST(Segment, NameIsFreeAgainWhenItsSegmentIsGone) {
  SoloBootstrap bootstrap;
  const auto group = join(bootstrap);
  {
    Segment first(group, small("w"));
    EXPECT_TRUE(has(message_of<ConfigError>([&] { Segment second(group, small("w")); }), "'w'"));
  }
  Segment third(group, small("w"));
}

// All ranks send to all, with mixed sizes and out of step: no update is torn, and every one is
// accounted for.
TEST(SegmentStress, NothingTornAndCountersBalance) {
  struct Sums {
    std::atomic<std::uint64_t> scatters, folded, overwritten, torn;
  };
  Shared<Sums> sums;
  for (const Policy policy : {Policy::kLatest, Policy::kQueue}) {
    for (const std::size_t most :  // words: from 8 bytes to 8 MB
         {std::size_t{1}, std::size_t{512}, std::size_t{16384}, std::size_t{1} << 20}) {
      const std::uint64_t scatters = stressed(most <= 512 ? 10'000 : most == 16384 ? 500 : 10);
      struct Flags {
        std::atomic<int> ended;
      };
      Shared<Flags> flags;
      Job job(4, [&](Bootstrap& bootstrap) {
        GroupOptions given;
        given.silence = 10s;  // it also runs in an emulated guest, over networks that lose packets
        const auto group = join(bootstrap, given);
        SegmentOptions options = small();
        options.slot_bytes = most * 8;
        options.policy = policy;
        options.depth = 3;
        Segment segment(group, options);
        std::uint64_t random = 12345 + static_cast<std::uint64_t>(group->rank());
        std::uint64_t torn = 0;
        const auto fold = [&](std::span<const Update> updates) {
          for (const Update& update : updates) {
            const auto* words = reinterpret_cast<const std::uint64_t*>(update.payload.data());
            for (std::size_t i = 0; i < update.payload.size() / 8; ++i) {
              torn += words[i] != update.iteration * 4 + static_cast<std::uint64_t>(update.rank);
            }
          }
        };
        for (std::uint64_t i = 1; i <= scatters; ++i) {
          random = random * 6364136223846793005U + 1442695040888963407U;
          const std::size_t words = 1 + (random >> 33) % most;
          // With all ranks in QUEUE at once, each must fold so that the others can go on.
          if (policy == Policy::kQueue) segment.gather({}, fold);
          segment.scatter([&](std::span<std::byte> room) {
            std::fill_n(reinterpret_cast<std::uint64_t*>(room.data()), words,
                        i * 4 + static_cast<std::uint64_t>(group->rank()));
            return std::pair(words * 8, Tag{words, 0});
          });
          if (policy == Policy::kQueue || (random >> 20) % 3 == 0) segment.gather({}, fold);
        }
        for (++flags->ended; flags->ended < 4; std::this_thread::yield()) segment.gather({}, fold);
        group->barrier();
        segment.gather({}, fold);
        group->barrier();
        const Stats stats = segment.stats();
        sums->scatters += scatters;
        sums->folded += stats.folded;
        sums->overwritten += stats.overwritten;
        sums->torn += torn;
        if (stats.sent != stats.folded + stats.overwritten) {
          std::fprintf(stderr,
                       "policy %u, %zu words: %lu sent, %lu folded, %lu overwritten, "
                       "%lu pending, %lu to the dead\n",
                       static_cast<unsigned>(policy), most, stats.sent, stats.folded,
                       stats.overwritten, stats.pending, stats.to_dead);
        }
        CHECK_THAT(torn == 0);
        CHECK_THAT(stats.sent == scatters * 3);
        CHECK_THAT(stats.sent == stats.folded + stats.overwritten);
        CHECK_THAT(stats.pending == 0 && stats.to_dead == 0);
        CHECK_THAT(policy == Policy::kLatest || stats.overwritten == 0);
        group->barrier();  // no rank leaves before all have counted
        return 0;
      });
      expect_all_well(job);
    }
  }
  std::printf("%lu scatters to 3 ranks each: %lu folded, %lu overwritten, %lu torn\n",
              sums->scatters.load(), sums->folded.load(), sums->overwritten.load(),
              sums->torn.load());
}

// A rank with damaged memory may leave such slots in its mailbox. A gather reports that, and ends.
TEST(Segment, HeaderThatIsNotOfItsTicketIsDamage) {
  for (const Policy policy : {Policy::kLatest, Policy::kQueue}) {
    Job job(2, [&](Bootstrap& bootstrap) {
      const auto group = join(bootstrap);
      SegmentOptions options = small();
      options.policy = policy;
      Segment segment(group, options);
      group->barrier();
      if (group->rank() == 0) {
        const host::SegmentMemory& memory = segment.parts().state.memory();
        const Mailbox box = memory.box(1);
        for (const std::uint64_t iteration : {std::uint64_t{0}, kMostIteration + 1}) {
          SlotHeader header{};
          header.iteration = iteration;
          header.payload_bytes = 8;
          header.sender = 1;
          box.header(0) = header;
          box.ticket(0, 0).iteration = 5;
          box.clock() = 5;
          const std::string error =
              message_of<Error>([&] { segment.gather({}, [](std::span<const Update>) {}); });
          CHECK_THAT(has(error, "rank 1 wrote an invalid slot header"));
          CHECK_THAT(box.cursor(0).consumed == 0);
        }
      }
      group->barrier();
      return 0;
    });
    expect_all_well(job);
  }
}

}  // namespace
}  // namespace dstorm
