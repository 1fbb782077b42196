// Callers of a running job, with the job's key or without it.
#include "dstorm/remote/engine.hpp"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <thread>

#include "dstorm/remote/net/handshake.hpp"
#include "dstorm/segment.hpp"
#include "tcp_ranks.hpp"
#include "tcp_sockets.hpp"

namespace dstorm::remote {
using net::Address;
using net::authenticate;
using net::Flow;
using net::Handshake;
using net::Key;
using net::Stream;
namespace {

using namespace std::chrono_literals;
using testing_sockets::connections;
using testing_sockets::eventually;
using testing_sockets::loopback;
using testing_sockets::raw_connect;
using testing_sockets::send_text;
using testing_sockets::take_text;

constexpr int kRanks = 3;
constexpr int kHere = 0, kBeside = 1, kElsewhere = 2;
constexpr std::uint32_t kSegment = 1;
constexpr const char* kSecret = "what the job alone knows";

// Keeps the bytes that went through it, as a malicious rank would.
class Listening final : public Bootstrap {
 public:
  explicit Listening(Bootstrap& inner) : inner_(inner) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::vector<Bytes> allgather(std::span<const std::byte> mine, const Deadline& deadline) override {
    heard.push_back(inner_.allgather(mine, deadline));
    return heard.back();
  }

  std::vector<std::vector<Bytes>> heard;

 private:
  Bootstrap& inner_;
};

template <class Part>
Part first_of(const Bytes& record) {
  Part part;
  std::memcpy(&part, record.data(), sizeof(part));
  return part;
}

// A running job: ranks 0 and 1 on one host, rank 2 on another.
class RunningJob {
 public:
  RunningJob() : ranks_(kRanks) {
    testing_ranks::in_ranks(kRanks, [this](Bootstrap& bootstrap) {
      Rank& own = ranks_[static_cast<std::size_t>(bootstrap.rank())];
      own.control = std::make_unique<host::Control>(
          bootstrap, testing_ranks::sharing_of(bootstrap.rank()), 10s);
      Listening listening(bootstrap);
      own.engine = std::make_unique<Engine>(listening, *own.control,
                                            EngineOptions{.deadline = 10s,
                                                          .suspect_after = 5s,
                                                          .interface = {},
                                                          .toward = {},
                                                          .secret = kSecret,
                                                          .news = own.news.get()});
      // In the first round each rank's record begins with its nonce, in the second with the address
      // at which it listens.
      if (bootstrap.rank() != kElsewhere) return;
      key = authenticate(first_of<Key>(listening.heard[0][0]),
                         std::as_bytes(std::span(kSecret, std::strlen(kSecret))));
      tls.emplace(net::KeptKey(key));
      for (const Bytes& record : listening.heard[1]) at.push_back(first_of<Address>(record));
    });
    const host::SegmentShape shape{MailboxShape(kRanks, 2, 64), Policy::kLatest, 0, 0};
    for (int r : {kHere, kElsewhere}) {
      Rank& own = rank(r);
      own.memory = std::make_shared<host::SegmentMemory>(
          host::SegmentMemory::create(shape, "segment 'w'", kRanks));
      for (int sender = 0; sender < kRanks; ++sender) {
        own.memory->reserve_own(sender, "segment 'w'");
      }
      own.attachment = own.engine->attach(kSegment, own.memory);
    }
  }

  host::Control& control(int r) { return *rank(r).control; }
  Engine& engine(int r) { return *rank(r).engine; }
  Mailbox box(int r, int sender) { return rank(r).memory->box(sender); }
  // Whether an update that rank 2 scatters arrives.
  bool goes_on() {
    Rank& sender = rank(kElsewhere);
    const std::uint64_t next = box(kElsewhere, kElsewhere).clock() + 1;
    box(kElsewhere, kElsewhere).clock() = next;
    sender.engine->flush(*sender.attachment, 0);
    return eventually([&] { return box(kHere, kElsewhere).clock() == next; });
  }

  Key key;
  std::optional<net::TlsContext> tls;  // by the key, as the ranks have it
  std::vector<Address> at;             // by rank

 private:
  struct Rank {
    Descriptor news{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    std::unique_ptr<host::Control> control;
    std::shared_ptr<host::SegmentMemory> memory;
    std::unique_ptr<Engine> engine;
    std::shared_ptr<Attachment> attachment;
  };
  Rank& rank(int r) { return ranks_[static_cast<std::size_t>(r)]; }

  std::vector<Rank> ranks_;
};

// A caller that calls rank 0 in the name of `rank`.
struct Caller {
  Caller(const RunningJob& job, std::uint32_t rank, std::uint64_t number)
      : stream(Stream::connect(job.at[kHere], loopback(AF_INET), &*job.tls, 5s)),
        handshake(Handshake::caller(job.key, {.rank = rank, .to = kHere, .number = number},
                                    job.at[kHere])) {
    EXPECT_TRUE(eventually([&] { return handshake.advance(stream) == Handshake::Step::kDone; }));
  }
  bool is_ended() {
    return eventually([&] { return take_text(stream).second != Flow::kOpen; });
  }

  Stream stream;
  Handshake handshake;
};

std::string text_of(const FrameHead& head) {
  return {reinterpret_cast<const char*>(&head), sizeof(head)};
}

std::size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

TEST(Engine, BrokenRuleIsTheEndOfItsSenderAlone) {
  RunningJob job;
  ASSERT_TRUE(job.goes_on());
  Caller caller(job, kElsewhere, 1'000'000);
  send_text(caller.stream, text_of({static_cast<FrameKind>(99), 0, 0}));
  EXPECT_TRUE(eventually([&] { return !job.control(kHere).is_live(kElsewhere); }));
  EXPECT_TRUE(caller.is_ended());
  // The ranks of the host share what they know. No rank has reported that its process has ended.
  EXPECT_EQ(job.control(kBeside).state(kElsewhere), host::State::kEvicted);
  EXPECT_TRUE(job.control(kHere).is_live(kBeside));
  Caller again(job, kElsewhere, 2'000'000);  // an evicted rank stays out
  EXPECT_TRUE(again.is_ended());
  EXPECT_EQ(job.control(kHere).member(kElsewhere).link.load(), 1'000'000U);
}

TEST(Engine, RouteSaysThatARankHasNoWitness) {
  RunningJob job;
  const std::string why = job.engine(kHere).why(kElsewhere);
  EXPECT_NE(why.find("noticed only after the suspect_after: malt-witness is not"),
            std::string::npos)
      << why;
}

TEST(Engine, StaleCallIsRefusedAndThePresentOneStays) {
  RunningJob job;
  ASSERT_TRUE(job.goes_on());
  const std::uint64_t present = job.control(kHere).member(kElsewhere).link;
  for (std::uint64_t number = 0; number <= present; ++number) {
    Caller stale(job, kElsewhere, number);
    EXPECT_TRUE(stale.is_ended());
  }
  EXPECT_EQ(job.control(kHere).member(kElsewhere).link.load(), present);
  EXPECT_TRUE(job.goes_on());
  EXPECT_EQ(job.control(kHere).epoch(), 0U);
}

TEST(Engine, CallersThatNoRankElsewhereCanBeAreRefused) {
  RunningJob job;
  constexpr auto kMost = std::numeric_limits<std::uint32_t>::max();
  for (const std::uint32_t rank : {0U, 1U, 3U, 0x80000000U, kMost - 1, kMost}) {
    Caller caller(job, rank, 1'000'000);
    EXPECT_TRUE(caller.is_ended()) << rank;
  }
  for (int r = 0; r < kRanks; ++r) {
    EXPECT_LT(job.control(kHere).member(r).link.load(), 1'000'000U);
    EXPECT_TRUE(job.control(kHere).is_live(r));
  }
  EXPECT_TRUE(job.goes_on());
}

TEST(Engine, RankThatHasLeftCannotConnectAgain) {
  RunningJob job;
  Caller leaving(job, kElsewhere, 1'000'000);
  send_text(leaving.stream, text_of({FrameKind::kLeave, 0, 0}));
  ASSERT_TRUE(
      eventually([&] { return job.control(kHere).state(kElsewhere) == host::State::kLeft; }));
  Caller back(job, kElsewhere, 2'000'000);
  EXPECT_TRUE(back.is_ended());
  EXPECT_EQ(job.control(kHere).state(kElsewhere), host::State::kLeft);
  EXPECT_EQ(job.control(kHere).member(kElsewhere).link.load(), 1'000'000U);
}

// A rank that calls again and again still has only one connection.
TEST(Engine, CallsInManyLeaveNoConnectionsBehind) {
  RunningJob job;
  const std::size_t descriptors = open_descriptors();
  std::vector<std::unique_ptr<Caller>> callers;
  for (std::uint64_t i = 0; i < 200; ++i) {
    callers.push_back(std::make_unique<Caller>(job, kElsewhere, 1'000'000 + i));
  }
  for (std::size_t i = 0; i + 1 < callers.size(); ++i) EXPECT_TRUE(callers[i]->is_ended()) << i;
  EXPECT_EQ(take_text(callers.back()->stream).second, Flow::kOpen);
  // Rank 2's own connection has ended, and so has that of rank 0, which shared it. Both call again.
  constexpr std::size_t kAnew = 6;
  EXPECT_TRUE(
      eventually([&] { return open_descriptors() <= descriptors + callers.size() + kAnew; }));
  // The last connection ends without a goodbye. But its rank still listens, so the rank lives.
  callers.clear();
  EXPECT_TRUE(eventually([&] { return open_descriptors() <= descriptors + kAnew; }));
  EXPECT_TRUE(job.control(kHere).is_live(kElsewhere));
}

// Rank 2 makes no call: it uses the connection that rank 0 has made. Rank 1 has a connection of its
// own.
TEST(Engine, TwoThatAreEachOthersProxiesShareAConnection) {
  const std::size_t before = connections().size();
  RunningJob job;
  // Two connections, and both ends of each are here, once rank 2 has seen that it could have
  // called.
  EXPECT_TRUE(eventually([&] { return connections().size() == before + 4; }));
  EXPECT_TRUE(job.goes_on());
  EXPECT_LT(job.control(kElsewhere).member(kHere).link.load(), 2U);
}

TEST(Engine, SharedConnectionThatBreaksIsMadeAnewBothWays) {
  testing_processes::Job job(2, [](Bootstrap& bootstrap) {
    GroupOptions options;
    options.transport = "tcp";
    const auto group = Group::join(bootstrap, options);
    Segment segment(group, {.name = "w", .slot_bytes = 8});
    const std::array<std::byte, 8> zeros{};
    for (int round = 0; round < 6; ++round) {
      segment.scatter(std::span<const std::byte>(zeros));
      CHECK_THAT(segment.gather({.staleness = 0}, [](auto) {}) == 1);
      if (round % 2 != group->rank()) continue;
      for (int fd : connections()) shutdown(fd, SHUT_RDWR);
    }
    CHECK_THAT((group->alive() == std::vector<int>{0, 1}));
    group->barrier();
    return 0;
  });
  testing_processes::expect_all_well(job);
}

// A stranger that the listener refuses changes nothing in the job.
TEST(Engine, HalfOpenFloodLeavesTheJobAlone) {
  RunningJob job;
  std::vector<Descriptor> flood;
  for (int i = 0; i < 300; ++i) {
    flood.push_back(raw_connect(job.at[kHere]));
    if (i % 50 == 0) {
      EXPECT_TRUE(job.goes_on());
    }
  }
  EXPECT_TRUE(job.goes_on());
  EXPECT_EQ(job.control(kHere).epoch(), 0U);
}

// ---- Goodbyes ----

TEST(Engine, LeaveReturnsAtOnceWhileOthersStay) {
  const testing_processes::Shared<std::atomic<bool>> is_through;
  testing_processes::Job job(2, [&](Bootstrap& bootstrap) {
    GroupOptions options;
    options.transport = "tcp";
    options.timeout = 60s;
    const auto group = Group::join(bootstrap, options);
    group->barrier();
    if (group->rank() == 1) {
      const auto start = std::chrono::steady_clock::now();
      group->leave();
      CHECK_THAT(std::chrono::steady_clock::now() - start < 15s);
      *is_through = true;
    }
    CHECK_THAT(eventually([&] { return is_through->load(); }));
    return 0;
  });
  testing_processes::expect_all_well(job);
}

// As the watcher does, until the group is destroyed.
TEST(Engine, LeavesWhileAnotherThreadDrivesIt) {
  for (int round = 0; round < 5; ++round) {
    RunningJob job;
    std::atomic<bool> is_over = false;
    std::thread driver([&] {
      while (!is_over) job.engine(kElsewhere).flush_notices();
    });
    job.engine(kElsewhere).leave(5s);
    is_over = true;
    driver.join();
  }
}

// A connection that is full of one segment's update carries the updates of the others in the order
// in which they were made, and not that segment's next update first.
TEST(Engine, UpdatesArriveInTheOrderWrittenThroughAConnectionThatWasFull) {
  constexpr std::uint64_t kRounds = 3;
  constexpr std::size_t kLong = std::size_t{16} << 20;  // more than sockets hold
  const testing_processes::Shared<std::atomic<pid_t>> reader;
  testing_processes::Job job(2, [&](Bootstrap& bootstrap) {
    GroupOptions options;
    options.transport = "tcp";
    const auto group = Group::join(bootstrap, options);
    Segment model(group, {.name = "model", .slot_bytes = kLong, .depth = 3});
    Segment ledger(group, {.name = "ledger", .slot_bytes = 8});
    const std::vector<std::byte> zeros(kLong);
    const std::span<const std::byte> update(zeros);
    if (group->rank() == 1) *reader = getpid();
    group->barrier();
    std::uint64_t in_order = 0;
    for (std::uint64_t round = 1; round <= kRounds; ++round) {
      if (group->rank() == 0) {
        kill(*reader, SIGSTOP);
        model.scatter(update);
        std::this_thread::sleep_for(20ms);  // until the update fills the connection
        ledger.scatter(update.first(8));
        model.scatter(update);
        kill(*reader, SIGCONT);
      } else {
        CHECK_THAT(ledger.await_update(2, 20s));
        CHECK_THAT(ledger.gather({}, [](auto) {}) == 1);
        for (std::uint64_t seen = 0; seen < 2 * round;) {
          CHECK_THAT(model.await_update(2, 20s));
          model.gather({}, [&](auto updates) { seen = updates[0].iteration; });
          in_order += seen == 2 * round - 1 ? 1 : 0;  // the next did not overtake the ledger
        }
      }
      group->barrier();
    }
    CHECK_THAT(group->rank() == 0 || in_order > 0);
    return 0;
  });
  testing_processes::expect_all_well(job);
}

// Updates of a burst that were held back are sent soon, though their sender makes no further call
// and nothing wakes its thread. The thread by itself wakes every tenth of a second, and would be in
// time in one round of five.
TEST(Engine, BurstThatNothingFollowsComesSoon) {
  constexpr int kRounds = 16;
  constexpr int kUpdates = 10;
  testing_processes::Job job(2, [&](Bootstrap& bootstrap) {
    GroupOptions options;
    options.transport = "tcp";
    const auto group = Group::join(bootstrap, options);
    Segment burst(group, {.name = "burst", .slot_bytes = 8, .depth = 64, .policy = Policy::kQueue});
    const std::array<std::byte, 8> zeros{};
    const std::span<const std::byte> update(zeros);
    int whole = 0;
    for (int round = 0; round < kRounds; ++round) {
      group->barrier();
      std::this_thread::sleep_for(10ms);  // until both threads sleep
      for (int i = 0; group->rank() == 0 && i < kUpdates; ++i) burst.scatter(update);
      std::this_thread::sleep_for(group->rank() == 0 ? 60ms : 20ms);
      burst.gather({}, [&](auto updates) { whole += updates.size() == kUpdates ? 1 : 0; });
    }
    CHECK_THAT(group->rank() == 0 || whole >= kRounds / 2);
    group->barrier();
    return 0;
  });
  testing_processes::expect_all_well(job);
}

TEST(Engine, UpdateThatMayLagArrivesThoughItsSenderIsKilled) {
  testing_processes::Job job(2, [&](Bootstrap& bootstrap) {
    GroupOptions options;
    options.transport = "tcp";
    const auto group = Group::join(bootstrap, options);
    Segment rows(group, {.name = "rows", .slot_bytes = 8});
    group->barrier();
    if (group->rank() == 0) {
      std::this_thread::sleep_for(20ms);  // until the engine's thread sleeps, or it would send
      const auto fill = [](std::span<std::byte> room) { return std::pair(room.size(), Tag{}); };
      rows.scatter(fill, nullptr, true);
      raise(SIGKILL);
    }
    CHECK_THAT(rows.await_update(2, 20s));
    CHECK_THAT(rows.gather({}, [](auto) {}) == 1);
    return 0;
  });
  EXPECT_EQ(job.wait_all(), (std::vector<int>{128 + SIGKILL, 0}));
}

TEST(Engine, SegmentThatIsNeverThroughKeepsNoOtherWaiting) {
  constexpr std::uint64_t kUpdates = 60;
  constexpr std::uint64_t kWrittenAt = 10;
  constexpr std::size_t kLong = std::size_t{16} << 20;  // sent more slowly than written
  testing_processes::Job job(2, [&](Bootstrap& bootstrap) {
    GroupOptions options;
    options.transport = "tcp";
    const auto group = Group::join(bootstrap, options);
    Segment model(group,
                  {.name = "model", .slot_bytes = kLong, .depth = 4, .policy = Policy::kQueue});
    Segment ledger(group, {.name = "ledger", .slot_bytes = 8});
    const std::vector<std::byte> zeros(kLong);
    const std::span<const std::byte> update(zeros);
    for (std::uint64_t i = 1; group->rank() == 0 && i <= kUpdates; ++i) {
      model.scatter(update);  // as fast as the other rank takes them
      if (i == kWrittenAt) ledger.scatter(update.first(8));
    }
    std::uint64_t seen = 0;
    std::uint64_t seen_before_ledger = 0;
    while (group->rank() == 1 && seen < kUpdates) {
      model.gather({}, [&](auto updates) { seen += updates.size(); });
      if (ledger.gather({}, [](auto) {}) == 1) seen_before_ledger = seen;
    }
    if (group->rank() == 1) {
      CHECK_THAT(seen_before_ledger >= kWrittenAt - 4 && seen_before_ledger < kUpdates / 2);
    }
    group->barrier();
    return 0;
  });
  testing_processes::expect_all_well(job);
}

// ---- TLS ----

// Three ranks, of which rank 1 has `other` for MALT_TLS. Returns the error that all of them get.
void expect_refused(const std::string& folder, const std::string& other,
                    const std::vector<std::string>& parts) {
  testing_processes::Job job(3, [&](Bootstrap& bootstrap) {
    GroupOptions options;
    options.tls = bootstrap.rank() == 1 ? other : folder;
    options.transport = "tcp";
    options.timeout = 2s;
    options.secret = kSecret;
    const auto start = std::chrono::steady_clock::now();
    std::string error;
    try {
      Group::join(bootstrap, options);
    } catch (const ConfigError& thrown) {
      error = thrown.what();
    }
    CHECK_THAT(std::chrono::steady_clock::now() - start < 10s);
    for (const std::string& part : parts) {
      if (error.find(part) == std::string::npos) std::fprintf(stderr, "%s\n", error.c_str());
      CHECK_THAT(error.find(part) != std::string::npos);
    }
    CHECK_THAT(error.find(kSecret) == std::string::npos);
    return 0;
  });
  testing_processes::expect_all_well(job);
}

TEST(EngineOverTls, RankWithoutItIsAnErrorOnAll) {
  const testing_sockets::TlsEnds ends;
  expect_refused(ends.caller.folder.path(), "",
                 {"rank 0 has MALT_TLS a folder and rank 1 has MALT_TLS not set", "set it alike"});
  expect_refused("", "off",
                 {"rank 0 has MALT_TLS not set and rank 1 has MALT_TLS off", "set it alike"});
}

TEST(EngineOverTls, RankOfAnotherAuthorityIsAnErrorOnAll) {
  const testing_sockets::TlsEnds ends;
  const testing_sockets::TlsEnds theirs;
  expect_refused(ends.caller.folder.path(), theirs.caller.folder.path(),
                 {"rank 1 at 127.0.0.1:", "TLS: ", "certificate"});
}

TEST(EngineOverTls, RankWhoseCertificateHasRunOutIsAnErrorOnAll) {
  const testing_sockets::TlsEnds ends;
  ends.authority.expire(ends.callee.folder);
  expect_refused(ends.caller.folder.path(), ends.callee.folder.path(),
                 {"rank 1: MALT_TLS: " + (ends.callee.folder / "cert.pem"), "expired"});
}

}  // namespace
}  // namespace dstorm::remote
