// The handshake, honest and under attack, over real sockets.
#include "dstorm/remote/net/handshake.hpp"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "tcp_sockets.hpp"

namespace dstorm::net {
namespace {

using testing_sockets::eventually;
using testing_sockets::ListeningSocket;
using testing_sockets::loopback;
using testing_sockets::Pair;
using testing_sockets::raw_connect;
using testing_sockets::raw_send;
using testing_sockets::raw_take;
using testing_sockets::send_text;
using testing_sockets::take_text;
using namespace std::chrono_literals;
using testing_sockets::TlsEnds;
using Step = Handshake::Step;

constexpr std::size_t kHelloBytes = 44, kProofBytes = 48, kAnswerBytes = 32;
constexpr std::uint32_t kCallerRank = 3, kCalleeRank = 7;
const Introduction kMine{.rank = kCallerRank, .to = kCalleeRank, .number = 11};

Key key_of(std::uint8_t fill) {
  Key key;
  key.fill(std::byte{fill});
  return key;
}
Address place() { return Address::parse("192.0.2.9", 41000).value(); }

// The handshake of one end and its stream, which is closed on a refusal, as in a listener.
struct End {
  Handshake handshake;
  std::optional<Stream> stream;
  Step step = Step::kWaiting;

  bool settled() const { return step != Step::kWaiting; }
  void go() {
    if (settled()) return;
    step = handshake.advance(*stream);
    if (step == Step::kRefused) stream.reset();
  }
};

End caller_end(Stream stream, const Key& key = key_of(1), const Introduction& mine = kMine,
               const Address& listening = place()) {
  return {Handshake::caller(key, mine, listening), std::move(stream)};
}
End callee_end(Stream stream, const Key& key = key_of(1), std::uint32_t rank = kCalleeRank,
               const Address& listening = place()) {
  return {Handshake::callee(key, rank, listening), std::move(stream)};
}

bool settle(End& a, End& b) {
  return eventually([&] {
    a.go();
    b.go();
    return a.settled() && b.settled();
  });
}

void expect_both_refuse(End caller, End callee, const char* caller_why, const char* callee_why) {
  ASSERT_TRUE(settle(caller, callee));
  EXPECT_EQ(caller.step, Step::kRefused);
  EXPECT_EQ(callee.step, Step::kRefused);
  EXPECT_NE(caller.handshake.reason().find(caller_why), std::string::npos)
      << caller.handshake.reason();
  EXPECT_NE(callee.handshake.reason().find(callee_why), std::string::npos)
      << callee.handshake.reason();
}

void expect_refused(End& end, const char* why) {
  EXPECT_TRUE(eventually([&] {
    end.go();
    return end.settled();
  }));
  EXPECT_EQ(end.step, Step::kRefused);
  EXPECT_NE(end.handshake.reason().find(why), std::string::npos) << end.handshake.reason();
}

// A stream and the raw socket at its other end.
struct Tapped {
  explicit Tapped(bool calls, const TlsContext* tls = nullptr) {
    const ListeningSocket listener;
    if (calls) {
      stream.emplace(Stream::connect(listener.at, loopback(AF_INET), tls, 5s));
      raw = listener.accept();
    } else {
      raw = raw_connect(listener.at);
      stream.emplace(Stream::accept(listener.accept(), tls, 5s));
    }
  }
  std::optional<Stream> stream;
  Descriptor raw;
};

// An attacker between a caller and a callee, who sees all bytes and may change them.
class Wire {
 public:
  // `change(to_callee, at, bytes)` gets each piece and its offset in that direction. A piece that
  // it makes shorter is the last one.
  using Change = std::function<void(bool to_callee, std::size_t at, std::string& bytes)>;

  explicit Wire(const Change& change = nullptr)
      : to_caller_(true),
        to_callee_(false),
        caller_(caller_end(std::move(*to_caller_.stream))),
        callee_(callee_end(std::move(*to_callee_.stream))) {
    EXPECT_TRUE(eventually([&] {
      caller_.go();
      callee_.go();
      carry(to_caller_.raw, to_callee_.raw, true, change);
      carry(to_callee_.raw, to_caller_.raw, false, change);
      return caller_.settled() && callee_.settled();
    }));
  }
  const End& caller() const { return caller_; }
  const End& callee() const { return callee_; }
  const std::string& said_by_caller() const { return seen_[1]; }
  const std::string& said_by_callee() const { return seen_[0]; }

 private:
  void carry(const Descriptor& from, const Descriptor& to, bool to_callee, const Change& change) {
    auto bytes = raw_take(from);
    if (!bytes) {
      ::shutdown(to.get(), SHUT_WR);
      return;
    }
    if (bytes->empty()) return;
    const std::size_t at = seen_[to_callee].size();
    seen_[to_callee] += *bytes;
    const std::size_t size = bytes->size();
    if (change) change(to_callee, at, *bytes);
    raw_send(to, *bytes);
    if (bytes->size() < size) ::shutdown(to.get(), SHUT_WR);  // the connection is cut off here
  }

  Tapped to_caller_, to_callee_;
  End caller_, callee_;
  std::string seen_[2];
};

TEST(Authenticate, IsHmacSha256) {  // RFC 4231, test 1: HMAC itself pads a key with zeros
  Key key{};
  std::fill_n(key.begin(), 20, std::byte{0x0b});
  const Mac mac = authenticate(key, std::as_bytes(std::span("Hi There", 8)));
  constexpr unsigned char kRight[] = {0xb0, 0x34, 0x4c, 0x61, 0xd8, 0xdb, 0x38, 0x53,
                                      0x5c, 0xa8, 0xaf, 0xce, 0xaf, 0x0b, 0xf1, 0x2b,
                                      0x88, 0x1d, 0xc2, 0x00, 0xc9, 0x83, 0x3d, 0xa7,
                                      0x26, 0xe9, 0x37, 0x6c, 0x2e, 0x32, 0xcf, 0xf7};
  EXPECT_EQ(std::memcmp(mac.data(), kRight, sizeof(kRight)), 0);
}

// The bytes that a core dump of this process would have: all its memory except the mappings that
// are marked as not to be dumped.
std::size_t times_in_core(std::span<const std::byte> sought) {
  std::ifstream maps("/proc/self/smaps");
  const Descriptor memory(open("/proc/self/mem", O_RDONLY | O_CLOEXEC));
  std::size_t times = 0, begin = 0, end = 0;
  for (std::string line; std::getline(maps, line);) {
    std::size_t from = 0, to = 0;
    if (std::sscanf(line.c_str(), "%zx-%zx ", &from, &to) == 2) {
      begin = from;
      end = to;
    }
    const bool is_dumped = line.starts_with("VmFlags: rd") && line.find(" dd") == std::string::npos;
    if (!is_dumped) continue;
    std::vector<std::byte> bytes(end - begin);
    const ssize_t got = pread(memory.get(), bytes.data(), bytes.size(), static_cast<off_t>(begin));
    bytes.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    std::span<const std::byte> rest(bytes);
    while (const void* at = memmem(rest.data(), rest.size(), sought.data(), sought.size())) {
      rest = rest.subspan(
          static_cast<std::size_t>(static_cast<const std::byte*>(at) - rest.data()) + 1);
      ++times;
    }
  }
  return times;
}

TEST(KeptKey, IsLeftOutOfCoreDumps) {
  const KeptKey key(make_key());
  const Key& kept = key;
  const Handshake handshake = Handshake::callee(key, kCalleeRank, place());
  EXPECT_EQ(times_in_core(kept), 0U);
  const Key copy = kept;  // to show that the search would find it
  EXPECT_GE(times_in_core(copy), 1U);
}

TEST(MakeKey, IsAnotherEachTime) { EXPECT_NE(make_key(), make_key()); }

class Honest : public testing::TestWithParam<std::pair<int, bool>> {};
INSTANTIATE_TEST_SUITE_P(, Honest,
                         testing::Values(std::pair(AF_INET, false), std::pair(AF_INET6, false),
                                         std::pair(AF_INET, true), std::pair(AF_INET6, true)));

TEST_P(Honest, EndsKnowEachOtherAndWhatFollowsIsLeftAlone) {
  const auto [family, encrypted] = GetParam();
  std::optional<TlsEnds> tls;
  if (encrypted) tls.emplace();
  Pair pair(family, tls ? &*tls->caller.context : nullptr, tls ? &*tls->callee.context : nullptr);
  End caller = caller_end(std::move(*pair.caller));
  End callee = callee_end(std::move(*pair.callee));
  // The first frame arrives before the callee looks.
  EXPECT_TRUE(eventually([&] {
    caller.go();
    if (!caller.settled()) callee.go();
    return caller.settled();
  }));
  ASSERT_EQ(caller.step, Step::kDone) << caller.handshake.reason();
  EXPECT_EQ(send_text(*caller.stream, "frame").bytes, 5U);
  ASSERT_TRUE(settle(caller, callee));
  ASSERT_EQ(callee.step, Step::kDone) << callee.handshake.reason();
  const Introduction& who = callee.handshake.introduction();
  EXPECT_EQ(who.rank, kMine.rank);
  EXPECT_EQ(who.to, kMine.to);
  EXPECT_EQ(who.number, kMine.number);
  std::string got;
  EXPECT_TRUE(eventually([&] {
    got += take_text(*callee.stream).first;
    return got.size() >= 5;
  }));
  EXPECT_EQ(got, "frame");
  EXPECT_EQ(caller.handshake.session_key(*caller.stream),
            callee.handshake.session_key(*callee.stream));
}

TEST(Handshake, SessionKeyIsAnotherEachTime) {
  const auto make = [] {
    Pair pair;
    End caller = caller_end(std::move(*pair.caller)), callee = callee_end(std::move(*pair.callee));
    EXPECT_TRUE(settle(caller, callee));
    return caller.handshake.session_key(*caller.stream);
  };
  EXPECT_NE(make(), make());
}

TEST(Handshake, CallerThatIsDroppedCanTellItFromARefusal) {
  Tapped tapped(true);
  End dropped = caller_end(std::move(*tapped.stream));
  tapped.raw = Descriptor();
  expect_refused(dropped, "ended");
  EXPECT_TRUE(dropped.handshake.is_dropped());
  Pair pair;
  End refused = caller_end(std::move(*pair.caller), key_of(2));
  End callee = callee_end(std::move(*pair.callee));
  EXPECT_TRUE(settle(refused, callee));
  EXPECT_FALSE(refused.handshake.is_dropped());
}

TEST(Handshake, SaysWhatItWaitsFor) {
  TlsEnds tls;
  Pair pair(AF_INET, &*tls.caller.context, &*tls.callee.context);
  End caller = caller_end(std::move(*pair.caller));
  End callee = callee_end(std::move(*pair.callee));
  // The hello is due, and the socket has room, but TLS needs bytes from the callee first.
  EXPECT_TRUE(eventually([&] {
    caller.go();
    return !caller.handshake.wants_write();
  }));
  // A loop that polls only for the requested events gets both through, and does not spin.
  int rounds = 0;
  for (; rounds < 50; ++rounds) {
    caller.go();
    callee.go();
    pollfd wait[2] = {{caller.stream->fd(), POLLIN, 0}, {callee.stream->fd(), POLLIN, 0}};
    if (caller.handshake.wants_write()) wait[0].events = POLLOUT;
    if (callee.handshake.wants_write()) wait[1].events = POLLOUT;
    if (caller.settled()) wait[0].fd = -1;
    if (callee.settled()) wait[1].fd = -1;
    if (caller.settled() && callee.settled()) break;
    ASSERT_GT(poll(wait, 2, 5000), 0);
  }
  EXPECT_EQ(caller.step, Step::kDone);
  EXPECT_EQ(callee.step, Step::kDone);
  EXPECT_LT(rounds, 20);
}

TEST(Handshake, ScopeOfALinkLocalAddressIsEachHostsOwn) {
  Pair pair;
  const Address there = Address::parse("fe80::1", 7).value();
  End caller = caller_end(std::move(*pair.caller), key_of(1), kMine, there);
  End callee = callee_end(std::move(*pair.callee), key_of(1), kCalleeRank,
                          there.with_scope_of(Address::parse("fe80::1%lo").value()));
  ASSERT_TRUE(settle(caller, callee));
  EXPECT_EQ(caller.step, Step::kDone);
  EXPECT_EQ(callee.step, Step::kDone);
}

// ---- Without the key ----

TEST(Attack, OtherJobsKeyIsRefusedAtBothEnds) {
  Pair pair;
  expect_both_refuse(caller_end(std::move(*pair.caller), key_of(2)),
                     callee_end(std::move(*pair.callee)), "does not have this job's key",
                     "does not have this job's key");
}

TEST(Attack, KeyThatDiffersInOneBitIsRefused) {
  for (const std::size_t at : {0U, 31U}) {
    Pair pair;
    Key key = key_of(1);
    key[at] ^= std::byte{0x80};
    expect_both_refuse(caller_end(std::move(*pair.caller), key),
                       callee_end(std::move(*pair.callee)), "key", "key");
  }
}

TEST(Attack, CalleeWithoutTheKeyIsRefused) {
  Tapped tapped(true);
  End caller = caller_end(std::move(*tapped.stream));
  std::string said;
  ASSERT_TRUE(eventually([&] {
    caller.go();
    said += raw_take(tapped.raw).value_or("");
    return said.size() == kHelloBytes;
  }));
  ASSERT_TRUE(raw_send(tapped.raw, said.substr(0, 12) + std::string(32, 'n')));
  ASSERT_TRUE(raw_send(tapped.raw, std::string(kAnswerBytes, 'm')));
  expect_refused(caller, "does not have this job's key");
}

// A process without the key learns nothing that depends on the key.
TEST(Attack, GarbageIsRefusedAtItsFirstBytesAndGetsNoAnswer) {
  for (const char* garbage :
       {"GET / HTTP/1.1\r\nHost: malt\r\n\r\n", "X", "MALX", "\x16\x03\x01"}) {
    Tapped tapped(false);
    End callee = callee_end(std::move(*tapped.stream));
    ASSERT_TRUE(raw_send(tapped.raw, garbage));
    expect_refused(callee, "does not speak");
    EXPECT_EQ(raw_take(tapped.raw).value_or(""), "");
  }
}

TEST(Attack, SilenceIsWaitedForAndItsEndRefused) {
  Tapped tapped(false);
  End callee = callee_end(std::move(*tapped.stream));
  callee.go();
  EXPECT_EQ(callee.step, Step::kWaiting);
  EXPECT_FALSE(callee.handshake.wants_write());
  tapped.raw = Descriptor();
  expect_refused(callee, "ended");
}

TEST(Attack, MegabytesAfterTheHelloAreNotReadAndNotBelieved) {
  const Wire honest;
  Tapped tapped(false);
  End callee = callee_end(std::move(*tapped.stream));
  ASSERT_TRUE(raw_send(tapped.raw,
                       honest.said_by_caller().substr(0, kHelloBytes) + std::string(1 << 20, 'x')));
  expect_refused(callee, "key");
  const std::size_t answer = raw_take(tapped.raw).value_or("").size();
  EXPECT_TRUE(answer == 0 || answer == kHelloBytes + kAnswerBytes) << answer;  // 0: a reset
}

// ---- Versions ----

TEST(Handshake, OtherVersionIsToldToBothEnds) {
  Tapped tapped(false);
  End callee = callee_end(std::move(*tapped.stream));
  const Wire honest;
  std::string hello = honest.said_by_caller().substr(0, kHelloBytes);
  hello[4] = 99;
  ASSERT_TRUE(raw_send(tapped.raw, hello));
  expect_refused(callee, "runs another version of MALT");
  EXPECT_EQ(raw_take(tapped.raw)->size(), kHelloBytes);  // so the caller knows the version, too

  Tapped other(true);
  End caller = caller_end(std::move(*other.stream));
  caller.go();
  ASSERT_TRUE(raw_send(other.raw, hello));
  expect_refused(caller, "runs another version of MALT");
}

TEST(Handshake, OtherByteOrderIsTold) {
  Tapped tapped(false);
  End callee = callee_end(std::move(*tapped.stream));
  const Wire honest;
  std::string hello = honest.said_by_caller().substr(0, kHelloBytes);
  std::reverse(hello.begin() + 4, hello.begin() + 8);
  std::reverse(hello.begin() + 8, hello.begin() + 12);
  ASSERT_TRUE(raw_send(tapped.raw, hello));
  expect_refused(callee, "byte order");
}

// ---- An attacker on the way ----

TEST(Attack, WireThatChangesNothingIsNoAttack) {
  const Wire wire;
  EXPECT_EQ(wire.caller().step, Step::kDone);
  EXPECT_EQ(wire.callee().step, Step::kDone);
  EXPECT_EQ(wire.said_by_caller().size(), kHelloBytes + kProofBytes);
  EXPECT_EQ(wire.said_by_callee().size(), kHelloBytes + kAnswerBytes);
}

TEST(Attack, AnyBitFlippedOnTheWayIsRefused) {
  for (const bool to_callee : {true, false}) {
    const std::size_t bytes = kHelloBytes + (to_callee ? kProofBytes : kAnswerBytes);
    for (std::size_t bit = 0; bit < bytes * 8; ++bit) {
      const Wire wire([&](bool direction, std::size_t at, std::string& piece) {
        if (direction == to_callee && bit / 8 >= at && bit / 8 < at + piece.size()) {
          piece[bit / 8 - at] = static_cast<char>(piece[bit / 8 - at] ^ (1 << bit % 8));
        }
      });
      EXPECT_EQ(wire.caller().step, Step::kRefused) << to_callee << " " << bit;
      // The answer is the last message: its sender cannot know whether it arrived.
      const bool before_answer = to_callee || bit / 8 < kHelloBytes;
      EXPECT_EQ(wire.callee().step, before_answer ? Step::kRefused : Step::kDone)
          << to_callee << " " << bit;
    }
  }
}

TEST(Attack, CutOffAnywhereIsRefused) {
  for (const bool to_callee : {true, false}) {
    const std::size_t bytes = kHelloBytes + (to_callee ? kProofBytes : kAnswerBytes);
    for (std::size_t cut = 0; cut < bytes; ++cut) {
      const Wire wire([&](bool direction, std::size_t at, std::string& piece) {
        if (direction == to_callee && cut < at + piece.size()) piece.resize(cut - at);
      });
      const End& hearer = to_callee ? wire.callee() : wire.caller();
      EXPECT_EQ(hearer.step, Step::kRefused) << cut;
      EXPECT_NE(hearer.handshake.reason().find("ended"), std::string::npos) << cut;
      EXPECT_EQ(wire.caller().step, Step::kRefused) << cut;
    }
  }
}

TEST(Attack, RecordedCallerIsRefused) {
  const Wire recorded;
  ASSERT_EQ(recorded.callee().step, Step::kDone);
  Tapped tapped(false);
  End callee = callee_end(std::move(*tapped.stream));
  ASSERT_TRUE(raw_send(tapped.raw, recorded.said_by_caller()));
  expect_refused(callee, "key");
  EXPECT_EQ(raw_take(tapped.raw).value_or("").substr(kHelloBytes), std::string(kAnswerBytes, 0));
}

TEST(Attack, RecordedCalleeIsRefused) {
  const Wire recorded;
  Tapped tapped(true);
  End caller = caller_end(std::move(*tapped.stream));
  caller.go();
  ASSERT_TRUE(raw_send(tapped.raw, recorded.said_by_callee()));
  expect_refused(caller, "key");
}

// The caller's proof covers the same values as the answer, except for the role.
TEST(Attack, OwnWordsSentBackAreRefused) {
  Tapped tapped(true);
  End caller = caller_end(std::move(*tapped.stream));
  std::string said;
  const auto hear = [&](std::size_t bytes) {
    return eventually([&] {
      caller.go();
      said += raw_take(tapped.raw).value_or("");
      return said.size() == bytes;
    });
  };
  ASSERT_TRUE(hear(kHelloBytes));
  ASSERT_TRUE(raw_send(tapped.raw, said));
  ASSERT_TRUE(hear(kHelloBytes + kProofBytes));
  ASSERT_TRUE(raw_send(tapped.raw, said.substr(said.size() - kAnswerBytes)));
  expect_refused(caller, "does not have this job's key");
}

// A rank calls the attacker, which has another connection to the same rank answer in its place.
TEST(Attack, RankIsNotMadeToAnswerItself) {
  Tapped called(true), calling(false);
  const Introduction self{.rank = kCalleeRank, .to = kCallerRank, .number = 1};
  End victim_calls = caller_end(std::move(*called.stream), key_of(1), self);
  End victim_answers = callee_end(std::move(*calling.stream), key_of(1), kCalleeRank);
  EXPECT_TRUE(eventually([&] {
    victim_calls.go();
    victim_answers.go();
    const auto to_answer = raw_take(called.raw), to_call = raw_take(calling.raw);
    if (to_answer && !to_answer->empty()) raw_send(calling.raw, *to_answer);
    if (to_call && !to_call->empty()) raw_send(called.raw, *to_call);
    if (!to_call) ::shutdown(called.raw.get(), SHUT_WR);
    return victim_calls.settled() && victim_answers.settled();
  }));
  EXPECT_EQ(victim_calls.step, Step::kRefused);
  EXPECT_EQ(victim_answers.step, Step::kRefused);
  EXPECT_NE(victim_answers.handshake.reason().find("this is rank 7"), std::string::npos);
}

TEST(Attack, CallForAnotherRankOrAddressIsRefused) {
  {
    Pair pair;
    expect_both_refuse(caller_end(std::move(*pair.caller)),
                       callee_end(std::move(*pair.callee), key_of(1), kCalleeRank + 1),
                       "another rank", "rank 3 called rank 7, this is rank 8");
  }
  {
    Pair pair;
    expect_both_refuse(
        caller_end(std::move(*pair.caller)),
        callee_end(std::move(*pair.callee), key_of(1), kCalleeRank, place().with_port(41001)),
        "key", "another address than 192.0.2.9:41001");
  }
}

TEST(Attack, ForgedSenderIsRefused) {
  constexpr std::size_t kRankAt = kHelloBytes + 8;  // after the number
  const Wire wire([](bool to_callee, std::size_t at, std::string& piece) {
    if (!to_callee || kRankAt < at || kRankAt >= at + piece.size()) return;
    EXPECT_EQ(piece[kRankAt - at], static_cast<char>(kCallerRank));
    piece[kRankAt - at] = 4;
  });
  EXPECT_EQ(wire.callee().step, Step::kRefused);
  EXPECT_EQ(wire.caller().step, Step::kRefused);
}

// An attacker with a certificate of our authority, but without the key, decrypts on one side and
// encrypts on the other.
TEST(Attack, RelayBetweenTwoTlsConnectionsIsRefused) {
  TlsEnds tls;
  Pair left(AF_INET, &*tls.caller.context, &*tls.callee.context);
  Pair right(AF_INET, &*tls.caller.context, &*tls.callee.context);
  End caller = caller_end(std::move(*left.caller));
  End callee = callee_end(std::move(*right.callee));
  Stream &from_caller = *left.callee, &to_callee = *right.caller;
  std::string forth, back;
  EXPECT_TRUE(eventually([&] {
    caller.go();
    callee.go();
    const auto [said, said_flow] = take_text(from_caller);
    const auto [answer, answer_flow] = take_text(to_callee);
    forth += said;
    back += answer;
    forth.erase(0, send_text(to_callee, forth).bytes);
    back.erase(0, send_text(from_caller, back).bytes);
    if (answer_flow != Flow::kOpen) from_caller.end_writing();
    return caller.settled() && callee.settled();
  }));
  EXPECT_EQ(callee.step, Step::kRefused);
  EXPECT_EQ(caller.step, Step::kRefused);
}

TEST(Attack, ReasonsTellNoSecrets) {
  Pair pair;
  End caller = caller_end(std::move(*pair.caller), key_of('K'));
  End callee = callee_end(std::move(*pair.callee), key_of('L'));
  ASSERT_TRUE(settle(caller, callee));
  for (const std::string& reason : {caller.handshake.reason(), callee.handshake.reason()}) {
    EXPECT_EQ(reason.find("KK"), std::string::npos);
    EXPECT_EQ(reason.find("LL"), std::string::npos);
    EXPECT_EQ(reason.find('\n'), std::string::npos);
  }
}

}  // namespace
}  // namespace dstorm::net
