// Streams over real sockets, plain and TLS.
#include "dstorm/remote/net/stream.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <csignal>
#include <fstream>
#include <numeric>

#include "dstorm/errors.hpp"
#include "dstorm/remote/net/tls.hpp"
#include "tcp_sockets.hpp"

namespace dstorm::net {
namespace {

using namespace std::chrono_literals;
using testing_sockets::Authority;
using testing_sockets::Credentials;
using testing_sockets::eventually;
using testing_sockets::Folder;
using testing_sockets::ListeningSocket;
using testing_sockets::loopback;
using testing_sockets::Pair;
using testing_sockets::raw_connect;
using testing_sockets::raw_send;
using testing_sockets::raw_take;
using testing_sockets::send_text;
using testing_sockets::take_text;
using testing_sockets::TlsEnds;

constexpr Key kKey{std::byte{9}, std::byte{4}};

struct Setting {
  const char* name;
  int family;
  bool tls;
  bool by_key = false;
};
void PrintTo(const Setting& setting, std::ostream* out) { *out << setting.name; }

class AnyStream : public testing::TestWithParam<Setting> {
 protected:
  AnyStream() {
    if (GetParam().by_key) {
      calling_ = &keyed_[0];
      called_ = &keyed_[1];
    } else if (GetParam().tls) {
      ends_.emplace();
      calling_ = &*ends_->caller.context;
      called_ = &*ends_->callee.context;
    }
    pair_.emplace(GetParam().family, calling_, called_);
  }
  Stream& caller() { return *pair_->caller; }
  Stream& callee() { return *pair_->callee; }

  // Sends all of `text`, and receives at the other end until all of it is there.
  static std::string carry(Stream& from, Stream& to, const std::string& text) {
    std::string got;
    std::size_t sent = 0;
    eventually([&] {
      sent += send_text(from, std::string_view(text).substr(sent)).bytes;
      got += take_text(to).first;
      return got.size() >= text.size();
    });
    return got;
  }

  std::optional<TlsEnds> ends_;
  const TlsContext keyed_[2]{TlsContext(KeptKey(kKey)), TlsContext(KeptKey(kKey))};
  const TlsContext* calling_ = nullptr;
  const TlsContext* called_ = nullptr;
  std::optional<Pair> pair_;
};

INSTANTIATE_TEST_SUITE_P(, AnyStream,
                         testing::Values(Setting{"plain4", AF_INET, false},
                                         Setting{"plain6", AF_INET6, false},
                                         Setting{"tls4", AF_INET, true},
                                         Setting{"tls6", AF_INET6, true},
                                         Setting{"key4", AF_INET, true, true}),
                         [](const auto& tested) { return tested.param.name; });

TEST_P(AnyStream, CarriesBytesBothWays) {
  EXPECT_TRUE(caller().wants_write());  // it is still connecting
  EXPECT_EQ(carry(caller(), callee(), "there"), "there");
  EXPECT_EQ(carry(callee(), caller(), "and back"), "and back");
  EXPECT_FALSE(caller().wants_write());
  EXPECT_FALSE(callee().wants_write());
  EXPECT_FALSE(callee().awaits_peer());
  EXPECT_EQ(take_text(callee()), std::pair(std::string(), Flow::kOpen));
}

TEST_P(AnyStream, SendsAndReceivesInParts) {
  ASSERT_EQ(carry(caller(), callee(), "x"), "x");
  std::string a = "header", b, c(40000, 'c');
  const iovec parts[] = {{a.data(), a.size()}, {b.data(), 0}, {c.data(), c.size()}};
  ASSERT_EQ(caller().send(parts).bytes, a.size() + c.size());
  std::string head(4, ' '), rest(a.size() + c.size() - 4, ' ');
  std::size_t got = 0;
  ASSERT_TRUE(eventually([&] {
    const std::size_t in_head = std::min(got, head.size());
    const iovec room[] = {{head.data() + in_head, head.size() - in_head},
                          {rest.data() + (got - in_head), rest.size() - (got - in_head)}};
    got += callee().receive(got < head.size() ? std::span(room) : std::span(room).subspan(1)).bytes;
    return got == head.size() + rest.size();
  }));
  EXPECT_EQ(head + rest, a + c);
}

// More bytes than any buffer holds, which the receiver takes in odd pieces, so that sends are cut
// at every place. The bytes of a send that moved nothing are not sent later: another message of a
// queue may be first by then.
TEST_P(AnyStream, BytesThatMayLagGoWithLaterBytesOrAPushOrAtTheEnd) {
  ASSERT_EQ(carry(caller(), callee(), "first"), "first");
  const auto lag = [&] {
    const iovec part{const_cast<char*>("lag "), 4};
    EXPECT_EQ(caller().send({&part, 1}, true).bytes, 4);
    EXPECT_TRUE(GetParam().tls || take_text(callee()).first.empty());
  };
  const auto comes = [&](const std::string& text) {
    std::string got;
    EXPECT_TRUE(eventually([&] { return (got += take_text(callee()).first) == text; })) << got;
  };
  lag();
  send_text(caller(), "next");
  comes("lag next");
  lag();
  caller().push();
  comes("lag ");
  lag();
  pair_->caller.reset();
  comes("lag ");
}

// As much as it takes in a millisecond, and at least 32 KiB: see Stream::note_sent.
TEST(Stream, FastNetworkMayBeGivenMoreAtOnce) {
  Pair pair;
  const auto given_at_once = [&] {
    int bytes = 0;
    socklen_t length = sizeof(bytes);
    getsockopt(pair.caller->fd(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &bytes, &length);
    return bytes;
  };
  ASSERT_TRUE(eventually([&] { return send_text(*pair.caller, "x").bytes == 1; }));
  EXPECT_EQ(given_at_once(), 32 * 1024);
  const std::string text(64 * 1024, 'x');
  EXPECT_TRUE(eventually([&] {  // over loopback
    send_text(*pair.caller, text);
    take_text(*pair.callee);
    return given_at_once() > 32 * 1024;
  }));
  EXPECT_LE(given_at_once(), 1024 * 1024);
}

TEST_P(AnyStream, FullConnectionTakesUpWhereItLeftOff) {
  ASSERT_EQ(carry(caller(), callee(), "x"), "x");
  constexpr std::size_t kBytes = std::size_t{32} << 20;
  std::vector<std::uint32_t> words(kBytes / 4);
  std::iota(words.begin(), words.end(), 0U);
  std::vector<std::uint32_t> got_words(words.size());
  auto* from = reinterpret_cast<std::byte*>(words.data());
  auto* to = reinterpret_cast<std::byte*>(got_words.data());
  std::size_t sent = 0, got = 0;
  int blocked = 0;
  ASSERT_TRUE(eventually([&] {
    for (;;) {
      const iovec rest{from + sent, kBytes - sent};
      const std::size_t moved = caller().send({&rest, 1}).bytes;
      if (moved == 0) break;
      sent += moved;
    }
    blocked += sent < kBytes;
    for (int i = 0; i < 200 && got < kBytes; ++i) {
      const iovec room{to + got, std::min<std::size_t>(77777, kBytes - got)};
      got += callee().receive({&room, 1}).bytes;
    }
    return got == kBytes;
  })) << got;
  EXPECT_GT(blocked, 0);
  EXPECT_EQ(got_words, words);
}

TEST_P(AnyStream, EndOfWritingIsSeenAfterAllBytesAndTheOtherWayGoesOn) {
  ASSERT_EQ(carry(caller(), callee(), "x"), "x");
  EXPECT_EQ(send_text(caller(), "last").bytes, 4U);
  caller().end_writing();
  std::string got;
  EXPECT_TRUE(eventually([&] {
    const auto [text, flow] = take_text(callee());
    got += text;
    return flow == Flow::kEnded;
  }));
  EXPECT_EQ(got, "last");
  EXPECT_TRUE(callee().error().empty());
  EXPECT_EQ(carry(callee(), caller(), "on"), "on");
}

TEST_P(AnyStream, EndOfWritingWaitsForRoom) {
  ASSERT_EQ(carry(caller(), callee(), "x"), "x");
  const std::string chunk(1 << 20, 'z');
  std::size_t sent = 0;
  while (const std::size_t moved = send_text(caller(), chunk).bytes) sent += moved;
  caller().end_writing();
  std::size_t got = 0;
  EXPECT_TRUE(eventually([&] {
    if (caller().wants_write()) caller().send({});
    const auto [text, flow] = take_text(callee());
    got += text.size();
    return flow == Flow::kEnded;
  }));
  EXPECT_EQ(got, sent);
}

TEST_P(AnyStream, ResetIsAFailureThatStays) {
  ASSERT_EQ(carry(caller(), callee(), "x"), "x");
  const linger at_once{1, 0};
  setsockopt(callee().fd(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  pair_->callee.reset();
  EXPECT_FALSE(caller().is_closed_there());
  EXPECT_TRUE(eventually([&] { return send_text(caller(), "anyone?").flow == Flow::kFailed; }));
  EXPECT_TRUE(caller().is_closed_there());
  EXPECT_FALSE(caller().error().empty());
  const std::string first = caller().error();
  EXPECT_EQ(take_text(caller()).second, Flow::kFailed);
  EXPECT_EQ(send_text(caller(), "still?").flow, Flow::kFailed);
  EXPECT_EQ(caller().error(), first);
  EXPECT_FALSE(caller().wants_write());
}

TEST(Stream, ArrivedBytesAreReceivedThoughSendsFail) {
  Pair pair;
  ASSERT_TRUE(eventually([&] { return send_text(*pair.caller, "x").bytes == 1; }));
  ASSERT_TRUE(eventually([&] { return send_text(*pair.callee, "last words").bytes > 0; }));
  pair.callee.reset();  // a byte is unread, so this resets the connection
  EXPECT_TRUE(eventually([&] { return send_text(*pair.caller, "!").flow == Flow::kFailed; }));
  EXPECT_EQ(take_text(*pair.caller).first, "last words");
  EXPECT_EQ(take_text(*pair.caller).second, Flow::kFailed);
}

TEST_P(AnyStream, SendingToWhoHasClosedIsAFailureAndNoSignal) {
  ASSERT_EQ(carry(caller(), callee(), "x"), "x");
  ASSERT_NE(std::signal(SIGPIPE, SIG_DFL), SIG_ERR);  // SIGPIPE would end the program
  pair_->callee.reset();
  EXPECT_TRUE(eventually([&] { return send_text(caller(), "anyone?").flow == Flow::kFailed; }));
  EXPECT_EQ(caller().error(), "Broken pipe");
}

TEST_P(AnyStream, ReadingFromWhoHasClosedTellsSoAtAnyTime) {
  for (const bool has_begun : {true, false}) {
    pair_.emplace(GetParam().family, calling_, called_);
    if (has_begun) {
      ASSERT_EQ(carry(caller(), callee(), "x"), "x");
      EXPECT_FALSE(caller().is_closed_there());
    }
    pair_->callee.reset();
    EXPECT_TRUE(eventually([&] { return take_text(caller()).second != Flow::kOpen; }));
    EXPECT_TRUE(caller().is_closed_there());
  }
}

TEST_P(AnyStream, NobodyThereIsAFailureThatSaysSo) {
  Address gone;
  {
    const ListeningSocket listener(GetParam().family);
    gone = listener.at;
  }
  Stream stream = Stream::connect(gone, loopback(GetParam().family), calling_, 5s);
  EXPECT_TRUE(eventually([&] { return send_text(stream, "hello?").flow == Flow::kFailed; }));
  EXPECT_EQ(stream.error(), "Connection refused");
}

TEST_P(AnyStream, BindingIsOfBothEndsAndOfOneConnection) {
  ASSERT_EQ(carry(caller(), callee(), "x"), "x");
  EXPECT_EQ(caller().binding(), callee().binding());
  if (!GetParam().tls) {
    EXPECT_EQ(caller().binding(), (std::array<std::byte, 32>{}));
    return;
  }
  const auto first = caller().binding();
  EXPECT_NE(first, (std::array<std::byte, 32>{}));
  pair_.emplace(GetParam().family, calling_, called_);
  ASSERT_EQ(carry(caller(), callee(), "x"), "x");
  EXPECT_NE(caller().binding(), first);
}

// Whatever either end presents instead.
TEST(StreamOverTls, KeyIsOneThatBothEndsHave) {
  const TlsEnds ends;
  Key other = kKey;
  other[31] ^= std::byte{1};
  const TlsContext right((KeptKey(kKey))), wrong((KeptKey(other)));
  const std::pair<const TlsContext*, const TlsContext*> pairs[] = {
      {&right, &wrong},
      {&right, nullptr},
      {nullptr, &right},
      {&right, &*ends.callee.context},
      {&*ends.caller.context, &right},
  };
  for (const auto& ends_of_pair : pairs) {
    const TlsContext* const calling = ends_of_pair.first;  // Clang 14 captures no bindings
    const TlsContext* const called = ends_of_pair.second;
    Pair pair(AF_INET, calling, called);
    std::string got;
    bool has_failed[2] = {false, false};
    EXPECT_TRUE(eventually([&] {
      has_failed[0] = has_failed[0] || send_text(*pair.caller, "secret").flow == Flow::kFailed;
      has_failed[1] = has_failed[1] || send_text(*pair.callee, "secret").flow == Flow::kFailed;
      const auto [at_callee, callee_flow] = take_text(*pair.callee);
      const auto [at_caller, caller_flow] = take_text(*pair.caller);
      if (called != nullptr) got += at_callee;
      if (calling != nullptr) got += at_caller;
      return (calling == nullptr || has_failed[0]) && (called == nullptr || has_failed[1]);
    }));
    EXPECT_EQ(got, "");
  }
}

// A byte that somebody changes on the way.
TEST(StreamOverTls, ChangedBytesEndTheConnection) {
  const TlsContext caller_key((KeptKey(kKey))), callee_key((KeptKey(kKey)));
  const ListeningSocket listener, behind;
  Stream caller = Stream::connect(listener.at, loopback(AF_INET), &caller_key, 5s);
  const Descriptor near = listener.accept();
  const Descriptor far = raw_connect(behind.at);
  Stream callee = Stream::accept(behind.accept(), &callee_key, 5s);
  std::string got;
  bool changes = false;
  Flow flow = Flow::kOpen;
  const auto pass_on = [&] {
    if (auto bytes = raw_take(near); bytes && !bytes->empty()) {
      if (changes) bytes->back() = static_cast<char>(bytes->back() ^ 1);
      raw_send(far, *bytes);
    }
    if (const auto bytes = raw_take(far); bytes && !bytes->empty()) raw_send(near, *bytes);
    const auto [text, now] = take_text(callee);
    got += text;
    flow = now;
  };
  std::size_t sent = 0;
  EXPECT_TRUE(eventually([&] {
    if (sent == 0) sent = send_text(caller, "right").bytes;
    pass_on();
    return got == "right";
  }));
  changes = true;
  EXPECT_EQ(send_text(caller, "changed").bytes, 7);
  EXPECT_TRUE(eventually([&] {
    pass_on();
    return flow == Flow::kFailed;
  }));
  EXPECT_EQ(got, "right");
}

TEST(Stream, SetsWhatAConnectionNeeds) {
  Pair pair;
  ASSERT_TRUE(eventually([&] { return send_text(*pair.caller, "x").bytes == 1; }));
  for (const Stream* stream : {&*pair.caller, &*pair.callee}) {
    int no_delay = 0, timeout_ms = 0;
    socklen_t bytes = sizeof(int);
    getsockopt(stream->fd(), IPPROTO_TCP, TCP_NODELAY, &no_delay, &bytes);
    getsockopt(stream->fd(), IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, &bytes);
    EXPECT_EQ(no_delay, 1);
    EXPECT_EQ(timeout_ms, 5000);
    EXPECT_NE(fcntl(stream->fd(), F_GETFD) & FD_CLOEXEC, 0);
    EXPECT_NE(fcntl(stream->fd(), F_GETFL) & O_NONBLOCK, 0);
  }
}

TEST(Stream, CallsFromTheAddressItIsToldTo) {
  const ListeningSocket listener;
  const Address from = Address::parse("127.0.0.77").value();
  const Stream stream = Stream::connect(listener.at, from, nullptr, 5s);
  const Descriptor accepted = listener.accept();
  sockaddr_storage peer{};
  socklen_t bytes = sizeof(peer);
  getpeername(accepted.get(), reinterpret_cast<sockaddr*>(&peer), &bytes);
  EXPECT_EQ(Address::from(reinterpret_cast<sockaddr*>(&peer))->with_port(0), from);
}

TEST(Stream, ForeignAddressOrFamilyFailsAtOnce) {
  const ListeningSocket listener;
  for (const char* from : {"203.0.113.9", "::1"}) {
    Stream stream = Stream::connect(listener.at, Address::parse(from).value(), nullptr, 5s);
    EXPECT_EQ(send_text(stream, "x").flow, Flow::kFailed);
    EXPECT_FALSE(stream.error().empty());
  }
}

TEST(Stream, MovesWithItsBytes) {
  TlsEnds ends;
  Pair pair(AF_INET, &*ends.caller.context, &*ends.callee.context);
  Stream moved = std::move(*pair.caller);
  std::string got;
  bool sent = false;
  EXPECT_TRUE(eventually([&] {
    if (!sent) sent = send_text(moved, "moved").bytes > 0;
    got += take_text(*pair.callee).first;
    return got == "moved";
  }));
}

// ---- TLS only ----

TEST(TlsStream, SaysWhatEpollCannot) {
  TlsEnds ends;
  Pair pair(AF_INET, &*ends.caller.context, &*ends.callee.context);
  bool sent = false;
  char byte = 0;
  const iovec room{&byte, 1};
  ASSERT_TRUE(eventually([&] {
    if (!sent) sent = send_text(*pair.caller, "abc").bytes == 3;
    return pair.callee->receive({&room, 1}).bytes == 1;
  }));
  EXPECT_TRUE(pair.callee->has_buffered());
  EXPECT_EQ(take_text(*pair.callee).first, "bc");
  EXPECT_FALSE(pair.callee->has_buffered());
}

TEST(TlsStream, WaitsForThePeerAndNotForRoomDuringItsHandshake) {
  TlsEnds ends;
  Pair pair(AF_INET, &*ends.caller.context, &*ends.callee.context);
  EXPECT_EQ(send_text(*pair.caller, "x").bytes, 0U);
  EXPECT_TRUE(pair.caller->awaits_peer());
  EXPECT_FALSE(pair.caller->wants_write());
}

TEST(TlsStream, ConnectionThatBreaksOffIsNoEnd) {
  TlsEnds ends;
  Pair pair(AF_INET, &*ends.caller.context, &*ends.callee.context);
  bool sent = false;
  ASSERT_TRUE(eventually([&] {
    if (!sent) sent = send_text(*pair.caller, "x").bytes == 1;
    return take_text(*pair.callee).first == "x";
  }));
  ::shutdown(pair.caller->fd(), SHUT_WR);  // as an attacker on the way could
  Flow flow = Flow::kOpen;
  EXPECT_TRUE(eventually([&] { return (flow = take_text(*pair.callee).second) != Flow::kOpen; }));
  EXPECT_EQ(flow, Flow::kFailed);
}

// Whether either end accepts the other. If not, both must fail.
struct Outcome {
  bool caller_failed, callee_failed, any_byte;
  std::string why;
};
Outcome outcome_of(Pair& pair) {
  Outcome outcome{false, false, false, ""};
  eventually([&] {
    outcome.caller_failed |= send_text(*pair.caller, "secret").flow == Flow::kFailed ||
                             take_text(*pair.caller).second != Flow::kOpen;
    const auto [text, flow] = take_text(*pair.callee);
    outcome.any_byte |= !text.empty();
    outcome.callee_failed |= flow == Flow::kFailed;
    return (outcome.caller_failed && outcome.callee_failed) || outcome.any_byte;
  });
  outcome.why = pair.callee->error() + " / " + pair.caller->error();
  return outcome;
}

TEST(TlsStream, CertificateOfAnotherAuthorityIsRefused) {
  const Authority ours, theirs;
  const Credentials honest(ours), stranger(theirs);
  {
    Pair pair(AF_INET, &*stranger.context, &*honest.context);
    const Outcome outcome = outcome_of(pair);
    EXPECT_TRUE(outcome.caller_failed && outcome.callee_failed && !outcome.any_byte);
    EXPECT_NE(outcome.why.find("certificate"), std::string::npos) << outcome.why;
  }
  {
    Pair pair(AF_INET, &*honest.context, &*stranger.context);
    const Outcome outcome = outcome_of(pair);
    EXPECT_TRUE(outcome.caller_failed && outcome.callee_failed && !outcome.any_byte);
  }
}

// A rank that trusts our authority, but has a certificate of another one.
TEST(TlsStream, CallerThatBelievesButIsNotBelievedIsRefused) {
  const Authority ours, theirs;
  const Credentials honest(ours), stranger(theirs);
  std::ofstream(stranger.folder / "ca.pem", std::ios::app)
      << std::ifstream(honest.folder / "ca.pem").rdbuf();
  const TlsContext believing(stranger.folder.path());
  Pair pair(AF_INET, &believing, &*honest.context);
  const Outcome outcome = outcome_of(pair);
  EXPECT_TRUE(outcome.caller_failed && outcome.callee_failed && !outcome.any_byte);
}

TEST(TlsStream, CallerWithoutACertificateIsRefused) {
  const Authority authority;
  const Credentials honest(authority);
  const ListeningSocket listener;
  const std::string command = "exec openssl s_client -connect " + listener.at.text() + " -CAfile " +
                              (honest.folder / "ca.pem") + " -quiet >/dev/null 2>&1 </dev/null";
  const pid_t client = fork();
  if (client == 0) {
    execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    _exit(127);
  }
  Stream stream = Stream::accept(listener.accept(), &*honest.context, 5s);
  EXPECT_TRUE(eventually([&] { return take_text(stream).second == Flow::kFailed; }));
  EXPECT_NE(stream.error().find("did not return a certificate"), std::string::npos)
      << stream.error();
  stream = Stream::accept(Descriptor(), nullptr, 5s);
  kill(client, SIGKILL);
  waitpid(client, nullptr, 0);
}

TEST(TlsStream, OlderThanOnePointTwoIsRefused) {
  const Authority authority;
  const Credentials honest(authority);
  const ListeningSocket listener;
  const Descriptor client = raw_connect(listener.at);
  Stream stream = Stream::accept(listener.accept(), &*honest.context, 5s);
  // A ClientHello of TLS 1.1, with one cipher suite and no extensions.
  std::string hello("\x16\x03\x01\x00\x2d\x01\x00\x00\x29\x03\x02", 11);
  hello += std::string(32, 'r') + std::string("\x00\x00\x02\xc0\x13\x01\x00", 7);
  ASSERT_TRUE(raw_send(client, hello));
  EXPECT_TRUE(eventually([&] { return take_text(stream).second == Flow::kFailed; }));
  EXPECT_NE(stream.error().find("unsupported protocol"), std::string::npos) << stream.error();
}

TEST(TlsStream, PlainBytesAreRefused) {
  TlsEnds ends;
  const ListeningSocket listener;
  const Descriptor client = raw_connect(listener.at);
  Stream stream = Stream::accept(listener.accept(), &*ends.callee.context, 5s);
  ASSERT_TRUE(raw_send(client, "GET / HTTP/1.1\r\n\r\n"));
  EXPECT_TRUE(eventually([&] { return take_text(stream).second == Flow::kFailed; }));
  EXPECT_FALSE(stream.error().empty());
}

// ---- MALT_TLS ----

std::string error_of(const Folder& folder) {
  try {
    const TlsContext context(folder.path());
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

void write(const std::string& file, const std::string& text) { std::ofstream(file) << text; }

TEST(TlsContext, GoodFolderIsTaken) {
  const Authority authority;
  const Folder folder;
  authority.issue(folder);
  EXPECT_EQ(error_of(folder), "");
}

TEST(TlsContext, EachFaultIsNamedWithItsFile) {
  const Authority authority, other;
  const auto after = [&](auto&& spoil, const char* file, const char* reason,
                         const std::string& options = "-days 2") {
    const Folder folder;
    authority.issue(folder, options);
    spoil(folder);
    const std::string error = error_of(folder);
    EXPECT_NE(error.find(folder / file), std::string::npos) << error;
    EXPECT_NE(error.find(reason), std::string::npos) << error;
  };
  for (const char* file : {"cert.pem", "key.pem", "ca.pem"}) {
    after([&](const Folder& folder) { std::filesystem::remove(folder / file); }, file,
          "No such file");
    after([&](const Folder& folder) { write(folder / file, "not PEM"); }, file, "PEM");
    after([&](const Folder& folder) { write(folder / file, ""); }, file, "PEM");
  }
  after(
      [&](const Folder& folder) {
        const Folder second;
        authority.issue(second);
        std::filesystem::copy_file(second / "key.pem", folder / "key.pem",
                                   std::filesystem::copy_options::overwrite_existing);
      },
      "key.pem", "mismatch");
  after(
      [&](const Folder& folder) {
        const Folder second;
        other.issue(second);
        std::filesystem::copy_file(second / "ca.pem", folder / "ca.pem",
                                   std::filesystem::copy_options::overwrite_existing);
      },
      "cert.pem", "issuer");
  after([&](const Folder& folder) { authority.expire(folder); }, "cert.pem", "expired");
  after([](const Folder&) {}, "cert.pem", "purpose", "-days 2 -addext extendedKeyUsage=serverAuth");
}

TEST(TlsContext, EncryptedKeyIsRefusedAndNobodyIsAsked) {
  const Authority authority;
  const Folder folder;
  authority.issue(folder);
  ASSERT_EQ(std::system(("openssl ec -in " + (folder / "key.pem") + " -out " +
                         (folder / "new.pem") + " -aes128 -passout pass:secret 2>/dev/null")
                            .c_str()),
            0);
  std::filesystem::rename(folder / "new.pem", folder / "key.pem");
  EXPECT_NE(error_of(folder).find("passphrase"), std::string::npos) << error_of(folder);
}

}  // namespace
}  // namespace dstorm::net
