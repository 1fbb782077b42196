// Tables whose ranks are killed: what was pushed is there, once, whichever rank dies.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>

#include "stressed.hpp"
#include "table_rank.hpp"

namespace vol::ps {
namespace {

TEST(TableDeaths, AKilledServerLosesNothingThatWasAcknowledgedAndNothingComesTwice) {
  constexpr int kRounds = kSanitized ? 80 : 200;
  for (const int replicas : {1, 2}) {
    for (const int staleness : {-1, 0}) {
      if (kSanitized && replicas == 2 && staleness == -1) continue;
      Shared<Posts> posts;
      Shared<std::atomic<int>> acknowledged;  // rounds of rank 3
      Shared<std::atomic<int>> finished;      // ranks whose pushes are all acknowledged
      constexpr std::int64_t kRows = 2000;
      Job job(4, [&](dstorm::Bootstrap& bootstrap) {
        TableOptions options = options_of(kRows, 3);
        options.replicas = replicas;
        if (staleness >= 0) options.staleness = 0;
        Rank one(*posts, bootstrap.rank(), 4, options);
        for (int round = 0; round < kRounds; ++round) {
          if (one.rank == 3 && round == kRounds / 2) std::raise(SIGKILL);
          const std::uint64_t push = one.add(every(kRows, 1), 1);
          if (round % 8 == 0 || one.rank == 3) one.client->wait(push, {});
          if (one.rank == 3) *acknowledged = round + 1;
          if (round % 16 == 0) one.client->advance({});
        }
        while (one.client->clock() < 30) one.client->advance({});
        ++*finished;
        while (*finished < 3 || *acknowledged < kRounds / 2) std::this_thread::sleep_for(1ms);
        CHECK_THAT(are_all(one.all(), 3 * kRounds + kRounds / 2));
        one.client->finish({});
        return 0;
      });
      EXPECT_EQ(job.wait(3), 128 + SIGKILL);
      for (int rank : {0, 1, 2}) EXPECT_EQ(job.wait(rank), 0) << replicas << ' ' << staleness;
    }
  }
}

// The primary of half of the rows dies with pushes at every stage: on the way to it, applied there,
// at the copy, acknowledged.
TEST(TableDeaths, APushThatADeadServerHadNotAcknowledgedIsSentAgainAndCountsOnce) {
  std::uint64_t random = 1;
  for (std::uint64_t trial = 0; trial < stressed(15); ++trial) {
    random = random * 6364136223846793005U + 1442695040888963407U;
    const int moment = 20 + static_cast<int>(random >> 33) % 60;
    Shared<Posts> posts;
    Shared<std::atomic<int>> pushed;
    Job job(2, [&](dstorm::Bootstrap& bootstrap) {
      TableOptions options = options_of(4000, 8);
      options.replicas = 1;
      Rank one(*posts, bootstrap.rank(), 2, options);
      if (one.rank == 1) {
        for (;;) std::this_thread::sleep_for(1h);
      }
      const std::vector<std::int64_t> keys = every(4000, 1);
      for (; *pushed < 120; ++*pushed) one.add(keys, 1);
      one.client->wait({}, {});
      CHECK_THAT(are_all(one.all(), 120));
      one.client->finish({});
      return 0;
    });
    while (*pushed < moment) std::this_thread::yield();
    job.signal(1, SIGKILL);
    EXPECT_EQ(job.wait(0), 0) << trial;
  }
}

// The second death comes when the copies that the first one asks for are whole. So rows whose copy
// has been made after the first death are served by that copy after the second.
TEST(TableDeaths, ServersMayDieOneAfterTheOther) {
  std::uint64_t random = 2;
  for (std::uint64_t trial = 0; trial < stressed(10); ++trial) {
    Shared<Posts> posts;
    Shared<std::atomic<int>> pushed;
    Shared<std::atomic<int>> finished;
    Shared<std::atomic<int>> whole;  // deaths after which all copies are whole again
    Job job(4, [&](dstorm::Bootstrap& bootstrap) {
      TableOptions options = options_of(2000, 8);
      options.replicas = 1;
      Rank one(*posts, bootstrap.rank(), 4, options);
      if (one.rank >= 2) {
        for (;;) std::this_thread::sleep_for(1h);
      }
      int live = 4;
      int since = 0;  // acknowledged pushes after the last death
      int own = 0;
      for (; *whole < 2 || own < 60; ++own) {
        const std::uint64_t push = one.add(every(2000, 1), 1);
        ++*pushed;
        if (own % 4 != 0) continue;
        one.client->wait(push, {});
        const int now = one.live();
        since = now == live ? since + 1 : 0;
        live = now;
        // A server begins copies before it takes the next push, and acknowledges that after them.
        if (one.rank == 0 && since >= 3) *whole = 4 - live;
      }
      one.client->wait({}, {});
      ++*finished;
      while (*finished < 2) std::this_thread::sleep_for(1ms);
      CHECK_THAT(are_all(one.all(), *pushed));
      one.client->finish({});
      return 0;
    });
    for (int death = 0; death < 2; ++death) {
      while (*whole < death) std::this_thread::sleep_for(1ms);
      random = random * 6364136223846793005U + 1442695040888963407U;
      const int moment = *pushed + 5 + static_cast<int>(random >> 33) % 20;
      while (*pushed < moment) std::this_thread::yield();
      job.signal(3 - death, SIGKILL);
    }
    for (int rank : {0, 1}) EXPECT_EQ(job.wait(rank), 0) << trial;
  }
}

// The first server that takes over dies while it makes copies. The next one then serves with the
// copy that it had before.
TEST(TableDeaths, AServerMayDieWhileItMakesCopies) {
  std::uint64_t random = 6;
  for (std::uint64_t trial = 0; trial < stressed(12); ++trial) {
    Shared<Posts> posts;
    Shared<std::atomic<int>> pushed;
    Shared<std::atomic<int>> finished;
    Job job(4, [&](dstorm::Bootstrap& bootstrap) {
      TableOptions options = options_of(20'000, 16);
      options.replicas = 2;
      Rank one(*posts, bootstrap.rank(), 4, options);
      if (one.rank >= 2) {
        for (;;) std::this_thread::sleep_for(1h);
      }
      const std::vector<std::int64_t> keys = every(20'000, 10);
      for (int own = 0; own < 60; ++own) {
        one.add(keys, 1);
        ++*pushed;
      }
      one.client->wait({}, {});
      ++*finished;
      while (*finished < 2) std::this_thread::sleep_for(1ms);
      CHECK_THAT(are_all(one.pull(keys), *pushed));
      one.client->finish({});
      return 0;
    });
    random = random * 6364136223846793005U + 1442695040888963407U;
    const int moment = 10 + static_cast<int>(random >> 33) % 40;
    while (*pushed < moment) std::this_thread::yield();
    job.signal(2, SIGKILL);
    const auto since = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() < since + trial * 300us) std::this_thread::yield();
    job.signal(3, SIGKILL);
    for (int rank : {0, 1}) EXPECT_EQ(job.wait(rank), 0) << trial;
  }
}

// Ranks 2 and 3 only follow the clocks, so that their deaths change no value. A copy that is made
// after the first death has the pushes of the clock that has not ended. It serves after the second.
TEST(TableDeaths, AtStalenessNothingADeathChangesNoPull) {
  std::uint64_t random = 3;
  for (std::uint64_t trial = 0; trial < stressed(8); ++trial) {
    Shared<Posts> posts;
    Shared<std::atomic<int>> clocks;  // of rank 0
    Job job(4, [&](dstorm::Bootstrap& bootstrap) {
      TableOptions options = options_of(2000, 8);
      options.replicas = 1;
      options.staleness = 0;
      Rank one(*posts, bootstrap.rank(), 4, options);
      for (int clock = 0; clock < 70; ++clock) {
        CHECK_THAT(are_all(one.pull(every(2000, 3)), 2 * clock));
        if (one.rank >= 2) {
          one.client->advance({});
          continue;
        }
        one.add(every(2000, 1), 0.25);
        one.add(every(2000, 1), 0.75);
        if (one.rank == 0) *clocks = clock;
        one.client->advance({});
      }
      while (one.rank >= 2) std::this_thread::sleep_for(1h);  // its death may come late
      one.client->finish({});
      return 0;
    });
    for (int death = 0; death < 2; ++death) {
      random = random * 6364136223846793005U + 1442695040888963407U;
      const int moment = 5 + 30 * death + static_cast<int>(random >> 33) % 20;
      while (*clocks < moment) std::this_thread::yield();
      job.signal(2 + death, SIGKILL);
    }
    for (int rank : {0, 1}) EXPECT_EQ(job.wait(rank), 0) << trial;
  }
}

TEST(TableDeaths, AClockThatWaitsForASlowRankEndsWithItsDeath) {
  Shared<Posts> posts;
  Shared<std::atomic<bool>> is_ahead;
  Job job(2, [&](dstorm::Bootstrap& bootstrap) {
    TableOptions options = options_of(20, 1);
    options.replicas = 1;
    options.staleness = 0;
    Rank one(*posts, bootstrap.rank(), 2, options);
    if (one.rank == 1) std::this_thread::sleep_for(60s);
    for (std::uint64_t clock = 0; clock < kMostAhead; ++clock) one.client->advance({});
    *is_ahead = true;
    one.client->advance({});
    one.client->finish({});
    return 0;
  });
  await(*is_ahead);
  std::this_thread::sleep_for(50ms);
  job.signal(1, SIGKILL);
  EXPECT_EQ(job.wait(0), 0);
}

// Rank 1 is stopped while rank 0 makes a push that is too large to go without a wait.
TEST(TableDeaths, APushThatTimesOutHasSentAllOrNothing) {
  Shared<std::atomic<pid_t>> stopped;
  Shared<std::atomic<bool>> is_checked;
  run_ranks(2, options_of(200'000, 8), [&](Rank& one) {
    if (one.rank == 1) {
      *stopped = getpid();
      await(*is_checked);
      return 0;
    }
    while (*stopped == 0) std::this_thread::sleep_for(1ms);
    testing_table::stop(*stopped);
    const std::vector<std::int64_t> keys = every(200'000, 1);
    const std::vector<double> gradients(keys.size() * one.width(), 1);
    int pushed = 0;
    int late = 0;
    for (int attempt = 0; attempt < 3; ++attempt) {
      try {
        one.client->push({keys.data(), 0, keys.size()},
                         reinterpret_cast<const std::byte*>(gradients.data()), 50ms);
        ++pushed;
      } catch (const dstorm::TimeoutError&) {
        ++late;
      }
    }
    CHECK_THAT(pushed == 1 && late == 2);
    kill(*stopped, SIGCONT);
    one.client->wait({}, {});
    CHECK_THAT(are_all(one.all(), pushed));
    *is_checked = true;
    return 0;
  });
}

// Rank 1 is stopped while rank 0 pulls its rows again and again.
TEST(TableDeaths, PullsThatTimeOutDoNotPileUpInTheClient) {
  Shared<std::atomic<pid_t>> stopped;
  Shared<std::atomic<bool>> is_checked;
  TableOptions options = options_of(20'000, 1);
  options.staleness = 0;
  run_ranks(2, options, [&](Rank& one) {
    if (one.rank == 1) {
      one.client->advance({});
      *stopped = getpid();
      await(*is_checked);
      return 0;
    }
    while (*stopped == 0) std::this_thread::sleep_for(1ms);
    testing_table::stop(*stopped);
    struct Release {  // also where a check fails
      ~Release() {
        kill(pid, SIGCONT);
        is_checked = true;
      }
      pid_t pid;
      std::atomic<bool>& is_checked;
    };
    const Release release{*stopped, *is_checked};
    const std::vector<std::int64_t> keys = every(20'000, 1);
    std::vector<double> values(keys.size());
    const vol::ps::Rows rows{keys.data(), 0, keys.size()};
    one.client->advance({});  // so that nothing is read in place, without a message
    const std::uint64_t before = one.client->bytes_out();
    for (int attempt = 0; attempt < 20; ++attempt) {
      try {  // the own server has the time to answer
        one.client->pull(rows, reinterpret_cast<std::byte*>(values.data()), 50ms);
        return 1;
      } catch (const dstorm::TimeoutError& error) {
        CHECK_THAT(error.ranks() == std::vector<int>{1});
      }
    }
    CHECK_THAT(one.client->bytes_out() - before < 3 * keys.size() * sizeof(keys[0]));
    kill(*stopped, SIGCONT);
    one.client->pull(rows, reinterpret_cast<std::byte*>(values.data()), {});
    return 0;
  });
}

// The digits of a row are its pushes, in the order in which they were applied. Rank 0 is the
// primary: it has read a push of rank 1 when that dies, and is busy with an earlier clock. Rank 2,
// which holds the copy, learns of the death before it gets that push.
TEST(TableDeaths, ACopyAppliesWhatADeadRankPushedInTheOrderOfThePrimary) {
  // Ranks 0 and 2 at the first clock, then all three; or without rank 1, between hosts, if its push
  // comes after its clock has made the primary busy.
  constexpr double kInOrder = 13153;
  constexpr double kWithout = 1313;
  Shared<Posts> posts;
  Shared<std::atomic<int>> meeting;
  Shared<std::atomic<pid_t>> primary, copy;
  Shared<std::atomic<bool>> is_busy, is_released, is_pulled, is_copied;
  Job job(3, [&](dstorm::Bootstrap& bootstrap) {
    TableOptions options = options_of(64, 1);
    options.replicas = 1;
    options.staleness = 0;
    options.rule.kind = Rule::Kind::kFunction;
    options.rule.function = [&](std::byte* values, const std::byte* given, std::size_t rows) {
      if (getpid() == *primary) {
        *is_busy = true;
        await(*is_released);
      }
      if (getpid() == *copy) *is_copied = true;
      auto* const row = reinterpret_cast<double*>(values);
      const auto* const digit = reinterpret_cast<const double*>(given);
      for (std::size_t i = 0; i < rows; ++i) row[i] = 10 * row[i] + digit[i];
    };
    Rank one(*posts, bootstrap.rank(), 3, options);
    const Placement& placement = one.client->placement();
    std::vector<std::int64_t> keys;
    for (std::int64_t key = 0; key < 64; ++key) {
      const std::size_t range = placement.range_of(key);
      if (placement.server(range, 0) == 0 && placement.server(range, 1) == 2) keys.push_back(key);
    }
    CHECK_THAT(!keys.empty());
    if (one.rank == 0) *primary = getpid();
    if (one.rank == 2) *copy = getpid();
    for (int clock = 0; clock < 2 && one.rank != 1; ++clock) {
      one.client->wait(one.add(keys, 1 + one.rank), {});
      one.client->advance({});
    }
    meet(*meeting, 3);
    std::this_thread::sleep_for(50ms);  // the servers take in the clocks
    if (one.rank == 1) {
      testing_table::stop(*primary);  // so that it reads both at once
      one.client->advance({});
      one.add(keys, 5);
      kill(*primary, SIGCONT);
      await(*is_busy);
      std::raise(SIGKILL);
    }
    if (one.rank == 0) {
      await(*is_pulled);
      std::raise(SIGKILL);
    }
    while (one.live() > 2) std::this_thread::sleep_for(1ms);
    std::this_thread::sleep_for(50ms);  // the server acts on the death
    *is_released = true;
    const std::vector<double> seen = one.pull(keys);
    CHECK_THAT(are_all(seen, kInOrder) || (!one.is_one_host() && are_all(seen, kWithout)));
    await(*is_copied);  // before it is primary
    *is_pulled = true;
    while (one.live() > 1) std::this_thread::sleep_for(1ms);
    CHECK_THAT(one.pull(keys) == seen);
    return 0;
  });
  EXPECT_EQ(job.wait_all(), (std::vector<int>{128 + SIGKILL, 128 + SIGKILL, 0}));
}

// Rank 1 never ends its first clock, so a pull at the next one waits for it, but not one of rows
// that no clock brings back.
TEST(TableDeaths, APullOfLostRowsDoesNotWaitForClocks) {
  Shared<Posts> posts;
  Shared<std::atomic<bool>> has_failed;
  Job job(3, [&](dstorm::Bootstrap& bootstrap) {
    TableOptions options = options_of(1000, 1);
    options.staleness = 0;
    Rank one(*posts, bootstrap.rank(), 3, options);
    if (one.rank == 2) std::raise(SIGKILL);
    if (one.rank == 1) await(*has_failed);
    while (one.live() == 3) std::this_thread::sleep_for(1ms);
    const Placement& placement = one.client->placement();
    std::size_t range = 0;
    while (placement.server(range, 0) != 2) ++range;
    if (one.rank == 0) {
      one.client->advance({});
      bool is_lost = false;
      try {
        std::vector<double> value(1);
        one.client->pull({nullptr, placement.first_row(range), 1},
                         std::as_writable_bytes(std::span(value)).data(), 10s);
      } catch (const dstorm::PeerError& error) {
        is_lost = error.ranks() == std::vector<int>{2};
      } catch (const dstorm::TimeoutError&) {
        is_lost = false;  // the check fails when the other rank has been let go
      }
      *has_failed = true;
      CHECK_THAT(is_lost);
    }
    one.client->finish({});
    return 0;
  });
  EXPECT_EQ(job.wait(2), 128 + SIGKILL);
  for (int rank : {0, 1}) EXPECT_EQ(job.wait(rank), 0);
}

TEST(TableDeaths, WithoutReplicasTheRowsOfADeadServerAreNamed) {
  Shared<Posts> posts;
  Job job(2, [&](dstorm::Bootstrap& bootstrap) {
    Rank one(*posts, bootstrap.rank(), 2, options_of(1000, 1));
    try {  // rank 1 may die before it has what this rank pushes
      one.add(every(1000, 1), 1);
      one.client->wait({}, {});
      if (one.rank == 1) std::raise(SIGKILL);
      for (;;) one.all();
    } catch (const dstorm::PeerError& error) {
      CHECK_THAT(error.ranks() == std::vector<int>{1});
      CHECK_THAT(std::string(error.what()).find("rows ") != std::string::npos);
    }
    one.client->finish({});
    return 0;
  });
  EXPECT_EQ(job.wait(1), 128 + SIGKILL);
  EXPECT_EQ(job.wait(0), 0);
}

}  // namespace
}  // namespace vol::ps
