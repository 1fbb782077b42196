// Membership of more hosts than one watches: each rank is a host of its own, over TCP.
#include <dirent.h>
#include <gtest/gtest.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <map>
#include <memory>
#include <thread>

#include "dstorm/dstorm.hpp"
#include "dstorm/membership/neighbourhood.hpp"
#include "processes.hpp"

namespace dstorm {
namespace {

using namespace std::chrono_literals;
using testing_processes::expect_all_well;
using testing_processes::Job;
using testing_processes::Shared;

constexpr int kRanks = 24;
constexpr auto kSilence = 2s;
static_assert(kRanks > kMostInFullView);

std::shared_ptr<Group> join(Bootstrap& bootstrap) {
  GroupOptions options;
  options.transport = "tcp";
  options.silence = kSilence;
  options.tls = "off";  // so that every byte is one of a frame
  return testing_processes::join(bootstrap, std::move(options));
}

// By its descriptor: the bytes that each TCP connection of this process has carried, both ways.
std::map<int, std::uint64_t> carried() {
  std::map<int, std::uint64_t> bytes;
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir("/proc/self/fd"), closedir);
  while (const dirent* entry = readdir(directory.get())) {
    const int fd = std::atoi(entry->d_name);
    tcp_info info{};
    socklen_t length = sizeof(info);
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) continue;
    bytes[fd] = info.tcpi_bytes_acked + info.tcpi_bytes_received;
  }
  return bytes;
}

TEST(ManyHosts, IdleRankSpeaksToThoseThatWatchIt) {
  Shared<std::array<std::atomic<int>, kRanks>> active;
  Job job(kRanks, [&](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    group->barrier();
    std::this_thread::sleep_for(kSilence);
    const auto before = carried();
    std::this_thread::sleep_for(kSilence);
    int count = 0;
    for (const auto& [fd, bytes] : carried()) {
      const auto found = before.find(fd);
      if (found != before.end() && bytes != found->second) ++count;
    }
    (*active)[static_cast<std::size_t>(group->rank())] = count;
    CHECK_THAT(group->view().epoch == 0);
    std::this_thread::sleep_for(kSilence / 2);  // another rank may have begun to measure later
    group->barrier();
    group->leave();
    return 0;
  });
  expect_all_well(job);
  for (const auto& count : *active) {
    // To each of eight hosts one connection that both share, or two.
    EXPECT_GE(count, 8);
    EXPECT_LE(count, 16);
  }
}

// The ranks that `is_lost` names get `number`. All others then agree on a view without them, within
// two silences and the time that a busy machine takes.
void expect_to_go_on(int number, bool (*is_lost)(int)) {
  Shared<std::atomic<int>> ready;
  Job job(kRanks, [&](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    group->barrier();
    ready->fetch_add(1);
    std::vector<int> left;
    for (int r = 0; r < kRanks; ++r) {
      if (!is_lost(r)) left.push_back(r);
    }
    if (is_lost(group->rank())) std::this_thread::sleep_for(60s);
    const auto until = std::chrono::steady_clock::now() + 5 * kSilence;
    while (group->alive() != left) {
      CHECK_THAT(std::chrono::steady_clock::now() < until);
      std::this_thread::sleep_for(10ms);
    }
    group->barrier(20s);
    group->leave();
    return 0;
  });
  while (ready->load() < kRanks) std::this_thread::sleep_for(1ms);
  for (int r = 0; r < kRanks; ++r) {
    if (is_lost(r)) job.signal(r, number);
  }
  for (int r = 0; r < kRanks; ++r) {
    if (is_lost(r)) continue;
    EXPECT_EQ(job.wait(r), 0) << "rank " << r;
  }
}

TEST(ManyHosts, OthersGoOnWithoutARankThatStops) {
  expect_to_go_on(SIGSTOP, [](int r) { return r == 13; });
}

// Rank 0 loses all ranks that it watches but one.
TEST(ManyHosts, OthersGoOnWithoutElevenThatStopAtOnce) {
  expect_to_go_on(SIGSTOP, [](int r) {
    return r == 1 || r == 2 || r == 4 || r == 8 || r == 16 || r == 20 || r == 22 || r == 5 ||
           r == 6 || r == 9 || r == 11;
  });
}

TEST(ManyHosts, OthersGoOnWithoutElevenThatDieAtOnce) {
  expect_to_go_on(SIGKILL, [](int r) { return r >= 5 && r < 16; });
}

}  // namespace
}  // namespace dstorm
