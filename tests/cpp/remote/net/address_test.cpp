// The address at which a rank listens.
#include "dstorm/remote/net/address.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <type_traits>

#include "dstorm/errors.hpp"
#include "tcp_sockets.hpp"

namespace dstorm::net {
namespace {

using testing_sockets::loopback;
using testing_sockets::raw_connect;

static_assert(std::is_trivially_copyable_v<Address> && sizeof(Address) <= 32);

Interface on(const std::string& name, const std::string& host, int bits) {
  const Address address = Address::parse(host).value();
  return {name, address, bits, address.is_loopback()};
}

template <class Call>
std::string error_of(Call&& call) {
  try {
    call();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

std::string chosen(const std::vector<Interface>& mine, const std::vector<Interface>& theirs) {
  const auto address = choose_address(mine, theirs);
  return address ? address->host() : "none";
}

TEST(Address, TextIsWhatOneTypes) {
  EXPECT_EQ(Address::parse("10.0.0.5", 41000)->text(), "10.0.0.5:41000");
  EXPECT_EQ(Address::parse("fd00::1", 80)->text(), "[fd00::1]:80");
  EXPECT_EQ(Address::parse("fe80::1%lo", 80)->text(), "[fe80::1%lo]:80");
  EXPECT_EQ(Address().text(), "no address");
  EXPECT_FALSE(Address::parse("localhost").has_value());
  EXPECT_FALSE(Address::parse("10.0.0.256").has_value());
}

TEST(Address, SurvivesAsBytes) {
  for (const char* host : {"10.0.0.5", "fd00::1"}) {
    const Address address = Address::parse(host, 41000).value();
    std::byte bytes[sizeof(Address)];
    std::memcpy(bytes, &address, sizeof(address));
    Address copy;
    std::memcpy(&copy, bytes, sizeof(copy));
    EXPECT_EQ(copy, address);
    EXPECT_FALSE(copy == address.with_port(1));
    EXPECT_FALSE(copy == Address());
  }
}

TEST(Address, KnowsLoopbackAndLinkLocal) {
  EXPECT_TRUE(Address::parse("127.3.2.1")->is_loopback());
  EXPECT_TRUE(Address::parse("::1")->is_loopback());
  EXPECT_FALSE(Address::parse("10.0.0.1")->is_loopback());
  EXPECT_TRUE(Address::parse("fe80::1")->is_link_local());
  EXPECT_TRUE(Address::parse("169.254.0.1")->is_link_local());
  EXPECT_FALSE(Address::parse("fd00::1")->is_link_local());
}

TEST(Address, LinkLocalTakesTheScopeOfTheOwnEnd) {
  const Address there = Address::parse("fe80::2", 7).value();
  EXPECT_EQ(there.with_scope_of(Address::parse("fe80::1%lo").value()).text(), "[fe80::2%lo]:7");
  const Address global = Address::parse("fd00::2", 7).value();
  EXPECT_EQ(global.with_scope_of(Address::parse("fe80::1%lo").value()), global);
}

TEST(Interfaces, LoopbackIsThere) {
  bool found = false;
  for (const Interface& one : interfaces()) {
    EXPECT_TRUE(one.prefix_bits > 0 && one.address.port() == 0) << one.name;
    if (one.address == loopback(AF_INET)) found = one.is_loopback && one.prefix_bits == 8;
  }
  EXPECT_TRUE(found);
}

TEST(Interfaces, WantedByNameNetworkOrAddress) {
  EXPECT_EQ(address_of("lo"), loopback(AF_INET));
  EXPECT_EQ(address_of("127.0.0.0/8"), loopback(AF_INET));
  EXPECT_EQ(address_of("127.0.0.1"), loopback(AF_INET));
  EXPECT_EQ(address_of("::1"), loopback(AF_INET6));
  EXPECT_EQ(address_of("::/3"), loopback(AF_INET6));
}

TEST(Interfaces, WantedInVainListsWhatThereIs) {
  for (const char* wanted : {"nosuch0", "203.0.113.0/24", "127.0.0.0/33", "127.0.0.0/", "::1/x",
                             "127.0.0.0/-1", "", "/8"}) {
    const std::string error = error_of([&] { address_of(wanted); });
    EXPECT_NE(error.find("MALT_INTERFACE is '" + std::string(wanted) + "'"), std::string::npos);
    EXPECT_NE(error.find("lo 127.0.0.1/8"), std::string::npos) << error;
  }
}

TEST(Interfaces, TowardsAHostIsTheWayPacketsTake) {
  EXPECT_EQ(address_toward("127.0.0.1"), loopback(AF_INET));
  EXPECT_EQ(address_toward("::1"), loopback(AF_INET6));
  EXPECT_TRUE(address_toward("localhost")->is_loopback());
  EXPECT_EQ(address_toward("no.such.host.invalid"), std::nullopt);
}

TEST(ChooseAddress, SharedNetworkIPv4First) {
  const std::vector<Interface> mine = {on("lo", "127.0.0.1", 8), on("e0", "fd00::1", 64),
                                       on("e0", "192.0.2.1", 24), on("e1", "10.1.0.1", 16)};
  EXPECT_EQ(chosen(mine, {on("lo", "127.0.0.1", 8), on("x", "10.1.9.9", 16)}), "10.1.0.1");
  EXPECT_EQ(chosen(mine, {on("x", "fd00::2", 64), on("x", "192.0.2.2", 24)}), "192.0.2.1");
  EXPECT_EQ(chosen(mine, {on("x", "fd00::2", 64)}), "fd00::1");
}

TEST(ChooseAddress, PrefixNeedNotEndAtAByte) {
  const std::vector<Interface> mine = {on("e0", "10.0.1.1", 23), on("e1", "10.0.2.1", 23)};
  EXPECT_EQ(chosen(mine, {on("x", "10.0.3.7", 23)}), "10.0.2.1");
  EXPECT_EQ(chosen(mine, {on("x", "10.0.0.7", 23)}), "10.0.1.1");
}

TEST(ChooseAddress, BridgeThatEveryHostHasJoinsNobody) {
  const std::vector<Interface> mine = {on("docker0", "172.17.0.1", 16), on("e0", "192.0.2.1", 24)};
  EXPECT_EQ(chosen(mine, {on("docker0", "172.17.0.1", 16), on("e0", "192.0.2.2", 24)}),
            "192.0.2.1");
}

TEST(ChooseAddress, OneHostTakesItsBest) {
  const std::vector<Interface> alone = {on("lo", "127.0.0.1", 8), on("lo", "::1", 128)};
  EXPECT_EQ(chosen(alone, alone), "127.0.0.1");
  const std::vector<Interface> wired = {on("lo", "127.0.0.1", 8), on("e0", "fe80::1", 64),
                                        on("e0", "192.0.2.1", 24)};
  EXPECT_EQ(chosen(wired, wired), "192.0.2.1");
  EXPECT_EQ(chosen({}, {}), "none");
}

TEST(ChooseAddress, LinkLocalIsTheLast) {
  const std::vector<Interface> mine = {on("e0", "fe80::1", 64), on("e1", "fd00::1", 64)};
  EXPECT_EQ(chosen(mine, {on("x", "fe80::2", 64), on("x", "fd00::2", 64)}), "fd00::1");
  EXPECT_EQ(chosen(mine, {on("x", "fe80::2", 64)}), "fe80::1");
}

TEST(ChooseAddress, LoopbackNeverJoinsTwoHosts) {
  EXPECT_EQ(chosen({on("lo", "127.0.0.1", 8)}, {on("lo", "127.0.0.1", 8), on("lo", "::1", 128)}),
            "none");
}

// On any machine the choice is that of the system's routes.
TEST(ChooseAddress, WithoutASharedNetworkTheRouteDecides) {
  const std::vector<Interface> mine = {on("e0", "198.51.100.1", 32)};
  const auto routed = address_toward("203.0.113.9");
  const auto choice = choose_address(mine, {on("x", "203.0.113.9", 32)});
  if (routed && !routed->is_loopback() && !routed->is_link_local()) {
    EXPECT_EQ(choice, routed);
  } else {
    EXPECT_EQ(choice, std::nullopt);
  }
}

TEST(Listen, AtTheLoopbackOfBothFamilies) {
  for (const int family : {AF_INET, AF_INET6}) {
    const auto [socket, at] = listen_at(loopback(family));
    EXPECT_NE(at.port(), 0);
    EXPECT_EQ(at.with_port(0), loopback(family));
    const Descriptor client = raw_connect(at);
    const Descriptor accepted(accept(socket.get(), nullptr, nullptr));
    EXPECT_TRUE(accepted);
    EXPECT_LT(accept(socket.get(), nullptr, nullptr), 0);  // and it does not block
    EXPECT_EQ(errno, EAGAIN);
  }
}

TEST(Listen, ElsewhereOrTwiceSaysWhatToDo) {
  const auto [socket, at] = listen_at(loopback(AF_INET));
  const std::string twice = error_of([&, taken = at] { listen_at(taken); });
  EXPECT_NE(twice.find(at.text()), std::string::npos);
  EXPECT_NE(twice.find("port 0"), std::string::npos) << twice;
  const std::string elsewhere = error_of([] { listen_at(Address::parse("203.0.113.9").value()); });
  EXPECT_NE(elsewhere.find("one of this host's"), std::string::npos) << elsewhere;
}

}  // namespace
}  // namespace dstorm::net
