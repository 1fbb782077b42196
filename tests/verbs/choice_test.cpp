// Whether RDMA is used between two ranks, each a host of its own, on rxe1 and rxe2 of the test bed,
// whose network is spoilt before they join.
#include "dstorm/remote/transport_choice.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include "dstorm/host/roll_call.hpp"
#include "dstorm/remote/verbs/adapter.hpp"
#include "ends.hpp"
#include "processes.hpp"

namespace dstorm::remote {
namespace {

using namespace std::chrono_literals;
using testing_processes::Job;
using testing_processes::Shared;

struct Found {
  bool is_used[2];
  char why[2][600];
  double seconds;
};

// Runs the commands `before`, then lets both ranks choose, and runs `after`.
void choose(Found& found, const std::string& before, const std::string& after) {
  ASSERT_EQ(std::system(before.c_str()), 0);
  Job job(2, [&](Bootstrap& bootstrap) {
    const host::Control control(bootstrap, host::Sharing::kNone, 20s);
    const verbs::Adapter adapter(control, {.device = "rxe" + std::to_string(bootstrap.rank() + 1)});
    const auto adapters = call_roll(bootstrap, record_of(adapter), 20s);
    const auto start = std::chrono::steady_clock::now();
    const TransportChoice choice = choose_transports(bootstrap, control, adapters, &adapter,
                                                     {AdapterWish::Use::kIfThere, "auto"}, 8s);
    const auto own = static_cast<std::size_t>(bootstrap.rank());
    found.is_used[own] = choice.by_adapter[1 - own];
    set_text(found.why[own], choice.why[1 - own]);
    if (own == 0) {
      found.seconds =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
    return 0;
  });
  testing_processes::expect_all_well(job);
  EXPECT_EQ(std::system(after.c_str()), 0);
}

// rxe follows its network with some delay.
void await_adapter(const std::string& words) {
  const auto is_there = [&] {
    for (const auto& report : verbs::survey(verbs::Library::load())) {
      if (verbs::has(describe(report.choice), words)) return true;
    }
    return false;
  };
  for (int i = 0; i < 200 && !is_there(); ++i) std::this_thread::sleep_for(20ms);
  ASSERT_TRUE(is_there()) << words;
}

void expect_tcp(const Found& found, const char* what) {
  EXPECT_FALSE(found.is_used[0] || found.is_used[1]);
  EXPECT_STREQ(found.why[0], found.why[1]);
  std::printf("measured: %s, after %.2f s: %s\n", what, found.seconds, found.why[0]);
}

TEST(Choice, AdaptersThatReachOneAnotherAreUsed) {
  Shared<Found> found;
  choose(*found, "true", "true");
  EXPECT_TRUE(found->is_used[0] && found->is_used[1]) << found->why[0];
  std::printf("measured: a write each way while joining: %.3f s\n", found->seconds);
}

// Both ends take 4096 bytes a packet, and what is in between takes 1500.
TEST(Choice, NetworkThatCarriesShorterPacketsAloneIsNotUsed) {
  Shared<Found> found;
  choose(*found, "ip link set p2 mtu 1500", "ip link set p2 mtu 4200");
  expect_tcp(*found, "a narrow network");
  EXPECT_TRUE(verbs::has(found->why[0], "gets no write of 12288 bytes through"));
}

TEST(Choice, AdaptersOfTwoMtusMeetAtTheSmaller) {
  ASSERT_EQ(std::system("ip link set n2 mtu 1500 && ip link set p2 mtu 1500"), 0);
  await_adapter("10.88.0.2, MTU 1024");
  Shared<Found> found;
  choose(*found, "true", "ip link set p2 mtu 4200 && ip link set n2 mtu 4200");
  EXPECT_TRUE(found->is_used[0] && found->is_used[1]) << found->why[0];
  await_adapter("10.88.0.2, MTU 4096");
}

TEST(Choice, AdaptersOfTwoSubnetsAreNotUsed) {
  ASSERT_EQ(std::system("ip addr add 10.99.0.2/24 dev n2 && ip addr del 10.88.0.2/24 dev n2"), 0);
  await_adapter("10.99.0.2, MTU 4096");
  Shared<Found> found;
  choose(*found, "true", "true");
  expect_tcp(*found, "two subnets");
  ASSERT_EQ(std::system("ip addr add 10.88.0.2/24 dev n2 && ip addr del 10.99.0.2/24 dev n2"), 0);
  await_adapter("10.88.0.2, MTU 4096");
}

}  // namespace
}  // namespace dstorm::remote
