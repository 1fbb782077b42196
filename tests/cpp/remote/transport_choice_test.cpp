// The choice of RDMA for each pair of hosts, which the ranks make while they join. The adapters are
// those of tests/fake_verbs. Each rank is a host of its own.
#include "dstorm/remote/transport_choice.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <functional>
#include <memory>
#include <string>

#include "dstorm/host/roll_call.hpp"
#include "dstorm/remote/verbs/adapter.hpp"
#include "fake.hpp"
#include "processes.hpp"

namespace dstorm::remote {
namespace {

using namespace std::chrono_literals;
using testing_fake::kForEver;
using testing_processes::expect_all_well;
using testing_processes::Job;
using testing_processes::Shared;

constexpr int kRanks = 3;
constexpr int kFaulty = 1;

// What a rank has found out about another rank.
struct Found {
  bool is_used;
  char why[600];
};
using Table = std::array<std::array<Found, kRanks>, kRanks>;

// Rank r is on rxe<r+1>; `before` prepares a rank's adapter, and what it asks for.
int choose(Bootstrap& bootstrap, Table& table, std::chrono::nanoseconds timeout,
           const std::function<void(RdmaOptions&)>& before) {
  const host::Control control(bootstrap, host::Sharing::kNone, 20s);
  RdmaOptions settings{.device = "rxe" + std::to_string(bootstrap.rank() + 1)};
  if (before) before(settings);
  AdapterRecord mine{};
  std::unique_ptr<Adapter> adapter;
  try {
    adapter = std::make_unique<verbs::Adapter>(control, settings);
    mine = record_of(*adapter);
  } catch (const ConfigError& error) {
    set_text(mine.text, error.what());
  }
  const auto adapters = call_roll(bootstrap, mine, 20s);
  const TransportChoice choice = choose_transports(bootstrap, control, adapters, adapter.get(),
                                                   {AdapterWish::Use::kIfThere, "auto"}, timeout);
  for (int r = 0; r < kRanks; ++r) {
    Found& found = table[static_cast<std::size_t>(bootstrap.rank())][static_cast<std::size_t>(r)];
    found.is_used = choice.by_adapter[static_cast<std::size_t>(r)];
    set_text(found.why, choice.why[static_cast<std::size_t>(r)]);
  }
  return 0;
}

class RdmaChoiceTest : public testing::Test {
 protected:
  void SetUp() override { FAKE(fake_verbs_begin)(); }

  // Each rank chooses. `spoil` makes the faulty one faulty.
  void choose_with(const std::function<void(RdmaOptions&)>& spoil,
                   std::chrono::nanoseconds timeout = 2s) {
    Job job(kRanks, [&](Bootstrap& bootstrap) {
      return choose(bootstrap, *table_, timeout, bootstrap.rank() == kFaulty ? spoil : nullptr);
    });
    expect_all_well(job);
  }
  bool is_used(int a, int b) const { return found(a, b).is_used; }
  std::string why(int a, int b) const { return found(a, b).why; }
  // Expects that ranks 0 and 2 use RDMA with each other, that the faulty one uses it with none, and
  // that all ranks give the same reason, which has these words.
  void expect_faulty_alone(std::initializer_list<const char*> words) const {
    EXPECT_TRUE(is_used(0, 2) && is_used(2, 0)) << why(0, 2);
    for (const int other : {0, 2}) {
      EXPECT_FALSE(is_used(kFaulty, other) || is_used(other, kFaulty));
      EXPECT_EQ(why(kFaulty, other), why(other, kFaulty));
      for (const char* word : words) {
        EXPECT_NE(why(other, kFaulty).find(word), std::string::npos) << why(other, kFaulty);
      }
    }
  }

 private:
  const Found& found(int a, int b) const {
    return (*table_)[static_cast<std::size_t>(a)][static_cast<std::size_t>(b)];
  }
  Shared<Table> table_;
};

TEST_F(RdmaChoiceTest, AdaptersThatReachOneAnotherAreUsed) {
  choose_with(nullptr);
  for (int a = 0; a < kRanks; ++a) {
    for (int b = 0; b < kRanks; ++b) {
      if (a == b) continue;
      EXPECT_TRUE(is_used(a, b)) << why(a, b);
      EXPECT_NE(why(a, b).find("writes each way arrived; here rxe"), std::string::npos);
    }
  }
}

TEST_F(RdmaChoiceTest, WireThatCarriesShorterPacketsAloneIsNoticed) {
  choose_with([](RdmaOptions&) { FAKE(fake_verbs_adapter)()->wire_mtu = 1500; });
  expect_faulty_alone({"gets no write of 12288 bytes through", "rxe2:1:1", "MTU 4096"});
}

TEST_F(RdmaChoiceTest, AnotherSubnetIsNoticed) {
  choose_with([](RdmaOptions&) { FAKE(fake_verbs_adapter)()->subnet = 1; });
  expect_faulty_alone({"gets no write", "the network to it is cut"});
}

TEST_F(RdmaChoiceTest, AnotherPartitionIsNoticedAndBothAreNamed) {
  Shared<Table> table;
  Job job(kRanks, [&](Bootstrap& bootstrap) {
    const bool is_faulty = bootstrap.rank() == kFaulty;
    return choose(bootstrap, *table, 2s, [&](RdmaOptions& settings) {
      FAKE(fake_verbs_adapter)()->partitions[1] = is_faulty ? 0x8002 : 0x8001;
      settings.partition = is_faulty ? "0x8002" : "0x8001";
    });
  });
  expect_all_well(job);
  EXPECT_TRUE((*table)[0][2].is_used);
  const Found& found = (*table)[0][kFaulty];
  EXPECT_FALSE(found.is_used);
  for (const char* key : {"P_Key 0x8001", "P_Key 0x8002"}) {
    EXPECT_NE(std::string(found.why).find(key), std::string::npos) << found.why;
  }
}

TEST_F(RdmaChoiceTest, BytesThatChangeOnTheWayAreNoticed) {
  choose_with([](RdmaOptions&) { FAKE(fake_verbs_fail)("corruption", 1, kForEver, 1); });
  expect_faulty_alone({"nothing that is right came from rank 1's rxe2"});
}

TEST_F(RdmaChoiceTest, AdapterThatIsNotThereIsNamed) {
  choose_with([](RdmaOptions& settings) { settings.device = "rxe9"; });
  expect_faulty_alone({"rank 1 uses no adapter: MALT_RDMA_DEVICE=rxe9: there is no such"});
}

// Whichever call fails, and when, all ranks make the same choice, and in time.
TEST_F(RdmaChoiceTest, EachCallThatFailsOnceLeavesAllOfOneMind) {
  int not_used = 0;
  for (const char* call :
       {"get_device_list", "open_device", "query_device", "query_port", "query_gid_table",
        "alloc_pd", "reg_mr", "create_comp_channel", "create_cq", "create_qp", "modify_qp",
        "post_send", "poll_cq", "completion", "silence", "dereg_mr", "destroy_qp", "destroy_cq"}) {
    for (std::uint64_t nth = 1; nth <= 3; ++nth) {
      choose_with(
          [&](RdmaOptions&) {
            FAKE(fake_verbs_fail)(call, nth, std::string(call) == "create_qp" ? 20 : 1, EIO);
          },
          400ms);
      for (const int other : {0, 2}) {
        EXPECT_EQ(is_used(kFaulty, other), is_used(other, kFaulty)) << call << " " << nth;
        not_used += !is_used(kFaulty, other);
      }
    }
  }
  EXPECT_GT(not_used, 30);
}

TEST_F(RdmaChoiceTest, RequiredRdmaFailsOnAllRanksWithTheReason) {
  Shared<std::array<Found, kRanks>> said;
  Job job(kRanks, [&](Bootstrap& bootstrap) {
    if (bootstrap.rank() == kFaulty) FAKE(fake_verbs_adapter)()->wire_mtu = 1500;
    GroupOptions options;
    options.transport = "verbs";
    options.timeout = 4s;
    try {
      testing_processes::join(bootstrap, options);
    } catch (const ConfigError& error) {
      set_text((*said)[static_cast<std::size_t>(bootstrap.rank())].why, error.what());
    }
    return 0;
  });
  expect_all_well(job);
  const std::string first = (*said)[0].why;
  EXPECT_EQ(first.find("transport verbs cannot go between rank 0 and rank 1: rank 0: rxe1:1:1"), 0)
      << first;
  for (const Found& one : *said) EXPECT_EQ(first, one.why);
}

}  // namespace
}  // namespace dstorm::remote
