// Scatters and gathers that another thread finishes after the call, as a device's do
// (slot/layout.hpp, S8). The ranks are processes; what a device would copy is copied here.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "dstorm/dstorm.hpp"
#include "processes.hpp"
#include "stressed.hpp"

namespace dstorm {
namespace {

using namespace std::chrono_literals;
using testing_processes::expect_all_well;
using testing_processes::Job;
using testing_processes::join;

constexpr std::size_t kWords = 512;
constexpr auto kArrives = 50ms;  // an update of another host needs less than this

SegmentOptions options_of(Policy policy) {
  SegmentOptions options;
  options.name = "s";
  options.slot_bytes = kWords * sizeof(std::uint64_t);
  options.policy = policy;
  return options;
}

void fill(std::byte* room, std::uint64_t value) {
  for (std::size_t i = 0; i < kWords; ++i)
    std::memcpy(room + i * sizeof(value), &value, sizeof(value));
}

// The value that all words of the payload have, or 0.
std::uint64_t whole(std::span<const std::byte> payload) {
  std::uint64_t first = 0;
  std::memcpy(&first, payload.data(), sizeof(first));
  for (std::size_t i = 1; i < kWords; ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, payload.data() + i * sizeof(word), sizeof(word));
    if (word != first) return 0;
  }
  return first;
}

void scatter(Segment& segment, std::uint64_t value) {
  segment.scatter([&](std::span<std::byte> room) {
    fill(room.data(), value);
    return std::pair(room.size(), Tag{});
  });
}

std::uint64_t gather(Segment& segment, std::optional<std::uint64_t> staleness = std::nullopt) {
  std::uint64_t found = 0;
  GatherOptions options;
  options.staleness = staleness;
  segment.gather(options,
                 [&](std::span<const Update> updates) { found = whole(updates[0].payload); });
  return found;
}

TEST(BegunScatter, UpdateIsSeenOnlyAfterTheFinish) {
  Job job(2, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    Segment segment(group, options_of(Policy::kLatest));
    for (std::uint64_t round = 1; round <= stressed(20); ++round) {
      if (group->rank() == 0) {
        std::byte* room = nullptr;
        CHECK_THAT(segment.begin_scatter([&](std::span<std::byte> given) {
          room = given.data();
          return std::pair(given.size(), Tag{});
        }));
        CHECK_THAT(segment.is_scatter_begun());
        group->barrier();
        if (round == 1) std::this_thread::sleep_for(kArrives);
        group->barrier();  // the other rank has looked
        std::thread device([&] {
          fill(room, round);
          segment.finish_scatter();
        });
        device.join();
        CHECK_THAT(!segment.is_scatter_begun());
        group->barrier();
      } else {
        group->barrier();
        if (round == 1) std::this_thread::sleep_for(kArrives);
        CHECK_THAT(gather(segment) == 0);
        CHECK_THAT(segment.clock_of(0) == round - 1);
        group->barrier();
        group->barrier();
        std::uint64_t found = 0;
        CHECK_THAT(segment.wait([&] { return segment.clock_of(0) == round; }, 20s));
        found = gather(segment);
        CHECK_THAT(found == round);
      }
    }
    group->barrier();
    return 0;
  });
  expect_all_well(job);
}

TEST(BegunScatter, GatherAtStaleness0WaitsForTheFinishInAnotherThread) {
  Job job(3, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    Segment segment(group, options_of(Policy::kLatest));
    const auto own = static_cast<std::uint64_t>(group->rank()) + 1;
    for (std::uint64_t round = 1; round <= stressed(200); ++round) {
      std::thread device;
      segment.begin_scatter([&](std::span<std::byte> room) {
        device = std::thread([&segment, room, value = round * 10 + own] {
          fill(room.data(), value / 2);
          std::this_thread::yield();
          fill(room.data(), value);
          while (!segment.is_scatter_begun()) std::this_thread::yield();
          segment.finish_scatter();
        });
        return std::pair(room.size(), Tag{});
      });
      std::uint64_t sum = 0;
      GatherOptions options;
      options.staleness = 0;
      segment.gather(options, [&](std::span<const Update> updates) {
        for (const Update& update : updates) sum += whole(update.payload);
      });
      device.join();
      CHECK_THAT(sum == 2 * round * 10 + 6 - own);
    }
    group->barrier();
    return 0;
  });
  expect_all_well(job);
}

TEST(BegunGather, SlotIsNotWrittenBeforeTheFinish) {
  Job job(2, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    Segment segment(group, options_of(Policy::kLatest));
    if (group->rank() == 0) {
      scatter(segment, 1);
      group->barrier();
      group->barrier();  // the other rank reads
      for (std::uint64_t value = 2; value <= 50; ++value) scatter(segment, value);
      group->barrier();
      group->barrier();
      const Stats stats = segment.stats();
      CHECK_THAT(stats.sent == 50);
      CHECK_THAT(stats.folded == 2 && stats.overwritten == 48);
    } else {
      group->barrier();
      CHECK_THAT(segment.wait([&] { return segment.clock_of(0) == 1; }, 20s));
      std::span<const std::byte> held;
      CHECK_THAT(segment.begin_gather(
                     {}, [&](std::span<const Update> updates) { held = updates[0].payload; }) == 1);
      group->barrier();
      group->barrier();
      std::this_thread::sleep_for(kArrives);
      CHECK_THAT(whole(held) == 1);
      CHECK_THAT(segment.is_gather_begun());
      std::thread device([&] { segment.finish_gather(); });
      device.join();
      CHECK_THAT(segment.wait([&] { return segment.clock_of(0) == 50; }, 20s));
      CHECK_THAT(gather(segment) == 50);  // and not 1 again
      CHECK_THAT(gather(segment) == 0);
      std::this_thread::sleep_for(3 * kArrives);  // until the other rank knows
      group->barrier();
    }
    group->barrier();
    return 0;
  });
  expect_all_well(job);
}

TEST(BegunGather, SenderUnderQueueWaitsForTheFinish) {
  Job job(2, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    SegmentOptions options = options_of(Policy::kQueue);
    options.depth = 1;
    Segment segment(group, options);
    constexpr std::uint64_t kRounds = 30;
    if (group->rank() == 0) {
      for (std::uint64_t value = 1; value <= kRounds; ++value) scatter(segment, value);
    } else {
      for (std::uint64_t value = 1; value <= kRounds; ++value) {
        std::span<const std::byte> held;
        const auto look = [&] {
          return segment.begin_gather(
                     {}, [&](std::span<const Update> updates) { held = updates[0].payload; }) == 1;
        };
        while (!look()) std::this_thread::yield();
        const std::uint64_t first = whole(held);
        std::this_thread::yield();
        CHECK_THAT(first == value && whole(held) == value);
        std::thread device([&] { segment.finish_gather(); });
        device.join();
      }
    }
    group->barrier();
    return 0;
  });
  expect_all_well(job);
}

}  // namespace
}  // namespace dstorm
