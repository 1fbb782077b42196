// Updates over a network with adaptive routing, on which a later write may arrive before an earlier
// one. The adapters are those of tests/fake_verbs.
#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <thread>
#include <vector>

#include "dstorm/remote/engine.hpp"
#include "dstorm/remote/verbs/adapter.hpp"
#include "dstorm/remote/verbs/inbox.hpp"
#include "dstorm/slot/reader.hpp"
#include "dstorm/slot/writer.hpp"
#include "fake.hpp"
#include "tcp_ranks.hpp"
#include "tcp_sockets.hpp"

namespace dstorm::remote {
namespace {

using namespace std::chrono_literals;
using testing_sockets::eventually;

constexpr int kHere = 0;
constexpr int kSender = 2;

// Ranks 0 and 1 on one host, rank 2 on another. Rank 2 sends, under QUEUE, and rank 0 takes in what
// its adapter writes.
class TwoHosts {
 public:
  TwoHosts() {
    testing_ranks::in_ranks(3, [this](Bootstrap& bootstrap) {
      Rank& own = rank(bootstrap.rank());
      own.control = std::make_unique<host::Control>(
          bootstrap, testing_ranks::sharing_of(bootstrap.rank()), 10s);
      own.engine =
          std::make_unique<Engine>(bootstrap, *own.control,
                                   EngineOptions{.deadline = 10s,
                                                 .suspect_after = 60s,  // a late write ends no link
                                                 .interface = {},
                                                 .toward = {},
                                                 .secret = {},
                                                 .adapter = wish_on(*own.control),
                                                 .news = own.news.get()});
    });
    const MailboxShape mailbox(3, 16, 64);
    for (int r : {kHere, kSender}) {
      const host::SegmentShape shape{
          mailbox, Policy::kQueue, 0, 0, rank(r).engine->adapter()->inbox_bytes(mailbox), 2};
      const auto memory =
          std::make_shared<host::SegmentMemory>(host::SegmentMemory::create(shape, "a segment", 3));
      for (int sender = 0; sender < 3; ++sender) memory->reserve_own(sender, "a segment");
      rank(r).segment = rank(r).engine->attach(1, memory);
    }
    const host::SegmentMemory& memory = *rank(kHere).segment->memory;
    writer_ = std::make_unique<SlotWriter>(memory_of(kSender).box(kSender), kSender);
    inbox_ = std::make_unique<verbs::Inbox>(
        memory.inbox(kSender), verbs::InboxShape(memory.shape().mailbox, 2), memory.copies(kSender),
        Policy::kQueue, kSender, rank(kHere).control->locals(), kHere);
  }

  // Sends the next update. Returns its iteration.
  std::uint64_t send(const std::vector<int>& to) {
    SlotHeader header{};
    header.iteration = ++sent_;
    header.payload_bytes = 8;
    const int slot = writer_->claim(Policy::kQueue, [](int) { return true; });
    writer_->publish(slot, header, to);
    rank(kSender).engine->flush(*rank(kSender).segment, header.payload_bytes);
    return sent_;
  }
  void take_in() {
    inbox_->take_in([](int) { return true; }, [](int) { return false; }, [](std::size_t) {});
  }
  // Whether the ranks `to` have the update.
  bool has_come(std::uint64_t iteration, const std::vector<int>& to) {
    take_in();
    return std::all_of(to.begin(), to.end(), [&](int r) {
      return SlotReader(memory_of(kHere).copies(kSender), r).find(iteration) >= 0;
    });
  }

 private:
  struct Rank {
    Descriptor news{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    std::unique_ptr<host::Control> control;
    std::unique_ptr<Engine> engine;
    std::shared_ptr<Attachment> segment;
  };
  static AdapterWish wish_on(const host::Control& control) {
    return {AdapterWish::Use::kRequired, "verbs",
            [&control] { return std::make_unique<verbs::Adapter>(control, RdmaOptions{}); }};
  }
  Rank& rank(int r) { return ranks_[static_cast<std::size_t>(r)]; }
  const host::SegmentMemory& memory_of(int r) { return *rank(r).segment->memory; }

  std::array<Rank, 3> ranks_;
  std::unique_ptr<SlotWriter> writer_;
  std::unique_ptr<verbs::Inbox> inbox_;
  std::uint64_t sent_ = 0;
};

// The first of two updates is late. The second one may overtake it only if its ordinals show a gap
// to each receiver of the first one; otherwise it waits.
TEST(RdmaOrder, QueueLosesNoUpdateThatALaterOneToOtherRanksWouldOvertake) {
  struct Case {
    std::vector<int> first, second;
    bool is_written_at_once;
  };
  const Case cases[] = {
      {{0}, {1}, false}, {{0, 1}, {1}, false}, {{0}, {0, 1}, true}, {{0, 1}, {0, 1}, true}};
  FAKE(fake_verbs_begin)();
  TwoHosts job;
  const std::uint64_t ready = job.send({0, 1});
  ASSERT_TRUE(eventually([&] { return job.has_come(ready, {0, 1}); }));
  for (const Case& one : cases) {
    SCOPED_TRACE(testing::PrintToString(one.first) + ", then " +
                 testing::PrintToString(one.second));
    FAKE(fake_verbs_fail)("lateness", 1, 1, 1);
    const std::uint64_t late = job.send(one.first);
    ASSERT_TRUE(eventually([] { return FAKE(fake_verbs_failed)("lateness") == 1; }));
    const std::uint64_t writes = FAKE(fake_verbs_calls)("lateness");
    const std::uint64_t next = job.send(one.second);
    const auto is_written = [&] { return FAKE(fake_verbs_calls)("lateness") > writes; };
    const auto until = std::chrono::steady_clock::now() + (one.is_written_at_once ? 10s : 50ms);
    while (!is_written() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    EXPECT_EQ(is_written(), one.is_written_at_once);
    job.take_in();
    FAKE(fake_verbs_arrive)();
    ASSERT_TRUE(eventually([&] { return job.has_come(late, one.first); }));
    ASSERT_TRUE(eventually([&] { return job.has_come(next, one.second); }));
  }
}

}  // namespace
}  // namespace dstorm::remote
