// Tables with real processes as ranks: what is pushed is there, once, and as late as is allowed.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <stdexcept>

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

// P16: the slow rank does not let the fast one come further ahead than its pushes may be kept.
TEST(Table, ARankThatPushesMuchIsFewerClocksAhead) {
  TableOptions options = options_of(500, 1);
  options.staleness = 0;
  options.most_kept = 500 * 16 * 4;  // the pushes of four clocks
  Shared<std::atomic<std::uint64_t>> fast;
  Shared<std::atomic<std::uint64_t>> slow;  // at most one above the slow rank's clock
  run_ranks(2, options, [&](Rank& one) {
    for (std::uint64_t clock = 1; clock <= 40; ++clock) {
      one.add(every(500, 1), 1);
      if (one.rank == 1) {
        while (*fast < std::min(clock + 2, std::uint64_t{40})) std::this_thread::sleep_for(1ms);
        *slow = clock;
      }
      one.client->advance({});
      if (one.rank == 1) continue;
      CHECK_THAT(clock <= *slow + 3);
      *fast = clock;
    }
    CHECK_THAT(are_all(one.all(), 80));
    return 0;
  });
}

// P16: a push of a clock for which a server keeps too much already is refused, and those before it
// count.
TEST(Table, PushesThatAServerKeepsForAClockHaveABound) {
  constexpr std::size_t kWidth = kMostRowBytes / sizeof(double);
  TableOptions options = options_of(3, kWidth);
  options.staleness = 0;
  options.most_kept = 32 << 20;
  run_ranks(1, options, [&](Rank& one) {
    for (int clock = 0; clock < 2; ++clock) {
      std::size_t pushed = 0;
      std::string refusal;
      try {
        for (; pushed * kMostRowBytes <= options.most_kept; ++pushed) {
          one.client->wait(one.add({1}, 1), {});
        }
      } catch (const dstorm::Error& error) {
        refusal = error.what();
      }
      CHECK_THAT(refusal.find("table 't': a push of clock " + std::to_string(clock) +
                              " is dropped: the server of rank 0 keeps 32 MiB") == 0);
      CHECK_THAT(refusal.find("call clock() more often") != std::string::npos);
      const double before = clock == 0 ? 0 : one.pull({1})[0];
      one.client->advance({});
      CHECK_THAT(are_all(one.pull({1}), before + static_cast<double>(pushed)));
    }
    return 0;
  });
}

// Both have failed before the next call, which tells of both.
TEST(Table, OneErrorTellsOfAllPushesThatHaveFailed) {
  TableOptions options = options_of(500, 1);
  options.rule.kind = Rule::Kind::kFunction;
  options.rule.function = [](std::byte*, const std::byte* gradient, std::size_t) {
    double value = 0;
    std::memcpy(&value, gradient, sizeof(value));
    throw std::runtime_error("no " + std::to_string(static_cast<int>(value)));
  };
  run_ranks(1, options, [&](Rank& one) {
    one.add({1}, 7);
    one.add({499}, 8);
    std::this_thread::sleep_for(200ms);
    std::string told;
    try {
      one.client->wait({}, {});
    } catch (const dstorm::Error& error) {
      told = error.what();
    }
    one.client->wait({}, {});
    CHECK_THAT(
        told ==
        "table 't': the update function failed on rank 0: no 7. Messages of pushes that have "
        "failed since then: 1");
    return 0;
  });
}

}  // namespace
}  // namespace vol::ps
