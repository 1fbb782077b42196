// Groups that follow one another: ranks that are dead from the start, and what a segment keeps when
// ranks rejoin.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "dstorm/dstorm.hpp"
#include "processes.hpp"
#include "vol/vol.hpp"

namespace dstorm {
namespace {

using namespace std::chrono_literals;
using testing_processes::expect_all_well;
using testing_processes::ForkBootstrap;
using testing_processes::Job;
using testing_processes::join;
using testing_processes::Shared;

SegmentOptions numbers(Policy policy) {
  SegmentOptions options;
  options.name = "numbers";
  options.slot_bytes = 8;
  options.depth = 3;
  options.policy = policy;
  return options;
}

std::span<const std::byte> bytes_of(const std::uint64_t& value) {
  return std::as_bytes(std::span(&value, 1));
}

std::uint64_t number(int rank, int iteration) {
  return std::uint64_t{1000} * static_cast<unsigned>(rank) + static_cast<unsigned>(iteration);
}

using Seen = std::vector<std::pair<int, std::uint64_t>>;  // sender, value

Seen gather(Segment& segment, std::optional<std::uint64_t> staleness = std::nullopt) {
  Seen seen;
  segment.gather({.staleness = staleness, .timeout = 20s}, [&](std::span<const Update> updates) {
    for (const Update& update : updates) {
      std::uint64_t value = 0;
      std::memcpy(&value, update.payload.data(), sizeof(value));
      seen.emplace_back(update.rank, value);
    }
  });
  return seen;
}

std::shared_ptr<Group> join_next(Bootstrap& first, std::vector<int> members, int number = 1) {
  ForkBootstrap next = dynamic_cast<ForkBootstrap&>(first).generation(number, std::move(members));
  return join(next);
}

// The first process of a rank: it runs `life` in a process of its own, and is killed.
template <class Life>
void live_and_die(Life&& life) {
  const pid_t pid = fork();
  if (pid == 0) {
    life();
    kill(getpid(), SIGKILL);
  }
  waitpid(pid, nullptr, 0);
}

bool is_consistent(const Stats& stats) {
  return stats.sent ==
         stats.folded + stats.overwritten + stats.rejected + stats.pending + stats.to_dead;
}

TEST(Group, RanksThatAreNoMembersAreDeadFromTheStart) {
  Job job(4, [](Bootstrap& bootstrap) {
    if (bootstrap.rank() == 0) return 0;
    const auto group = join_next(bootstrap, {1, 2, 3});
    CHECK_THAT(group->size() == 4);
    CHECK_THAT((group->alive() == std::vector<int>{1, 2, 3}));
    CHECK_THAT(group->route(0).transport == "none");
    group->barrier();
    Segment segment(group, numbers(Policy::kQueue));
    CHECK_THAT(segment.scatter(bytes_of(7)).size() == 2);
    CHECK_THAT(gather(segment, 0).size() == 2);
    CHECK_THAT(segment.stats().to_dead == 0);
    CHECK_THAT(group->epoch() == 0);
    group->barrier();
    return 0;
  });
  expect_all_well(job);
}

TEST(Group, AWaitInASupersededGroupLooksOnceMoreAndEnds) {
  Shared<std::atomic<bool>> is_asked, has_ended;
  Job job(2, [&](Bootstrap& bootstrap) {
    GroupOptions options;
    Group* own = nullptr;
    int asked = 0;
    options.superseded = [&](bool is_new) {
      if (!is_new) return false;
      ++asked;
      is_asked->store(true);
      const std::uint64_t posted[] = {1, 1};
      own->await_posts(posted, 20s);
      return true;
    };
    const auto group = join(bootstrap, options);
    own = group.get();
    if (group->rank() == 1) {
      while (!is_asked->load()) std::this_thread::sleep_for(1ms);
      group->restore();
      group->barrier();
      while (!has_ended->load()) std::this_thread::sleep_for(1ms);
      return 0;
    }
    std::thread other([&] {
      std::this_thread::sleep_for(20ms);
      group->supersede();
    });
    group->barrier();  // the update for which it waits has arrived meanwhile
    other.join();
    has_ended->store(asked != 1);
    CHECK_THAT(asked == 1);
    group->supersede();
    bool is_over = false;
    try {
      group->barrier();
    } catch (const Superseded&) {
      is_over = true;
    }
    has_ended->store(true);
    CHECK_THAT(is_over && asked == 2);
    return 0;
  });
  expect_all_well(job);
}

TEST(Group, IsLeftWhereARoundOfTheFirstSegmentHasBeenKept) {
  Job job(1, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    Segment first(group, numbers(Policy::kLatest));
    SegmentOptions options = numbers(Policy::kLatest);
    options.name = "second";
    Segment second(group, options);
    const auto goes_over = [&](Segment& segment) {
      try {
        segment.scatter(bytes_of(1));
        return false;
      } catch (const Superseded&) {
        return true;
      }
    };
    group->supersede();
    CHECK_THAT(!goes_over(first) && !goes_over(second));
    group->keep_round("second");
    CHECK_THAT(!goes_over(first) && !goes_over(second));
    group->keep_round("numbers");
    CHECK_THAT(!goes_over(second) && goes_over(first));
    group->restore();
    CHECK_THAT(!goes_over(first));
    group->supersede(2);  // the kept result is of an earlier round
    int passed = 0;       // rounds without a gather
    while (passed < 100 && !goes_over(first)) ++passed;
    CHECK_THAT(passed == 4);
    return 0;
  });
  expect_all_well(job);
}

class Regroup : public testing::TestWithParam<Policy> {};

TEST_P(Regroup, PendingUpdatesComeAlongAndCountersGoOn) {
  const Policy policy = GetParam();
  Shared<std::atomic<int>> ready;
  Job job(3, [&](Bootstrap& bootstrap) {
    const int rank = bootstrap.rank();
    if (rank == 2) {
      live_and_die([&] {
        const auto group = join(bootstrap);
        Segment segment(group, numbers(policy));
        segment.scatter(bytes_of(2001));
        group->barrier();
        while (ready->load() < 2) std::this_thread::sleep_for(1ms);
      });
      const auto group = join_next(bootstrap, {0, 1, 2});
      SegmentOptions options = numbers(policy);
      options.rejoins = true;
      Segment segment(group, options);
      CHECK_THAT(segment.iteration() == 2);  // rank 1 has gathered this, and rank 0 is beyond it
      group->barrier();
      segment.scatter(bytes_of(2103));
      // Rank 0 has been at iteration 3 before, and rank 1 has not: rank 0's update of it is here.
      CHECK_THAT((gather(segment, 0) == Seen{{1, 1003}}));
      segment.scatter(bytes_of(2104));
      CHECK_THAT((gather(segment, 0) == Seen{{0, 4}, {1, 1004}}));
      group->barrier();
      return 0;
    }
    auto group = join(bootstrap);
    Segment segment(group, numbers(policy));
    segment.scatter(bytes_of(number(rank, 1)));
    group->barrier();
    CHECK_THAT(gather(segment, 0).size() == 2);
    segment.scatter(bytes_of(number(rank, 2)));
    if (rank == 0) segment.scatter(bytes_of(3));
    ready->fetch_add(1);
    while (group->is_live(2)) std::this_thread::sleep_for(1ms);
    if (rank == 1) CHECK_THAT((gather(segment, 0) == Seen{{0, 2}}));
    group->barrier();
    const Stats before = segment.stats();
    CHECK_THAT(is_consistent(before));

    const auto next = join_next(bootstrap, {0, 1, 2});
    group->barrier();
    group->supersede();
    group->keep_round("numbers");
    bool is_told = false;
    try {
      segment.scatter(bytes_of(0));
    } catch (const Superseded&) {
      is_told = true;
    }
    CHECK_THAT(is_told);
    segment.regroup(next);
    if (rank == 1 && policy == Policy::kQueue) {  // nothing is lost
      CHECK_THAT((gather(segment) == Seen{{0, 3}}));
    }
    next->barrier();
    group->leave();
    CHECK_THAT(segment.iteration() == (rank == 0 ? 3U : 2U));
    CHECK_THAT(is_consistent(segment.stats()));
    CHECK_THAT(segment.stats().sent == before.sent);

    if (rank == 1) {
      if (policy == Policy::kQueue) {
        CHECK_THAT((segment.scatter(bytes_of(1003)).size() == 2));
      } else {
        CHECK_THAT((segment.scatter(bytes_of(1003)).size() == 2));
        CHECK_THAT((gather(segment, 0) == Seen{{0, 3}, {2, 2103}}));
      }
    } else {
      // Continues the gather that was interrupted.
      const Seen due = policy == Policy::kQueue ? Seen{{1, 1002}, {1, 1003}, {2, 2103}}
                                                : Seen{{1, 1003}, {2, 2103}};
      CHECK_THAT(gather(segment, 0) == due);
    }
    segment.scatter(bytes_of(number(rank, 4)));
    const Seen last = gather(segment, 0);
    CHECK_THAT((last.back() == std::pair<int, std::uint64_t>(2, 2104)));
    CHECK_THAT(last.front().first == 1 - rank &&
               last.size() == (rank == 1 && policy == Policy::kQueue ? 3U : 2U));
    next->barrier();
    const Stats after = segment.stats();
    CHECK_THAT(is_consistent(after));
    CHECK_THAT(after.pending == 0);
    CHECK_THAT(after.overwritten == 0 || policy == Policy::kLatest);
    return 0;
  });
  expect_all_well(job);
}

INSTANTIATE_TEST_SUITE_P(Policies, Regroup, testing::Values(Policy::kLatest, Policy::kQueue));

TEST(Regroup, AVectorsOwnMemoryStaysWhereItIs) {
  Job job(3, [](Bootstrap& bootstrap) {
    auto group = join(bootstrap);
    vol::VectorOptions options;
    options.name = "w";
    vol::Dense<double> vector(group, options, 2000);
    double* const place = vector.values().data();
    for (int generation = 1; generation <= 3; ++generation) {
      place[1999] = group->rank();
      const auto next = join_next(bootstrap, {0, 1, 2}, generation);
      vector.regroup(next);
      next->barrier();
      group->leave();
      group = next;
      CHECK_THAT(vector.values().data() == place);
      CHECK_THAT(place[1999] == group->rank());
      vector.allreduce(vol::Fold::sum());  // the other ranks read the values there
      CHECK_THAT(place[1999] == 3);
      group->barrier();
    }
    return 0;
  });
  expect_all_well(job);
}

}  // namespace
}  // namespace dstorm
