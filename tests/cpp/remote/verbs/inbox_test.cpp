// How the ranks of a host take in what an adapter writes. The inbox is bytes in memory, and a test
// or a thread plays the adapter. tests/verbs, and segment_test.cpp in the guest, use a real
// adapter.
#include "dstorm/remote/verbs/inbox.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/time.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <thread>

#include "dstorm/slot/reader.hpp"

namespace dstorm::verbs {
namespace {

using namespace std::chrono_literals;

const auto kAllLive = [](int) { return true; };

constexpr int kRanks = 3;  // 0 and 1 are here, 2 sends from another host
constexpr int kSender = 2;
const std::vector<int> kHere{0, 1};

// TSan must not see an adapter's writes.
#if defined(__SANITIZE_THREAD__)
#define UNSEEN __attribute__((no_sanitize("thread"), noinline))
#else
#define UNSEEN
#endif

using Words = std::vector<std::uint64_t>;

// A rank that takes in. A rank that does not live is dead, unless a test says otherwise.
class Taker {
 public:
  explicit Taker(Inbox inbox) : inbox_(std::move(inbox)) {}
  template <class Live>
  bool take_in(Live&& live) {
    return take_in(live, [&](int r) { return !live(r); });
  }
  template <class Live, class HasEnded>
  bool take_in(Live&& live, HasEnded&& has_ended) {
    return inbox_.take_in(live, has_ended, [](std::size_t) {});
  }
  bool has_news() const { return inbox_.has_news(); }

 private:
  Inbox inbox_;
};

// The memory of a sender's inbox and of the copy of its mailbox, and the writes of the sender's
// adapter into the inbox.
class Area {
 public:
  Area(int depth, std::size_t slot_bytes, Policy policy)
      : policy_(policy),
        mailbox_(kRanks, depth, slot_bytes),
        shape_(mailbox_, kHere.size()),
        inbox_(zeros(shape_.bytes())),
        copy_(zeros(mailbox_.bytes())),
        other_copy_(zeros(mailbox_.bytes())) {
    for (int r : kHere) readers_.emplace_back(copies(), r);
  }

  // The inbox as rank `rank` sees it. This object owns the memory.
  Taker inbox(int rank) {
    return Taker({inbox_.get(), shape_, copies(), policy_, kSender, kHere, rank});
  }
  Copies copies() { return {CopyTable(words_), copy_.get(), other_copy_.get(), mailbox_}; }
  Mailbox box() { return copies().box(0); }
  // The rank at this place begins to take in.
  CopyTable::Taken hold(int place) {
    return copies().table().take(
        0, place, [](int) { return false; }, [](int) { return true; }, [](std::size_t) {});
  }
  SlotReader& reader(int rank) { return readers_[static_cast<std::size_t>(rank)]; }
  Policy policy() const { return policy_; }

  // The bytes of an update in which every payload word is the iteration. With an ordinal of 0 the
  // update is not for that rank.
  Words image(std::uint64_t iteration, std::size_t words, std::array<std::uint64_t, 2> ordinals,
              void (*spoil)(SlotHeader&) = nullptr) const {
    SlotHeader header{};
    header.sequence = header.iteration = iteration;
    header.payload_bytes = words * 8;
    header.count = words;
    header.sender = kSender;
    if (spoil != nullptr) spoil(header);
    Words image(sizeof(header) / 8);
    std::memcpy(image.data(), &header, sizeof(header));
    image.insert(image.end(), words, iteration);
    image.insert(image.end(), ordinals.begin(), ordinals.end());
    image.push_back(header.iteration);
    const auto part = [&](std::size_t from, std::size_t to) {
      return std::as_bytes(std::span(image)).subspan(from * 8, (to - from) * 8);
    };
    Checksum of_tail;
    of_tail.add(part(sizeof(header) / 8 + words, image.size()));
    image.push_back(of_tail.value());
    Checksum checksum;
    checksum.add(part(0, sizeof(header) / 8));
    checksum.add(part(sizeof(header) / 8, sizeof(header) / 8 + words));
    checksum.add(part(sizeof(header) / 8 + words, image.size()));
    image.push_back(checksum.value());
    return image;
  }

  // One word of an image arrives.
  UNSEEN void write(std::size_t slot, const Words& image, std::size_t word) {
    auto* to = reinterpret_cast<std::uint64_t*>(inbox_.get() + shape_.slot(slot)) + word;
    __atomic_store_n(to, image[word], __ATOMIC_RELEASE);
  }
  void write(std::size_t slot, const Words& image) {
    for (std::size_t i = 0; i < image.size(); ++i) write(slot, image, i);
  }
  UNSEEN void write_clock(std::uint64_t clock) {
    __atomic_store_n(reinterpret_cast<std::uint64_t*>(inbox_.get()), clock, __ATOMIC_RELEASE);
  }
  // The page on which this slot begins.
  void* page_of(std::size_t slot) const { return inbox_.get() + shape_.slot(slot) / kPage * kPage; }
  bool holds(std::size_t slot, const Words& image) const {
    return std::memcmp(inbox_.get() + shape_.slot(slot), image.data(), image.size() * 8) == 0;
  }

 private:
  using Memory = std::unique_ptr<std::byte, void (*)(void*)>;
  static Memory zeros(std::size_t bytes) {
    Memory memory(static_cast<std::byte*>(std::aligned_alloc(kPage, bytes)), &std::free);
    std::fill_n(memory.get(), bytes, std::byte{0});
    return memory;
  }

  Policy policy_;
  MailboxShape mailbox_;
  InboxShape shape_;
  std::array<std::atomic<std::uint64_t>, CopyTable::words_for(2)> words_{};
  Memory inbox_, copy_, other_copy_;
  std::vector<SlotReader> readers_;
};

// Calls `write` when this process next touches a page, before it reads anything there.
class AtNextTouch {
 public:
  AtNextTouch(void* page, std::function<void()> write) : page_(page), write_(std::move(write)) {
    waiting = this;
    struct sigaction touched{};
    touched.sa_handler = [](int) { waiting->take_place(); };
    touched.sa_flags = static_cast<int>(SA_RESETHAND);  // any other fault ends the test
    sigaction(SIGSEGV, &touched, &before_);
    mprotect(page_, kPage, PROT_NONE);
  }
  ~AtNextTouch() {
    mprotect(page_, kPage, PROT_READ | PROT_WRITE);
    sigaction(SIGSEGV, &before_, nullptr);
  }
  AtNextTouch(const AtNextTouch&) = delete;
  AtNextTouch& operator=(const AtNextTouch&) = delete;

 private:
  void take_place() {
    mprotect(page_, kPage, PROT_READ | PROT_WRITE);
    write_();
  }
  static inline AtNextTouch* waiting = nullptr;
  void* page_;
  std::function<void()> write_;
  struct sigaction before_{};
};

struct Seen {
  std::uint64_t iteration = 0, ordinal = 0;
  bool torn = false;
};

Seen read(SlotReader& reader, int slot) {
  const SlotHeader& header = reader.header(slot);
  const auto* words = reinterpret_cast<const std::uint64_t*>(reader.payload(slot));
  const bool torn = std::any_of(words, words + header.payload_bytes / 8,
                                [&](std::uint64_t word) { return word != header.iteration; });
  return {header.iteration, reader.ordinal(slot), torn};
}

// Folds the oldest update, as a gather from a queue does. Returns iteration 0 if there is none.
Seen fold_oldest(SlotReader& reader) {
  const int slot = reader.oldest(reader.consumed(), ~std::uint64_t{0});
  if (slot < 0) return {};
  const Seen seen = read(reader, slot);
  reader.consume(seen.iteration, seen.ordinal, true);
  return seen;
}

// Folds the newest update; `reading` reads it.
Seen fold_newest(SlotReader& reader, std::chrono::microseconds reading = 0us) {
  const std::uint64_t consumed = reader.consumed();
  if (reader.newest(consumed) < 0) return {};
  reader.hold_from(consumed + 1);
  SlotReader::fence();
  Seen seen;
  if (const int slot = reader.newest(consumed); slot >= 0) {
    reader.hold_only(reader.header(slot).iteration);
    const Seen before = read(reader, slot);
    if (reading > 0us) std::this_thread::sleep_for(reading);
    seen = read(reader, slot);
    seen.torn = seen.torn || before.torn || seen.iteration != before.iteration;
    reader.consume(seen.iteration, seen.ordinal, true);
  }
  reader.let_go();
  return seen;
}

// ---- One update ----
class EveryPolicy : public testing::TestWithParam<Policy> {};
INSTANTIATE_TEST_SUITE_P(Inbox, EveryPolicy, testing::Values(Policy::kLatest, Policy::kQueue),
                         [](const auto& given) {
                           return given.param == Policy::kLatest ? "Latest" : "Queue";
                         });

TEST_P(EveryPolicy, EmptyAreaHasNothing) {
  Area area(2, 64, GetParam());
  EXPECT_FALSE(area.inbox(0).has_news());
  EXPECT_FALSE(area.inbox(0).take_in(kAllLive));
}

TEST_P(EveryPolicy, UpdateReachesThoseItIsForWithTheirOrdinals) {
  Area area(2, 64, GetParam());
  area.box().cursor(0).published = 6;
  area.write(0, area.image(1, 8, {7, 0}));
  EXPECT_TRUE(area.inbox(0).take_in(kAllLive));
  EXPECT_EQ(area.reader(0).clock(), 1U);
  const int slot = area.reader(0).find(1);
  ASSERT_GE(slot, 0);
  EXPECT_EQ(area.reader(0).ordinal(slot), 7U);
  EXPECT_EQ(area.reader(0).header(slot).sequence, 1U);
  EXPECT_EQ(area.reader(0).header(slot).payload_bytes, 64U);
  EXPECT_FALSE(read(area.reader(0), slot).torn);
  EXPECT_EQ(area.reader(1).find(1), -1);
}

TEST_P(EveryPolicy, UpdateIsTakenOnce) {
  Area area(2, 64, GetParam());
  Taker first = area.inbox(0);
  Taker second = area.inbox(1);
  area.write(0, area.image(1, 1, {1, 1}));
  EXPECT_TRUE(first.take_in(kAllLive));
  EXPECT_FALSE(first.take_in(kAllLive));
  EXPECT_FALSE(second.take_in(kAllLive));
}

TEST_P(EveryPolicy, UpdateIsNeverTakenBeforeItIsWhole) {
  std::minstd_rand random(3);
  for (const std::size_t words : {1U, 5U, 8U}) {
    for (int way = 0; way < 200; ++way) {
      Area area(1, 64, GetParam());
      Taker inbox = area.inbox(0);
      std::uint64_t iteration = 1;
      if (way % 2 == 1) {  // over an older update that is shorter, as long, or longer
        area.write(0, area.image(iteration++, 1 + random() % 8, {1, 1}));
        ASSERT_TRUE(inbox.take_in(kAllLive));
        for (int r : kHere) fold_oldest(area.reader(r));
      }
      const Words image = area.image(iteration, words, {iteration, iteration});
      std::vector<std::size_t> order(image.size());
      std::iota(order.begin(), order.end(), 0);
      if (way >= 2) std::shuffle(order.begin(), order.end(), random);
      for (const std::size_t word : order) {
        const bool was_whole = area.holds(0, image);
        area.write(0, image, word);
        ASSERT_EQ(inbox.take_in(kAllLive), area.holds(0, image) && !was_whole)
            << "word " << word << " of " << image.size() << ", way " << way;
      }
      ASSERT_EQ(area.reader(1).clock(), iteration);
      ASSERT_FALSE(fold_oldest(area.reader(1)).torn);
    }
  }
}

// Its only receiver has died while it arrived, so the adapter does not write it again.
TEST(Inbox, LatestPassesOverWhatNeverIsWholeWhenTheNextComes) {
  Area area(2, 64, Policy::kLatest);
  Taker inbox = area.inbox(1);
  const Words first = area.image(1, 5, {1, 0});
  for (std::size_t word = 0; word < first.size() / 2; ++word) area.write(0, first, word);
  EXPECT_FALSE(inbox.take_in(kAllLive));
  area.write(1, area.image(2, 1, {0, 1}));
  EXPECT_TRUE(inbox.take_in(kAllLive));
  EXPECT_EQ(fold_oldest(area.reader(1)).iteration, 2U);
}

// A network with adaptive routing: bytes that were sent later arrive sooner.
TEST(Inbox, QueuePassesOverNothingThatIsStillComing) {
  std::minstd_rand random(11);
  for (int way = 0; way < 300; ++way) {
    Area area(3, 64, Policy::kQueue);
    std::array inboxes{area.inbox(0), area.inbox(1)};
    struct Word {
      std::size_t slot, word;
    };
    std::vector<Words> images;
    std::vector<Word> words;
    for (std::size_t i = 1; i <= 3; ++i) {
      images.push_back(area.image(i, 1 + random() % 8, {i, i}));
      for (std::size_t word = 0; word < images.back().size(); ++word)
        words.push_back({i - 1, word});
    }
    std::shuffle(words.begin(), words.end(), random);
    std::uint64_t folded = 0;
    for (std::size_t i = 0; i < words.size(); ++i) {
      area.write(words[i].slot, images[words[i].slot], words[i].word);
      inboxes[i % 2].take_in(kAllLive);
      for (Seen seen; (seen = fold_oldest(area.reader(1))).iteration != 0;) {
        ASSERT_EQ(seen.iteration, ++folded) << "way " << way;
        ASSERT_FALSE(seen.torn);
      }
    }
    ASSERT_EQ(folded, 3U) << "way " << way;
  }
}

// Its only receiver has died while the adapter was reading the update, so the sender used the slot
// again.
TEST(Inbox, QueuePassesOverWhatIsTornForTheDeadAlone) {
  Area area(2, 64, Policy::kQueue);
  Taker inbox = area.inbox(1);
  Words first = area.image(1, 5, {1, 0});
  first[10] = 99;
  area.write(0, first);
  area.write(1, area.image(2, 1, {0, 1}));
  area.write_clock(2);
  EXPECT_FALSE(inbox.take_in(kAllLive)) << "rank 0 may wait for it";
  EXPECT_EQ(area.reader(1).clock(), 0U);
  EXPECT_TRUE(inbox.take_in([](int r) { return r != 0; }));
  EXPECT_EQ(fold_oldest(area.reader(1)).iteration, 2U);
}

// Every mix of two updates: any part of the second one has arrived.
TEST_P(EveryPolicy, MixOfTwoUpdatesIsNeitherOfThem) {
  Area area(1, 64, GetParam());
  Taker inbox = area.inbox(0);
  const Words older = area.image(1, 3, {1, 1});
  const Words newer = area.image(2, 3, {2, 2});
  for (std::uint32_t mix = 1; mix + 1 < 1U << older.size(); ++mix) {
    Words words = older;
    for (std::size_t i = 0; i < words.size(); ++i) {
      if ((mix >> i & 1) != 0) words[i] = newer[i];
    }
    if (words == older || words == newer) continue;  // the mix equals one of them
    area.write(0, words);
    ASSERT_FALSE(inbox.take_in(kAllLive)) << "mix " << mix;
  }
}

// Updates that differ only in signs, as of a vector of +1 and -1. Two words of the newer one have
// arrived.
TEST_P(EveryPolicy, MixOfTwoUpdatesThatDifferInSignsIsNeitherOfThem) {
  constexpr std::size_t kHeaderWords = sizeof(SlotHeader) / 8;
  Area area(1, 64 * 8, GetParam());
  Taker inbox = area.inbox(0);
  const Words whole = area.image(1, 64, {1, 1});
  for (std::size_t i = 0; i < 64; ++i) {
    for (std::size_t j = i + 1; j < 64; ++j) {
      Words words = whole;
      for (const std::size_t flipped : {i, j}) {
        words[kHeaderWords + flipped] ^= std::uint64_t{1} << 63;
      }
      area.write(0, words);
      ASSERT_FALSE(inbox.take_in(kAllLive)) << "words " << i << " and " << j;
    }
  }
  area.write(0, whole);
  EXPECT_TRUE(inbox.take_in(kAllLive));
}

TEST_P(EveryPolicy, HeaderThatCannotBeIsRefused) {
  for (const auto spoil : {+[](SlotHeader& header) { header.payload_bytes = ~std::uint64_t{0}; },
                           +[](SlotHeader& header) { header.payload_bytes = 65; },
                           +[](SlotHeader& header) { header.sender = 0; },
                           +[](SlotHeader& header) { header.sender = 1 << 30; },
                           +[](SlotHeader& header) { header.iteration = ~std::uint64_t{0}; }}) {
    Area area(2, 64, GetParam());
    Taker inbox = area.inbox(0);
    area.write(0, area.image(1, 8, {1, 1}, spoil));
    EXPECT_FALSE(inbox.take_in(kAllLive));
    EXPECT_EQ(area.reader(0).clock(), 0U);
    area.write(0, area.image(1, 8, {1, 1}));
    EXPECT_TRUE(inbox.take_in(kAllLive)) << "the next one there";
    EXPECT_EQ(fold_oldest(area.reader(0)).iteration, 1U);
  }
}

TEST_P(EveryPolicy, UpdateLongerThanASlotIsRefused) {
  Area area(3, 64, GetParam());
  Taker inbox = area.inbox(0);
  area.write(0, area.image(1, 9, {1, 1}));  // whole, and with the right checksum
  EXPECT_FALSE(inbox.take_in(kAllLive));
  EXPECT_EQ(area.reader(0).clock(), 0U);
}

TEST_P(EveryPolicy, IterationThatCannotBeHeldIsRefused) {
  Area area(2, 64, GetParam());
  Taker inbox = area.inbox(0);
  area.write(0, area.image(kMostIteration + 1, 1, {1, 1}));
  EXPECT_FALSE(inbox.take_in(kAllLive));
  area.write(0, area.image(kMostIteration, 1, {1, 1}));
  EXPECT_TRUE(inbox.take_in(kAllLive));
}

// ---- Several, and the clock ----
TEST_P(EveryPolicy, UpdatesAreTakenInTheOrderTheyWereMade) {
  Area area(3, 64, GetParam());
  Taker inbox = area.inbox(0);
  area.write(2, area.image(1, 1, {1, 1}));
  area.write(0, area.image(2, 2, {2, 2}));
  area.write(1, area.image(3, 3, {3, 3}));
  EXPECT_TRUE(inbox.take_in(kAllLive));
  for (std::uint64_t i = 1; i <= 3; ++i) EXPECT_EQ(fold_oldest(area.reader(1)).iteration, i);
}

// A look finds slot 0 empty. Before it reads slot 1, the adapter writes an update into each slot.
TEST_P(EveryPolicy, UpdateThatArrivesBehindALookIsTakenBeforeTheNextOne) {
  Area area(2, 2 * kPage, GetParam());  // a slot begins on a page of its own
  const Words first = area.image(2, 1, {1, 0});
  const Words second = area.image(3, 1, {0, 1});
  area.write_clock(1);
  {
    const AtNextTouch adapter(area.page_of(1), [&] {
      area.write(0, first);
      area.write(1, second);
    });
    EXPECT_TRUE(area.inbox(0).take_in(kAllLive));
  }
  EXPECT_EQ(fold_oldest(area.reader(0)).iteration, 2U);
  EXPECT_EQ(fold_oldest(area.reader(1)).iteration, 3U);
}

// The same, but the adapter writes an update into slot 0, and then a clock that is newer still.
TEST_P(EveryPolicy, ClockThatArrivesBehindALookHidesNoUpdate) {
  Area area(2, 2 * kPage, GetParam());
  const Words update = area.image(2, 1, {1, 1});
  area.write_clock(1);
  Taker inbox = area.inbox(0);
  {
    const AtNextTouch adapter(area.page_of(1), [&] {
      area.write(0, update);
      area.write_clock(3);
    });
    EXPECT_TRUE(inbox.take_in(kAllLive));
  }
  while (inbox.take_in(kAllLive)) continue;
  for (int r : kHere) EXPECT_EQ(fold_oldest(area.reader(r)).iteration, 2U);
  EXPECT_EQ(area.box().clock(), 3U);
}

TEST_P(EveryPolicy, ClockAloneMovesOn) {
  Area area(2, 64, GetParam());
  Taker inbox = area.inbox(0);
  area.write_clock(5);
  EXPECT_TRUE(inbox.take_in(kAllLive));
  EXPECT_EQ(area.reader(0).clock(), 5U);
  EXPECT_FALSE(inbox.take_in(kAllLive));
  area.write(0, area.image(6, 1, {1, 1}));
  EXPECT_TRUE(inbox.take_in(kAllLive));
  EXPECT_EQ(area.reader(0).clock(), 6U) << "an update says it too";
}

TEST(Inbox, LatestPassesOverWhatIsBeingReplaced) {
  Area area(2, 64, Policy::kLatest);
  Taker inbox = area.inbox(0);
  const Words replaced = area.image(1, 8, {1, 1});
  area.write(0, replaced);
  area.write(0, area.image(3, 8, {3, 3}), 12);  // one word of the slot's next update has arrived
  area.write(1, area.image(2, 8, {2, 2}));
  area.write_clock(2);
  EXPECT_TRUE(inbox.take_in(kAllLive));
  EXPECT_EQ(area.reader(0).clock(), 2U);
  EXPECT_EQ(fold_newest(area.reader(0)).iteration, 2U);
  EXPECT_EQ(area.box().cursor(0).overwritten.load(), 1U);
}

TEST(Inbox, LatestReplacesWhatNobodyHasFolded) {
  Area area(2, 64, Policy::kLatest);
  Taker inbox = area.inbox(0);
  for (std::uint64_t i = 1; i <= 5; ++i) {
    area.write(i % 2, area.image(i, 1, {i, i}));
    ASSERT_TRUE(inbox.take_in(kAllLive));
  }
  EXPECT_EQ(fold_newest(area.reader(0)).iteration, 5U);
  EXPECT_EQ(area.box().cursor(0).overwritten.load(), 4U);
}

TEST(Inbox, HeldUpdateIsNeverReplaced) {
  Area area(1, 64, Policy::kLatest);
  Taker inbox = area.inbox(0);
  area.write(0, area.image(1, 8, {1, 1}));
  ASSERT_TRUE(inbox.take_in(kAllLive));
  SlotReader& reader = area.reader(1);
  reader.hold_from(1);
  SlotReader::fence();
  area.write(0, area.image(2, 8, {2, 2}));
  inbox.take_in(kAllLive);
  EXPECT_EQ(read(reader, reader.find(1)).iteration, 1U);
  reader.let_go();
  area.write(0, area.image(3, 8, {3, 3}));
  EXPECT_TRUE(inbox.take_in(kAllLive));
  EXPECT_EQ(fold_newest(reader).iteration, 3U);
}

TEST(Inbox, QueueLosesNothingThoughNobodyFoldsForAWhile) {
  Area area(3, 64, Policy::kQueue);
  Taker inbox = area.inbox(0);
  for (std::uint64_t i = 1; i <= 3; ++i) {
    area.write(i % 3, area.image(i, 1, {i, i}));
    inbox.take_in(kAllLive);
  }
  for (std::uint64_t i = 1; i <= 3; ++i) EXPECT_EQ(fold_oldest(area.reader(0)).iteration, i);
  for (std::uint64_t i = 1; i <= 3; ++i) EXPECT_EQ(fold_oldest(area.reader(1)).iteration, i);
  EXPECT_EQ(area.box().cursor(1).overwritten.load(), 0U);
}

// ---- Taking turns ----
TEST_P(EveryPolicy, OneTakesInAtATime) {
  Area area(2, 64, GetParam());
  Taker inbox = area.inbox(0);
  area.write(0, area.image(1, 1, {1, 1}));
  const CopyTable::Taken held = area.hold(1);
  EXPECT_FALSE(inbox.take_in(kAllLive));
  EXPECT_TRUE(inbox.has_news());
  area.copies().table().release(held);
  EXPECT_TRUE(inbox.take_in(kAllLive));
}

TEST_P(EveryPolicy, TakerThatDiesIsFollowed) {
  Area area(2, 64, GetParam());
  Taker inbox = area.inbox(0);
  area.write(0, area.image(1, 1, {1, 1}));
  area.hold(1);
  EXPECT_TRUE(inbox.take_in([](int r) { return r != 1; }));
  EXPECT_EQ(area.copies().table().current(), 0U) << "in the same copy";
  EXPECT_EQ(fold_oldest(area.reader(0)).iteration, 1U);
}

TEST_P(EveryPolicy, TakerThatIsNoRankHereIsNobody) {
  for (const int place : {2, 1000, (1 << 15) - 2}) {
    Area area(2, 64, GetParam());
    Taker inbox = area.inbox(0);
    area.write(0, area.image(1, 1, {1, 1}));
    area.hold(place);
    EXPECT_TRUE(inbox.take_in([](int r) {
      EXPECT_TRUE(r == 0 || r == 1) << r;
      return true;
    }));
  }
}

// The rank that dies has given one of two tickets, and has not moved the clock.
TEST_P(EveryPolicy, UpdateHalfPublishedByTheDeadIsCompletedInItsSlot) {
  for (const bool is_folded : {true, false}) {
    Area area(1, 64, GetParam());
    area.hold(1);
    SlotWriter dead(area.box(), kSender);
    const int room = dead.claim(GetParam(), kAllLive);
    *reinterpret_cast<std::uint64_t*>(dead.payload(room)) = 1;
    SlotHeader header{};
    header.sequence = header.iteration = 1;
    header.payload_bytes = 8;
    header.sender = kSender;
    const std::array given{Addressee{0, 1}};
    dead.publish_copy(room, header, given);
    area.box().clock() = 0;

    area.write(0, area.image(1, 1, {1, 1}));
    if (is_folded) {
      EXPECT_EQ(fold_oldest(area.reader(0)).iteration, 1U);
    }
    EXPECT_TRUE(area.inbox(0).take_in([](int r) { return r != 1; }));
    EXPECT_EQ(area.reader(0).clock(), 1U) << "though there is no other slot";
    EXPECT_EQ(fold_oldest(area.reader(0)).iteration, is_folded ? 0U : 1U) << "folded once";
    EXPECT_EQ(fold_oldest(area.reader(1)).iteration, 1U);
  }
}

// Rank 0 is stopped in the middle of taking in. The others evict it, go on, and wake it again while
// rank 1 folds: when rank 1 stops, and at every step after that.
TEST_P(EveryPolicy, TakerThatWasStoppedAndGoesOnChangesNothingThatIsRead) {
  for (int moment = 0; moment < 12; ++moment) {
    SCOPED_TRACE(moment);
    Area area(2, 64, GetParam());
    Taker stopped = area.inbox(0), other = area.inbox(1);
    SlotReader& reader = area.reader(1);
    area.write(0, area.image(1, 8, {1, 1}));
    ASSERT_TRUE(stopped.take_in(kAllLive));
    area.write(1, area.image(2, 8, {2, 2}));
    const auto not_zero = [](int r) { return r != 0; };
    const auto nobody = [](int) { return false; };
    int looks = 0;
    bool is_back = false;
    Seen before, after;
    stopped.take_in([&](int) {
      if (looks++ != moment) return true;
      is_back = true;
      for (std::uint64_t i = 2; i <= 6; ++i) {  // rank 0 is stopped here
        if (i > 2) area.write((i - 1) % 2, area.image(i, 8, {i, i}));
        other.take_in(not_zero, nobody);
        while (i < 6 && fold_oldest(reader).iteration != 0) continue;
      }
      reader.hold_from(6);
      SlotReader::fence();
      before = read(reader, reader.find(6));
      area.write(0, area.image(7, 8, {7, 7}));
      return true;
    });
    if (!is_back) break;
    after = read(reader, reader.find(6));
    EXPECT_EQ(before.iteration, 6U);
    EXPECT_FALSE(before.torn || after.torn);
    EXPECT_EQ(after.iteration, 6U);
    EXPECT_TRUE(other.take_in(not_zero, nobody));
    EXPECT_EQ(reader.clock(), 7U);
  }
}

// Each rank that is stopped keeps a copy of its own.
TEST_P(EveryPolicy, StoppedTakerIsNotWaitedForOnceItIsEvicted) {
  Area area(2, 64, GetParam());
  Taker other = area.inbox(1);
  area.write(0, area.image(1, 1, {1, 1}));
  area.hold(0);
  const auto nobody = [](int) { return false; };
  EXPECT_FALSE(other.take_in(kAllLive, nobody)) << "it may go on";
  EXPECT_TRUE(other.take_in([](int r) { return r != 0; }, nobody));
  EXPECT_EQ(area.copies().table().current(), 1U);
  EXPECT_EQ(fold_oldest(area.reader(1)).iteration, 1U);
}

TEST(Inbox, TakersInTurnKnowWhatTheOthersHavePutWhere) {
  constexpr int kTurns = 6;
  for (unsigned turns = 0; turns < 1U << kTurns; ++turns) {
    Area area(kTurns, 64, Policy::kQueue);
    std::array inboxes{area.inbox(0), area.inbox(1)};
    for (std::uint64_t i = 1; i <= kTurns; ++i) {
      area.write(i % kTurns, area.image(i, 1, {i, i}));
      ASSERT_TRUE(inboxes[turns >> i & 1].take_in(kAllLive));
    }
    for (int r : kHere) {
      for (std::uint64_t i = 1; i <= kTurns; ++i) {
        ASSERT_EQ(fold_oldest(area.reader(r)).iteration, i) << "turns " << turns;
      }
    }
  }
}

TEST(Inbox, TakerSeesForWhomTheOthersHavePutSomethingSomewhere) {
  for (const auto only : kHere) {
    Area area(1, 64, Policy::kQueue);
    std::array inboxes{area.inbox(0), area.inbox(1)};
    area.write(0, area.image(1, 1, {1, 1}));
    ASSERT_TRUE(inboxes[0].take_in(kAllLive));
    for (int r : kHere) ASSERT_EQ(fold_oldest(area.reader(r)).iteration, 1U);
    area.write(0, area.image(2, 1, {only == 0 ? 2U : 0U, only == 1 ? 2U : 0U}));
    ASSERT_TRUE(inboxes[0].take_in(kAllLive));
    area.write(0, area.image(3, 1, {only == 0 ? 3U : 2U, only == 1 ? 3U : 2U}));
    EXPECT_FALSE(inboxes[1].take_in(kAllLive)) << "there is no room";
    EXPECT_EQ(fold_oldest(area.reader(only)).iteration, 2U);
    EXPECT_TRUE(inboxes[1].take_in(kAllLive));
    for (int r : kHere) EXPECT_EQ(fold_oldest(area.reader(r)).iteration, 3U);
  }
}

// ---- Threads: the adapters write while the ranks take in ----
constexpr std::uint64_t kUpdates = 100'000;

// The writes of an adapter for a queue: in order, into any of the slots. Some iterations are for no
// rank of this host, and only the clock shows them.
class QueueAdapter {
 public:
  static constexpr std::size_t kDepth = 16;
  static constexpr std::size_t kUpdates = 20'000;

  explicit QueueAdapter(Area& area) : area_(area) {
    for (std::uint64_t iteration = 0; arrivals_.size() < kUpdates;) {
      const std::uint64_t ordinal = arrivals_.size() + 1;
      const Words image = area.image(++iteration, 1 + random_() % 2, {ordinal, ordinal});
      const bool is_followed = random_() % 2 == 0;
      arrivals_.push_back({ordinal * 7 % kDepth, image, is_followed ? ++iteration : 0});
    }
  }
  bool is_done() const { return next_ == kUpdates; }

  // Writes some more words, while slots are free. May be called in a signal handler.
  void write_on() {
    const std::uint64_t folded =
        std::min(area_.box().cursor(0).folded.load(), area_.box().cursor(1).folded.load());
    for (std::size_t left = 1 + random_() % 64; left > 0; --left) {
      if (is_done() || next_ - folded == kDepth) return;
      const Arrival& arrival = arrivals_[next_];
      if (word_ < arrival.image.size()) {
        area_.write(arrival.slot, arrival.image, word_++);
        continue;
      }
      if (arrival.clock != 0) area_.write_clock(arrival.clock);
      ++next_;
      word_ = 0;
    }
  }

 private:
  struct Arrival {
    std::size_t slot;
    Words image;
    std::uint64_t clock;  // the clock that follows it, or 0
  };
  Area& area_;
  std::minstd_rand random_{5};
  std::vector<Arrival> arrivals_;
  std::size_t next_ = 0, word_ = 0;
};

// Folds all updates of the queue as `rank`. Returns how many of them were torn or out of order.
int fold_all(Area& area, int rank) {
  Taker inbox = area.inbox(rank);
  int wrong = 0;
  for (std::uint64_t last = 0; last < QueueAdapter::kUpdates;) {
    inbox.take_in(kAllLive);
    const Seen seen = fold_oldest(area.reader(rank));
    if (seen.iteration == 0) {
      std::this_thread::yield();
      continue;
    }
    wrong += seen.torn || seen.ordinal != last + 1;
    last = seen.ordinal;
  }
  return wrong;
}

TEST(InboxThreads, QueueGivesEveryUpdateOnceAndWhole) {
  Area area(QueueAdapter::kDepth, 16, Policy::kQueue);
  QueueAdapter adapter(area);
  std::array<int, 2> wrong{};
  std::thread first([&] { wrong[0] = fold_all(area, 0); });
  std::thread second([&] { wrong[1] = fold_all(area, 1); });
  for (; !adapter.is_done(); std::this_thread::yield()) adapter.write_on();
  first.join();
  second.join();
  EXPECT_EQ(wrong, (std::array<int, 2>{}));
}

#if !defined(__SANITIZE_THREAD__)  // TSan has signals wait until the thread sleeps
// The adapter writes between any two instructions of the rank that takes in.
TEST(InboxThreads, QueueLosesNothingWhateverMomentTheAdapterWritesAt) {
  static QueueAdapter* interrupting = nullptr;
  Area area(QueueAdapter::kDepth, 16, Policy::kQueue);
  QueueAdapter adapter(area);
  interrupting = &adapter;
  area.box().cursor(1).folded = QueueAdapter::kUpdates;  // rank 1 holds up no other rank
  area.box().cursor(1).consumed = ~std::uint64_t{0};
  const auto before = std::signal(SIGALRM, [](int) { interrupting->write_on(); });
  const itimerval often{{0, 20}, {0, 20}};
  setitimer(ITIMER_REAL, &often, nullptr);
  EXPECT_EQ(fold_all(area, 0), 0);
  const itimerval never{};
  setitimer(ITIMER_REAL, &never, nullptr);
  std::signal(SIGALRM, before);
}
#endif

// LATEST: two senders that wait for no rank, and overwrite updates that are being read. Rank 1
// stalls in the middle of its folds.
TEST(InboxThreads, LatestIsNeverTornByTwoWritersAndAStalledReader) {
  constexpr int kDepth = 2;
  constexpr std::size_t kWords = 256;
  std::array<Area, 2> areas{Area(kDepth, kWords * 8, Policy::kLatest),
                            Area(kDepth, kWords * 8, Policy::kLatest)};
  std::atomic<int> writing = 2;
  std::vector<std::thread> threads;
  for (Area& area : areas) {
    threads.emplace_back([&] {
      std::minstd_rand random(7);
      for (std::uint64_t i = 1; i <= kUpdates; ++i) {
        area.write(i % kDepth, area.image(i, 1 + random() % kWords, {i, i}));
      }
      --writing;
    });
  }
  std::array<std::uint64_t, 2> torn{};
  std::array<std::uint64_t, 2> clock_went_back{};
  for (int rank : kHere) {
    threads.emplace_back([&, rank] {
      std::array inboxes{areas[0].inbox(rank), areas[1].inbox(rank)};
      std::array<std::uint64_t, 2> clocks{};
      const auto index = static_cast<std::size_t>(rank);
      for (bool last_look = false;; last_look = writing == 0) {
        for (std::size_t i = 0; i < areas.size(); ++i) {
          inboxes[i].take_in(kAllLive);
          torn[index] += fold_newest(areas[i].reader(rank), rank == 1 ? 1ms : 0ms).torn;
          const std::uint64_t clock = areas[i].reader(rank).clock();
          clock_went_back[index] += clock < clocks[i];
          clocks[i] = clock;
        }
        if (last_look) break;
        std::this_thread::yield();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(torn, (std::array<std::uint64_t, 2>{}));
  EXPECT_EQ(clock_went_back, (std::array<std::uint64_t, 2>{}));
  for (Area& area : areas) {
    for (int rank : kHere) {
      while (area.inbox(rank).take_in(kAllLive)) continue;
      fold_newest(area.reader(rank));
      const Cursor& cursor = area.box().cursor(rank);
      EXPECT_EQ(area.reader(rank).consumed(), kUpdates) << "the last is never lost";
      EXPECT_EQ(cursor.folded + cursor.overwritten, kUpdates);
    }
  }
}

}  // namespace
}  // namespace dstorm::verbs
