// The settings of an adapter, MALT_RDMA_..., over the adapters of tests/fake_verbs.
#include <gtest/gtest.h>

#include <string>

#include "dstorm/errors.hpp"
#include "dstorm/remote/verbs/device.hpp"
#include "fake.hpp"

namespace dstorm::verbs {
namespace {

class RdmaSettings : public testing::Test {
 protected:
  void SetUp() override { FAKE(fake_verbs_begin)(); }
};

std::string refusal(const RdmaOptions& settings) {
  try {
    Device::open(Library::load(), settings);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST_F(RdmaSettings, SettingsAreTakenAndShown) {
  const auto device = Device::open(
      Library::load(),
      {.device = "rxe1", .partition = "32769", .service_level = "5", .traffic_class = "0x6a"});
  EXPECT_EQ(
      describe(device.choice()),
      "rxe1:1:1 (RoCE v2, 10.88.0.1, MTU 4096, P_Key 0x8001, service level 5, traffic class 106)");
  EXPECT_EQ(device.choice().partition_index, 1);
  // A limited member's key of the same partition.
  EXPECT_EQ(Device::open(Library::load(), {.partition = "1"}).choice().partition, 0x8001);
}

TEST_F(RdmaSettings, SettingsThatCannotBeAreRefusedWithTheirRange) {
  for (const char* value : {"0", "0x10000", "x", "0x", "-1", "1 ", "8001x"}) {
    const std::string said = refusal({.partition = value});
    EXPECT_EQ(said, "MALT_RDMA_PKEY=" + std::string(value) +
                        ": must be a partition key, 1 to 0xffff, such as 0x8001");
  }
  for (const char* value : {"16", "-1", "two"}) {
    const std::string said = refusal({.service_level = value});
    EXPECT_EQ(
        said.find("MALT_RDMA_SL=" + std::string(value) + ": must be a service level, 0 to 15"), 0)
        << said;
  }
  for (const char* value : {"256", "0x100", ""}) {
    const std::string said = refusal({.traffic_class = value});
    EXPECT_EQ(said.empty(), std::string(value).empty()) << said;
    EXPECT_TRUE(said.empty() || said.find("0 to 255") != std::string::npos) << said;
  }
}

TEST_F(RdmaSettings, SettingsThatThePortDoesNotHaveAreRefusedWithWhatItHas) {
  EXPECT_EQ(
      refusal({.device = "rxe1", .partition = "0x9"}),
      "MALT_RDMA_DEVICE=rxe1: MALT_RDMA_PKEY=0x0009: rxe1:1 has no such partition key; it has "
      "0xffff, 0x8001 (the subnet manager gives them; RoCE has no others)");
  EXPECT_EQ(
      refusal({.device = "rxe1", .service_level = "8"}),
      "MALT_RDMA_DEVICE=rxe1: MALT_RDMA_SL=8: rxe1:1 is RoCE, which has the priorities 0 to 7");
}

}  // namespace
}  // namespace dstorm::verbs
