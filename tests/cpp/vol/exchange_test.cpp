// Rounds of bytes, with real processes as ranks.
#include "vol/exchange.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <numeric>
#include <thread>

#include "processes.hpp"
#include "stressed.hpp"
#include "vol/dense.hpp"

namespace vol {
namespace {

using namespace std::chrono_literals;
using dstorm::Bootstrap;
using dstorm::ConfigError;
using testing_processes::expect_all_well;
using testing_processes::Job;
using testing_processes::join;
using testing_processes::Shared;

constexpr std::size_t kSlot = 256;
using Give = Exchange::Give;
using Take = Exchange::Take;

// Byte i of what `rank` gives.
std::uint8_t sample(int rank, std::size_t i) {
  return static_cast<std::uint8_t>(i * 7 + static_cast<std::size_t>(rank) * 31);
}

std::vector<std::uint8_t> bytes_of(int rank, std::size_t count) {
  std::vector<std::uint8_t> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = sample(rank, i);
  return bytes;
}

TEST(Exchange, RanksTakeWhatTheyNeedOfBuffersOfAnyLength) {
  Job job(3, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    Exchange exchange(group, "e", kSlot);
    const int rank = group->rank();
    for (const std::size_t unit : {0U, 1U, 100U, 256U, 1000U}) {
      const std::size_t own = unit * static_cast<std::size_t>(rank + 1);
      const auto given = bytes_of(rank, own);
      // In two stretches; of rank 1 the second half, of rank 2 everything.
      const std::array gives{Give{given.data(), own / 3},
                             Give{given.data() + own / 3, own - own / 3}};
      std::vector<std::uint8_t> half(unit);
      std::vector<std::uint8_t> whole(3 * unit);
      std::vector<Take> takes;
      if (rank != 1) takes.push_back({1, unit, unit, half.data()});
      if (rank != 2) takes.push_back({2, 0, 3 * unit, whole.data()});
      exchange.run(gives, takes, 5, 10s);
      for (std::size_t i = 0; i < unit && rank != 1; ++i) {
        CHECK_THAT(half[i] == sample(1, unit + i));
      }
      CHECK_THAT(rank == 2 || whole == bytes_of(2, 3 * unit));
    }
    return 0;
  });
  expect_all_well(job);
}

TEST(Exchange, AFoldHasTheSameBitsOnEveryRank) {
  Job job(3, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    Exchange exchange(group, "e", kSlot);
    for (const std::size_t count : {1U, 64U, 65U, 1000U}) {
      std::vector<float> values(count, 0.1F * static_cast<float>(group->rank() + 1));
      exchange.fold(DType::kFloat32, values.data(), count, Fold::sum(), 10s);
      float sum = 0.1F;
      for (int r = 1; r < 3; ++r) sum += 0.1F * static_cast<float>(r + 1);
      for (const float value : values) CHECK_THAT(value == sum);
    }
    return 0;
  });
  expect_all_well(job);
}

TEST(Exchange, CallsThatDoNotFitTogetherFailAndTheNextOneWorks) {
  Job job(2, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    Exchange exchange(group, "e", kSlot);
    const int rank = group->rank();
    const auto refused = [](auto call, const std::string& part) {
      try {
        call();
      } catch (const ConfigError& error) {
        return std::string(error.what()).find(part) != std::string::npos;
      }
      return false;
    };
    const auto kind = static_cast<std::uint32_t>(rank);
    CHECK_THAT(refused([&] { exchange.run({}, {}, kind, 10s); }, "another call"));
    const auto given = bytes_of(rank, 600);
    const std::array gives{Give{given.data(), given.size()}};
    std::vector<std::uint8_t> taken(700);
    const std::array takes{Take{1 - rank, 0, taken.size(), taken.data()}};
    CHECK_THAT(refused([&] { exchange.run(gives, takes, 2, 10s); }, "gave 600 bytes"));
    std::vector<float> values(static_cast<std::size_t>(100 + rank));
    CHECK_THAT(refused(
        [&] { exchange.fold(DType::kFloat32, values.data(), values.size(), Fold::sum(), 10s); },
        "same size"));
    const std::array longer{Take{1 - rank, 0, 500, taken.data(), 500}};
    CHECK_THAT(refused([&] { exchange.run(gives, longer, 2, 10s); }, "gave 600 bytes"));
    const std::array fits{Take{1 - rank, 10, 500, taken.data()}};
    exchange.run(gives, fits, 2, 10s);
    CHECK_THAT(taken[0] == sample(1 - rank, 10));
    return 0;
  });
  expect_all_well(job);
}

TEST(Exchange, AllRanksSeeThatOneIsInAnotherCallThoughAnotherGivesTooLittle) {
  Job job(3, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    Exchange exchange(group, "e", kSlot);
    const int rank = group->rank();
    const auto given = bytes_of(rank, rank == 1 ? 10 : 20);
    std::array<std::vector<std::uint8_t>, 3> taken;
    std::vector<Take> takes;
    for (int r = 0; r < 3; ++r) {
      std::vector<std::uint8_t>& room = taken[static_cast<std::size_t>(r)];
      room.resize(20);
      if (r != rank) takes.push_back({r, 0, room.size(), room.data(), room.size()});
    }
    const std::array gives{Give{given.data(), given.size()}};
    bool is_other = false;
    try {
      exchange.run(gives, takes, rank == 2 ? 1 : 0, 10s);
    } catch (const OtherCall&) {
      is_other = true;
    }
    CHECK_THAT(is_other);
    return 0;
  });
  expect_all_well(job);
}

TEST(Exchange, ADeadRankIsNamedOrLeftOut) {
  Shared<std::atomic<int>> arrived;
  Job job(3, [&](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    Exchange exchange(group, "e", kSlot);
    exchange.run({}, {}, 0, 10s);
    if (group->rank() == 1) {
      while (*arrived < 2) std::this_thread::yield();  // its message may be lost with it
      raise(SIGKILL);
    }
    ++*arrived;
    bool is_named = false;
    try {
      exchange.run({}, {}, 0, 10s);
    } catch (const dstorm::PeerError& error) {
      is_named = error.ranks() == std::vector<int>{1};
    }
    CHECK_THAT(is_named);
    std::uint8_t own = sample(group->rank(), 0);
    std::uint8_t other = 0;
    std::uint8_t kept = 77;
    const std::array gives{Give{&own, 1}};
    const int peer = 2 - group->rank();
    const std::array takes{Take{peer, 0, 1, &other}, Take{1, 0, 1, &kept}};
    CHECK_THAT(exchange.run(gives, takes, 0, 10s, true) == std::vector<int>{1});
    CHECK_THAT(other == sample(peer, 0));
    CHECK_THAT(kept == 77);
    return 0;
  });
  EXPECT_EQ(job.wait_all(), (std::vector<int>{0, 128 + SIGKILL, 0}));
}

TEST(Exchange, AfterATimeOutNoCallMeetsAnEarlierOne) {
  Shared<std::atomic<bool>> is_over;
  Job job(2, [&](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    Exchange exchange(group, "e", kSlot);
    const int rank = group->rank();
    const auto run = [&](int number, std::chrono::nanoseconds limit) {
      const auto given = bytes_of(number, 10 * kSlot);
      std::vector<std::uint8_t> taken(given.size());
      const std::array gives{Give{given.data(), given.size()}};
      const std::array takes{Take{1 - rank, 0, taken.size(), taken.data()}};
      exchange.run(gives, takes, 0, limit);
      return taken == given;  // both call with the same number
    };
    const auto has_left = [&](int number) {
      try {
        run(number, 10s);
      } catch (const dstorm::PeerError& error) {
        return error.ranks() == std::vector<int>{0};
      }
      return false;
    };
    CHECK_THAT(run(1, 10s));
    if (rank == 0) {
      bool is_late = false;
      try {
        run(2, 20ms);
      } catch (const dstorm::TimeoutError&) {
        is_late = true;
      }
      CHECK_THAT(is_late);
      CHECK_THAT(has_left(3));
      *is_over = true;
    } else {
      while (!*is_over) std::this_thread::yield();
      CHECK_THAT(has_left(2));
      CHECK_THAT(has_left(3));
    }
    return 0;
  });
  expect_all_well(job);
}

TEST(Exchange, RanksStayTogetherWhenOneDiesBetweenItsRounds) {
  constexpr std::size_t kBytes = 40 * kSlot;
  for (std::uint64_t round = 0; round < stressed(10); ++round) {
    Shared<std::atomic<int>> begun;
    Shared<std::atomic<int>> ended;
    Job job(4, [&](Bootstrap& bootstrap) {
      const auto group = join(bootstrap);
      Exchange exchange(group, "e", kSlot);
      const int rank = group->rank();
      exchange.run({}, {}, 0, 10s);
      ++*begun;
      if (rank == 0) {
        // Killed at once, it could take its message of the first call with it.
        while (*begun < 4) std::this_thread::yield();
        std::thread killer([round] {
          std::this_thread::sleep_for(std::chrono::microseconds(100 * round));
          raise(SIGKILL);
        });
        for (;;) {
          const auto given = bytes_of(0, kBytes);
          const std::array gives{Give{given.data(), given.size()}};
          exchange.run(gives, {}, 1, 10s);
        }
      }
      std::vector<int> missing;
      std::vector<std::uint8_t> taken(kBytes);
      const std::array takes{Take{0, 0, taken.size(), taken.data()}};
      while (missing.empty()) missing = exchange.run({}, takes, 1, 10s, true);
      CHECK_THAT(missing == std::vector<int>{0});
      // Another host may have had rank 0's last update, and so the whole of this call: it learns of
      // the death by the next one, in which this rank is.
      exchange.run({}, takes, 1, 10s, true);
      ++*ended;
      return 0;
    });
    EXPECT_EQ(job.wait_all(), (std::vector<int>{128 + SIGKILL, 0, 0, 0}));
    EXPECT_EQ(*ended, 3);
  }
}

TEST(Dense, AVectorIsReducedWhereverItLies) {
  Job job(3, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    std::vector<float> first(1000, 1.0F);
    Dense<float> vector(group, {.name = "w", .policy = dstorm::Policy::kQueue, .depth = 1},
                        std::span(first));
    for (const std::size_t count : {1U, 999U, 1000U, 17U}) {
      std::vector<float> elsewhere(count, static_cast<float>(group->rank()));
      vector.move_to(elsewhere.data(), count);
      vector.allreduce(Fold::sum());
      for (const float value : elsewhere) CHECK_THAT(value == 3.0F);
    }
    CHECK_THAT(first[0] == 1.0F);
    bool is_refused = false;
    try {
      vector.move_to(first.data(), 1001);
    } catch (const ConfigError&) {
      is_refused = true;
    }
    CHECK_THAT(is_refused);
    return 0;
  });
  expect_all_well(job);
}

}  // namespace
}  // namespace vol
