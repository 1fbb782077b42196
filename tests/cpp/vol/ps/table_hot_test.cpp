// Tables with hot rows, which go through trees of servers (P12). On one host (shm) they do not, and
// the same pulls have to give the same.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <numeric>
#include <random>
#include <set>
#include <thread>

#include "dstorm/errors.hpp"
#include "stressed.hpp"
#include "table_rank.hpp"

namespace vol::ps {
namespace {

constexpr std::int64_t kRows = 400;

TableOptions hot_options(std::uint64_t staleness) {
  TableOptions options = options_of(kRows, 2);
  options.hot = every(kRows, 7);
  options.fan_out = 2;
  options.staleness = staleness;
  return options;
}

// (a): whoever is live, questions go towards the root, and few come to each.
TEST(TableHot, EachServerAsksOneBeforeItAndIsAskedByFew) {
  constexpr int kServers = 9;
  std::vector<int> servers(kServers);
  std::iota(servers.begin(), servers.end(), 0);
  const Placement placement(kRows, servers, 1, kServers);
  for (unsigned dead = 0; dead < (1U << kServers) - 1; dead += 5) {
    const auto is_live = [dead](int server) { return ((dead >> server) & 1U) == 0; };
    for (std::size_t range = 0; range < placement.ranges(); ++range) {
      std::array<int, kServers> asked_by{};
      for (const int server : servers) {
        if (!is_live(server)) continue;
        const int parent = placement.parent(range, server, 3, is_live);
        ASSERT_TRUE(is_live(parent));
        if (parent == server) {
          ASSERT_EQ(server, placement.primary(range, is_live));
        } else {
          ASSERT_LT(placement.place_of(range, parent), placement.place_of(range, server));
          ++asked_by[static_cast<std::size_t>(parent)];
        }
      }
      for (const int count : asked_by) ASSERT_LE(count, 3);
    }
  }
}

TEST(TableHot, APullAtStalenessNothingSeesEachPushOfEarlierClocksAndNoneOfLater) {
  for (const Codec& codec : {Codec(), Codec::float16()}) {
    TableOptions options = hot_options(0);
    options.codec = codec;
    options.cached_keys = 1000;
    run_ranks(5, options, [&](Rank& one) {
      for (int clock = 0; clock < 15; ++clock) {
        CHECK_THAT(are_all(one.pull(options.hot), 5 * clock));
        one.add(every(kRows, 1), 1);
        CHECK_THAT(are_all(one.pull(every(kRows, 3)), 5 * clock));  // some of them are hot
        CHECK_THAT(are_all(one.all(), 5 * clock));
        one.client->advance({});
      }
      return 0;
    });
  }
}

TEST(TableHot, APullIsAtMostTheStalenessBehind) {
  const TableOptions options = hot_options(2);
  run_ranks(4, options, [&](Rank& one) {
    for (int clock = 0; clock < 40; ++clock) {
      const std::vector<double> values = one.pull(options.hot);
      CHECK_THAT(std::ranges::all_of(values, [&](double value) {
        return value >= 4 * std::max(0, clock - 2) && value <= 4 * clock + 3 * 3;
      }));
      one.add(every(kRows, 1), 1);
      one.client->advance({});
    }
    return 0;
  });
}

// (c): in each clock each of seven clients asks once, and the two servers below the root that have
// others below them ask once each. All ask for one row, in one tree.
TEST(TableHot, NoServerIsAskedByAllAndEachAsksOnceAClock) {
  if (testing_processes::transport() == "shm") return;  // no tree
  constexpr int kRanks = 7;
  constexpr int kClocks = 20;
  Shared<Posts> posts;
  Shared<std::array<std::atomic<std::uint64_t>, kRanks>> answers;
  Job job(kRanks, [&](dstorm::Bootstrap& bootstrap) {
    const TableOptions options = hot_options(0);
    Rank one(*posts, bootstrap.rank(), kRanks, options);
    for (int clock = 0; clock < kClocks; ++clock) {
      for (int again = 0; again < 2; ++again) one.pull({options.hot[3]});
      one.client->advance({});
    }
    one.client->finish({});
    (*answers)[static_cast<std::size_t>(one.rank)] = one.hot_answers();
    return 0;
  });
  expect_all_well(job);
  std::uint64_t sum = 0;
  for (const auto& each : *answers) {
    sum += each;
    EXPECT_LE(each, kClocks * (2 * 3 + 2));  // a root's: of three clients, and of two servers
  }
  EXPECT_EQ(sum, kClocks * (2 * kRanks + 2));
}

// (d): at staleness 0 a death changes nothing that the others see, but for the dead rank's pushes.
TEST(TableHot, RequestsToADeadServerAreSentToAnother) {
  for (const int victim : {0, 1, 2, 3}) {
    Shared<Posts> posts;
    Job job(5, [&](dstorm::Bootstrap& bootstrap) {
      TableOptions options = hot_options(0);
      options.replicas = 1;
      Rank one(*posts, bootstrap.rank(), 5, options);
      for (int clock = 0; clock < 25; ++clock) {
        if (one.rank == victim && clock == 10) std::raise(SIGKILL);
        CHECK_THAT(are_all(one.pull(options.hot), 4 * clock + std::min(clock, 10)));
        one.add(every(kRows, 1), 1);
        one.client->advance({});
      }
      one.client->finish({});
      return 0;
    });
    for (int rank = 0; rank < 5; ++rank) {
      EXPECT_EQ(job.wait(rank), rank == victim ? 128 + SIGKILL : 0) << victim << ' ' << rank;
    }
  }
}

// Each rank learns of it, also those that ask a server which has to ask another one.
TEST(TableHot, ALostRowIsAnErrorForAll) {
  Shared<Posts> posts;
  Shared<std::atomic<int>> told;
  Job job(5, [&](dstorm::Bootstrap& bootstrap) {
    TableOptions options = hot_options(0);
    const Placement placement(kRows, {0, 1, 2, 3, 4}, 0, 5);
    std::erase_if(options.hot, [&](std::int64_t row) {
      return placement.server(placement.range_of(row), 0) != 2;
    });
    Rank one(*posts, bootstrap.rank(), 5, options);
    const auto names_dead = [&](const auto& call) {
      try {
        call();
      } catch (const dstorm::PeerError& error) {
        return error.ranks() == std::vector<int>{2};
      }
      return false;
    };
    CHECK_THAT(names_dead([&] {
      for (int clock = 0;; ++clock) {
        if (one.rank == 2 && clock == 3) std::raise(SIGKILL);
        one.pull({options.hot.front()});
        one.client->advance({});
      }
    }));
    // By the trees of those that live: one of these asks a server that has to ask the root.
    CHECK_THAT(names_dead([&] { one.pull({options.hot.front()}); }));
    ++*told;
    while (*told < 4) std::this_thread::sleep_for(1ms);
    return 0;
  });
  for (int rank = 0; rank < 5; ++rank) {
    EXPECT_EQ(job.wait(rank), rank == 2 ? 128 + SIGKILL : 0) << rank;
  }
}

// P12 (c): the server between them and the root is asked for a row at a later clock first, to which
// the rank that asks for an earlier one has yet to come.
TEST(TableHot, ARankThatIsAheadHoldsUpNone) {
  TableOptions options = hot_options(0);
  options.fan_out = 1;
  const std::int64_t row = options.hot[3];
  const Placement placement(kRows, {0, 1, 2, 3}, 0, 4);
  const std::size_t range = placement.range_of(row);
  Shared<std::atomic<bool>> is_asked;
  run_ranks(4, options, [&](Rank& one) {
    if (one.rank == placement.server(range, 3)) {
      one.client->advance({});
      std::jthread telling([&] {
        std::this_thread::sleep_for(200ms);
        *is_asked = true;
      });
      one.pull({row});
      return 0;
    }
    if (one.rank == placement.server(range, 2)) {
      await(*is_asked);
      one.pull({row});
    }
    one.client->advance({});
    return 0;
  });
}

// P12 (e): servers that have others behind them, in trees of several ranges, each in another order.
TEST(TableHot, RanksThatPullRowsOfManyRangesWaitInNoCircle) {
  constexpr std::int64_t kMany = 4000;
  for (const std::uint64_t staleness : {std::uint64_t{0}, std::uint64_t{1}}) {
    TableOptions options = options_of(kMany, 2);
    options.staleness = staleness;
    options.fan_out = 1;
    options.hot = every(kMany, 1);
    run_ranks(4, options, [&](Rank& one) {
      std::mt19937 random(static_cast<unsigned>(one.rank));
      for (std::uint64_t step = 0; step < stressed(50); ++step) {
        std::vector<std::int64_t> keys;
        for (int i = 0; i < 300; ++i) keys.push_back(static_cast<std::int64_t>(random() % kMany));
        std::ranges::sort(keys);
        keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
        one.pull(keys);
        one.add(keys, 1);
        one.client->advance({});
        if (random() % 10 == 0) std::this_thread::sleep_for(random() % 20 * 1ms);
      }
      return 0;
    });
  }
}

}  // namespace
}  // namespace vol::ps
