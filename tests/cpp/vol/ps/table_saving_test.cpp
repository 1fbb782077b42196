// Tables in checkpoints: reading rows at their primaries, and putting rows there (P13).
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <numeric>
#include <thread>

#include "table_rank.hpp"

namespace vol::ps {
namespace {

constexpr std::int64_t kRows = 3000;

TableOptions options_with(int replicas, int staleness, std::size_t width = 3) {
  TableOptions options = options_of(kRows, width);
  options.replicas = replicas;
  if (staleness >= 0) options.staleness = static_cast<std::uint64_t>(staleness);
  return options;
}

// The values of the rows of which this rank is the primary when `live` are; `array` 1 and on: what
// the rule keeps.
std::vector<double> saved(Rank& one, const std::vector<int>& live, std::size_t array = 0) {
  std::vector<double> all;
  const Placement& placement = one.client->placement();
  for (const std::size_t range : one.client->ranges(live)) {
    const auto rows =
        static_cast<std::size_t>(placement.end_row(range) - placement.first_row(range));
    std::vector<double> values(rows * one.width());
    const std::size_t bytes = values.size() * sizeof(double);
    one.client->read(range, array * bytes, std::as_writable_bytes(std::span(values)), {});
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

void restore(Rank& one, const std::vector<int>& live, double value) {
  const Placement& placement = one.client->placement();
  for (const std::size_t range : one.client->ranges(live)) {
    const auto rows =
        static_cast<std::size_t>(placement.end_row(range) - placement.first_row(range));
    const std::vector<double> values(rows * one.width(), value);
    one.client->write(range, 0, std::as_bytes(std::span(values)), {});
    one.client->end_write(range, {});
  }
}

// Rows of more bytes than a message has, too. Momentum of 1: v = 1, 2, 3, and w is less their sum.
TEST(TableSaving, EachRowIsReadOnceWithWhatTheRuleKeeps) {
  for (const std::size_t width : {std::size_t{1}, std::size_t{3}, std::size_t{5000}}) {
    TableOptions options = options_with(1, -1, width);
    options.rule.kind = Rule::Kind::kMomentum;
    options.rule.rate = options.rule.momentum = 1;
    options.rows = width > 3 ? 100 : kRows;
    Shared<std::atomic<int>> meeting;
    Shared<std::atomic<std::size_t>> read;
    run_ranks(3, options, [&](Rank& one) {
      one.add(every(options.rows, 1), 1);
      one.client->wait({}, {});
      meet(*meeting, 3);
      const std::vector<double> values = saved(one, {0, 1, 2});
      CHECK_THAT(are_all(values, -6) && are_all(saved(one, {0, 1, 2}, 1), 3));
      *read += values.size();
      return 0;
    });
    EXPECT_EQ(*read, static_cast<std::size_t>(options.rows) * width);
  }
}

TEST(TableSaving, ARankReadsWhenItsServerKnowsOfTheClocksOfAll) {
  run_ranks(2, options_with(0, 0), [&](Rank& one) {
    one.add(every(kRows, 1), 1);
    one.client->wait({}, {});
    if (one.rank == 1) std::this_thread::sleep_for(100ms);
    one.client->advance({});
    one.add(every(kRows, 1), 1);  // of the next clock
    one.client->await_clocks(std::vector<std::uint64_t>{1, 1}, {});
    CHECK_THAT(are_all(saved(one, {0, 1}), 2));
    return 0;
  });
}

// The dead rank was behind: as long as its clock counts, nothing is applied.
TEST(TableSaving, ARankReadsWhenItsServerKnowsOfTheDeaths) {
  Shared<Posts> posts;
  Shared<std::atomic<int>> meeting;
  Job job(3, [&](dstorm::Bootstrap& bootstrap) {
    Rank one(*posts, bootstrap.rank(), 3, options_with(1, 0));
    if (one.rank == 2) {
      for (;;) std::this_thread::sleep_for(1h);
    }
    one.add(every(kRows, 1), 1);
    one.client->advance({});
    meet(*meeting, 2);
    one.client->await_clocks(std::vector<std::uint64_t>{1, 1, kIsDead}, {});
    CHECK_THAT(are_all(saved(one, {0, 1}), 2));
    one.client->finish({});
    return 0;
  });
  while (*meeting < 2) std::this_thread::sleep_for(1ms);
  std::this_thread::sleep_for(50ms);
  job.signal(2, SIGKILL);
  for (int rank : {0, 1}) EXPECT_EQ(job.wait(rank), 0);
}

TEST(TableSaving, RestoredRowsAreOnTheCopiesToo) {
  for (const int staleness : {-1, 0}) {
    Shared<Posts> posts;
    Shared<std::atomic<int>> of_three, of_two;
    Job job(3, [&](dstorm::Bootstrap& bootstrap) {
      Rank one(*posts, bootstrap.rank(), 3, options_with(1, staleness, 200));
      one.add(every(kRows, 1), 1);
      one.client->wait({}, {});
      meet(*of_three, 3);
      restore(one, {0, 1, 2}, 7);
      one.client->continue_from(std::vector<std::uint64_t>{0, 0, 0}, {});
      meet(*of_three, 3);
      if (one.rank == 2) std::raise(SIGKILL);
      while (one.live() > 2) std::this_thread::sleep_for(1ms);
      CHECK_THAT(are_all(one.all(), 7));
      meet(*of_two, 2);
      one.add(every(kRows, 1), 1);
      one.client->wait({}, {});
      one.client->advance({});
      meet(*of_two, 2);
      CHECK_THAT(are_all(one.all(), 9));
      one.client->finish({});
      return 0;
    });
    EXPECT_EQ(job.wait(2), 128 + SIGKILL);
    for (int rank : {0, 1}) EXPECT_EQ(job.wait(rank), 0) << staleness;
  }
}

// The server of rank 0, which holds all copies of rank 1's ranges, is stopped in an update.
TEST(TableSaving, ARangeCountsAsWrittenWhenItsCopiesAreWhole) {
  Shared<std::atomic<bool>> has_stopped, is_released;
  TableOptions options = options_with(1, -1, 1);
  options.rule.kind = Rule::Kind::kFunction;
  Shared<std::atomic<pid_t>> stops;  // the process; 0 at first
  options.rule.function = [&](std::byte*, const std::byte*, std::size_t) {
    if (getpid() != *stops) return;
    *has_stopped = true;
    await(*is_released);
  };
  run_ranks(2, options, [&](Rank& one) {
    const Placement& placement = one.client->placement();
    const std::size_t range = one.client->ranges(std::vector<int>{0, 1}).front();
    if (one.rank == 0) {
      *stops = getpid();
      one.add({placement.first_row(range)}, 1);
      return 0;
    }
    await(*has_stopped);
    const std::vector<double> values(16, 7);
    one.client->write(range, 0, std::as_bytes(std::span(values)), {});
    bool is_late = false;
    try {
      one.client->end_write(range, 200ms);
    } catch (const dstorm::TimeoutError&) {
      is_late = true;
    }
    *is_released = true;
    CHECK_THAT(is_late);
    return 0;
  });
}

// What was kept for a later clock, on the primary and on the copy, and what was held back.
TEST(TableSaving, PushesOfTheTimeBeforeAreDropped) {
  TableOptions options = options_with(1, 0);
  options.threshold = 2;
  Shared<std::atomic<int>> meeting;
  run_ranks(2, options, [&](Rank& one) {
    one.add(every(kRows, 1), 100);
    one.add(every(kRows, 2), 1);
    CHECK_THAT(one.client->rows_held_back() == kRows / 2);
    one.client->drop_pushes({});
    CHECK_THAT(one.client->rows_held_back() == 0);
    meet(*meeting, 2);
    restore(one, {0, 1}, 7);
    one.client->continue_from(std::vector<std::uint64_t>{0, 0}, {});
    meet(*meeting, 2);
    one.client->advance({});
    CHECK_THAT(are_all(one.all(), 7));
    one.add(every(kRows, 1), 2);
    one.client->advance({});
    CHECK_THAT(are_all(one.all(), 11));
    return 0;
  });
}

TEST(TableSaving, HotRowsThatServersKeepAreDropped) {
  TableOptions options = options_with(0, 0);
  options.hot = every(kRows, 7);
  options.fan_out = 2;
  Shared<std::atomic<int>> meeting;
  run_ranks(4, options, [&](Rank& one) {
    one.add(every(kRows, 1), 1);
    one.client->advance({});
    CHECK_THAT(are_all(one.pull(options.hot), 4));
    meet(*meeting, 4);
    restore(one, {0, 1, 2, 3}, 7);
    one.client->continue_from(std::vector<std::uint64_t>(4, 1), {});
    meet(*meeting, 4);
    CHECK_THAT(are_all(one.pull(options.hot), 7));
    return 0;
  });
}

TEST(TableSaving, PullsWaitForTheClocksThatWereRestored) {
  Shared<std::atomic<int>> meeting;
  run_ranks(2, options_with(0, 0), [&](Rank& one) {
    one.add(every(kRows, 1), 1);
    for (int clock = 0; clock < 5; ++clock) one.client->advance({});
    CHECK_THAT(are_all(one.all(), 2));
    one.client->await_clocks(std::vector<std::uint64_t>{5, 5}, {});
    meet(*meeting, 2);
    restore(one, {0, 1}, 7);
    one.client->continue_from(std::vector<std::uint64_t>{1, 1}, {});
    CHECK_THAT(one.client->clock() == 1);
    meet(*meeting, 2);
    if (one.rank == 1) std::this_thread::sleep_for(100ms);
    one.add(every(kRows, 1), 1);
    one.client->advance({});
    CHECK_THAT(are_all(one.all(), 9));
    return 0;
  });
}

TEST(TableSaving, RowsThatWereLostAreThereOnceTheyAreRestored) {
  Shared<Posts> posts;
  Shared<std::atomic<int>> of_three, of_two;
  Job job(3, [&](dstorm::Bootstrap& bootstrap) {
    Rank one(*posts, bootstrap.rank(), 3, options_with(0, -1));
    meet(*of_three, 3);
    if (one.rank == 2) std::raise(SIGKILL);
    one.client->await_clocks(std::vector<std::uint64_t>{0, 0, kIsDead}, {});
    bool is_lost = false;
    try {
      saved(one, {0, 1});
    } catch (const dstorm::PeerError& error) {
      is_lost = error.ranks() == std::vector<int>{2};
    }
    CHECK_THAT(is_lost);
    restore(one, {0, 1}, 7);
    meet(*of_two, 2);
    CHECK_THAT(are_all(one.all(), 7));
    meet(*of_two, 2);
    one.client->wait(one.add(every(kRows, 1), 1), {});
    meet(*of_two, 2);
    CHECK_THAT(are_all(one.all(), 9));
    one.client->finish({});
    return 0;
  });
  EXPECT_EQ(job.wait(2), 128 + SIGKILL);
  for (int rank : {0, 1}) EXPECT_EQ(job.wait(rank), 0);
}

// Nobody has pushed to them, so only the restoring can have shown them (P9).
TEST(TableSaving, OnOneHostRestoredRowsAreReadInPlace) {
  Shared<std::atomic<int>> meeting;
  run_ranks(2, options_with(0, -1), [&](Rank& one) {
    restore(one, {0, 1}, 7);
    meet(*meeting, 2);
    one.pull(every(kRows, 1));  // a server's answer comes after its word on where its rows are
    const std::uint64_t before = one.client->rows_in_place();
    CHECK_THAT(are_all(one.all(), 7));
    const bool is_one_host = testing_processes::transport() == "shm";
    CHECK_THAT(one.client->rows_in_place() - before == (is_one_host ? kRows : 0));
    return 0;
  });
}

// Rank 1 is stopped while rank 0 comes to a clock for which it has no slots left. Then rank 0 makes
// no call, so that its server tells the clock (P5). What rank 0 sends after a restore is of the
// time before it, and does not count.
TEST(TableSaving, AClockWithoutASlotIsToldAndDoesNotCountAfterARestore) {
  constexpr std::uint64_t kClocks = 40;
  TableOptions options = options_with(0, 5);
  Shared<std::atomic<pid_t>> stopped;
  Shared<std::atomic<bool>> has_sent, has_restored;
  Shared<std::atomic<int>> meeting;
  run_ranks(2, options, [&](Rank& one) {
    const auto restore_clocks = [&] {
      one.client->drop_pushes({});
      one.client->await_clocks(std::vector<std::uint64_t>{kClocks, kClocks}, {});
      one.client->continue_from(std::vector<std::uint64_t>{0, 0}, {});
    };
    if (one.rank == 1) {
      *stopped = getpid();
      await(*has_sent);
      while (one.client->clock() < kClocks) one.client->advance({});
      one.all();  // waits for rank 0
      restore_clocks();
      *has_restored = true;
    } else {
      while (*stopped == 0) std::this_thread::sleep_for(1ms);
      testing_table::stop(*stopped);
      while (one.client->clock() < kClocks) one.client->advance({});
      *has_sent = true;
      kill(*stopped, SIGCONT);
      await(*has_restored);
      restore_clocks();
      one.all();  // its messages are taken in their order: those with old clocks as well
    }
    meet(*meeting, 2);
    const std::vector<int> behind = one.behind(1);
    meet(*meeting, 2);
    CHECK_THAT(behind == std::vector<int>({0, 1}));
    return 0;
  });
}

}  // namespace
}  // namespace vol::ps
