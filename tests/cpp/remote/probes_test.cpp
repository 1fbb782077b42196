// How a rank probes another whose connection has ended: only a proof shows that it is dead.
#include "dstorm/remote/probes.hpp"

#include <gtest/gtest.h>
#include <netinet/in.h>

#include <memory>
#include <thread>

#include "tcp_ranks.hpp"
#include "tcp_sockets.hpp"

namespace dstorm::remote {
using net::Key;
namespace {

using testing_sockets::eventually;
using testing_sockets::ListeningSocket;
using testing_sockets::loopback;
using namespace std::chrono_literals;

constexpr int kRanks = 3;
constexpr int kHere = 0, kElsewhere = 2;
constexpr auto kSilence = 600ms;

// Rank 0 of a job. Rank 2 is on another host, and is probed at the listener's address.
class Probing {
 public:
  Probing() : controls_(kRanks) {
    testing_ranks::in_ranks(kRanks, [this](Bootstrap& bootstrap) {
      const int rank = bootstrap.rank();
      controls_[static_cast<std::size_t>(rank)] =
          std::make_unique<host::Control>(bootstrap, testing_ranks::sharing_of(rank), 10s);
    });
    settings_.own = loopback(AF_INET);
    settings_.addresses.assign(kRanks, listener.at);
    settings_.suspect_after = kSilence;
    probes.emplace(control(), settings_, [](int) {});
  }

  host::Control& control() { return *controls_[kHere]; }
  bool is_live() { return control().is_live(kElsewhere); }
  void step(bool was_away = false) { probes->step(was_away, Clock::now()); }
  // Until there is nothing left to probe.
  void run(bool was_away = false) {
    EXPECT_TRUE(eventually([&] {
      step(was_away);
      std::this_thread::sleep_for(1ms);
      return probes->empty();
    }));
  }
  // The next probe, when it has arrived, and the answer of the witness.
  Descriptor take_call() {
    Descriptor call;
    EXPECT_TRUE(eventually([&] {
      step();
      call = Descriptor(accept4(listener.socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
      return static_cast<bool>(call);
    }));
    return call;
  }
  void answer(const Descriptor& call, int of_rank = kElsewhere, Key key = {}) {
    const WitnessToken token = token_of(key, of_rank, listener.at);
    EXPECT_EQ(send(call.get(), token.data(), token.size(), MSG_NOSIGNAL), ssize_t{sizeof(token)});
  }

  ListeningSocket listener;
  std::optional<Probes> probes;

 private:
  std::vector<std::unique_ptr<host::Control>> controls_;
  Settings settings_{};
};

TEST(Probes, TokenIsTheEndOfTheRank) {
  Probing probing;
  probing.probes->begin(kElsewhere, true, Clock::now());
  const Descriptor call = probing.take_call();
  EXPECT_TRUE(probing.is_live());
  probing.answer(call);
  probing.run();
  EXPECT_EQ(probing.control().state(kElsewhere), host::State::kDead);
  WitnessReceipt receipt = 99;
  EXPECT_EQ(recv(call.get(), &receipt, sizeof(receipt), 0), ssize_t{sizeof(receipt)});
  EXPECT_EQ(receipt, static_cast<WitnessReceipt>(probing.control().own_host()));
}

TEST(Probes, RefusalIsNone) {
  Probing probing;
  probing.listener.socket = UnforkedDescriptor(Descriptor());
  probing.probes->begin(kElsewhere, true, Clock::now());
  probing.run();
  EXPECT_TRUE(probing.is_live());
}

TEST(Probes, ResetSilenceAndAnEndAreNone) {
  Probing probing;
  probing.probes->begin(kElsewhere, true, Clock::now());
  const linger at_once{1, 0};
  const Descriptor silent = probing.take_call();
  for (int i = 0; i < 2; ++i) {
    const Descriptor call = probing.take_call();
    if (i == 0) setsockopt(call.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  }
  probing.run();
  EXPECT_TRUE(probing.is_live());
}

TEST(Probes, TokenOfAnotherRankOrJobIsNone) {
  Probing probing;
  probing.probes->begin(kElsewhere, true, Clock::now());
  probing.answer(probing.take_call(), kElsewhere - 1);
  probing.answer(probing.take_call(), kElsewhere, Key{std::byte{1}});
  probing.run();
  EXPECT_TRUE(probing.is_live());
}

TEST(Probes, TokenCountsThoughItComesInPiecesAfterARefusal) {
  Probing probing;
  probing.probes->begin(kElsewhere, true, Clock::now());
  static_cast<void>(probing.take_call());
  const Descriptor call = probing.take_call();
  const WitnessToken token = token_of(Key{}, kElsewhere, probing.listener.at);
  for (const auto part : {std::span(token).first(7), std::span(token).subspan(7)}) {
    probing.step();
    send(call.get(), part.data(), part.size(), MSG_NOSIGNAL);
  }
  probing.run();
  EXPECT_EQ(probing.control().state(kElsewhere), host::State::kDead);
}

// It may itself be the evicted rank.
TEST(Probes, RankThatWasAwayAsksNobody) {
  Probing probing;
  probing.probes->begin(kElsewhere, true, Clock::now());
  probing.answer(probing.take_call());
  probing.run(true);
  EXPECT_TRUE(probing.is_live());
}

TEST(Probes, RankWhoseWritesComeByANewerConnectionIsWell) {
  Probing probing;
  probing.probes->begin(kElsewhere, true, Clock::now());
  const Descriptor call = probing.take_call();
  ++probing.control().member(kElsewhere).link;
  probing.step();
  EXPECT_TRUE(probing.probes->empty());
}

// Another rank of the host is taking in the updates that the dead rank has sent.
TEST(Probes, RankIsDeadForThoseWhoDoNotReadItsWordsWhenNoMoreOfThemCome) {
  Probing probing;
  const auto start = Clock::now();
  probing.probes->begin(kElsewhere, false, start);
  probing.answer(probing.take_call());
  auto heard = start;
  while (heard < start + kSilence) {
    heard = Clock::now();
    probing.control().member(kElsewhere).heard = heard.time_since_epoch().count();
    probing.step();
    EXPECT_TRUE(probing.is_live());
    std::this_thread::sleep_for(1ms);
  }
  probing.run();
  EXPECT_EQ(probing.control().state(kElsewhere), host::State::kDead);
  EXPECT_GT(Clock::now() - heard, kSilence / 4);
}

TEST(Probes, WordOfALiveMemberIsTheEndOfTheRankOnceItsOwnHaveBeenRead) {
  for (const bool is_read : {true, false}) {
    Probing probing;
    if (is_read) probing.probes->begin(kElsewhere, true, Clock::now());
    probing.probes->note_end(kElsewhere, Clock::now());
    probing.step();
    EXPECT_EQ(probing.is_live(), !is_read);
    probing.run();
    EXPECT_EQ(probing.control().state(kElsewhere), host::State::kDead);
  }
}

}  // namespace
}  // namespace dstorm::remote
