// Windows, with real processes as ranks.
#include "dstorm/collective/window.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <memory>
#include <thread>

#include "processes.hpp"
#include "stressed.hpp"

namespace dstorm {
namespace {

using namespace std::chrono_literals;
using testing_processes::expect_all_well;
using testing_processes::Job;
using testing_processes::join;

using Value = std::uint32_t;

// A window of `count` values, behind one value of the memory that is not in it.
std::unique_ptr<Window> make(std::shared_ptr<Group> group, std::size_t count) {
  const std::vector<Value> content(count + 1, 7);
  const std::vector<std::byte> note(static_cast<std::size_t>(group->rank()) + 1);
  const Window::Place place{sizeof(Value), count * sizeof(Value)};
  auto memory = std::make_shared<WindowMemory>(std::as_bytes(std::span(content)));
  return std::make_unique<Window>(std::move(group), "w", std::move(memory), place, note);
}

std::span<Value> values_of(const Window& window, int rank) {
  const std::span<std::byte> bytes = window.memory(rank)->bytes();
  return {reinterpret_cast<Value*>(bytes.data()), bytes.size() / sizeof(Value)};
}

void put(Window& window, int to, std::size_t at, const std::vector<Value>& values) {
  window.put(to, at * sizeof(Value), std::as_bytes(std::span(values)), 60s);
}

// Each rank writes its own stretch of all windows, in each round another value, and reads all of
// its window when all have signalled.
TEST(Window, RanksThatHaveSignalledHaveWrittenAllTheyPutBefore) {
  constexpr int kRanks = 3;
  const std::uint64_t rounds = stressed(200);
  for (const std::size_t count : {std::size_t{1}, std::size_t{1000}, std::size_t{100'000}}) {
    const auto most = static_cast<Value>(count < 100'000 ? rounds : rounds / 20 + 1);
    Job job(kRanks, [&](Bootstrap& bootstrap) {
      const auto group = join(bootstrap);
      const auto window = make(group, kRanks * count);
      const int rank = group->rank();
      CHECK_THAT(window->note(2).size() == 3 && window->place(1).bytes == 4 * kRanks * count);
      const std::span<Value> own = values_of(*window, rank);
      CHECK_THAT(own[0] == 7);
      for (Value round = 1; round <= most; ++round) {
        const std::vector<Value> values(count, round * kRanks + static_cast<Value>(rank));
        for (int to = 0; to < kRanks; ++to) {
          put(*window, to, static_cast<std::size_t>(rank) * count, values);
          window->signal(to, 2 * round - 1, 60s);
        }
        for (int from = 0; from < kRanks; ++from) {
          window->await_signals(from, 2 * round - 1, 60s);
          const auto part = own.subspan(1 + static_cast<std::size_t>(from) * count, count);
          const Value expected = round * kRanks + static_cast<Value>(from);
          CHECK_THAT(std::ranges::all_of(part, [=](Value each) { return each == expected; }));
        }
        // Now the others may write the next round.
        for (int to = 0; to < kRanks; ++to) window->signal(to, 2 * round, 60s);
        for (int from = 0; from < kRanks; ++from) window->await_signals(from, 2 * round, 60s);
      }
      window->close(60s);
      CHECK_THAT(own[0] == 7);
      window->shut(1s);
      return 0;
    });
    expect_all_well(job);
  }
}

// The receiver makes no call until the sender's have returned.
TEST(Window, APutNeedsNoCallOfTheRankThatItGoesTo) {
  constexpr std::size_t kCount = 2'000'000;
  testing_processes::Shared<std::atomic<bool>> is_put;
  Job job(2, [&](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    const auto window = make(group, kCount);
    if (group->rank() == 0) {
      std::vector<Value> values(kCount);
      for (std::size_t i = 0; i < kCount; ++i) values[i] = static_cast<Value>(i);
      put(*window, 1, 0, values);
      window->signal(1, 1, 60s);
      is_put->store(true);
    } else {
      while (!is_put->load()) std::this_thread::sleep_for(1ms);
      window->await_signals(0, 1, 60s);
      const auto own = values_of(*window, 1);
      for (std::size_t i = 0; i < kCount; ++i) CHECK_THAT(own[i + 1] == i);
    }
    window->close(60s);
    return 0;
  });
  expect_all_well(job);
}

// Each fills the slots of the other before it waits.
TEST(Window, RanksThatPutMoreThanSlotsHoldToOneAnotherGoOn) {
  constexpr std::size_t kCount = 1'500'000;
  Job job(3, [&](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    const auto window = make(group, 3 * kCount);
    const auto rank = static_cast<Value>(group->rank());
    const std::vector<Value> values(kCount, rank);
    for (int to = 0; to < 3; ++to) put(*window, to, rank * kCount, values);
    window->close(60s);  // waits for the puts
    const auto own = values_of(*window, group->rank());
    for (std::size_t i = 0; i < 3 * kCount; ++i) CHECK_THAT(own[i + 1] == i / kCount);
    return 0;
  });
  expect_all_well(job);
}

TEST(Window, SignalsAreCountedOnceAndEachRanksByThemselves) {
  Job job(3, [&](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    const auto window = make(group, 1);
    if (group->rank() == 1) {
      for (const std::uint64_t count : {1U, 1U, 2U, 1U}) window->signal(0, count, 60s);
    } else if (group->rank() == 0) {
      window->await_signals(1, 2, 60s);
      for (const int silent : {1, 2}) {
        try {
          window->await_signals(silent, silent == 1 ? 3 : 1, 50ms);
          return 1;
        } catch (const TimeoutError& error) {
          CHECK_THAT(error.ranks() == std::vector<int>{silent});
        }
      }
      window->signal(0, 5, 60s);  // to itself
      window->await_signals(0, 5, 60s);
    }
    window->close(60s);
    return 0;
  });
  expect_all_well(job);
}

TEST(Window, WhatDoesNotFitAWindowIsRefused) {
  Job job(2, [&](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    const auto window = make(group, 4);
    for (int to = 0; to < 2; ++to) {
      for (const auto& [offset, bytes] : {std::pair<std::size_t, std::size_t>{0, 17},
                                          {13, 4},
                                          {17, 0},
                                          {~std::size_t{0}, 4},
                                          {~std::size_t{0} - 3, 8}}) {
        const std::vector<std::byte> given(bytes);
        try {
          window->put(to, offset, given, 60s);
          return 1;
        } catch (const ConfigError& error) {
          CHECK_THAT(std::string(error.what()).find("16 bytes") != std::string::npos);
        }
      }
      window->put(to, 16, {}, 60s);
    }
    window->close(60s);
    CHECK_THAT(std::ranges::all_of(values_of(*window, group->rank()),
                                   [](Value each) { return each == 7; }));
    return 0;
  });
  expect_all_well(job);
}

// Rank 1 is killed when it has put and signalled twice. Rank 2 leaves.
TEST(Window, TheDeadAreNamedWhenAllTheySentHasBeenTaken) {
  Job job(3, [&](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    const auto window = make(group, 3);
    if (group->rank() != 0) {
      window->signal(0, 1, 60s);
      put(*window, 0, static_cast<std::size_t>(group->rank()), {11});
      window->signal(0, 2, 60s);
      window->await_signals(0, 1, 60s);
      if (group->rank() == 1) raise(SIGKILL);
      window->shut(10s);
      return 0;
    }
    for (const int other : {1, 2}) window->await_signals(other, 2, 60s);
    for (const int other : {1, 2}) window->signal(other, 1, 60s);
    while (group->alive().size() > 1) std::this_thread::sleep_for(1ms);
    for (const int gone : {1, 2}) {
      window->await_signals(gone, 2, 60s);
      CHECK_THAT(values_of(*window, 0)[1 + static_cast<std::size_t>(gone)] == 11);
      try {
        window->await_signals(gone, 3, 60s);
        return 2;
      } catch (const PeerError& error) {
        CHECK_THAT(error.ranks() == std::vector<int>{gone});
      }
      try {
        put(*window, gone, 0, {1});
        return 3;
      } catch (const PeerError& error) {
        CHECK_THAT(error.ranks() == std::vector<int>{gone});
      }
    }
    window->close(60s);  // without them
    return 0;
  });
  EXPECT_EQ(job.wait_all(), (std::vector<int>{0, 128 + SIGKILL, 0}));
}

TEST(Window, AMappingOutlivesItsWindowAndItsRank) {
  Job job(2, [&](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    auto window = make(group, 3);
    CHECK_THAT(window->is_mapped(0) == (group->rank() == 0 || group->is_one_host()));
    if (group->rank() == 1) {
      put(*window, 0, 0, {5});
      window->signal(0, 1, 60s);
      window->await_signals(0, 1, 60s);
      raise(SIGKILL);
    }
    window->await_signals(1, 1, 60s);
    std::vector mappings{window->memory(0)};
    if (window->is_mapped(1)) mappings.push_back(window->memory(1));
    window->signal(1, 1, 60s);
    while (group->is_live(1)) std::this_thread::sleep_for(1ms);
    window.reset();
    CHECK_THAT(mappings[0]->bytes()[4] == std::byte{5});
    for (const auto& each : mappings) CHECK_THAT(each->bytes()[8] == std::byte{7});
    return 0;
  });
  EXPECT_EQ(job.wait_all(), (std::vector<int>{0, 128 + SIGKILL}));
}

// A thread puts to each rank and waits for its signals.
TEST(Window, ThreadsMayPutWhileOthersWait) {
  const std::uint64_t rounds = stressed(300);
  Job job(3, [&](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    const auto window = make(group, 3000);
    const int rank = group->rank();
    for (int to = 0; to < 3; ++to) {
      if (to == rank) continue;
      put(*window, to, static_cast<std::size_t>(rank) * 1000, std::vector<Value>(1000, 1));
      window->signal(to, 1, 60s);
    }
    std::atomic<int> right = 0;
    std::vector<std::thread> threads;
    for (int from = 0; from < 3; ++from) {
      if (from == rank) continue;
      threads.emplace_back([&, from] {
        const auto part =
            values_of(*window, rank).subspan(1 + static_cast<std::size_t>(from) * 1000, 1000);
        bool is_right = true;
        for (std::uint64_t round = 1; round <= rounds; ++round) {
          window->await_signals(from, 2 * round - 1, 60s);
          is_right =
              is_right && std::ranges::all_of(part, [=](Value each) { return each == round; });
          window->signal(from, 2 * round, 60s);
          window->await_signals(from, 2 * round, 60s);
          put(*window, from, static_cast<std::size_t>(rank) * 1000,
              std::vector<Value>(1000, static_cast<Value>(round + 1)));
          window->signal(from, 2 * round + 1, 60s);
        }
        right += is_right ? 1 : 0;
      });
    }
    for (std::thread& each : threads) each.join();
    CHECK_THAT(right == 2);
    window->close(60s);
    return 0;
  });
  expect_all_well(job);
}

TEST(Window, AWaitEndsWhenAnotherThreadShutsTheWindow) {
  Job job(2, [&](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    const auto window = make(group, 1);
    std::thread closer([&] {
      std::this_thread::sleep_for(50ms);
      window->shut(1s);
    });
    bool is_refused = false;
    try {
      window->await_signals(1 - group->rank(), 1, 60s);
    } catch (const Error&) {  // this rank's shut(), or the other's
      is_refused = true;
    }
    closer.join();
    return is_refused ? 0 : 1;
  });
  expect_all_well(job);
}

TEST(Window, MemoryThatThereIsNoRoomForIsRefused) {
  const std::byte one{};
  EXPECT_THROW(WindowMemory({&one, std::size_t{1} << 50}), ConfigError);
}

TEST(Window, APlaceThatOneRanksMemoryLacksFailsAll) {
  Job job(2, [&](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    const auto memory = std::make_shared<WindowMemory>(Bytes(10));
    const std::size_t first = group->rank() == 1 ? 8 : 0;
    try {
      Window(group, "w", memory, {first, 4}, {});
    } catch (const ConfigError& error) {
      CHECK_THAT(std::string(error.what()).find("rank 1") != std::string::npos);
      return 0;
    }
    return 1;
  });
  expect_all_well(job);
}

// Rank 0 of three puts to rank 2, which is stopped, until its time is up. Rank 1 still hears it.
TEST(Window, AStoppedRankDelaysNoOther) {
  testing_processes::Shared<std::atomic<int>> stage;
  Job job(3, [&](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    const auto window = make(group, 4'000'000);
    if (group->rank() == 1) {
      for (std::uint64_t number = 1; number <= 3; ++number) window->await_signals(0, number, 60s);
      stage->store(3);
    } else if (group->rank() == 2) {
      stage->store(1);
      while (stage->load() < 3) std::this_thread::sleep_for(1ms);
    } else {
      while (stage->load() < 2) std::this_thread::sleep_for(1ms);
      const std::vector<Value> values(4'000'000);
      const auto bytes = std::as_bytes(std::span(values));
      for (std::uint64_t number = 1; number <= 3; ++number) {
        try {
          window->put(2, 0, bytes, 50ms);  // on one host it needs nothing of rank 2
        } catch (const TimeoutError& error) {
          CHECK_THAT(error.ranks() == std::vector<int>{2});
        }
        window->signal(1, number, 60s);
        put(*window, 1, 0, {1});
      }
    }
    window->close(60s);
    return 0;
  });
  while (stage->load() < 1) std::this_thread::sleep_for(1ms);
  job.signal(2, SIGSTOP);
  stage->store(2);
  while (stage->load() < 3) std::this_thread::sleep_for(1ms);
  job.signal(2, SIGCONT);
  expect_all_well(job);
}

// A child that is forked while the receiving thread waits can let go of the window.
TEST(Window, AForkedChildEnds) {
  const std::uint64_t forks = stressed(50);
  Job job(2, [&](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    auto window = make(group, 1);
    for (std::uint64_t number = 0; number < forks && group->rank() == 0; ++number) {
      put(*window, 1, 0, {1});
      const pid_t child = fork();
      if (child == 0) {
        alarm(20);
        window.reset();
        _exit(0);
      }
      int status = 1;
      waitpid(child, &status, 0);
      CHECK_THAT(status == 0);
    }
    window->close(60s);
    return 0;
  });
  expect_all_well(job);
}

TEST(WindowMessage, OnlyPutsThatFitAndKnownKindsAreRead) {
  using Kind = WindowMessage::Kind;
  std::vector<std::byte> message(sizeof(WindowMessage::Head) + 8);
  const auto reads = [&](std::uint64_t kind, std::uint64_t value, std::size_t window) {
    const WindowMessage::Head head{static_cast<Kind>(kind), value};
    std::memcpy(message.data(), &head, sizeof(head));
    return WindowMessage::read(message, window).has_value();
  };
  EXPECT_TRUE(reads(1, 0, 8));
  EXPECT_TRUE(reads(1, 92, 100));
  EXPECT_FALSE(reads(1, 93, 100));
  EXPECT_FALSE(reads(1, 101, 100));
  EXPECT_FALSE(reads(1, ~std::uint64_t{0} - 3, 100));
  EXPECT_TRUE(reads(2, ~std::uint64_t{0}, 0));
  EXPECT_TRUE(reads(3, 0, 0));
  for (const std::uint64_t kind : {0U, 4U, 1U << 30}) EXPECT_FALSE(reads(kind, 0, 100));
  message.resize(sizeof(WindowMessage::Head) - 1);
  EXPECT_FALSE(WindowMessage::read(message, 100));
  EXPECT_FALSE(WindowMessage::read({}, 100));
}

}  // namespace
}  // namespace dstorm
