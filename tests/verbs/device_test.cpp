// Finding a device, on the test bed of tests/softroce: rxe1 to rxe4 with 10.88.0.1 to .4.
#include "dstorm/remote/verbs/device.hpp"

#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>
#include <thread>

#include "dstorm/errors.hpp"
#include "ends.hpp"

namespace dstorm::verbs {
namespace {

using namespace std::chrono_literals;

std::string refusal(std::string_view setting) {
  return message_of<ConfigError>([&] { Device::open(Library::load(), setting); });
}

// The state of a port follows the link with some delay.
bool soon(bool (*holds)()) {
  for (int i = 0; i < 100 && !holds(); ++i) std::this_thread::sleep_for(20ms);
  return holds();
}
std::string found() { return Device::open(Library::load(), "").choice().name; }

TEST(Device, SurveyShowsEveryPortAndItsBestAddress) {
  const auto reports = survey(Library::load());
  ASSERT_EQ(reports.size(), 4);
  for (const DeviceReport& report : reports) {
    EXPECT_EQ(report.trouble, "");
    const std::string number = report.choice.name.substr(3);
    EXPECT_EQ(describe(report.choice),
              "rxe" + number + ":1:1 (RoCE v2, 10.88.0." + number + ", MTU 4096)");
    EXPECT_GE(report.choice.longest_write_bytes, 1U << 20);
  }
}

TEST(Device, NameAloneTakesTheIpv4Address) {
  const DeviceChoice choice = Device::open(Library::load(), "rxe3").choice();
  EXPECT_EQ(choice.name, "rxe3");
  EXPECT_EQ(choice.port, 1);
  EXPECT_EQ(choice.fabric, Fabric::kRoceV2);
  EXPECT_EQ(describe(choice.gid), "10.88.0.3");
}

TEST(Device, PortAndAddressAreObeyed) {
  EXPECT_EQ(Device::open(Library::load(), "rxe2:1").choice().gid_index, 1);
  const DeviceChoice choice = Device::open(Library::load(), "rxe2:1:0").choice();
  EXPECT_EQ(choice.gid_index, 0);
  EXPECT_TRUE(has(describe(choice.gid), "fe80::")) << describe(choice.gid);
}

TEST(Device, UnknownNameIsRefusedWithThoseThereAre) {
  const std::string error = refusal("rxe9");
  EXPECT_TRUE(has(error, "MALT_RDMA_DEVICE=rxe9: there is no such RDMA device")) << error;
  for (const char* name : {"rxe1", "rxe2", "rxe3", "rxe4"}) EXPECT_TRUE(has(error, name)) << error;
}

TEST(Device, UnknownPortIsRefusedWithThoseThereAre) {
  EXPECT_EQ(refusal("rxe1:2"), "MALT_RDMA_DEVICE=rxe1:2: rxe1 has no port 2; its ports are 1 to 1");
}

TEST(Device, UnknownAddressIsRefusedWithThoseThereAre) {
  const std::string error = refusal("rxe1:1:77");
  EXPECT_TRUE(has(error, "rxe1:1 has no address with index 77; it has 0 (RoCE v2, fe80::"))
      << error;
  EXPECT_TRUE(has(error, "1 (RoCE v2, 10.88.0.1)")) << error;
}

TEST(Device, SettingThatIsNoneIsRefusedWithItsForms) {
  for (const char* setting : {":1", "rxe1:", "rxe1:one", "rxe1:1:", "rxe1:1:x", "rxe1:1:1:1",
                              "::", "rxe1:-1", "rxe1:1x"}) {
    EXPECT_TRUE(has(refusal(setting), "DEVICE:PORT:GID_INDEX")) << setting;
  }
}

TEST(Device, PortThatIsDownIsPassedOverOrRefused) {
  EXPECT_EQ(found(), survey(Library::load()).front().choice.name);
  {
    const Unplugged one(1), two(2), three(3);
    EXPECT_TRUE(soon([] { return found() == "rxe4"; })) << found();
    const std::string error = refusal("rxe1");
    EXPECT_TRUE(has(error, "rxe1:1 is down: bring its network up (ip link set")) << error;
    int down = 0;
    for (const DeviceReport& report : survey(Library::load())) down += has(report.trouble, "down");
    EXPECT_EQ(down, 3);
  }
  EXPECT_TRUE(soon([] { return refusal("rxe1").empty() && refusal("rxe3").empty(); }));
}

TEST(Device, LinkThatGoesDownIsAnEvent) {
  const Device device = Device::open(Library::load(), "rxe4");
  EXPECT_FALSE(device.next_event());
  {
    const Unplugged four(4);
    pollfd ready{device.event_fd(), POLLIN, 0};
    ASSERT_EQ(poll(&ready, 1, 2000), 1);
    const auto event = device.next_event();
    ASSERT_TRUE(event);
    EXPECT_EQ(event->type, IBV_EVENT_PORT_ERR) << event->what;
    EXPECT_EQ(event->number, 1);
  }
  EXPECT_TRUE(soon([] { return refusal("rxe4").empty(); }));
}

}  // namespace
}  // namespace dstorm::verbs
