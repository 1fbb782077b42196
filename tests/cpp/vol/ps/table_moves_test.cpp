// Tables whose ranks join, are replaced and leave: what was pushed is there, once (P10, P11).
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

#include "moving_rank.hpp"
#include "stressed.hpp"

namespace vol::ps {
namespace {

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
  meet(scene.finished, ranks);
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

TEST(TableMoves, AClockThatWaitsForSlowerRanksGoesToTheNextEditionToo) {
  Shared<Scene> scene;
  Job job(3, [&](dstorm::Bootstrap& bootstrap) {
    const int rank = bootstrap.rank();
    MovingRank one(scene->posts, scene->board, rank, options_with(0, 0));
    if (rank < 2) one.found({0, 1});
    if (rank == 0) {
      for (std::uint64_t clock = 0; clock < kMostAhead; ++clock) one.client().advance({});
      std::jthread calling([&] {
        std::this_thread::sleep_for(50ms);
        one.is_called = true;
      });
      bool is_superseded = false;
      try {
        one.client().advance({});
      } catch (const dstorm::Superseded&) {
        is_superseded = true;
      }
      CHECK_THAT(is_superseded && one.client().clock() == kMostAhead);
    }
    one.move(1, {0, 1, 2});
    one.client().advance({});
    one.client().finish({});
    return 0;
  });
  testing_processes::expect_all_well(job);
}

// Else its clock would be behind that of a vector that it has folded before: a rank that joins then
// has the iteration of the vector and the clock before it, and each waits for the others for ever.
TEST(TableMoves, AClockThatWaitsForNoLiveRankGoesToNoOtherEdition) {
  Shared<Scene> scene;
  Shared<std::atomic<bool>> is_dead;
  Job job(2, [&](dstorm::Bootstrap& bootstrap) {
    MovingRank one(scene->posts, scene->board, bootstrap.rank(), options_with(1, 0));
    one.found({0, 1});
    if (bootstrap.rank() == 1) raise(SIGKILL);
    await(*is_dead);
    one.is_called = true;
    for (std::uint64_t clock = 0; clock < 2 * kMostAhead; ++clock) one.client().advance({});
    one.is_called = false;
    one.client().finish({});
    return 0;
  });
  job.wait(1);
  std::this_thread::sleep_for(200ms);  // until rank 0 knows
  *is_dead = true;
  EXPECT_EQ(job.wait(0), 0);
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
      meet(scene->finished, 3);
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

// A table whose values are what was pushed last. A push of kStopping stops the server of a process
// in which `stops` is true until `is_released`.
constexpr double kStopping = -1;
TableOptions stopping_options(const std::atomic<bool>& is_released, std::atomic<bool>& has_stopped,
                              bool stops) {
  TableOptions options = options_with(0, -1);
  options.width = 1;
  options.rule.kind = Rule::Kind::kFunction;
  options.rule.function = [&, stops](std::byte* values, const std::byte* gradients,
                                     std::size_t rows) {
    double first = 0;
    std::memcpy(&first, gradients, sizeof(first));
    if (first == kStopping && stops) {
      has_stopped = true;
      await(is_released);
    }
    std::memcpy(values, gradients, rows * sizeof(double));
  };
  return options;
}

// Rank 2 begins to leave, then rank 1, which knows of it. Neither has handed its rows over before,
// because the server of rank 3 does not answer. Then rank 1 leaves first, and rank 2 stays for a
// while. In the order of some of rank 1's ranges it comes next, so it is their primary (P11).
TEST(TableMoves, AServerThatLeavesIsPrimaryUntilItHasLeft) {
  Shared<Scene> scene;
  Shared<std::atomic<bool>> has_stopped, is_released, has_left, has_pulled;
  Job job(4, [&](dstorm::Bootstrap& bootstrap) {
    const int rank = bootstrap.rank();
    TableOptions options = stopping_options(*is_released, *has_stopped, rank == 3);
    options.rows = 16 * 16;  // few ranges, so that copies for rank 3 do not take all slots
    MovingRank one(scene->posts, scene->board, rank, options);
    one.found({0, 1, 2, 3});
    if (rank == 0) {
      one.add(every(options.rows, 1), 1);
      one.client().wait({}, {});
    }
    meet(scene->finished, 4);
    const Placement& placement = one.client().placement();
    std::size_t own = 0;
    while (placement.server(own, 0) != 3) ++own;
    CHECK_THAT(placement.server(0, 0) == 1 && placement.server(0, 1) == 2);  // such a range
    if (rank == 3) one.add({placement.first_row(own)}, kStopping);
    await(*has_stopped);
    if (rank == 1 || rank == 2) {
      if (rank == 1) std::this_thread::sleep_for(200ms);  // its server hears of rank 2
      one.client().hand_over({});
      if (rank == 2) await(*has_pulled);
      one.leave();
      if (rank == 1) *has_left = true;
      return 0;
    }
    if (rank == 0) {
      std::this_thread::sleep_for(500ms);  // both have begun to hand over
      *is_released = true;
      await(*has_left);
      while (one.live() == 4) std::this_thread::sleep_for(1ms);
      std::vector<double> values;
      try {
        values = one.all();
        values[static_cast<std::size_t>(placement.first_row(own))] = 1;
      } catch (const dstorm::Error&) {
        values.clear();  // the check fails when rank 2, which waits, has been let go
      }
      *has_pulled = true;
      CHECK_THAT(!values.empty() && are_all(values, 1));
    }
    one.client().finish({});
    return 0;
  });
  for (int rank : {0, 1, 2, 3}) EXPECT_EQ(job.wait(rank), 0) << rank;
}

// Ranks 1 and 2 close the table at staleness 0. The server of rank 1 is stopped while clocks come,
// and so it does not hear of the last ones, nor that rank 2 closes. It keeps rank 1's push, which
// rank 2's server has applied. Rank 0, which joins then, pushes: after it, on both (P10 (f)).
TEST(TableMoves, ARankThatJoinsWhileOthersClosePushesAfterTheirLastClock) {
  Shared<Scene> scene;
  Shared<std::atomic<bool>> has_stopped, is_released;
  Job job(3, [&](dstorm::Bootstrap& bootstrap) {
    const int rank = bootstrap.rank();
    TableOptions options = stopping_options(*is_released, *has_stopped, rank == 1);
    options.replicas = 1;
    options.staleness = 0;
    MovingRank one(scene->posts, scene->board, rank, options);
    std::jthread releasing;
    if (rank > 0) {
      one.found({1, 2});
      constexpr std::uint64_t kKept = kMostAhead;  // up to there rank 2 has slots for its clocks
      while (rank == 1 && one.client().clock() < kKept) one.client().advance({});
      one.add(every(kRows, 1), rank == 1 ? 5 : kStopping);
      one.client().wait({}, {});
      meet(scene->finished, 2);
      if (rank == 2) one.client().advance({});
      await(*has_stopped);
      while (rank == 2 && one.client().clock() < kKept + 6) one.client().advance({});
      one.is_called = true;
      bool is_superseded = false;
      try {
        one.client().finish({});
      } catch (const dstorm::Superseded&) {
        is_superseded = true;
      }
      CHECK_THAT(is_superseded);
      releasing = std::jthread([&] {  // when rank 1 has told its server to stop
        std::this_thread::sleep_for(300ms);
        *is_released = true;
      });
    }
    one.move(1, {0, 1, 2});
    if (rank == 0) {
      one.add(every(kRows, 1), 9);
      one.client().advance({});
      one.client().finish({});
      return 0;
    }
    while (one.client().clock() < 40) one.client().advance({});
    CHECK_THAT(are_all(one.all(), 9));
    one.client().finish({});
    return 0;
  });
  for (int rank : {0, 1, 2}) EXPECT_EQ(job.wait(rank), 0) << rank;
}

TEST(TableMoves, HeldBackPushesSurviveAMove) {
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
    meet(scene->finished, 3);
    CHECK_THAT(are_all(one.all(), 2));
    one.client().finish({});
    return 0;
  });
  testing_processes::expect_all_well(job);
}

}  // namespace
}  // namespace vol::ps
