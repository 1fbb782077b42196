// The listener: which callers it accepts, and that no caller keeps others out.
#include "dstorm/remote/net/listener.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>

#include "dstorm/errors.hpp"
#include "sanitizers.hpp"
#include "tcp_sockets.hpp"

namespace dstorm::net {
namespace {

using namespace std::chrono_literals;
using testing_sockets::eventually;
using testing_sockets::ListeningSocket;
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

Listener listener_at(ListeningSocket listening_socket, const TlsContext* tls = nullptr,
                     std::chrono::nanoseconds limit = 5s) {
  return Listener(std::move(listening_socket.socket), key_of(1), kOwnRank, listening_socket.at, tls,
                  limit, 5s);
}

// A rank that calls.
struct Rank {
  Rank(const Listener& listener, std::uint32_t rank, const Key& key = key_of(1),
       const TlsContext* tls = nullptr)
      : Rank(listener, rank, key, tls, loopback(listener.listening().family())) {}
  Rank(const Listener& listener, std::uint32_t rank, const Key& key, const TlsContext* tls,
       const Address& from)
      : stream(Stream::connect(listener.listening(), from, tls, 5s)),
        handshake(Handshake::caller(key, {.rank = rank, .to = kOwnRank, .number = 1},
                                    listener.listening())) {}
  Handshake::Step advance() { return handshake.advance(stream); }
  Stream stream;
  Handshake handshake;
};

// Runs the rank's call and the listener until the rank has been accepted or refused.
std::vector<Caller> let_in(Listener& listener, Rank& rank) {
  std::vector<Caller> callers;
  eventually([&] {
    const auto step = rank.advance();
    for (Caller& caller : listener.ready()) callers.push_back(std::move(caller));
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

class AnyListener : public testing::TestWithParam<std::pair<int, bool>> {};
INSTANTIATE_TEST_SUITE_P(, AnyListener,
                         testing::Values(std::pair(AF_INET, false), std::pair(AF_INET6, false),
                                         std::pair(AF_INET, true), std::pair(AF_INET6, true)));

TEST_P(AnyListener, LetsInWhoHasTheKey) {
  const auto [family, encrypted] = GetParam();
  std::optional<TlsEnds> tls;
  if (encrypted) tls.emplace();
  Listener listener = listener_at(ListeningSocket(family), tls ? &*tls->callee.context : nullptr);
  Rank rank(listener, 42, key_of(1), tls ? &*tls->caller.context : nullptr);
  std::vector<Caller> callers = let_in(listener, rank);
  ASSERT_EQ(callers.size(), 1U) << listener.last_refusal();
  EXPECT_EQ(callers[0].introduction.rank, 42U);
  std::string got;
  EXPECT_EQ(send_text(rank.stream, "frame").bytes, 5U);
  EXPECT_TRUE(eventually([&] {
    got += take_text(callers[0].stream).first;
    return got == "frame";
  }));
  EXPECT_EQ(listener.half_open(), 0U);
  EXPECT_EQ(listener.refused() + listener.dropped(), 0U);
}

TEST(Listener, ManyRanksAtOnceAllGetIn) {
  Listener listener = listener_at(ListeningSocket());
  std::vector<std::unique_ptr<Rank>> ranks;
  for (std::uint32_t r = 0; r < 60; ++r) ranks.push_back(std::make_unique<Rank>(listener, r));
  std::vector<std::uint32_t> came;
  EXPECT_TRUE(eventually([&] {
    for (const auto& rank : ranks) rank->advance();
    for (const Caller& caller : listener.ready()) came.push_back(caller.introduction.rank);
    return came.size() == ranks.size();
  }));
  std::sort(came.begin(), came.end());
  EXPECT_EQ(std::adjacent_find(came.begin(), came.end()), came.end());
}

TEST(Listener, AsManyMayBeHalfOpenAsAreExpectedAtOnce) {
  const Limit limit;
  limit.set(4096);
  Listener listener = listener_at(ListeningSocket());
  constexpr std::size_t kCallers = 100;
  listener.expect_at_once(kCallers);
  std::vector<Descriptor> silent;
  for (std::size_t i = 0; i < 3 * kCallers; ++i) {
    silent.push_back(raw_connect(listener.listening()));
    listener.ready();
  }
  EXPECT_EQ(listener.half_open(), 2 * kCallers);
}

// The engine waits for fd() alone.
TEST(Listener, IsReadableWheneverThereIsWorkAndNotElse) {
  Listener listener = listener_at(ListeningSocket());
  pollfd wait{listener.fd(), POLLIN, 0};
  EXPECT_EQ(poll(&wait, 1, 0), 0);
  Rank rank(listener, 2);
  std::vector<Caller> callers;
  int rounds = 0;
  while (callers.empty() && ++rounds < 20) {
    rank.advance();
    ASSERT_EQ(poll(&wait, 1, 5000), 1);
    callers = listener.ready();
  }
  ASSERT_EQ(callers.size(), 1U);
  EXPECT_EQ(rank.advance(), Handshake::Step::kDone);
  EXPECT_EQ(send_text(rank.stream, "frame").bytes, 5U);
  EXPECT_EQ(poll(&wait, 1, 50), 0);  // the listener does not handle the bytes that follow
  const Descriptor silent = raw_connect(listener.listening());
  ASSERT_EQ(poll(&wait, 1, 5000), 1);
  listener.ready();
  EXPECT_EQ(poll(&wait, 1, 50), 0);  // it is accepted, and sends nothing
}

// ---- Callers that are refused ----

TEST(Listener, RefusesOtherKeysAndSaysWhoItWas) {
  Listener listener = listener_at(ListeningSocket());
  Rank stranger(listener, 2, key_of(9));
  EXPECT_TRUE(let_in(listener, stranger).empty());
  EXPECT_EQ(listener.refused(), 1U);
  EXPECT_TRUE(listener.last_refusal().starts_with("127.0.0.1:")) << listener.last_refusal();
  EXPECT_NE(listener.last_refusal().find("key"), std::string::npos) << listener.last_refusal();
}

TEST(Listener, RefusesWhatIsNoRankAndAnswersNothing) {
  Listener listener = listener_at(ListeningSocket());
  const Descriptor browser = raw_connect(listener.listening());
  ASSERT_TRUE(raw_send(browser, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"));
  EXPECT_TRUE(eventually([&] { return listener.ready().empty() && listener.refused() == 1; }));
  EXPECT_EQ(raw_take(browser).value_or(""), "");
  EXPECT_EQ(listener.half_open(), 0U);
}

TEST(Listener, PlainCallerDoesNotGetThroughATlsListenerNorTlsThroughAPlainOne) {
  TlsEnds tls;
  {
    Listener listener = listener_at(ListeningSocket(), &*tls.callee.context);
    Rank rank(listener, 2);
    EXPECT_TRUE(let_in(listener, rank).empty());
    EXPECT_EQ(listener.refused(), 1U);
    EXPECT_EQ(rank.handshake.reason(), "the other end uses TLS, and this one does not");
  }
  Listener listener = listener_at(ListeningSocket());
  Rank rank(listener, 2, key_of(1), &*tls.caller.context);
  EXPECT_TRUE(let_in(listener, rank).empty());
  EXPECT_EQ(listener.refused(), 1U);
  EXPECT_NE(rank.handshake.reason().find("alert protocol version"), std::string::npos)
      << rank.handshake.reason();
}

TEST(Listener, CertificateIsNotEnoughWithoutTheKey) {
  TlsEnds tls;
  Listener listener = listener_at(ListeningSocket(), &*tls.callee.context);
  Rank rank(listener, 2, key_of(9), &*tls.caller.context);
  EXPECT_TRUE(let_in(listener, rank).empty());
  EXPECT_EQ(listener.refused(), 1U);
}

TEST(Listener, SilentOnesGoWhenTheirTimeIsUp) {
  Listener listener = listener_at(ListeningSocket(), nullptr, 100ms);
  const Descriptor silent = raw_connect(listener.listening());
  const Descriptor slow = raw_connect(listener.listening());
  ASSERT_TRUE(raw_send(slow, "MALT"));
  pollfd wait{listener.fd(), POLLIN, 0};
  const auto start = std::chrono::steady_clock::now();
  int rounds = 0;
  while (listener.dropped() < 2 && ++rounds < 20) {
    ASSERT_EQ(poll(&wait, 1, 5000), 1);  // the listener itself wakes its owner
    EXPECT_TRUE(listener.ready().empty());
  }
  EXPECT_EQ(listener.dropped(), 2U);
  EXPECT_GE(std::chrono::steady_clock::now() - start, 90ms);
  EXPECT_EQ(listener.half_open(), 0U);
  EXPECT_EQ(poll(&wait, 1, 0), 0);
}

// ---- Floods ----

TEST(Listener, ThousandHalfOpenConnectionsKeepNobodyOut) {
  const Limit limit;
  limit.set(4096);
  TlsEnds tls;
  for (const bool encrypted : {false, true}) {
    Listener listener =
        listener_at(ListeningSocket(), encrypted ? &*tls.callee.context : nullptr, 60s);
    const std::size_t descriptors = open_descriptors(), memory = resident_bytes();
    std::vector<Descriptor> flood;
    for (int i = 0; i < 1000; ++i) {
      flood.push_back(raw_connect(listener.listening()));
      if (i % 3 == 1) raw_send(flood.back(), encrypted ? "\x16\x03\x01" : "MALT");
      EXPECT_TRUE(listener.ready().empty());
      EXPECT_LE(listener.half_open(), Listener::kMostHalfOpen);
      EXPECT_LE(open_descriptors(), descriptors + flood.size() + Listener::kMostHalfOpen);
    }
    EXPECT_EQ(listener.half_open(), Listener::kMostHalfOpen);
    EXPECT_EQ(listener.dropped(), 1000 - Listener::kMostHalfOpen);
    if (!kSanitized) {  // sanitizers keep freed memory, to detect its use
      EXPECT_LT(resident_bytes(), memory + (std::size_t{64} << 20));
    }
    Rank rank(listener, 2, key_of(1), encrypted ? &*tls.caller.context : nullptr);
    EXPECT_EQ(let_in(listener, rank).size(), 1U);
  }
}

// They come all at once, before the listener looks, and more come while the rank calls.
TEST(Listener, HonestCallerGetsThroughAFloodThatGoesOn) {
  const Limit limit;
  limit.set(8192);
  Listener listener = listener_at(ListeningSocket());
  std::vector<Descriptor> flood;
  for (int i = 0; i < 300; ++i) flood.push_back(raw_connect(listener.listening()));
  Rank rank(listener, 2);
  bool came = false;
  EXPECT_TRUE(eventually([&] {
    for (int i = 0; i < 4; ++i) flood.push_back(raw_connect(listener.listening()));
    if (flood.size() > 2000) flood.erase(flood.begin(), flood.begin() + 1000);
    rank.advance();
    came |= !listener.ready().empty();
    return came;
  }));
}

// Bytes that a stranger can send again and again, and that only TLS can tell from a rank's.
std::string client_hello(const TlsContext& tls) {
  const ListeningSocket listening_socket;
  Stream stream = Stream::connect(listening_socket.at, loopback(AF_INET), &tls, 5s);
  const Descriptor raw = listening_socket.accept();
  std::string hello;
  EXPECT_TRUE(eventually([&] {
    stream.send({});
    hello += raw_take(raw).value_or("");
    return !hello.empty();
  }));
  return hello;
}

// Strangers that send a hello, `how_many` at a time. Only the newest stay.
struct Flood {
  void come(const Listener& listener, int how_many) {
    calls += static_cast<std::uint64_t>(how_many);
    for (int i = 0; i < how_many; ++i) {
      strangers.push_back(raw_connect(listener.listening()));
      raw_send(strangers.back(), hello);
    }
    if (strangers.size() > 500) strangers.erase(strangers.begin(), strangers.begin() + 300);
  }
  // The number of these strangers with which the listener has made a handshake.
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

// A simulated processor on which everything takes many times as long, so that small floods are
// enough.
std::function<std::chrono::nanoseconds()> slowed(int times) {
  return [times] { return times * thread_processor_time(); };
}

Listener slow_listener_at(ListeningSocket listening_socket, const TlsContext& tls, int times) {
  return Listener(std::move(listening_socket.socket), key_of(1), kOwnRank, listening_socket.at,
                  &tls, 60s, 5s, slowed(times));
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
TEST(Listener, FloodOfTlsHandshakesTakesATenthOfAProcessor) {
  const Limit limit;
  limit.set(4096);
  TlsEnds tls;
  Flood flood{client_hello(*tls.caller.context), {}, 0};
  constexpr int kTimes = 20;
  Listener listener = slow_listener_at(ListeningSocket(), *tls.callee.context, kTimes);
  std::chrono::nanoseconds used{}, longest{};
  const auto start = Clock::now();
  for (int i = 0; i < 500; ++i) {
    flood.come(listener, 1);
    const auto before = thread_processor_time();
    listener.ready();
    const auto turn = kTimes * (thread_processor_time() - before);
    used += turn;
    longest = std::max(longest, turn);
  }
  // The time saved up, the time earned since, and one call, whose length is not known before its
  // end; and half as much again for the work that the listener does not measure. All calls together
  // would take several times that.
  const auto allowed = Listener::kMostSaved + (Clock::now() - start) / Listener::kShare + longest;
  EXPECT_LE(used, allowed * 3 / 2);
  EXPECT_LE(listener.half_open(), Listener::kMostHalfOpen);
}

TEST(Listener, RestsWithoutAWordAndGoesOnByItself) {
  const Limit limit;
  limit.set(4096);
  TlsEnds tls;
  Flood flood{client_hello(*tls.caller.context), {}, 0};
  Listener listener = slow_listener_at(ListeningSocket(), *tls.callee.context, 300);
  pollfd wait{listener.fd(), POLLIN, 0};
  flood.come(listener, 40);
  while (poll(&wait, 1, 0) == 1) listener.ready();
  const auto answered = flood.answered();
  EXPECT_LT(answered, 40);
  listener.ready();  // although it is called
  EXPECT_EQ(flood.answered(), answered);
  EXPECT_TRUE(eventually([&] {
    if (poll(&wait, 1, 5000) == 1) listener.ready();
    return flood.answered() > answered;
  }));
}

// D2. The rank's first call is accepted, whatever comes from other addresses.
TEST(Listener, HostOfTheJobHasItsTurnInAFlood) {
  const Limit limit;
  limit.set(4096);
  TlsEnds tls;
  Flood flood{client_hello(*tls.caller.context), {}, 0};
  Listener listener = slow_listener_at(ListeningSocket(), *tls.callee.context, kSanitized ? 1 : 20);
  const Address host = Address::parse("127.0.0.2").value();
  listener.expect(std::array{host});
  flood.come(listener, 200);
  EXPECT_TRUE(eventually([&] {  // the saved time is spent, and the queue is empty
    listener.ready();
    return listener.dropped() + listener.half_open() == flood.strangers.size();
  }));
  for (std::uint32_t call = 0; call < 3; ++call) {
    Rank rank(listener, call, key_of(1), &*tls.caller.context, host);
    rank.advance();
    const auto before = flood.answered();
    flood.come(listener, 20);
    std::vector<Caller> callers;
    ASSERT_TRUE(eventually([&] {
      for (Caller& caller : listener.ready()) callers.push_back(std::move(caller));
      return rank.advance() != Handshake::Step::kWaiting;
    }));
    EXPECT_EQ(rank.advance(), Handshake::Step::kDone) << rank.handshake.reason();
    EXPECT_EQ(callers.size(), 1U);
    EXPECT_LE(flood.answered() - before, 8);
  }
}

// D3. A rank at the address of the flood is accepted as well, if it calls again and again.
TEST(Listener, RankGetsInAmongOthersOfItsAddress) {
  const Limit limit;
  limit.set(4096);
  TlsEnds tls;
  Flood flood{client_hello(*tls.caller.context), {}, 0};
  Listener listener = slow_listener_at(ListeningSocket(), *tls.callee.context, kSanitized ? 1 : 4);
  std::optional<Rank> rank;
  EXPECT_TRUE(eventually([&] {
    if (!rank || rank->advance() == Handshake::Step::kRefused) {
      rank.emplace(listener, 2, key_of(1), &*tls.caller.context);
    }
    // More would not fit into the system's queue while the listener rests.
    if (flood.calls < listener.dropped() + listener.refused() + listener.half_open() + 50)
      flood.come(listener, 4);
    return !listener.ready().empty();
  }));
}

// D3. Each listener answers one of the calls that wait for it. If it went by their age, or by the
// order in which the system reports them, all listeners would answer the same one.
TEST(Listener, CallsOfOneOriginAreAnsweredInRandomOrder) {
  constexpr int kCalls = 16;
  std::set<int> answered;
  for (int round = 0; round < 8; ++round) {
    ListeningSocket socket;
    auto time = std::chrono::nanoseconds::zero();  // each look at it takes a turn
    Listener listener(std::move(socket.socket), key_of(1), kOwnRank, socket.at, nullptr, 5s, 5s,
                      [&] { return time += Listener::kTurn; });
    std::vector<Descriptor> calls;
    for (int i = 0; i < kCalls; ++i) {
      calls.push_back(raw_connect(listener.listening()));
      ASSERT_TRUE(raw_send(calls.back(), "GET / HTTP/1.1\r\nHost: x\r\n\r\n"));
    }
    ASSERT_TRUE(eventually([&] { return listener.ready().empty() && listener.refused() == 1; }));
    for (int i = 0; i < kCalls; ++i) {
      pollfd ended{calls[static_cast<std::size_t>(i)].get(), POLLIN, 0};
      if (poll(&ended, 1, 0) == 1) answered.insert(i);
    }
  }
  EXPECT_GT(answered.size(), 1U);
}

// D4.
TEST(Listener, AnsweredConnectionDoesNotMakeWayForNewcomers) {
  const Limit limit;
  limit.set(4096);
  TlsEnds tls;
  Listener listener = listener_at(ListeningSocket(), &*tls.callee.context, 60s);
  Rank rank(listener, 2, key_of(1), &*tls.caller.context);
  EXPECT_TRUE(eventually([&] {
    rank.advance();
    listener.ready();
    pollfd wait{rank.stream.fd(), POLLIN, 0};
    return poll(&wait, 1, 0) == 1;
  }));
  std::vector<Descriptor> silent;
  for (std::size_t i = 0; i < 3 * Listener::kMostHalfOpen; ++i) {
    silent.push_back(raw_connect(listener.listening()));
    listener.ready();
  }
  EXPECT_TRUE(eventually(
      [&] { return listener.ready().empty() && listener.dropped() > silent.size() / 2; }));
  EXPECT_EQ(let_in(listener, rank).size(), 1U) << rank.handshake.reason();
}

TEST(Listener, WithoutADescriptorItPausesAndThenGoesOn) {
  const Limit limit;
  Listener listener = listener_at(ListeningSocket());
  Rank rank(listener, 2);
  pollfd wait{listener.fd(), POLLIN, 0};
  ASSERT_EQ(poll(&wait, 1, 5000), 1);
  limit.set(static_cast<rlim_t>(rank.stream.fd()) + 1);  // all below are taken
  const auto start = std::chrono::steady_clock::now();
  for (int round = 0; round < 6; ++round) {
    ASSERT_EQ(poll(&wait, 1, 5000), 1);  // it tries again
    EXPECT_TRUE(listener.ready().empty());
  }
  EXPECT_GE(std::chrono::steady_clock::now() - start, 200ms);  // and does not spin
  EXPECT_EQ(listener.half_open(), 0U);
  limit.set(1024);
  EXPECT_EQ(let_in(listener, rank).size(), 1U);
}

TEST(Listener, CallersThatAreGoneBeforeTheyAreSeenDoNoHarm) {
  Listener listener = listener_at(ListeningSocket());
  for (int i = 0; i < 50; ++i) {
    const Descriptor gone = raw_connect(listener.listening());
    const linger at_once{1, 0};
    setsockopt(gone.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  }
  Rank rank(listener, 2);
  EXPECT_EQ(let_in(listener, rank).size(), 1U);
  EXPECT_TRUE(eventually([&] { return listener.ready().empty() && listener.half_open() == 0; }));
}

}  // namespace
}  // namespace dstorm::net
