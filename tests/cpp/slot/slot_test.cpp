// The slot protocol on an array of bytes, first with one thread, then with many. segment_test.cpp
// has the tests with processes.
#include "dstorm/slot/carrier.hpp"
#include "dstorm/slot/reader.hpp"
#include "dstorm/slot/writer.hpp"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <numeric>
#include <random>
#include <thread>

#include "stressed.hpp"

namespace dstorm {
namespace {

const auto kAllLive = [](int) { return true; };

// One sender (rank 0) with memory for a mailbox, and a reader for each other rank.
class Box {
 public:
  Box(int ranks, int depth, std::size_t slot_bytes)
      : shape_(ranks, depth, slot_bytes),
        memory_(static_cast<std::byte*>(std::aligned_alloc(kPage, shape_.bytes())), &std::free),
        writer_(clear_and_view(), 0) {
    for (int r = 0; r < ranks; ++r) {
      readers_.emplace_back(view(), r);
      if (r > 0) all_.push_back(r);
    }
  }

  Mailbox view() { return Mailbox(memory_.get(), shape_); }
  SlotWriter& writer() { return writer_; }
  SlotReader& reader(int rank) { return readers_[static_cast<std::size_t>(rank)]; }
  Cursor& cursor(int rank) { return view().cursor(rank); }
  const std::vector<int>& all() const { return all_; }

  // Sends a payload of `words` equal numbers; false if there was no slot.
  bool send(std::uint64_t iteration, Policy policy, const std::vector<int>& to,
            std::size_t words = 1) {
    const int slot = writer_.claim(policy, kAllLive);
    if (slot < 0) return false;
    auto* payload = reinterpret_cast<std::uint64_t*>(writer_.payload(slot));
    std::fill_n(payload, words, iteration);
    SlotHeader header{};
    header.iteration = iteration;
    header.payload_bytes = words * sizeof(std::uint64_t);
    header.count = words;
    writer_.publish(slot, header, to);
    return true;
  }
  bool send(std::uint64_t iteration, Policy policy) { return send(iteration, policy, all_); }

 private:
  Mailbox clear_and_view() {
    std::fill_n(memory_.get(), shape_.bytes(), std::byte{0});
    return view();
  }

  MailboxShape shape_;
  std::unique_ptr<std::byte, void (*)(void*)> memory_;
  SlotWriter writer_;
  std::vector<SlotReader> readers_;
  std::vector<int> all_;
};

std::uint64_t word(const SlotReader& reader, int slot) {
  return *reinterpret_cast<const std::uint64_t*>(reader.payload(slot));
}

// Folds the newest update as a gather does. Returns 0 if there is none.
std::uint64_t fold_newest(SlotReader& reader) {
  const std::uint64_t consumed = reader.consumed();
  if (reader.newest(consumed) < 0) return 0;
  reader.hold_from(consumed + 1);
  SlotReader::fence();
  const int slot = reader.newest(consumed);
  std::uint64_t iteration = 0;
  if (slot >= 0) {
    iteration = reader.header(slot).iteration;
    reader.hold_only(iteration);
    EXPECT_EQ(word(reader, slot), iteration);
    reader.consume(iteration, reader.ordinal(slot), true);
  }
  reader.let_go();
  return iteration;
}

TEST(Slot, EmptyMailboxHasNothing) {
  Box box(3, 2, 64);
  EXPECT_EQ(box.reader(1).clock(), 0U);
  EXPECT_EQ(box.reader(1).newest(0), -1);
  EXPECT_EQ(box.reader(1).oldest(0, 100), -1);
}

TEST(Slot, UpdateIsSeenByThoseItIsForAndByNobodyElse) {
  Box box(4, 2, 64);
  ASSERT_TRUE(box.send(7, Policy::kLatest, {1, 3}));
  EXPECT_EQ(fold_newest(box.reader(1)), 7U);
  EXPECT_EQ(fold_newest(box.reader(2)), 0U);
  EXPECT_EQ(fold_newest(box.reader(3)), 7U);
}

TEST(Slot, AnnouncedUpdateIsSeenOnlyWhenItIsShown) {
  Box box(3, 2, 64);
  const int slot = box.writer().claim(Policy::kLatest, kAllLive);
  ASSERT_GE(slot, 0);
  SlotHeader header{};
  header.iteration = 1;
  header.payload_bytes = sizeof(std::uint64_t);
  box.writer().announce(slot, header, box.all());
  EXPECT_EQ(box.writer().addressed(1), 1U);
  EXPECT_EQ(box.reader(1).clock(), 0U);
  EXPECT_EQ(box.reader(1).newest(0), -1);
  *reinterpret_cast<std::uint64_t*>(box.writer().payload(slot)) = 1;  // as a device does meanwhile
  box.writer().show(slot);
  EXPECT_EQ(box.reader(2).clock(), 1U);
  EXPECT_EQ(fold_newest(box.reader(1)), 1U);
  EXPECT_EQ(fold_newest(box.reader(2)), 1U);
}

TEST(Slot, UpdateIsFoldedOnce) {
  Box box(2, 2, 64);
  ASSERT_TRUE(box.send(1, Policy::kLatest));
  EXPECT_EQ(fold_newest(box.reader(1)), 1U);
  EXPECT_EQ(fold_newest(box.reader(1)), 0U);
}

TEST(Slot, HeaderSaysWhatWasSent) {
  Box box(2, 1, 640);
  ASSERT_TRUE(box.send(5, Policy::kLatest, box.all(), 80));
  const SlotHeader& header = box.reader(1).header(box.reader(1).find(5));
  EXPECT_EQ(header.sequence, 1U);
  EXPECT_EQ(header.sender, 0U);
  EXPECT_EQ(header.payload_bytes, 640U);
  EXPECT_EQ(header.count, 80U);
}

TEST(Slot, LatestReplacesWhatNobodyHasFolded) {
  Box box(2, 2, 64);
  for (std::uint64_t i = 1; i <= 5; ++i) ASSERT_TRUE(box.send(i, Policy::kLatest));
  EXPECT_EQ(box.writer().pending(1), 2U);
  EXPECT_EQ(fold_newest(box.reader(1)), 5U);
  EXPECT_EQ(box.cursor(1).folded.load(), 1U);
  EXPECT_EQ(box.cursor(1).overwritten.load(), 4U);
  EXPECT_EQ(box.writer().addressed(1), 5U);
  EXPECT_EQ(box.writer().pending(1), 0U);
}

TEST(Slot, QueueWaitsForTheSlowestReader) {
  Box box(3, 2, 64);
  ASSERT_TRUE(box.send(1, Policy::kQueue));
  ASSERT_TRUE(box.send(2, Policy::kQueue));
  EXPECT_FALSE(box.send(3, Policy::kQueue));
  EXPECT_EQ(fold_newest(box.reader(1)), 2U);
  EXPECT_FALSE(box.send(3, Policy::kQueue));
  EXPECT_EQ(box.writer().blockers(kAllLive), std::vector<int>{2});
  EXPECT_EQ(fold_newest(box.reader(2)), 2U);
  EXPECT_TRUE(box.send(3, Policy::kQueue));
}

TEST(Slot, QueueDoesNotWaitForTheDead) {
  Box box(3, 1, 64);
  ASSERT_TRUE(box.send(1, Policy::kQueue));
  const auto without_2 = [](int r) { return r != 2; };
  EXPECT_EQ(box.writer().claim(Policy::kQueue, without_2), -1);
  EXPECT_EQ(fold_newest(box.reader(1)), 1U);
  EXPECT_EQ(box.writer().claim(Policy::kQueue, without_2), 0);
}

TEST(Slot, HeldUpdateIsNeverReplaced) {
  Box box(2, 2, 64);
  ASSERT_TRUE(box.send(1, Policy::kLatest));
  SlotReader& reader = box.reader(1);
  reader.hold_from(1);
  SlotReader::fence();
  const int slot = reader.newest(0);
  reader.hold_only(1);
  for (std::uint64_t i = 2; i <= 9; ++i) {
    ASSERT_TRUE(box.send(i, Policy::kLatest));
    ASSERT_EQ(word(reader, slot), 1U) << "after update " << i;
  }
  reader.consume(1, reader.ordinal(slot), true);
  reader.let_go();
  EXPECT_EQ(fold_newest(reader), 9U);
}

TEST(Slot, OpenHoldKeepsEverythingFromItsIterationOn) {
  Box box(2, 2, 64);
  ASSERT_TRUE(box.send(1, Policy::kLatest));
  ASSERT_TRUE(box.send(2, Policy::kLatest));
  box.reader(1).hold_from(2);
  SlotReader::fence();
  EXPECT_TRUE(box.send(3, Policy::kLatest)) << "1 may be replaced";
  EXPECT_FALSE(box.send(4, Policy::kLatest)) << "2 and 3 may not";
  EXPECT_GE(box.reader(1).find(2), 0);
  EXPECT_GE(box.reader(1).find(3), 0);
  box.reader(1).let_go();
  EXPECT_TRUE(box.send(4, Policy::kLatest));
}

TEST(Slot, HoldOfTheDeadHoldsNothing) {
  Box box(2, 1, 64);
  ASSERT_TRUE(box.send(1, Policy::kLatest));
  box.reader(1).hold_from(1);
  SlotReader::fence();
  EXPECT_EQ(box.writer().claim(Policy::kLatest, kAllLive), -1);
  EXPECT_EQ(box.writer().claim(Policy::kLatest, [](int) { return false; }), 0);
}

TEST(Slot, SkippedUpdateCountsAsOverwritten) {
  Box box(2, 1, 64);
  ASSERT_TRUE(box.send(1, Policy::kLatest));
  box.reader(1).hold_from(1);
  SlotReader::fence();
  ASSERT_FALSE(box.send(2, Policy::kLatest));
  box.writer().skip(2, box.all());
  EXPECT_EQ(box.reader(1).clock(), 2U);
  box.reader(1).let_go();
  EXPECT_EQ(fold_newest(box.reader(1)), 1U);
  ASSERT_TRUE(box.send(3, Policy::kLatest));
  EXPECT_EQ(fold_newest(box.reader(1)), 3U);
  EXPECT_EQ(box.cursor(1).overwritten.load(), 1U);
}

TEST(Slot, FoldThatFailedLeavesTheUpdate) {
  Box box(2, 2, 64);
  ASSERT_TRUE(box.send(1, Policy::kLatest));
  box.reader(1).hold_from(1);
  SlotReader::fence();
  box.reader(1).let_go();  // this happens when a fold throws
  EXPECT_EQ(fold_newest(box.reader(1)), 1U);
}

TEST(Slot, WriterThatDiesBeforePublishingLeavesNothing) {
  Box box(2, 2, 64);
  ASSERT_TRUE(box.send(1, Policy::kLatest));
  const int slot = box.writer().claim(Policy::kLatest, kAllLive);
  *reinterpret_cast<std::uint64_t*>(box.writer().payload(slot)) = 2;
  EXPECT_EQ(box.reader(1).clock(), 1U);
  EXPECT_EQ(fold_newest(box.reader(1)), 1U);
}

// The receivers vary, so tickets of an update that was folded long ago lie beside those of the
// last.
TEST(Slot, WriterThatTakesOverACopyKnowsOldTicketsFromNew) {
  Box box(4, 1, 8);
  SlotWriter first = SlotWriter::of_copy(box.view(), 0);
  const auto put = [&](std::uint64_t iteration, std::span<const Addressee> to) {
    SlotHeader header{};
    header.sequence = header.iteration = iteration;
    ASSERT_EQ(first.claim(Policy::kQueue, kAllLive), 0);
    first.publish_copy(0, header, to);
  };
  const auto fold = [&](int rank, std::uint64_t iteration) {
    box.reader(rank).consume(iteration, iteration, true);
  };
  put(1, std::array{Addressee{1, 1}, Addressee{3, 1}});
  fold(1, 1);
  fold(3, 1);
  put(2, std::array{Addressee{1, 2}});
  EXPECT_EQ(SlotWriter::of_copy(box.view(), 0).claim(Policy::kQueue, kAllLive), -1);  // 1 waits
  fold(1, 2);
  put(3, std::array{Addressee{3, 2}});
  fold(3, 3);
  EXPECT_EQ(SlotWriter::of_copy(box.view(), 0).claim(Policy::kQueue, kAllLive), 0);  // 1 does not
}

TEST(Slot, TwoHundredReceivers) {
  Box box(201, 2, 8);
  ASSERT_TRUE(box.send(1, Policy::kQueue));
  ASSERT_TRUE(box.send(2, Policy::kQueue));
  for (int r = 1; r <= 200; ++r) {
    ASSERT_FALSE(box.send(3, Policy::kQueue)) << "receiver " << r << " has not folded yet";
    ASSERT_EQ(fold_newest(box.reader(r)), 2U);
  }
  EXPECT_TRUE(box.send(3, Policy::kQueue));
}

TEST(Slot, MailboxesOfAllShapesAreAligned) {
  for (int ranks : {1, 2, 3, 65, 130}) {
    for (int depth : {1, 2, 7}) {
      for (std::size_t bytes : {std::size_t{1}, std::size_t{64}, std::size_t{4097}}) {
        const MailboxShape shape(ranks, depth, bytes);
        EXPECT_EQ(shape.slot(0) % kLine, 0U);
        EXPECT_EQ(shape.slot(1) % kLine, 0U);
        EXPECT_EQ(shape.cursor(0) % kLine, 0U);
        EXPECT_LE(shape.ticket(static_cast<std::size_t>(depth), 0), shape.cursor(0));
        EXPECT_LE(shape.slot(static_cast<std::size_t>(depth)), shape.bytes());
        EXPECT_LE(shape.slot(0) + static_cast<std::size_t>(depth) * bytes, shape.bytes());
      }
    }
  }
}

// ---- Threads: what a race would tear, and what the thread sanitizer looks at ----

// The most words of a payload: so many that writing it takes longer than a look at a ticket.
constexpr std::size_t kWords = 512;

std::uint64_t updates_to_send() { return stressed(20'000); }

// Reads a whole payload. Returns whether every word is the iteration.
bool is_whole(const SlotReader& reader, int slot) {
  const auto* words = reinterpret_cast<const std::uint64_t*>(reader.payload(slot));
  const SlotHeader& header = reader.header(slot);
  for (std::size_t i = 0; i < header.count; ++i) {
    if (words[i] != header.iteration) return false;
  }
  return true;
}

struct Seen {
  std::uint64_t folded = 0, torn = 0, out_of_order = 0;
};

// Gathers as Segment does under LATEST until it has seen `last` or the sender has ended.
Seen read_latest(SlotReader& reader, const std::atomic<bool>& ended) {
  Seen seen;
  for (std::uint64_t last = 0;;) {
    const bool over = ended.load();
    const std::uint64_t consumed = reader.consumed();
    if (reader.newest(consumed) < 0) {
      if (over) return seen;
      std::this_thread::yield();
      continue;
    }
    reader.hold_from(consumed + 1);
    SlotReader::fence();
    if (const int slot = reader.newest(consumed); slot >= 0) {
      const std::uint64_t iteration = reader.header(slot).iteration;
      reader.hold_only(iteration);
      if (iteration % 8 == 0) std::this_thread::yield();  // let the sender run
      if (!is_whole(reader, slot)) ++seen.torn;
      if (iteration <= last) ++seen.out_of_order;
      last = iteration;
      ++seen.folded;
      reader.consume(iteration, reader.ordinal(slot), true);
    }
    reader.let_go();
  }
}

class SlotThreads : public testing::TestWithParam<int> {};  // by depth

TEST_P(SlotThreads, LatestIsNeverTornAndItsCountersBalance) {
  constexpr int kReaders = 3;
  Box box(kReaders + 1, GetParam(), kWords * 8);
  std::atomic<bool> ended{false};
  std::vector<Seen> seen(kReaders);
  std::vector<std::thread> threads;
  for (int r = 1; r <= kReaders; ++r) {
    threads.emplace_back(
        [&, r] { seen[static_cast<std::size_t>(r - 1)] = read_latest(box.reader(r), ended); });
  }
  std::minstd_rand random(1);
  const std::uint64_t updates = updates_to_send();
  const auto all_have_folded = [&] {  // A thread may not run until long after its start.
    return box.cursor(1).folded > 0 && box.cursor(2).folded > 0 && box.cursor(3).folded > 0;
  };
  for (std::uint64_t i = 1; i <= updates || !all_have_folded(); ++i) {
    std::vector<int> to;
    for (int r = 1; r <= kReaders; ++r) {
      if (random() % 4 != 0) to.push_back(r);
    }
    if (!box.send(i, Policy::kLatest, to, 1 + random() % kWords)) box.writer().skip(i, to);
    if (i % 16 == 0) std::this_thread::yield();
  }
  ended = true;
  for (std::thread& thread : threads) thread.join();
  for (int r = 1; r <= kReaders; ++r) {
    const Seen& mine = seen[static_cast<std::size_t>(r - 1)];
    const Cursor& cursor = box.cursor(r);
    EXPECT_EQ(mine.torn, 0U);
    EXPECT_EQ(mine.out_of_order, 0U);
    EXPECT_EQ(cursor.folded.load(), mine.folded);
    EXPECT_EQ(box.writer().pending(r), 0U);
    EXPECT_GT(mine.folded, 0U);
    // Updates addressed after the last one folded found every slot held.
    EXPECT_LE(cursor.folded.load() + cursor.overwritten.load(), box.writer().addressed(r));
    EXPECT_EQ(cursor.folded.load() + cursor.overwritten.load(), cursor.ordinal.load());
  }
}

// A slot that is used again keeps the tickets of ranks that the new update is not for. A carrier
// that begins again might take the old update for the new one, or wait for it for ever.
TEST(Slot, CarrierPassesOverWhatItsReceiverHasConsumedOrIsDeadFor) {
  Box box(4, 2, 64);
  std::array<bool, 4> live{true, true, true, true};
  const auto is_live = [&](int r) { return live[static_cast<std::size_t>(r)]; };
  const auto send = [&](std::uint64_t iteration, const std::vector<int>& to) {
    const int slot = box.writer().claim(Policy::kQueue, is_live);
    ASSERT_GE(slot, 0);
    SlotHeader header{};
    header.iteration = iteration;
    box.writer().publish(slot, header, to);
  };
  send(1, {1, 2, 3});
  send(2, {1, 2, 3});
  box.cursor(1).consumed = 1;
  box.cursor(2).consumed = 1;
  live[3] = false;
  send(3, {1});  // goes into the slot of the first update
  SlotCarrier carrier(box.view(), {1, 2, 3});
  const auto take = [&](std::uint64_t after) {
    std::vector<int> ranks;
    if (carrier.take(after, is_live) < 0) return std::pair(std::uint64_t{0}, ranks);
    for (const Addressee& to : carrier.addressees()) ranks.push_back(to.rank);
    carrier.let_go();
    return std::pair(carrier.header().iteration, ranks);
  };
  using Taken = std::pair<std::uint64_t, std::vector<int>>;
  EXPECT_EQ(take(0), Taken(2, {1, 2}));
  EXPECT_EQ(take(2), Taken(3, {1}));
  EXPECT_EQ(take(3), Taken(0, {}));
  box.cursor(1).consumed = 3;
  EXPECT_EQ(take(0), Taken(2, {2}));
  live[2] = false;
  EXPECT_EQ(take(0), Taken(0, {}));
}

// The sender replaces the update after the carrier has found it and before the hold is stored. The
// carrier then must not read the header, which the sender may be writing. Nothing but the ticket
// orders the two threads, so ThreadSanitizer sees a read of the header that looks at no ticket.
TEST(Slot, CarrierReadsNothingOfAnUpdateThatIsReplacedBeforeTheHold) {
  Box box(2, 1, 64);
  ASSERT_TRUE(box.send(1, Policy::kLatest));
  std::atomic<bool> is_found{false};
  std::atomic<bool> is_replaced{false};
  std::thread sender([&] {
    while (!is_found.load(std::memory_order_relaxed)) std::this_thread::yield();
    EXPECT_TRUE(box.send(2, Policy::kLatest));
    is_replaced.store(true, std::memory_order_relaxed);
  });
  int looks = 0;
  const auto is_live = [&](int) {
    if (++looks == 2) {  // the first time it was found, the second time it is about to be held
      is_found.store(true, std::memory_order_relaxed);
      while (!is_replaced.load(std::memory_order_relaxed)) std::this_thread::yield();
    }
    return true;
  };
  SlotCarrier carrier(box.view(), {1});
  EXPECT_EQ(carrier.take(0, is_live), 0);
  EXPECT_EQ(carrier.header().iteration, 2U);
  carrier.let_go();
  sender.join();
}

// The ranks of another host, and their carrier. It takes the remaining updates in the order in
// which they were made, each for all its receivers that have not consumed it, and reads them in
// place. Now and then it begins again, as over a new connection.
TEST_P(SlotThreads, CarrierTakesWholeUpdatesInOrderAndKnowsWhomTheyAreFor) {
  constexpr int kReaders = 3;
  Box box(kReaders + 1, GetParam(), kWords * 8);
  // By iteration: the receivers, one bit per rank, and their ordinals.
  struct Sent {
    std::uint32_t to = 0;
    std::array<std::uint64_t, kReaders + 1> ordinals{};
  };
  const std::uint64_t updates = updates_to_send();
  std::vector<Sent> sent(updates + 1);
  std::minstd_rand random(1);
  std::array<std::uint64_t, kReaders + 1> ordinals{};
  for (std::uint64_t i = 1; i <= updates; ++i) {
    for (int r = 1; r <= kReaders; ++r) {
      if (random() % 4 == 0) continue;
      sent[i].to |= 1U << r;
      sent[i].ordinals[static_cast<std::size_t>(r)] = ++ordinals[static_cast<std::size_t>(r)];
    }
  }
  std::atomic<bool> ended{false};
  std::uint64_t taken = 0;
  std::uint64_t torn = 0;
  std::uint64_t wrong = 0;
  std::thread thread([&] {
    std::minstd_rand chance(2);
    SlotCarrier carrier(box.view(), {1, 2, 3});
    for (std::uint64_t last = 0;;) {
      if (chance() % 64 == 0) last = 0;
      const bool over = ended.load();
      const std::uint64_t clock = carrier.clock();
      const int slot = carrier.take(last, [](int) { return true; });
      // The sender is still publishing an update that is beyond its clock (S6).
      if (slot < 0 || carrier.header().iteration > clock) {
        carrier.let_go();
        if (slot < 0 && over) return;
        std::this_thread::yield();
        continue;
      }
      const SlotHeader header = carrier.header();
      if (header.iteration % 8 == 0) std::this_thread::yield();  // let the sender run
      const auto* words = reinterpret_cast<const std::uint64_t*>(carrier.payload(slot));
      for (std::size_t i = 0; i < header.count; ++i) torn += words[i] != header.iteration;
      std::uint32_t to = 0;
      for (const Addressee& receiver : carrier.addressees()) {
        to |= 1U << receiver.rank;
        const auto rank = static_cast<std::size_t>(receiver.rank);
        wrong += receiver.ordinal != sent[header.iteration].ordinals[rank];
      }
      std::uint32_t expected = sent[header.iteration].to;
      for (int r = 1; r <= kReaders; ++r) {
        if (box.cursor(r).consumed.load() >= header.iteration) expected &= ~(1U << r);
      }
      wrong += to != expected || header.iteration <= last;
      last = header.iteration;
      ++taken;
      carrier.let_go();
      for (int r = 1; r <= kReaders; ++r) {
        if ((to >> r & 1) != 0 && chance() % 2 == 0) box.cursor(r).consumed.store(last);
      }
    }
  });
  for (std::uint64_t i = 1; i <= updates; ++i) {
    std::vector<int> to;
    for (int r = 1; r <= kReaders; ++r) {
      if ((sent[i].to >> r & 1) != 0) to.push_back(r);
    }
    if (!box.send(i, Policy::kLatest, to, 1 + random() % kWords)) box.writer().skip(i, to);
    if (i % 16 == 0) std::this_thread::yield();
  }
  ended = true;
  thread.join();
  EXPECT_EQ(torn, 0U);
  EXPECT_EQ(wrong, 0U);
  EXPECT_GT(taken, 0U);
}

TEST_P(SlotThreads, CarrierPassesOverNothingOfAQueue) {
  Box box(3, GetParam(), kWords * 8);
  const std::uint64_t updates = updates_to_send();
  std::uint64_t passed_over = 0;
  std::thread thread([&] {
    SlotCarrier carrier(box.view(), {1, 2});
    for (std::uint64_t last = 0; last < updates;) {
      if (carrier.take(last, kAllLive) < 0) {
        std::this_thread::yield();
        continue;
      }
      passed_over += carrier.header().iteration != last + 1;
      last = carrier.header().iteration;
      carrier.let_go();
      for (int r : {1, 2}) box.cursor(r).consumed.store(last, std::memory_order_release);
    }
  });
  for (std::uint64_t i = 1; i <= updates; ++i) {
    while (!box.send(i, Policy::kQueue)) std::this_thread::yield();
  }
  thread.join();
  EXPECT_EQ(passed_over, 0U);
}

TEST_P(SlotThreads, QueueDeliversEveryUpdateOnceAndInOrder) {
  constexpr int kReaders = 3;
  Box box(kReaders + 1, GetParam(), kWords * 8);
  const std::uint64_t updates = updates_to_send() / 4;
  std::vector<Seen> seen(kReaders);
  std::vector<std::thread> threads;
  for (int r = 1; r <= kReaders; ++r) {
    threads.emplace_back([&, r] {
      SlotReader& reader = box.reader(r);
      Seen& mine = seen[static_cast<std::size_t>(r - 1)];
      for (std::uint64_t last = 0; last < updates;) {
        const int slot = reader.oldest(reader.consumed(), updates);
        if (slot < 0) {
          std::this_thread::yield();
          continue;
        }
        const std::uint64_t iteration = reader.header(slot).iteration;
        if (!is_whole(reader, slot)) ++mine.torn;
        if (iteration != last + 1) ++mine.out_of_order;
        last = iteration;
        ++mine.folded;
        reader.consume(iteration, reader.ordinal(slot), true);
      }
    });
  }
  for (std::uint64_t i = 1; i <= updates; ++i) {
    while (!box.send(i, Policy::kQueue, box.all(), 1 + i % kWords)) std::this_thread::yield();
  }
  for (std::thread& thread : threads) thread.join();
  for (int r = 1; r <= kReaders; ++r) {
    const Seen& mine = seen[static_cast<std::size_t>(r - 1)];
    EXPECT_EQ(mine.torn, 0U);
    EXPECT_EQ(mine.out_of_order, 0U);
    EXPECT_EQ(mine.folded, updates);
    EXPECT_EQ(box.cursor(r).overwritten.load(), 0U);
    EXPECT_EQ(box.writer().pending(r), 0U);
  }
}

// S6. Two thousand tickets take a while to write, and the reader's ticket is the last.
TEST(SlotThreads, ReaderThatSeesTheClockSeesTheTickets) {
  constexpr int kReader = 2000;
  Box box(kReader + 1, 1, 8);
  const std::uint64_t updates = updates_to_send() / 2;
  std::uint64_t missing = 0;
  std::thread thread([&] {
    SlotReader& reader = box.reader(kReader);
    for (std::uint64_t i = 1; i <= updates; ++i) {
      while (reader.clock() < i) std::this_thread::yield();
      if (reader.find(i) < 0) ++missing;
      while (reader.find(i) < 0) std::this_thread::yield();
      reader.consume(i, reader.ordinal(0), true);
    }
  });
  for (std::uint64_t i = 1; i <= updates; ++i) {
    const auto others_are_dead = [](int r) { return r == kReader; };
    while (box.writer().claim(Policy::kQueue, others_are_dead) < 0) std::this_thread::yield();
    SlotHeader header{};
    header.iteration = i;
    box.writer().publish(0, header, box.all());
  }
  thread.join();
  EXPECT_EQ(missing, 0U);
}

// A reader looks at one slot after the other. Meanwhile the sender fills the first slot, and then
// the last: the update that the reader sees in the last slot is not the oldest. The slots in
// between belong to receiver 2, and each ticket is a page away from the next, so that a look takes
// long.
TEST(SlotThreads, OldestIsNotPassedOver) {
  constexpr int kDepth = 256;
  constexpr int kRanks = 256;
  Box box(kRanks, kDepth, 8);
  for (std::uint64_t i = 1; i < kDepth; ++i) ASSERT_TRUE(box.send(i, Policy::kQueue, {2}));
  ASSERT_TRUE(box.send(kDepth, Policy::kQueue, {1}));
  box.reader(2).consume(1, 1, true);  // the first slot is free, and now the last:
  box.reader(1).consume(kDepth, 1, true);
  const std::uint64_t end = kDepth + updates_to_send() / 2;
  std::uint64_t passed_over = 0;
  std::thread thread([&] {
    SlotReader& reader = box.reader(1);
    for (std::uint64_t last = kDepth, looks = 1; last < end; ++looks) {
      const int slot = reader.oldest(last, end);
      if (looks % 64 == 0) std::this_thread::yield();  // the threads may share a core
      if (slot < 0) continue;
      const std::uint64_t found = reader.header(slot).iteration;
      if (found != last + 1) ++passed_over;
      last = found;
      reader.consume(found, reader.ordinal(slot), true);
    }
  });
  for (std::uint64_t i = kDepth + 1; i <= end; ++i) {
    while (!box.send(i, Policy::kQueue, {1})) std::this_thread::yield();
    while (i % 2 == 0 && box.reader(1).consumed() < i) std::this_thread::yield();
  }
  thread.join();
  EXPECT_EQ(passed_over, 0U);
}

// Cache lines that two threads share, only to fill a store buffer. Written lines leave the buffer
// in order, and lines that the other thread has just read leave it slowly. So the other thread sees
// the next store late, unless a fence waits for it.
class Ballast {
 public:
  void store(std::uint64_t value) {
    for (Line& line : lines_) line.word.store(value, std::memory_order_relaxed);
  }
  void load() const {
    for (const Line& line : lines_) static_cast<void>(line.word.load(std::memory_order_relaxed));
  }

 private:
  struct alignas(kLine) Line {
    std::atomic<std::uint64_t> word{0};
  };
  std::array<Line, 32> lines_;
};

// Store buffering alone: the hold of S3 against the revoked ticket of S4 (b), round after round,
// with nothing else going on. A missing fence on either side shows as a torn read.
TEST(SlotThreads, HoldAndRevokeNeverMissEachOther) {
  Box box(2, 1, kWords * 8);
  const std::uint64_t updates = updates_to_send() * 150;
  std::atomic<bool> ended{false};
  Ballast ballast;
  Seen seen;
  std::thread thread([&] {
    SlotReader& reader = box.reader(1);
    while (!ended.load(std::memory_order_relaxed)) {
      ballast.load();
      const std::uint64_t consumed = reader.consumed();
      reader.hold_from(consumed + 1);
      SlotReader::fence();
      if (const int slot = reader.newest(consumed); slot >= 0) {
        ++seen.folded;
        if (!is_whole(reader, slot)) ++seen.torn;
        const std::uint64_t iteration = reader.header(slot).iteration;
        if (iteration % 2 == 0) reader.consume(iteration, reader.ordinal(slot), true);
      }
      reader.let_go();
    }
  });
  for (std::uint64_t i = 1; i <= updates; ++i) {
    if (i % 2 == 0) ballast.store(i);  // in half of the rounds, since it slows the others down
    if (!box.send(i, Policy::kLatest, box.all(), kWords)) box.writer().skip(i, box.all());
  }
  ended = true;
  thread.join();
  EXPECT_EQ(seen.torn, 0U);
  EXPECT_GT(seen.folded, 0U);
}

INSTANTIATE_TEST_SUITE_P(Depth, SlotThreads, testing::Values(1, 2, 3, 8));

}  // namespace
}  // namespace dstorm
