// The door: who gets in, and that nobody keeps others out.
#include "dstorm/tcp/door.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "dstorm/errors.hpp"
#include "sanitizers.hpp"
#include "tcp_sockets.hpp"

namespace dstorm::tcp {
namespace {

using namespace std::chrono_literals;
using testing_sockets::eventually;
using testing_sockets::Listener;
using testing_sockets::loopback;
using testing_sockets::raw_connect;
using testing_sockets::raw_send;
using testing_sockets::raw_take;
using testing_sockets::send_text;
using testing_sockets::take_text;
using testing_sockets::TlsEnds;

constexpr std::uint32_t kOwnRank = 1;

Key key_of(std::uint8_t fill) {
  Key key;
  key.fill(std::byte{fill});
  return key;
}

Door door_at(Listener listener, const TlsContext* tls = nullptr,
             std::chrono::nanoseconds limit = 5s) {
  return Door(std::move(listener.socket), key_of(1), kOwnRank, listener.at, tls, limit, 5s);
}

// A rank that calls.
struct Rank {
  Rank(const Door& door, std::uint32_t rank, const Key& key = key_of(1),
       const TlsContext* tls = nullptr)
      : stream(Stream::connect(door.listening(), loopback(door.listening().family()), tls, 5s)),
        handshake(Handshake::caller(key, {.rank = rank, .to = kOwnRank, .number = 1},
                                    door.listening())) {}
  Handshake::Step advance() { return handshake.advance(stream); }
  Stream stream;
  Handshake handshake;
};

// Has the rank's call and the door go on until the rank is through, or refused.
std::vector<Caller> let_in(Door& door, Rank& rank) {
  std::vector<Caller> callers;
  eventually([&] {
    const auto step = rank.advance();
    for (Caller& caller : door.ready()) callers.push_back(std::move(caller));
    return step == Handshake::Step::kRefused ||
           (step == Handshake::Step::kDone && !callers.empty());
  });
  return callers;
}

std::size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

std::size_t resident_bytes() {
  std::size_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * 4096;
}

class Limit {  // on open files, for one test
 public:
  Limit() { getrlimit(RLIMIT_NOFILE, &before_); }
  ~Limit() { setrlimit(RLIMIT_NOFILE, &before_); }
  Limit(const Limit&) = delete;
  Limit& operator=(const Limit&) = delete;
  void set(rlim_t files) const {
    const rlimit now{std::min(files, before_.rlim_max), before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &now);
  }

 private:
  rlimit before_{};
};

class AnyDoor : public testing::TestWithParam<std::pair<int, bool>> {};
INSTANTIATE_TEST_SUITE_P(, AnyDoor,
                         testing::Values(std::pair(AF_INET, false), std::pair(AF_INET6, false),
                                         std::pair(AF_INET, true), std::pair(AF_INET6, true)));

TEST_P(AnyDoor, LetsInWhoHasTheKey) {
  const auto [family, encrypted] = GetParam();
  std::optional<TlsEnds> tls;
  if (encrypted) tls.emplace();
  Door door = door_at(Listener(family), tls ? &*tls->callee.context : nullptr);
  Rank rank(door, 42, key_of(1), tls ? &*tls->caller.context : nullptr);
  std::vector<Caller> callers = let_in(door, rank);
  ASSERT_EQ(callers.size(), 1U) << door.last_refusal();
  EXPECT_EQ(callers[0].introduction.rank, 42U);
  std::string got;
  EXPECT_EQ(send_text(rank.stream, "frame").bytes, 5U);
  EXPECT_TRUE(eventually([&] {
    got += take_text(callers[0].stream).first;
    return got == "frame";
  }));
  EXPECT_EQ(door.half_open(), 0U);
  EXPECT_EQ(door.refused() + door.dropped(), 0U);
}

TEST(Door, ManyRanksAtOnceAllGetIn) {
  Door door = door_at(Listener());
  std::vector<std::unique_ptr<Rank>> ranks;
  for (std::uint32_t r = 0; r < 60; ++r) ranks.push_back(std::make_unique<Rank>(door, r));
  std::vector<std::uint32_t> came;
  EXPECT_TRUE(eventually([&] {
    for (const auto& rank : ranks) rank->advance();
    for (const Caller& caller : door.ready()) came.push_back(caller.introduction.rank);
    return came.size() == ranks.size();
  }));
  std::sort(came.begin(), came.end());
  EXPECT_EQ(std::adjacent_find(came.begin(), came.end()), came.end());
}

// The engine waits for fd() alone.
TEST(Door, IsReadableWheneverThereIsWorkAndNotElse) {
  Door door = door_at(Listener());
  pollfd wait{door.fd(), POLLIN, 0};
  EXPECT_EQ(poll(&wait, 1, 0), 0);
  Rank rank(door, 2);
  std::vector<Caller> callers;
  int rounds = 0;
  while (callers.empty() && ++rounds < 20) {
    rank.advance();
    ASSERT_EQ(poll(&wait, 1, 5000), 1);
    callers = door.ready();
  }
  ASSERT_EQ(callers.size(), 1U);
  EXPECT_EQ(rank.advance(), Handshake::Step::kDone);
  EXPECT_EQ(send_text(rank.stream, "frame").bytes, 5U);
  EXPECT_EQ(poll(&wait, 1, 50), 0);  // what follows is none of the door's business
  const Descriptor silent = raw_connect(door.listening());
  ASSERT_EQ(poll(&wait, 1, 5000), 1);
  door.ready();
  EXPECT_EQ(poll(&wait, 1, 50), 0);  // it is taken in, and says nothing
}

// ---- Who is not let in -----------------------------------------------------------------------------

TEST(Door, RefusesOtherKeysAndSaysWhoItWas) {
  Door door = door_at(Listener());
  Rank stranger(door, 2, key_of(9));
  EXPECT_TRUE(let_in(door, stranger).empty());
  EXPECT_EQ(door.refused(), 1U);
  EXPECT_TRUE(door.last_refusal().starts_with("127.0.0.1:")) << door.last_refusal();
  EXPECT_NE(door.last_refusal().find("key"), std::string::npos) << door.last_refusal();
}

TEST(Door, RefusesWhatIsNoRankAndAnswersNothing) {
  Door door = door_at(Listener());
  const Descriptor browser = raw_connect(door.listening());
  ASSERT_TRUE(raw_send(browser, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"));
  EXPECT_TRUE(eventually([&] { return door.ready().empty() && door.refused() == 1; }));
  EXPECT_EQ(raw_take(browser).value_or(""), "");
  EXPECT_EQ(door.half_open(), 0U);
}

TEST(Door, PlainCallerDoesNotGetThroughATlsDoorNorTlsThroughAPlainOne) {
  TlsEnds tls;
  {
    Door door = door_at(Listener(), &*tls.callee.context);
    Rank rank(door, 2);
    EXPECT_TRUE(let_in(door, rank).empty());
    EXPECT_EQ(door.refused(), 1U);
  }
  Door door = door_at(Listener());
  Rank rank(door, 2, key_of(1), &*tls.caller.context);
  EXPECT_TRUE(let_in(door, rank).empty());
  EXPECT_EQ(door.refused(), 1U);
}

TEST(Door, CertificateIsNotEnoughWithoutTheKey) {
  TlsEnds tls;
  Door door = door_at(Listener(), &*tls.callee.context);
  Rank rank(door, 2, key_of(9), &*tls.caller.context);
  EXPECT_TRUE(let_in(door, rank).empty());
  EXPECT_EQ(door.refused(), 1U);
}

TEST(Door, SilentOnesGoWhenTheirTimeIsUp) {
  Door door = door_at(Listener(), nullptr, 100ms);
  const Descriptor silent = raw_connect(door.listening());
  const Descriptor slow = raw_connect(door.listening());
  ASSERT_TRUE(raw_send(slow, "MALT"));
  pollfd wait{door.fd(), POLLIN, 0};
  const auto start = std::chrono::steady_clock::now();
  int rounds = 0;
  while (door.dropped() < 2 && ++rounds < 20) {
    ASSERT_EQ(poll(&wait, 1, 5000), 1);  // the door itself wakes its owner
    EXPECT_TRUE(door.ready().empty());
  }
  EXPECT_EQ(door.dropped(), 2U);
  EXPECT_GE(std::chrono::steady_clock::now() - start, 90ms);
  EXPECT_EQ(door.half_open(), 0U);
  EXPECT_EQ(poll(&wait, 1, 0), 0);
}

// ---- Floods ----------------------------------------------------------------------------------------

TEST(Door, ThousandHalfOpenConnectionsKeepNobodyOut) {
  const Limit limit;
  limit.set(4096);
  TlsEnds tls;
  for (const bool encrypted : {false, true}) {
    Door door = door_at(Listener(), encrypted ? &*tls.callee.context : nullptr, 60s);
    const std::size_t descriptors = open_descriptors(), memory = resident_bytes();
    std::vector<Descriptor> flood;
    for (int i = 0; i < 1000; ++i) {
      flood.push_back(raw_connect(door.listening()));
      if (i % 3 == 1) raw_send(flood.back(), encrypted ? "\x16\x03\x01" : "MALT");
      EXPECT_TRUE(door.ready().empty());
      EXPECT_LE(door.half_open(), Door::kMostHalfOpen);
      EXPECT_LE(open_descriptors(), descriptors + flood.size() + Door::kMostHalfOpen);
    }
    EXPECT_EQ(door.half_open(), Door::kMostHalfOpen);
    EXPECT_EQ(door.dropped(), 1000 - Door::kMostHalfOpen);
    if (!kSanitized) {  // which hold back what is freed, to see it used
      EXPECT_LT(resident_bytes(), memory + (std::size_t{64} << 20));
    }
    Rank rank(door, 2, key_of(1), encrypted ? &*tls.caller.context : nullptr);
    EXPECT_EQ(let_in(door, rank).size(), 1U);
  }
}

// They come all at once, before the door looks, and go on coming while the rank calls.
TEST(Door, HonestCallerGetsThroughAFloodThatGoesOn) {
  const Limit limit;
  limit.set(8192);
  Door door = door_at(Listener());
  std::vector<Descriptor> flood;
  for (int i = 0; i < 300; ++i) flood.push_back(raw_connect(door.listening()));
  Rank rank(door, 2);
  bool came = false;
  EXPECT_TRUE(eventually([&] {
    for (int i = 0; i < 4; ++i) flood.push_back(raw_connect(door.listening()));
    if (flood.size() > 2000) flood.erase(flood.begin(), flood.begin() + 1000);
    rank.advance();
    came |= !door.ready().empty();
    return came;
  }));
}

TEST(Door, WithoutADescriptorItPausesAndThenGoesOn) {
  const Limit limit;
  Door door = door_at(Listener());
  Rank rank(door, 2);
  pollfd wait{door.fd(), POLLIN, 0};
  ASSERT_EQ(poll(&wait, 1, 5000), 1);
  limit.set(static_cast<rlim_t>(rank.stream.fd()) + 1);  // all below are taken
  const auto start = std::chrono::steady_clock::now();
  for (int round = 0; round < 6; ++round) {
    ASSERT_EQ(poll(&wait, 1, 5000), 1);  // it tries again
    EXPECT_TRUE(door.ready().empty());
  }
  EXPECT_GE(std::chrono::steady_clock::now() - start, 200ms);  // and does not spin
  EXPECT_EQ(door.half_open(), 0U);
  limit.set(1024);
  EXPECT_EQ(let_in(door, rank).size(), 1U);
}

TEST(Door, CallersThatAreGoneBeforeTheyAreSeenDoNoHarm) {
  Door door = door_at(Listener());
  for (int i = 0; i < 50; ++i) {
    const Descriptor gone = raw_connect(door.listening());
    const linger at_once{1, 0};
    setsockopt(gone.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  }
  Rank rank(door, 2);
  EXPECT_EQ(let_in(door, rank).size(), 1U);
  EXPECT_TRUE(eventually([&] { return door.ready().empty() && door.half_open() == 0; }));
}

}  // namespace
}  // namespace dstorm::tcp
