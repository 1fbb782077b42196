// The door: who gets in, and that nobody keeps others out.
#include "dstorm/remote/tcp/listener.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <functional>

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
      : Rank(door, rank, key, tls, loopback(door.listening().family())) {}
  Rank(const Door& door, std::uint32_t rank, const Key& key, const TlsContext* tls,
       const Address& from)
      : stream(Stream::connect(door.listening(), from, tls, 5s)),
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

// What a stranger can send over and over, and only TLS itself can tell from a rank's.
std::string client_hello(const TlsContext& tls) {
  const Listener listener;
  Stream stream = Stream::connect(listener.at, loopback(AF_INET), &tls, 5s);
  const Descriptor raw = listener.accept();
  std::string hello;
  EXPECT_TRUE(eventually([&] {
    stream.send({});
    hello += raw_take(raw).value_or("");
    return !hello.empty();
  }));
  return hello;
}

// Strangers that say hello, so many at a time; only the newest stay.
struct Flood {
  void come(const Door& door, int how_many) {
    calls += static_cast<std::uint64_t>(how_many);
    for (int i = 0; i < how_many; ++i) {
      strangers.push_back(raw_connect(door.listening()));
      raw_send(strangers.back(), hello);
    }
    if (strangers.size() > 500) strangers.erase(strangers.begin(), strangers.begin() + 300);
  }
  // How many of those that are there the door has shaken hands with.
  std::ptrdiff_t answered() const {
    return std::count_if(strangers.begin(), strangers.end(), [](const Descriptor& stranger) {
      char byte = 0;
      return recv(stranger.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1;
    });
  }
  std::string hello;
  std::vector<Descriptor> strangers;
  std::uint64_t calls = 0;
};

// A processor on which everything takes so many times as long, to have floods that are small.
std::function<std::chrono::nanoseconds()> slowed(int times) {
  return [times] { return times * thread_processor_time(); };
}

Door slow_door_at(Listener listener, const TlsContext& tls, int times) {
  return Door(std::move(listener.socket), key_of(1), kOwnRank, listener.at, &tls, 60s, 5s,
              slowed(times));
}

TEST(ProcessorBudget, FillsSteadilyUpToWhatItHeldAtFirst) {
  const Clock::time_point start{};
  ProcessorBudget budget(10, 500ms, start);
  EXPECT_EQ(budget.has_at(1ms), start);
  budget.spend(400ms, start);
  EXPECT_EQ(budget.has_at(100ms), start);
  EXPECT_EQ(budget.has_at(101ms), start + 10ms);
  budget.spend(0ms, start + 1h);
  EXPECT_EQ(budget.has_at(500ms), start + 1h);
  EXPECT_EQ(budget.has_at(501ms), start + 1h + 10ms);
}

TEST(ProcessorBudget, OwesWhatIsSpentBeyondIt) {
  const Clock::time_point start{};
  ProcessorBudget budget(10, 500ms, start);
  budget.spend(700ms, start);
  EXPECT_EQ(budget.has_at(1ms), start + 2010ms);
  budget.spend(0ms, start + 1s);
  EXPECT_EQ(budget.has_at(1ms), start + 2010ms);
}

// D1.
TEST(Door, FloodOfTlsHandshakesTakesATenthOfAProcessor) {
  const Limit limit;
  limit.set(4096);
  TlsEnds tls;
  Flood flood{client_hello(*tls.caller.context), {}, 0};
  constexpr int kTimes = 20;
  Door door = slow_door_at(Listener(), *tls.callee.context, kTimes);
  std::chrono::nanoseconds used{}, longest{};
  const auto start = Clock::now();
  for (int i = 0; i < 500; ++i) {
    flood.come(door, 1);
    const auto before = thread_processor_time();
    door.ready();
    const auto turn = kTimes * (thread_processor_time() - before);
    used += turn;
    longest = std::max(longest, turn);
  }
  // Saved up, earned since, and what nobody knows before it is done; half as much again for what the
  // door does not see of itself. All of them would take several times that.
  const auto allowed = Door::kMostSaved + (Clock::now() - start) / Door::kShare + longest;
  EXPECT_LE(used, allowed * 3 / 2);
  EXPECT_LE(door.half_open(), Door::kMostHalfOpen);
}

TEST(Door, RestsWithoutAWordAndGoesOnByItself) {
  const Limit limit;
  limit.set(4096);
  TlsEnds tls;
  Flood flood{client_hello(*tls.caller.context), {}, 0};
  Door door = slow_door_at(Listener(), *tls.callee.context, 300);
  pollfd wait{door.fd(), POLLIN, 0};
  flood.come(door, 40);
  while (poll(&wait, 1, 0) == 1) door.ready();
  const auto answered = flood.answered();
  EXPECT_LT(answered, 40);
  door.ready();  // though it is asked
  EXPECT_EQ(flood.answered(), answered);
  EXPECT_TRUE(eventually([&] {
    if (poll(&wait, 1, 5000) == 1) door.ready();
    return flood.answered() > answered;
  }));
}

// D2. The rank's first call is in, whatever comes from elsewhere.
TEST(Door, HostOfTheJobHasItsTurnInAFlood) {
  const Limit limit;
  limit.set(4096);
  TlsEnds tls;
  Flood flood{client_hello(*tls.caller.context), {}, 0};
  Door door = slow_door_at(Listener(), *tls.callee.context, kSanitized ? 1 : 20);
  const Address host = Address::parse("127.0.0.2").value();
  door.expect(std::array{host});
  flood.come(door, 200);
  EXPECT_TRUE(eventually([&] {  // what was saved up is spent, and the queue is empty
    door.ready();
    return door.dropped() + door.half_open() == flood.strangers.size();
  }));
  for (std::uint32_t call = 0; call < 3; ++call) {
    Rank rank(door, call, key_of(1), &*tls.caller.context, host);
    rank.advance();
    const auto before = flood.answered();
    flood.come(door, 20);
    std::vector<Caller> callers;
    ASSERT_TRUE(eventually([&] {
      for (Caller& caller : door.ready()) callers.push_back(std::move(caller));
      return rank.advance() != Handshake::Step::kWaiting;
    }));
    EXPECT_EQ(rank.advance(), Handshake::Step::kDone) << rank.handshake.reason();
    EXPECT_EQ(callers.size(), 1U);
    EXPECT_LE(flood.answered() - before, 8);
  }
}

// D3. From the very address of the flood a rank gets in as well, if it calls again and again.
TEST(Door, RankGetsInAmongOthersOfItsAddress) {
  const Limit limit;
  limit.set(4096);
  TlsEnds tls;
  Flood flood{client_hello(*tls.caller.context), {}, 0};
  Door door = slow_door_at(Listener(), *tls.callee.context, kSanitized ? 1 : 10);
  std::optional<Rank> rank;
  EXPECT_TRUE(eventually([&] {
    if (!rank || rank->advance() == Handshake::Step::kRefused) {
      rank.emplace(door, 2, key_of(1), &*tls.caller.context);
    }
    // More would not fit into the system's queue while the door rests.
    if (flood.calls < door.dropped() + door.refused() + door.half_open() + 50) flood.come(door, 4);
    return !door.ready().empty();
  }));
}

// D4.
TEST(Door, WhoHasBeenAnsweredDoesNotMakeWayForNewcomers) {
  const Limit limit;
  limit.set(4096);
  TlsEnds tls;
  Door door = door_at(Listener(), &*tls.callee.context, 60s);
  Rank rank(door, 2, key_of(1), &*tls.caller.context);
  EXPECT_TRUE(eventually([&] {
    rank.advance();
    door.ready();
    pollfd wait{rank.stream.fd(), POLLIN, 0};
    return poll(&wait, 1, 0) == 1;
  }));
  std::vector<Descriptor> silent;
  for (std::size_t i = 0; i < 3 * Door::kMostHalfOpen; ++i) {
    silent.push_back(raw_connect(door.listening()));
    door.ready();
  }
  EXPECT_TRUE(
      eventually([&] { return door.ready().empty() && door.dropped() > silent.size() / 2; }));
  EXPECT_EQ(let_in(door, rank).size(), 1U) << rank.handshake.reason();
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
