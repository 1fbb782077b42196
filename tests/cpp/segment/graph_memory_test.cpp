// The memory that a host takes for a segment: for the updates of the senders that have a receiver
// there, and of others from their first update on. Each rank is a host of its own, over TCP.
#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <thread>

#include "dstorm/dstorm.hpp"
#include "dstorm/host/segment_memory.hpp"
#include "dstorm/segment/parts.hpp"
#include "processes.hpp"

namespace dstorm {
namespace {

using namespace std::chrono_literals;
using testing_processes::expect_all_well;
using testing_processes::Job;

constexpr std::size_t kBytes = 1 << 20;

std::shared_ptr<Group> join(Bootstrap& bootstrap) {
  GroupOptions options;
  options.transport = "tcp";
  return testing_processes::join(bootstrap, std::move(options));
}

SegmentOptions over(const Graph& graph, Policy policy = Policy::kLatest) {
  SegmentOptions options;
  options.name = "w";
  options.slot_bytes = kBytes;
  options.graph = graph;
  options.policy = policy;
  return options;
}

// The bytes of memory that this host has taken for the segment; -1 if the system does not tell.
long taken_for(const Segment& segment) {
  const auto at = reinterpret_cast<std::uintptr_t>(segment.parts().state.memory().mailbox(0));
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx", &begin, &end) != 2 || at < begin || at >= end)
      continue;
    const std::string file = "/proc/self/map_files/" + line.substr(0, line.find(' '));
    struct stat status{};
    return stat(file.c_str(), &status) == 0 ? status.st_blocks * 512 : -1;
  }
  return -1;
}

// Whether that is the memory for the updates of so many ranks, and little more; and whether stats()
// says the same.
bool has_room_for(const Segment& segment, std::size_t ranks) {
  const auto slots = static_cast<double>(ranks * 2 * kBytes);
  const auto taken = static_cast<double>(taken_for(segment));
  std::printf("%.0f bytes for %.0f of slots\n", taken, slots);
  if (taken < 0 && geteuid() != 0) return true;  // it tells root alone
  const auto told = static_cast<double>(segment.stats().memory_bytes);
  return taken >= slots && taken <= 1.1 * slots && told == taken;
}

std::span<const std::byte> payload(std::uint64_t value) {
  static std::vector<std::uint64_t> words(kBytes / sizeof(value));
  std::ranges::fill(words, value);
  return std::as_bytes(std::span(words));
}

// Folds what has come; returns the sum of the first words, or 0 if an update is torn.
std::uint64_t gather(Segment& segment, const GatherOptions& options) {
  std::uint64_t sum = 0;
  segment.gather(options, [&](std::span<const Update> updates) {
    for (const Update& update : updates) {
      std::uint64_t first = 0;
      std::uint64_t last = 0;
      std::memcpy(&first, update.payload.data(), sizeof(first));
      std::memcpy(&last, update.payload.data() + kBytes - sizeof(last), sizeof(last));
      if (first == last) sum += first;
    }
  });
  return sum;
}

TEST(GraphMemory, HostHasRoomForTheSendersOfItsRanksAlone) {
  Job job(7, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    Segment segment(group, over(Graph::ring()));
    for (std::uint64_t round = 1; round <= 5; ++round) {
      segment.scatter(payload(round));
      CHECK_THAT(gather(segment, {.staleness = 0}) == 2 * round);
    }
    CHECK_THAT(has_room_for(segment, 3));
    SegmentOptions options = over(Graph::one_peer());  // from three ranks in turn
    options.name = "varying";
    Segment varying(group, options);
    CHECK_THAT(has_room_for(varying, 4));
    group->barrier();
    return 0;
  });
  expect_all_well(job);
}

TEST(GraphMemory, SenderThatTheGraphHasNotGetsRoomWithItsFirstUpdate) {
  for (const Policy policy : {Policy::kLatest, Policy::kQueue}) {
    Job job(5, [&](Bootstrap& bootstrap) {
      const auto group = join(bootstrap);
      Segment segment(group, over(Graph::ring(), policy));
      CHECK_THAT(has_room_for(segment, 3));
      group->barrier();
      const Graph all = Graph::all();
      for (std::uint64_t round = 1; round <= 5; ++round) {
        segment.scatter(payload(round), &all);
        CHECK_THAT(gather(segment, {.staleness = 0}) == 4 * round);
      }
      CHECK_THAT(has_room_for(segment, 5));
      group->barrier();
      return 0;
    });
    expect_all_well(job);
  }
}

TEST(GraphMemory, GraphThatIsRepairedFindsRoom) {
  Job job(5, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    Segment segment(group, over(Graph::ring()));
    group->barrier();
    if (group->rank() == 2) std::raise(SIGKILL);
    while (group->epoch() == 0) std::this_thread::sleep_for(1ms);
    std::uint64_t sum = 0;
    for (std::uint64_t round = 1; round <= 5; ++round) {
      segment.scatter(payload(round));
      sum = gather(segment, {.staleness = 0});
    }
    CHECK_THAT(sum == 10 && segment.is_repaired());
    group->barrier();
    return 0;
  });
  EXPECT_EQ(job.wait_all(), (std::vector<int>{0, 0, 128 + SIGKILL, 0, 0}));
}

// The caller sends heartbeats in between.
TEST(GraphMemory, RoomIsMadeInPieces) {
  const host::SegmentShape shape{MailboxShape(2, 1, 256 << 20), Policy::kLatest, 0, 0, 0, 1, {0}};
  const auto memory = host::SegmentMemory::create(shape, "a segment", 1);
  int calls = 1;
  while (!memory.make_room_for(1)) ++calls;
  EXPECT_GT(calls, 3);
  EXPECT_TRUE(memory.make_room_for(1));
}

TEST(GraphMemory, LongFirstUpdateComesWhole) {
  Job job(3, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    SegmentOptions options = over(Graph::edges({{0, 1}, {1, 2}, {2, 0}}));
    options.slot_bytes = 64 << 20;
    Segment segment(group, options);
    const Graph all = Graph::all();
    segment.scatter(payload(7), &all);
    CHECK_THAT(segment.wait([&] { return segment.clock_of((group->rank() + 1) % 3) == 1; }, 20s));
    CHECK_THAT(segment.wait([&] { return segment.clock_of((group->rank() + 2) % 3) == 1; }, 20s));
    CHECK_THAT(gather(segment, {}) == 14);
    group->barrier();
    return 0;
  });
  expect_all_well(job);
}

// From now on the system gives this process no more pages of shared memory.
void refuse_pages() {
  constexpr unsigned kAdvice = 23;  // MADV_POPULATE_WRITE
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kAdvice, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOMEM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{static_cast<unsigned short>(std::size(code)), code};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) != 0) {
    abort();
  }
}

TEST(GraphMemory, HostWithoutRoomForAFirstUpdateSaysSoAndTheOthersGoOn) {
  for (const Policy policy : {Policy::kLatest, Policy::kQueue}) {
    Job job(5, [&](Bootstrap& bootstrap) {
      const auto group = join(bootstrap);
      Segment segment(group, over(Graph::ring(), policy));
      const int rank = group->rank();
      if (rank == 2) refuse_pages();
      group->barrier();
      if (rank == 0)
        segment.scatter(payload(7), [] {
          static const Graph all = Graph::all();
          return &all;
        }());
      const auto gathers = [&]() -> std::string {
        try {
          const bool has_come = segment.wait([&] { return segment.clock_of(0) == 1; }, 20s);
          return has_come && gather(segment, {}) == 7 ? "all well" : "nothing came";
        } catch (const ConfigError& error) {
          return error.what();
        }
      };
      if (rank == 2) {
        // The clock goes on, for those who wait for it alone, as when they move to another group.
        const auto end = Clock::now() + 20s;
        while (segment.clock_of(0) < 1 && Clock::now() < end) std::this_thread::sleep_for(1ms);
        CHECK_THAT(segment.clock_of(0) == 1);
        for (int call = 0; call < 2; ++call) {
          const std::string error = gathers();
          CHECK_THAT(error.find("segment 'w': this host has no memory for the updates of rank 0") ==
                     0);
        }
        segment.close();
      } else if (rank != 0) {
        CHECK_THAT(gathers() == "all well");
      }
      group->barrier(20s);
      if (rank == 0) segment.scatter(payload(8));
      if (rank == 1) {
        CHECK_THAT(segment.wait([&] { return segment.clock_of(0) == 2; }, 20s));
        CHECK_THAT(gather(segment, {}) == 8);
      }
      group->barrier(20s);
      return 0;
    });
    expect_all_well(job);
  }
}

}  // namespace
}  // namespace dstorm
