// Writes between two processes, and what becomes of them when one is killed, stopped or poor.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "dstorm/errors.hpp"
#include "ends.hpp"
#include "processes.hpp"

namespace dstorm::verbs {
namespace {

using namespace std::chrono_literals;
using testing_processes::expect_all_well;
using testing_processes::Job;
using testing_processes::Shared;

// Rank r is on device rxe<r+1>. Returns when both ranks are connected.
Address meet(Bootstrap& bootstrap, End& end) {
  const Address mine = end.address();
  const auto all = bootstrap.allgather(std::as_bytes(std::span(&mine, 1)), 10s);
  Address other{};
  std::memcpy(&other, all[bootstrap.rank() == 0 ? 1 : 0].data(), sizeof(other));
  end.queue.connect(other.endpoint);
  bootstrap.allgather({}, 10s);
  return other;
}
std::string device_of(const Bootstrap& bootstrap) {
  return "rxe" + std::to_string(bootstrap.rank() + 1);
}

TEST(Peers, ReaderThatSeesTheFlagHasTheBytes) {
  constexpr std::size_t kBytes = 1 << 20;
  Job job(2, [](Bootstrap& bootstrap) {
    End end(device_of(bootstrap), kBytes + 8);
    const Address other = meet(bootstrap, end);
    std::atomic_ref flag(*reinterpret_cast<std::uint64_t*>(end.memory.data() + kBytes));
    for (std::uint64_t round = 1; round <= 5; ++round) {
      const auto value = static_cast<std::byte>(round);
      if (bootstrap.rank() == 0) {
        std::fill_n(end.memory.begin(), kBytes, value);
        end.queue.write(end.part(kBytes), other.target);
        const auto last = end.queue.write({&round, sizeof(round), 0},
                                          {other.target.address + kBytes, other.target.rkey},
                                          {.inlined = true, .signaled = true});
        CHECK_THAT(settle(end.queue, last));
      } else {
        while (flag.load(std::memory_order_acquire) != round) std::this_thread::sleep_for(1ms);
        CHECK_THAT(std::count(end.memory.begin(), end.memory.begin() + kBytes, value) == kBytes);
      }
      bootstrap.allgather({}, 30s);
    }
    return 0;
  });
  expect_all_well(job);
}

void expect_error_within_a_second_of_a_kill(bool has_child) {
  struct Times {
    std::atomic<std::chrono::steady_clock::rep> killed, failed;
  };
  Shared<Times> times;
  Job job(2, [&](Bootstrap& bootstrap) {
    End end(device_of(bootstrap), 65'536);
    const Address other = meet(bootstrap, end);
    if (bootstrap.rank() == 1) {
      if (has_child && fork() == 0) {
        std::this_thread::sleep_for(5s);
        _exit(0);
      }
      std::this_thread::sleep_for(300ms);
      times->killed = std::chrono::steady_clock::now().time_since_epoch().count();
      raise(SIGKILL);
    }
    while (settle(end.queue, end.queue.write(end.part(65'536), other.target, {.signaled = true}))) {
    }
    times->failed = std::chrono::steady_clock::now().time_since_epoch().count();
    CHECK_THAT(end.queue.failed());
    std::printf("%s\n", end.queue.failed()->what.c_str());
    CHECK_THAT(end.queue.completed() > 0);
    return 0;
  });
  EXPECT_EQ(job.wait_all(), (std::vector<int>{0, 128 + SIGKILL}));
  const std::chrono::steady_clock::duration took(times->failed - times->killed);
  EXPECT_GT(took, 0s);
  EXPECT_LT(took, 1s);
}

TEST(Peers, KilledPeerIsAnErrorWithinASecond) { expect_error_within_a_second_of_a_kill(false); }

TEST(Peers, KilledPeerWhoseChildLivesOnIsAnErrorWithinASecond) {
  expect_error_within_a_second_of_a_kill(true);
}

// Why a heartbeat is needed: the peer's adapter, here its kernel, goes on taking writes for it.
TEST(Peers, StoppedPeerStillTakesWrites) {
  Job job(2, [](Bootstrap& bootstrap) {
    End end(device_of(bootstrap));
    const Address other = meet(bootstrap, end);
    if (bootstrap.rank() == 1) return raise(SIGSTOP);
    std::this_thread::sleep_for(200ms);
    for (int i = 0; i < 100; ++i) {
      CHECK_THAT(settle(end.queue, end.queue.write(end.part(8), other.target, {.signaled = true})));
    }
    return 0;
  });
  EXPECT_EQ(job.wait(0), 0);
  job.signal(1, SIGCONT);
  EXPECT_EQ(job.wait(1), 0);
}

TEST(Region, LimitOnLockedMemoryIsNamed) {
  Job job(1, [](Bootstrap&) {
    const rlimit limit{65'536, 65'536};
    constexpr uid_t kNobody = 65534;
    CHECK_THAT(setrlimit(RLIMIT_MEMLOCK, &limit) == 0 && setgid(kNobody) == 0 &&
               setuid(kNobody) == 0);
    const Device device = Device::open(Library::load(), "rxe1");
    std::vector<std::byte> memory(1 << 20);
    const std::string error =
        message_of<ConfigError>([&] { Region region(device, memory, "segment 'w'"); });
    std::printf("%s\n", error.c_str());
    CHECK_THAT(has(error, "cannot register 1048576 bytes for segment 'w'"));
    CHECK_THAT(has(error, "may lock 64 KB in all: raise ulimit -l"));
    return 0;
  });
  expect_all_well(job);
}

}  // namespace
}  // namespace dstorm::verbs
