// What the ranks of a job over RDMA see of faults, each rank with an adapter of its own (bed.sh). A
// line that begins with `measured: ` is shown with the row that ran the test.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "dstorm/dstorm.hpp"
#include "dstorm/host/wait.hpp"
#include "processes.hpp"

namespace dstorm::verbs {
namespace {

using namespace std::chrono_literals;
using testing_processes::Job;
using testing_processes::join;
using testing_processes::Shared;
using Seconds = std::chrono::duration<double>;

constexpr int kRanks = 3;
constexpr int kFaulty = 1;  // its adapter is rxe2, on n2, whose other end is p2
constexpr std::size_t kWords = 8192;

SegmentOptions words(Policy policy) {
  SegmentOptions options;
  options.name = "words";
  options.slot_bytes = kWords * 8;
  options.policy = policy;
  return options;
}

GroupOptions over_rdma() {
  GroupOptions options;
  options.transport = "verbs";
  return options;
}

// All words of an update are its number.
void scatter(Segment& segment, std::uint64_t number) {
  segment.scatter([&](std::span<std::byte> room) {
    std::fill_n(reinterpret_cast<std::uint64_t*>(room.data()), kWords, number);
    return std::pair(room.size(), Tag{kWords, 0});
  });
}

bool is_torn(const Update& update) {
  const auto* word = reinterpret_cast<const std::uint64_t*>(update.payload.data());
  return std::any_of(word, word + update.payload.size() / 8,
                     [&](std::uint64_t each) { return each != update.iteration; });
}

// ---- A rank that is lost ----
// What a rank that goes
// on has seen.
struct Seen {
  std::atomic<std::uint64_t> rounds;
  std::atomic<double> slowest;       // seconds of its longest gather
  std::atomic<std::uint32_t> alive;  // a bit per rank
};
struct AllSeen {
  Seen by_rank[kRanks];
  std::atomic<std::uint64_t> last;  // round
};

// The parent's wait for what happens in the ranks.
template <class Condition>
void await(Condition&& condition) {
  const auto end = Clock::now() + 30s;
  while (!condition()) {
    ASSERT_LT(Clock::now(), end) << "the job does not get going";
    std::this_thread::sleep_for(1ms);
  }
}

// BSP until `lost` has been evicted, and some rounds more.
int go_on_without(Bootstrap& bootstrap, const std::vector<int>& lost, AllSeen& all) {
  const auto group = join(bootstrap, over_rdma());
  Segment segment(group, words(Policy::kLatest));
  Seen& seen = all.by_rank[group->rank()];
  for (std::uint64_t i = 1; all.last == 0 || i <= all.last; ++i) {
    const auto start = Clock::now();
    scatter(segment, i);
    bool torn = false;
    segment.gather({.staleness = 0}, [&](std::span<const Update> updates) {
      torn = std::any_of(updates.begin(), updates.end(), is_torn);
    });
    CHECK_THAT(!torn);
    seen.slowest = std::max(seen.slowest.load(), Seconds(Clock::now() - start).count());
    seen.rounds = i;
    if (std::any_of(lost.begin(), lost.end(), [&](int r) { return group->is_live(r); })) continue;
    constexpr std::uint64_t kMore = 10;  // the others are at most one round away
    std::uint64_t nobody_has_said = 0;
    all.last.compare_exchange_strong(nobody_has_said, i + kMore);
  }
  std::uint32_t alive = 0;
  for (int r : group->alive()) alive |= 1U << r;
  seen.alive = alive;
  group->barrier();
  return 0;
}

void await_rounds(const AllSeen& all, std::uint64_t rounds) {
  await([&] {
    return std::all_of(std::begin(all.by_rank), std::end(all.by_rank),
                       [&](const Seen& seen) { return seen.rounds >= rounds; });
  });
}

void expect_left_out(const char* what, const AllSeen& all, int survivor, double limit) {
  const Seen& seen = all.by_rank[survivor];
  std::printf("measured: %s of rank %d: the longest gather of rank %d took %.2f s; alive, it says:",
              what, kFaulty, survivor, seen.slowest.load());
  for (int r = 0; r < kRanks; ++r) {
    if ((seen.alive >> r & 1) != 0) std::printf(" %d", r);
  }
  std::printf("\n");
  EXPECT_LT(seen.slowest, limit);
  EXPECT_EQ(seen.alive, 0b101U);
}

TEST(Faults, KilledRankIsLeftOutWithinASecond) {
  Shared<AllSeen> seen;
  Job job(kRanks, [&](Bootstrap& bootstrap) { return go_on_without(bootstrap, {kFaulty}, *seen); });
  await_rounds(*seen, 20);
  job.signal(kFaulty, SIGKILL);
  EXPECT_EQ(job.wait_all(), (std::vector<int>{0, 128 + SIGKILL, 0}));
  for (int survivor : {0, 2}) expect_left_out("SIGKILL", *seen, survivor, 1);
}

// Five seconds of silence and the time to agree; and what emulation adds on a busy machine.
constexpr double kSilentFor = 15;

TEST(Faults, StoppedRankIsLeftOut) {
  Shared<AllSeen> seen;
  Job job(kRanks, [&](Bootstrap& bootstrap) { return go_on_without(bootstrap, {kFaulty}, *seen); });
  await_rounds(*seen, 20);
  job.signal(kFaulty, SIGSTOP);
  for (int survivor : {0, 2}) {
    EXPECT_EQ(job.wait(survivor), 0);
    expect_left_out("SIGSTOP", *seen, survivor, kSilentFor);
  }
}

// TCP between the ranks, over loopback, goes on. The link stays up: if it goes down while much is
// sent, Linux 6.1's rdma_rxe may never return.
struct Cut {
  Cut() { EXPECT_EQ(std::system("ip link set p2 nomaster"), 0); }
  ~Cut() { EXPECT_EQ(std::system("ip link set p2 master br0"), 0); }
};

TEST(Faults, RankWhoseRdmaNetworkIsCutIsLeftOut) {
  Shared<AllSeen> seen;
  Job job(kRanks, [&](Bootstrap& bootstrap) {
    try {
      return go_on_without(bootstrap, {kFaulty}, *seen);
    } catch (const PeerError& error) {
      // It finds out by itself, or is told by the others first.
      const std::string what = error.what();
      CHECK_THAT(bootstrap.rank() == kFaulty &&
                 (what.find("was evicted from the job") != std::string::npos ||
                  what.find("is cut off") != std::string::npos));
      return 0;
    }
  });
  await_rounds(*seen, 20);
  const Cut cut;
  EXPECT_EQ(job.wait_all(), (std::vector<int>{0, 0, 0}));
  for (int survivor : {0, 2}) expect_left_out("cut", *seen, survivor, kSilentFor);
}

// For good: its network interface is gone, and with it the device. The kernel waits with that until
// the rank has closed it, which is so when the rank has ended. To be run last: rxe2 does not come
// back.
TEST(Removal, RankWhoseAdapterIsRemovedIsCutOffWithItsName) {
  Shared<AllSeen> seen;
  Job job(kRanks, [&](Bootstrap& bootstrap) {
    try {
      return go_on_without(bootstrap, {kFaulty}, *seen);
    } catch (const PeerError& error) {
      const std::string what = error.what();
      const bool names_it =
          what.find("transport verbs does not get through by rxe2:1:1") != std::string::npos;
      std::printf("measured: rank %d: %s\n", bootstrap.rank(), what.c_str());
      CHECK_THAT(bootstrap.rank() == kFaulty && names_it);
      return 0;
    }
  });
  await_rounds(*seen, 20);
  EXPECT_EQ(std::system("ip link del n2 &"), 0);
  EXPECT_EQ(job.wait_all(), (std::vector<int>{0, 0, 0}));
  for (int survivor : {0, 2}) expect_left_out("removal", *seen, survivor, kSilentFor);
  await([] { return std::system("test ! -e /sys/class/infiniband/rxe2") == 0; });
}

// Longer than an adapter repeats what it writes, shorter than a rank may be silent.
TEST(Faults, RdmaNetworkThatIsCutForThreeSecondsLosesNobody) {
  Shared<AllSeen> seen;
  Job job(kRanks, [&](Bootstrap& bootstrap) {
    GroupOptions options = over_rdma();
    options.silence = 10s;  // an adapter repeats for a fifth of it
    const auto group = join(bootstrap, options);
    Segment segment(group, words(Policy::kLatest));
    for (std::uint64_t i = 1; seen->last == 0 || i <= seen->last; ++i) {
      scatter(segment, i);
      std::size_t whole = 0;
      segment.gather({.staleness = 0}, [&](std::span<const Update> updates) {
        whole = static_cast<std::size_t>(std::count_if(
            updates.begin(), updates.end(), [](const Update& update) { return !is_torn(update); }));
      });
      CHECK_THAT(whole == kRanks - 1);
      seen->by_rank[group->rank()].rounds = i;
    }
    CHECK_THAT(group->alive().size() == kRanks);
    group->barrier();
    return 0;
  });
  await_rounds(*seen, 20);
  {
    const Cut cut;
    std::this_thread::sleep_for(3s);
  }
  std::uint64_t most = 0;
  for (const Seen& one : seen->by_rank) most = std::max(most, one.rounds.load());
  seen->last = most + 10;
  testing_processes::expect_all_well(job);
}

// ---- A rank that stalls ----
class EveryPolicy : public testing::TestWithParam<Policy> {};
INSTANTIATE_TEST_SUITE_P(Faults, EveryPolicy, testing::Values(Policy::kLatest, Policy::kQueue),
                         [](const auto& given) {
                           return given.param == Policy::kLatest ? "Latest" : "Queue";
                         });

// Two ranks write; the third is stopped for a second while it reads.
TEST_P(EveryPolicy, ReaderThatStallsInItsFoldSeesNothingTorn) {
  struct State {
    std::atomic<int> reading, has_stalled, ended;
    std::atomic<std::uint64_t> scatters, folded, overwritten;
  };
  constexpr int kReader = 2;
  Shared<State> state;
  Job job(kRanks, [&](Bootstrap& bootstrap) {
    const auto group = join(bootstrap, over_rdma());
    SegmentOptions options = words(GetParam());
    options.graph = Graph::edges({{0, kReader}, {1, kReader}, {kReader, 0}, {kReader, 1}});
    options.depth = 3;
    Segment segment(group, options);
    group->barrier();
    std::uint64_t sent = 0;
    std::uint64_t torn = 0;
    const auto fold = [&](std::span<const Update> updates) {
      const auto end = Clock::now() + 20ms;  // again and again, and so while it is stopped
      do {
        for (const Update& update : updates) torn += is_torn(update);
        if (!updates.empty()) state->reading = 1;
      } while (state->has_stalled == 0 && Clock::now() < end);
    };
    if (group->rank() != kReader) {
      while (state->has_stalled == 0) scatter(segment, ++sent);
      ++state->ended;
    }
    while (group->rank() == kReader && state->ended < 2) segment.gather({}, fold);
    group->barrier();
    segment.gather({}, fold);
    group->barrier();
    const Stats stats = segment.stats();
    CHECK_THAT(torn == 0);
    if (group->rank() != kReader) {
      state->scatters += sent;
      state->folded += stats.folded;
      state->overwritten += stats.overwritten;
      CHECK_THAT(stats.sent == sent && stats.sent == stats.folded + stats.overwritten);
      CHECK_THAT(stats.pending == 0 && stats.to_dead == 0);
      CHECK_THAT(GetParam() == Policy::kLatest || stats.overwritten == 0);
    }
    group->barrier();  // nobody leaves before all have counted
    return 0;
  });
  await([&] { return state->reading != 0; });
  std::this_thread::sleep_for(200ms);
  job.signal(kReader, SIGSTOP);
  std::this_thread::sleep_for(1s);
  job.signal(kReader, SIGCONT);
  std::this_thread::sleep_for(200ms);
  state->has_stalled = 1;
  testing_processes::expect_all_well(job);
  std::printf(
      "measured: a reader stopped for 1 s: %lu scatters, %lu folded, %lu overwritten, 0 torn\n",
      state->scatters.load(), state->folded.load(), state->overwritten.load());
}

}  // namespace
}  // namespace dstorm::verbs
