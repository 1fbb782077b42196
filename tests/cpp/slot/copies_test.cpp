// Which rank may write which copy. The ranks of a host take turns, and each may be stopped at any
// instruction and go on. Here the ranks are threads.
#include "dstorm/slot/copies.hpp"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "dstorm/slot/reader.hpp"
#include "dstorm/slot/writer.hpp"

namespace dstorm {
namespace {

using namespace std::chrono_literals;
using Outcome = CopyTable::Outcome;

const auto kNobody = [](int) { return false; };
const auto kEverybody = [](int) { return true; };
const auto kNoMemory = [](std::size_t) {};

class Table {
 public:
  explicit Table(std::size_t copies) : words_(CopyTable::words_for(copies)) {}
  CopyTable view() { return CopyTable(words_); }
  CopyTable::Taken take(std::uint64_t link, int place) {
    return view().take(link, place, kNobody, kNobody, kNoMemory);
  }

 private:
  std::vector<std::atomic<std::uint64_t>> words_;
};

TEST(Copies, FirstIsTakenByWhoComesFirst) {
  Table table(2);
  const auto taken = table.take(1, 1);
  EXPECT_EQ(taken.outcome, Outcome::kTaken);
  EXPECT_EQ(taken.copy, 0U);
  EXPECT_FALSE(taken.is_another);
  EXPECT_EQ(table.view().current(), 0U);
}

TEST(Copies, CopyThatIsHeldIsWaitedForOrLeftToItsHolder) {
  Table table(2);
  table.take(1, 0);
  const auto waits = table.view().take(2, 1, kNobody, kEverybody, kNoMemory);
  EXPECT_EQ(waits.outcome, Outcome::kOccupied);
  const auto taken = table.take(2, 1);
  EXPECT_EQ(taken.outcome, Outcome::kTaken);
  EXPECT_EQ(taken.copy, 1U);
  EXPECT_TRUE(taken.is_another);
  EXPECT_EQ(table.view().current(), 1U);
}

TEST(Copies, CopyOfOneWhoHasEndedOrReleasedItIsGoneOnWith) {
  Table table(2);
  table.take(1, 0);
  const auto heir =
      table.view().take(2, 1, [](int place) { return place == 0; }, kEverybody, kNoMemory);
  EXPECT_EQ(heir.outcome, Outcome::kTaken);
  EXPECT_EQ(heir.copy, 0U);
  table.view().release(heir);
  EXPECT_EQ(table.take(3, 0).copy, 0U);
}

TEST(Copies, OutdatedLinkTakesNothing) {
  Table table(2);
  table.view().release(table.take(5, 0));
  EXPECT_EQ(table.take(4, 1).outcome, Outcome::kOutdated);
  EXPECT_EQ(table.view().current(), 0U);
}

// The same rank takes the copy for a later link, before its former connection knows of that.
TEST(Copies, RankThatHoldsACopyStillGoesOnInThat) {
  Table table(2);
  const auto former = table.take(1, 0);
  table.take(2, 1);
  const auto later = table.take(3, 0);
  EXPECT_EQ(later.copy, former.copy);
  table.view().release(former);
  EXPECT_EQ(table.view().take(4, 1, kNobody, kEverybody, kNoMemory).outcome, Outcome::kOccupied)
      << "what its former connection released is held by the later one";
}

TEST(Copies, AsManyAsRanksAreEnoughWhoeverIsStopped) {
  constexpr int kPlaces = 5;
  Table table(kPlaces);
  std::vector<bool> is_taken(kPlaces);
  for (int place = 0; place < kPlaces; ++place) {
    const auto taken = table.take(static_cast<std::uint64_t>(place) + 1, place);
    ASSERT_EQ(taken.outcome, Outcome::kTaken);
    ASSERT_FALSE(is_taken[taken.copy]) << "two write copy " << taken.copy;
    is_taken[taken.copy] = true;
  }
}

TEST(Copies, TakeReportsOccupiedWhileOthersHoldAllCopies) {
  Table table(2);
  table.take(1, 0);
  table.take(2, 1);
  EXPECT_EQ(table.take(3, 2).outcome, Outcome::kOccupied);
}

TEST(Copies, HolderSeesWhatTheHolderBeforeItWrote) {
  constexpr int kTurns = 2000;
  Table table(2);
  int written = 0;  // not atomic, like the bytes of a copy
  const auto take_turns = [&](int place) {
    for (int turn = 0; turn < kTurns;) {
      const auto taken = table.view().take(1, place, kNobody, kEverybody, kNoMemory);
      if (taken.outcome != Outcome::kTaken) continue;
      ++written;
      table.view().release(taken);
      ++turn;
    }
  };
  std::thread other(take_turns, 1);
  take_turns(0);
  other.join();
  EXPECT_EQ(written, 2 * kTurns);
}

TEST(Copies, WithoutMemoryForAnotherNothingChanges) {
  Table table(2);
  table.take(1, 0);
  const auto take = [&] {
    table.view().take(2, 1, kNobody, kNobody,
                      [](std::size_t) { throw std::runtime_error("no memory"); });
  };
  EXPECT_THROW(take(), std::runtime_error);
  EXPECT_EQ(table.view().current(), 0U);
  EXPECT_EQ(table.take(3, 1).copy, 1U) << "it is free";
}

TEST(Copies, CurrentCopyThatCannotBeIsTheFirst) {
  Table table(2);
  table.view().words()[0] = 77;
  EXPECT_EQ(table.view().current(), 0U);
}

// ---- Proxies that are replaced while they write, and go on ----

constexpr int kPlaces = 3;
constexpr int kReceivers = 2;
constexpr std::size_t kWords = 32;
constexpr std::uint64_t kUpdates = 4000;

// The memory of a host, for one sender of another host. Over each new connection the sender sends
// its last `depth` updates again, if a rank here has yet to consume them.
class Site {
 public:
  Site(Policy policy, int depth)
      : policy_(policy),
        shape_(kReceivers, depth, kWords * 8),
        memory_(static_cast<std::byte*>(std::aligned_alloc(kPage, kPlaces * shape_.bytes())),
                &std::free) {
    std::fill_n(memory_.get(), kPlaces * shape_.bytes(), std::byte{0});
  }
  Copies copies() {
    return {CopyTable(words_), memory_.get(), memory_.get() + shape_.bytes(), shape_};
  }
  std::uint64_t least_consumed() {
    std::uint64_t least = kUpdates;
    for (int r = 0; r < kReceivers; ++r) {
      least = std::min(least, copies().box(0).cursor(r).consumed.load());
    }
    return least;
  }

  // Acts as the proxy for that link: sends up to `budget` updates, even if the next proxy has taken
  // over.
  void serve(std::uint64_t link, int place, int budget) {
    const auto taken = copies().table().take(link, place, kNobody, kNobody, kNoMemory);
    if (taken.outcome != Outcome::kTaken) return;
    const Mailbox box = copies().box(taken.copy);
    SlotWriter writer = SlotWriter::of_copy(box, 0);
    std::minstd_rand random(static_cast<unsigned>(link));
    const auto depth = static_cast<std::uint64_t>(shape_.depth());
    std::uint64_t i = policy_ == Policy::kQueue ? least_consumed() : newest_.load();
    for (int tries = 0; budget > 0 && i < kUpdates && tries < 1000; ++tries) {
      if (policy_ == Policy::kQueue && i + 1 > least_consumed() + depth) {
        std::this_thread::yield();  // the sender has no slot for it yet
        continue;
      }
      if (i + 1 <= box.clock().load()) {
        ++i;
        continue;
      }
      const int slot = writer.claim(policy_, kEverybody);
      if (slot < 0) {  // or the last update might find no slot, and the readers would not end
        std::this_thread::yield();
        continue;
      }
      ++i;
      --budget;
      auto* words = reinterpret_cast<std::uint64_t*>(writer.payload(slot));
      std::fill_n(words, kWords / 2, i);
      if (random() % 4 == 0) std::this_thread::yield();
      if (random() % 64 == 0) std::this_thread::sleep_for(200us);  // the rank is stopped
      std::fill_n(words + kWords / 2, kWords - kWords / 2, i);
      SlotHeader header{};
      header.sequence = header.iteration = i;
      header.payload_bytes = kWords * 8;
      writer.publish_copy(slot, header, std::array{Addressee{0, i}, Addressee{1, i}});
      if (policy_ == Policy::kLatest) newest_ = std::max(newest_.load(), i);
    }
    copies().table().release(taken);
  }

 private:
  Policy policy_;
  MailboxShape shape_;
  std::unique_ptr<std::byte, void (*)(void*)> memory_;
  std::array<std::atomic<std::uint64_t>, CopyTable::words_for(kPlaces)> words_{};
  std::atomic<std::uint64_t> newest_{0};  // the newest update that the sender has in a slot
};

struct Wrong {
  int torn = 0, order = 0, clock = 0;
  friend bool operator==(const Wrong&, const Wrong&) = default;
};

bool is_whole(const SlotReader& reader, int slot, std::uint64_t iteration) {
  const auto* words = reinterpret_cast<const std::uint64_t*>(reader.payload(slot));
  return std::all_of(words, words + kWords, [&](std::uint64_t word) { return word == iteration; });
}

// Folds all updates as `rank`, and reads each of them twice.
Wrong fold_all(Site& site, Policy policy, int rank) {
  Wrong wrong;
  SlotReader reader(site.copies(), rank);
  std::minstd_rand random(static_cast<unsigned>(rank) + 1);
  for (std::uint64_t clock = 0; reader.consumed() < kUpdates;) {
    const std::uint64_t before = std::exchange(clock, reader.clock());
    wrong.clock += clock < before;
    const std::uint64_t consumed = reader.consumed();
    int slot = -1;
    if (policy == Policy::kQueue) {
      slot = reader.oldest(consumed, clock);
      wrong.order += slot < 0 && clock > consumed;
    } else {
      reader.hold_from(consumed + 1);
      SlotReader::fence();
      slot = reader.newest(consumed);
    }
    if (slot >= 0) {
      const std::uint64_t found = reader.header(slot).iteration;
      wrong.order += policy == Policy::kQueue && found != consumed + 1;
      wrong.torn += !is_whole(reader, slot, found);
      if (random() % 128 == 0) std::this_thread::sleep_for(300us);
      wrong.torn += !is_whole(reader, slot, found) || reader.header(slot).iteration != found;
      reader.consume(found, found, true);
    }
    reader.let_go();
    if (slot < 0) std::this_thread::yield();
  }
  return wrong;
}

class CopiesThreads : public testing::TestWithParam<Policy> {};
INSTANTIATE_TEST_SUITE_P(Copies, CopiesThreads, testing::Values(Policy::kLatest, Policy::kQueue),
                         [](const auto& given) {
                           return given.param == Policy::kLatest ? "Latest" : "Queue";
                         });

// New links begin while the ranks of the earlier links still write.
TEST_P(CopiesThreads, ProxyThatIsReplacedAnywhereChangesNothingThatIsRead) {
  Site site(GetParam(), 3);
  std::array<Wrong, kReceivers> wrong;
  std::vector<std::thread> readers;
  for (int r = 0; r < kReceivers; ++r) {
    readers.emplace_back(
        [&, r] { wrong[static_cast<std::size_t>(r)] = fold_all(site, GetParam(), r); });
  }
  std::atomic<std::uint64_t> link{0};
  std::vector<std::thread> places;
  for (int place = 0; place < kPlaces; ++place) {
    places.emplace_back([&, place] {
      std::minstd_rand random(static_cast<unsigned>(place) + 7);
      while (site.least_consumed() < kUpdates) {
        site.serve(++link, place, static_cast<int>(1 + random() % 40));
      }
    });
  }
  for (std::thread& thread : places) thread.join();
  for (std::thread& thread : readers) thread.join();
  EXPECT_EQ(wrong, (std::array<Wrong, kReceivers>{}));
}

}  // namespace
}  // namespace dstorm
