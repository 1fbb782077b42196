// Tables with real processes as ranks: what is pushed is there, once, and as late as is allowed.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "table_rank.hpp"

namespace vol::ps {
namespace {

TEST(Table, PushesOfAllRanksAreAppliedOnce) {
  for (const std::size_t width : {std::size_t{1}, std::size_t{16}, std::size_t{5000}}) {
    const std::int64_t rows = 3000;
    run_ranks(3, options_of(rows, width), [&](Rank& one) {
      one.add(every(rows, 3), 1);
      one.add(every(rows, 1), 10);
      one.client->wait({}, {});
      one.client->advance({});
      return 0;
    });
  }
}

TEST(Table, APullHasTheOwnPushesThatCameBeforeIt) {
  run_ranks(2, options_of(200, 4), [&](Rank& one) {
    const std::vector<std::int64_t> keys = {one.rank, 100 + one.rank};  // nobody else's
    for (int push = 1; push <= 2000; ++push) {
      one.add(keys, 1);
      if (push % 3 == 0) one.client->wait({}, {});
      CHECK_THAT(are_all(one.pull(keys), push));
    }
    return 0;
  });
}

TEST(Table, APullAtStalenessNothingSeesEachPushOfEarlierClocksAndNoneOfLater) {
  TableOptions options = options_of(500, 2);
  options.staleness = 0;
  run_ranks(3, options, [&](Rank& one) {
    for (int clock = 0; clock < 30; ++clock) {
      CHECK_THAT(are_all(one.all(), 3 * clock));
      one.add(every(500, 1), 1);
      CHECK_THAT(are_all(one.pull(every(500, 7)), 3 * clock));
      one.client->advance({});
    }
    return 0;
  });
}

TEST(Table, APullIsAtMostTheStalenessBehind) {
  TableOptions options = options_of(500, 1);
  options.staleness = 2;
  run_ranks(3, options, [&](Rank& one) {
    for (int clock = 0; clock < 30; ++clock) {
      const std::vector<double> values = one.all();
      CHECK_THAT(std::ranges::all_of(values, [&](double value) {
        return value >= clock + 2 * std::max(0, clock - 2) && value <= 3 * clock + 6;
      }));
      one.add(every(500, 1), 1);
      one.client->advance({});
    }
    return 0;
  });
}

// Each rank assigns its own number, so the last rank's is the one that stays.
TEST(Table, AtStalenessNothingPushesAreAppliedInTheOrderOfRanks) {
  TableOptions options = options_of(500, 1);
  options.staleness = 0;
  options.rule.kind = Rule::Kind::kAssign;
  run_ranks(3, options, [&](Rank& one) {
    for (int clock = 0; clock < 60; ++clock) {
      if (one.rank == clock % 3) std::this_thread::yield();
      one.add(every(500, 1), -1);
      one.add(every(500, 1), 3 * clock + one.rank);
      one.client->advance({});
      CHECK_THAT(are_all(one.all(), 3 * clock + 2));
    }
    return 0;
  });
}

// Servers keep pushes of clocks that not all have passed (P16).
TEST(Table, ARankThatOnlyPushesIsAtMostEightClocksAhead) {
  TableOptions options = options_of(500, 1);
  options.staleness = 0;
  Shared<std::atomic<std::uint64_t>> fast;
  Shared<std::atomic<std::uint64_t>> slow;  // at most one above the slow rank's clock
  run_ranks(2, options, [&](Rank& one) {
    for (std::uint64_t clock = 1; clock <= 40; ++clock) {
      one.add(every(500, 1), 1);
      if (one.rank == 1) {
        while (*fast < std::min(clock - 1 + kMostAhead, std::uint64_t{40})) {
          std::this_thread::sleep_for(std::chrono::microseconds(100));
        }
        *slow = clock;
      }
      one.client->advance({});
      if (one.rank == 1) continue;
      CHECK_THAT(clock <= *slow + kMostAhead);
      *fast = clock;
    }
    CHECK_THAT(are_all(one.all(), 80));
    return 0;
  });
}

}  // namespace
}  // namespace vol::ps
