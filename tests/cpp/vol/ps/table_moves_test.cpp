// Tables whose ranks join, are replaced and leave: what was pushed is there, once (P10, P11).
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>

#include "moving_rank.hpp"
#include "stressed.hpp"

namespace vol::ps {
namespace {

using namespace std::chrono_literals;
using testing_processes::Job;
using testing_processes::Posts;
using testing_processes::Shared;
using testing_table::are_all;
using testing_table::Board;
using testing_table::every;
using testing_table::MovingRank;
using testing_table::options_of;

constexpr std::int64_t kRows = 6000;  // so many that fewer servers would have larger ranges

TableOptions options_with(int replicas, int staleness) {
  TableOptions options = options_of(kRows, 3);
  options.replicas = replicas;
  if (staleness >= 0) options.staleness = static_cast<std::uint64_t>(staleness);
  return options;
}

// What a test's ranks share.
struct Scene {
  Posts posts;
  Board board;
  std::atomic<int> pushed;
  std::atomic<int> finished;

  // Returns when so many ranks have called it.
  void meet(int ranks) {
    const int goal = (finished.fetch_add(1) / ranks + 1) * ranks;
    while (finished < goal) std::this_thread::sleep_for(1ms);
  }
};

void add_rounds(MovingRank& one, Scene& scene, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    one.add(every(kRows, 1), 1);
    ++scene.pushed;
    if (round % 3 == 2) one.client().advance({});
  }
}

// At staleness 0 a push counts once all ranks have passed its clock.
std::vector<double> all_after(MovingRank& one, Scene& scene, int ranks) {
  one.client().wait({}, {});
  one.client().advance({});
  scene.meet(ranks);
  while (one.client().clock() < 40) one.client().advance({});
  return one.all();
}

TEST(TableMoves, WhenRanksJoinEveryPushIsThereOnce) {
  for (const int replicas : {0, 1}) {
    for (const int staleness : {-1, 0, 1}) {
      Shared<Scene> scene;
      Job job(4, [&](dstorm::Bootstrap& bootstrap) {
        const int rank = bootstrap.rank();
        MovingRank one(scene->posts, scene->board, rank, options_with(replicas, staleness));
        if (rank < 2) {
          one.found({0, 1});
          add_rounds(one, *scene, 10);
        }
        if (rank < 3) {
          const std::size_t moved = one.move(1, {0, 1, 2});
          CHECK_THAT((moved > 0) ==
                     (rank == 2));  // ranges go to the rank that joins, and only there
          add_rounds(one, *scene, 10);
        }
        const std::size_t moved = one.move(2, {0, 1, 2, 3});
        CHECK_THAT((moved > 0) == (rank == 3));
        add_rounds(one, *scene, 10);
        CHECK_THAT(are_all(all_after(one, *scene, 4), 90));
        one.client().finish({});
        return 0;
      });
      for (int rank : {0, 1, 2, 3}) EXPECT_EQ(job.wait(rank), 0) << replicas << ' ' << staleness;
      EXPECT_EQ(scene->pushed, 90);
    }
  }
}

TEST(TableMoves, ARankThatJoinsHasTheLowestClock) {
  Shared<Scene> scene;
  Job job(3, [&](dstorm::Bootstrap& bootstrap) {
    const int rank = bootstrap.rank();
    MovingRank one(scene->posts, scene->board, rank, options_with(0, 3));
    if (rank < 2) one.found({0, 1});
    for (int clock = 0; rank < 2 && clock < 5 - rank; ++clock) one.client().advance({});
    one.move(1, {0, 1, 2});
    CHECK_THAT(one.client().clock() == (rank == 0 ? 5 : 4));
    one.all();
    one.client().finish({});
    return 0;
  });
  testing_processes::expect_all_well(job);
}

// The pull of rank 0 waits for the clock of rank 1, which is in the next edition already.
TEST(TableMoves, APullThatWaitsGoesToTheNextEditionToo) {
  Shared<Scene> scene;
  Job job(3, [&](dstorm::Bootstrap& bootstrap) {
    const int rank = bootstrap.rank();
    MovingRank one(scene->posts, scene->board, rank, options_with(0, 0));
    if (rank < 2) {
      one.found({0, 1});
      one.add(every(kRows, 1), 1);
    }
    if (rank == 0) {
      one.client().advance({});
      std::jthread calling([&] {
        std::this_thread::sleep_for(50ms);
        one.is_called = true;
      });
      bool is_superseded = false;
      try {
        one.all();
      } catch (const dstorm::Superseded&) {
        is_superseded = true;
      }
      CHECK_THAT(is_superseded);
    }
    one.move(1, {0, 1, 2});
    if (rank > 0) one.client().advance({});
    CHECK_THAT(are_all(one.all(), 2));
    one.client().finish({});
    return 0;
  });
  testing_processes::expect_all_well(job);
}

// Process 3 is rank 2, started again.
TEST(TableMoves, APushOfARankThatIsStartedAgainIsNotTakenForAnEarlierOne) {
  for (const int staleness : {-1, 0}) {
    Shared<Scene> scene;
    Shared<std::atomic<int>> acknowledged;
    Job job(4, [&](dstorm::Bootstrap& bootstrap) {
      const bool is_again = bootstrap.rank() == 3;
      const int rank = is_again ? 2 : bootstrap.rank();
      MovingRank one(scene->posts, scene->board, rank, options_with(1, staleness));
      if (!is_again) {
        one.found({0, 1, 2});
        add_rounds(one, *scene, 9);
        one.client().wait({}, {});
        ++*acknowledged;
        while (*acknowledged < 3) std::this_thread::sleep_for(1ms);
        if (rank == 2) std::raise(SIGKILL);
      }
      while (*acknowledged < 4) std::this_thread::sleep_for(1ms);
      one.move(1, {0, 1, 2});
      add_rounds(one, *scene, 9);
      CHECK_THAT(are_all(all_after(one, *scene, 3), 54));
      one.client().finish({});
      return 0;
    });
    EXPECT_EQ(job.wait(2), 128 + SIGKILL);
    ++*acknowledged;
    for (int rank : {0, 1, 3}) EXPECT_EQ(job.wait(rank), 0) << rank << ' ' << staleness;
  }
}

// Rank 1 hands ranges to rank 3, or rank 3 takes them, and dies meanwhile. The others begin anew.
TEST(TableMoves, ARankMayDieWhileRangesMove) {
  for (std::uint64_t trial = 0; trial < stressed(12); ++trial) {
    const int victim = trial % 2 == 0 ? 1 : 3;
    const int staleness = trial % 3 == 0 ? 0 : -1;
    Shared<Scene> scene;
    Shared<std::atomic<bool>> is_moving;
    Job job(4, [&](dstorm::Bootstrap& bootstrap) {
      const int rank = bootstrap.rank();
      TableOptions options = options_with(1, staleness);
      options.width = 64;
      MovingRank one(scene->posts, scene->board, rank, options);
      if (rank < 3) {
        one.found({0, 1, 2});
        add_rounds(one, *scene, 10);
      }
      one.move(1, {0, 1, 2, 3}, [&](int attempt) {
        if (rank == victim && attempt == 0) *is_moving = true;
        // So that the edition is not agreed on before the death.
        while (rank == victim) std::this_thread::sleep_for(1h);
      });
      add_rounds(one, *scene, 10);
      CHECK_THAT(are_all(all_after(one, *scene, 3), 60));
      one.client().finish({});
      return 0;
    });
    while (!*is_moving) std::this_thread::yield();
    const auto since = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() < since + trial * 200us) std::this_thread::yield();
    job.signal(victim, SIGKILL);
    EXPECT_EQ(job.wait(victim), 128 + SIGKILL);
    scene->board.is_dead.at(static_cast<std::size_t>(victim)) = true;
    for (int rank : {0, 1, 2, 3}) {
      if (rank != victim) {
        EXPECT_EQ(job.wait(rank), 0) << trial;
      }
    }
  }
}

TEST(TableMoves, RowsWhoseRankHasDiedAreLostForAllRanks) {
  Shared<Scene> scene;
  Shared<std::atomic<bool>> is_dead;
  Job job(4, [&](dstorm::Bootstrap& bootstrap) {
    const bool is_again = bootstrap.rank() == 3;
    const int rank = is_again ? 2 : bootstrap.rank();
    MovingRank one(scene->posts, scene->board, rank, options_with(0, -1));
    if (!is_again) {
      one.found({0, 1, 2});
      one.add(every(kRows, 1), 1);
      one.client().wait({}, {});
      scene->meet(3);
      if (rank == 2) std::raise(SIGKILL);
    }
    while (!*is_dead) std::this_thread::sleep_for(1ms);
    one.move(1, {0, 1, 2});
    bool is_lost = false;
    try {
      one.all();
    } catch (const dstorm::PeerError& error) {
      is_lost = error.ranks() == std::vector<int>{2};
    }
    CHECK_THAT(is_lost);
    one.client().finish({});
    return 0;
  });
  EXPECT_EQ(job.wait(2), 128 + SIGKILL);
  *is_dead = true;
  for (int rank : {0, 1, 3}) EXPECT_EQ(job.wait(rank), 0) << rank;
}

// Ranks 1 and 2 leave at about the same time, while all push.
TEST(TableMoves, RanksThatLeaveHandOverTheirRanges) {
  for (std::uint64_t trial = 0; trial < stressed(12); ++trial) {
    const int replicas = static_cast<int>(trial % 2);
    const int staleness = trial % 3 == 0 ? 0 : -1;
    Shared<Scene> scene;
    Job job(4, [&](dstorm::Bootstrap& bootstrap) {
      const int rank = bootstrap.rank();
      MovingRank one(scene->posts, scene->board, rank, options_with(replicas, staleness));
      one.found({0, 1, 2, 3});
      add_rounds(one, *scene, 10);
      if (rank == 1 || rank == 2) {
        if (rank == 1) std::this_thread::sleep_for(trial * 100us);
        one.client().hand_over({});
        // So the other one that leaves may come next in the order, and has to have the rows.
        if (rank == 2) std::this_thread::sleep_for(trial % 4 * 3ms);
        one.leave();
        return 0;
      }
      add_rounds(one, *scene, 20);
      while (one.live() > 2) one.all();  // no row is lost in between
      while (scene->pushed < 80) std::this_thread::sleep_for(1ms);
      CHECK_THAT(are_all(all_after(one, *scene, 2), 80));
      one.client().finish({});
      return 0;
    });
    for (int rank : {0, 1, 2, 3}) EXPECT_EQ(job.wait(rank), 0) << trial << ' ' << rank;
  }
}

TEST(TableMoves, WhatIsHeldBackGoesAlong) {
  Shared<Scene> scene;
  Job job(3, [&](dstorm::Bootstrap& bootstrap) {
    const int rank = bootstrap.rank();
    TableOptions options = options_with(0, -1);
    options.threshold = 10;
    MovingRank one(scene->posts, scene->board, rank, options);
    if (rank < 2) {
      one.found({0, 1});
      one.add(every(kRows, 1), 1);
      CHECK_THAT(one.client().rows_held_back() == kRows);
    }
    one.move(1, {0, 1, 2});
    one.client().wait({}, {});
    scene->meet(3);
    CHECK_THAT(are_all(one.all(), 2));
    one.client().finish({});
    return 0;
  });
  testing_processes::expect_all_well(job);
}

}  // namespace
}  // namespace vol::ps
