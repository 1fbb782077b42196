// Many segments over TCP: every change in any of them arrives, and only changes cost anything.
#include <gtest/gtest.h>
#include <linux/sockios.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "dstorm/remote/engine.hpp"
#include "dstorm/segment.hpp"
#include "sanitizers.hpp"
#include "tcp_ranks.hpp"
#include "tcp_sockets.hpp"

namespace dstorm::remote {
namespace {

using namespace std::chrono_literals;
using testing_sockets::connections;
using testing_sockets::eventually;

// ---- The cost of a change ----

// Ranks 0 and 1 on one host, rank 2 on another; ranks 0 and 2 have segments numbered from 1.
class ManySegments {
 public:
  static constexpr int kHere = 0, kElsewhere = 2;

  explicit ManySegments(std::uint32_t segments) {
    testing_ranks::in_ranks(3, [this](Bootstrap& bootstrap) {
      Rank& own = rank(bootstrap.rank());
      own.control = std::make_unique<host::Control>(
          bootstrap, testing_ranks::sharing_of(bootstrap.rank()), 10s);
      own.engine = std::make_unique<Engine>(bootstrap, *own.control,
                                            EngineOptions{.deadline = 10s,
                                                          .suspect_after = 5s,
                                                          .interface = {},
                                                          .toward = {},
                                                          .secret = {},
                                                          .news = own.news.get()});
    });
    const host::SegmentShape shape{MailboxShape(3, 2, 64), Policy::kLatest, 0, 0};
    for (std::uint32_t id = 1; id <= segments; ++id) {
      for (int r : {kHere, kElsewhere}) {
        const auto memory = std::make_shared<host::SegmentMemory>(
            host::SegmentMemory::create(shape, "a segment", 3));
        for (int sender = 0; sender < 3; ++sender) memory->reserve_own(sender, "a segment");
        rank(r).segments.push_back(rank(r).engine->attach(id, memory));
      }
    }
  }

  // Advances the clock of rank `from` in the segment. Returns whether that arrives at the other
  // host.
  bool passes(int from, std::uint32_t segment) {
    const auto clock_at = [&](int r) -> std::atomic<std::uint64_t>& {
      const host::SegmentMemory& memory = *rank(r).segments[segment - 1]->memory;
      return memory.box(from).clock();
    };
    const std::uint64_t next = ++clock_at(from);
    rank(from).engine->flush(*rank(from).segments[segment - 1], 0);
    return eventually([&] { return clock_at(kHere + kElsewhere - from) == next; });
  }
  std::uint64_t looks() { return rank(kHere).engine->looks() + rank(kElsewhere).engine->looks(); }

 private:
  struct Rank {
    Descriptor news{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    std::unique_ptr<host::Control> control;
    std::unique_ptr<Engine> engine;
    std::vector<std::shared_ptr<Attachment>> segments;
  };
  Rank& rank(int r) { return ranks_[static_cast<std::size_t>(r)]; }

  std::array<Rank, 3> ranks_;
};

TEST(Changes, CostAsManyLooksAsThereAreChangesHoweverManySegmentsAreOpen) {
  constexpr std::uint32_t kSegments = 300;
  constexpr std::uint64_t kChanges = 100;
  ManySegments job(kSegments);
  for (const int from : {ManySegments::kHere, ManySegments::kElsewhere}) {
    ASSERT_TRUE(job.passes(from, kSegments));  // and with it the changes of all other segments
  }
  const std::uint64_t before = job.looks();
  for (std::uint64_t i = 0; i < kChanges; ++i) {
    ASSERT_TRUE(job.passes(i % 2 == 0 ? ManySegments::kHere : ManySegments::kElsewhere, 7));
  }
  std::this_thread::sleep_for(300ms);  // some ticks of the engines' own
  const std::uint64_t looks = job.looks() - before;
  EXPECT_GE(looks, kChanges);
  EXPECT_LE(looks, 3 * kChanges);  // one when it is told, one when it is sent
}

// ---- The updates that arrive ----

constexpr int kRanks = 3;
constexpr std::size_t kSegments = 12;
constexpr std::uint64_t kDepth = 8;

std::size_t mapped_segments() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    count += line.find("memfd:malt") != std::string::npos ? 1 : 0;
  }
  return count;
}

// A segment and the updates that have gone through it. Every other segment is under QUEUE.
class Book {
 public:
  Book(const std::shared_ptr<Group>& group, std::size_t number)
      : policy_(number % 2 == 0 ? Policy::kQueue : Policy::kLatest),
        segment_(group, {.name = "segment " + std::to_string(number),
                         .slot_bytes = 8,
                         .depth = kDepth,
                         .policy = policy_}) {}

  // Under QUEUE, at most as many in a phase as there are slots, since no rank need gather.
  void scatter(bool may_lag) {
    if (policy_ == Policy::kQueue && sent_in_phase_ == kDepth) return;
    const auto fill = [](std::span<std::byte> room) { return std::pair(room.size(), Tag{}); };
    if (!segment_.scatter(fill, nullptr, may_lag).empty()) last_ = segment_.iteration();
    ++sent_in_phase_;
  }
  void gather() {
    segment_.gather({}, [&](auto updates) {
      for (const Update& update : updates) {
        Seen& seen = seen_[static_cast<std::size_t>(update.rank)];
        seen.last = update.iteration;
        ++seen.count;
      }
    });
  }
  // Collective. Returns the updates of the others that have not arrived, as text.
  std::string missing(Group& group) {
    const auto posts = group.exchange("last", std::as_bytes(std::span(&last_, 1)));
    gather();
    sent_in_phase_ = 0;
    std::string text;
    for (int r = 0; r < group.size(); ++r) {
      const auto& post = posts[static_cast<std::size_t>(r)];
      const Seen& seen = seen_[static_cast<std::size_t>(r)];
      std::uint64_t last = 0;
      if (r == group.rank()) continue;
      if (!post) return "rank " + std::to_string(r) + " has left";
      std::memcpy(&last, post->data(), sizeof(last));
      if (seen.last == last && (policy_ == Policy::kLatest || seen.count == last)) continue;
      text += segment_.options().name + ": of rank " + std::to_string(r) + "'s " +
              std::to_string(last) + " came " + std::to_string(seen.count) + " up to " +
              std::to_string(seen.last) + "; ";
    }
    return text;
  }

 private:
  struct Seen {
    std::uint64_t last = 0, count = 0;
  };
  Policy policy_;
  Segment segment_;
  std::uint64_t last_ = 0, sent_in_phase_ = 0;
  std::array<Seen, kRanks> seen_{};
};

TEST(Changes, AllArriveInWhateverOrderThoughConnectionsBreak) {
  constexpr int kPhases = 6;
  constexpr int kSteps = kSanitized ? 50 : 150;
  testing_processes::Job job(kRanks, [&](Bootstrap& bootstrap) {
    GroupOptions options;
    options.transport = "tcp";
    options.timeout = 60s;
    options.silence = 20s;  // no rank is suspected because others have the cores
    const auto group = Group::join(bootstrap, options);
    const std::size_t mapped = mapped_segments();
    std::vector<std::unique_ptr<Book>> books;
    std::size_t made = 0;
    while (made < kSegments) books.push_back(std::make_unique<Book>(group, made++));
    std::mt19937 random(static_cast<unsigned>(group->rank()) + 1);
    for (int phase = 0; phase < kPhases; ++phase) {
      for (int step = 0; step < kSteps; ++step) {
        Book& book = *books[random() % books.size()];
        switch (random() % 4) {
          case 0:
            book.scatter(true);
            break;
          case 1:
            book.gather();
            break;
          default:
            book.scatter(false);
        }
        if (random() % 50 != 0) continue;
        for (int fd : connections()) shutdown(fd, SHUT_RDWR);
      }
      for (const auto& book : books) {
        const std::string missing = book->missing(*group);
        if (!missing.empty()) std::fprintf(stderr, "%s\n", missing.c_str());
        CHECK_THAT(missing.empty());
      }
      // The segment is closed while connections break, and another takes its place.
      if (phase % kRanks == group->rank()) {
        for (int fd : connections()) shutdown(fd, SHUT_RDWR);
      }
      books.erase(books.begin() + phase);
      books.push_back(std::make_unique<Book>(group, made++));
    }
    CHECK_THAT((group->alive() == std::vector<int>{0, 1, 2}));
    books.clear();
    CHECK_THAT(eventually([&] { return mapped_segments() == mapped; }));
    group->barrier();
    return 0;
  });
  testing_processes::expect_all_well(job);
}

// Whether one of this process's connections holds bytes for which the other end has no room.
bool is_underway() {
  const std::vector<int> all = connections();
  return std::any_of(all.begin(), all.end(), [](int fd) {
    int bytes = 0;
    return ioctl(fd, SIOCOUTQNSD, &bytes) == 0 && bytes > 0;
  });
}

// The sender frees the segment's memory only when the other host has taken in the last update.
TEST(Changes, LastUpdateOfASegmentThatIsClosedArrivesThoughTheConnectionBreaks) {
  constexpr int kSlots = 1024;
  const testing_processes::Shared<std::atomic<pid_t>> reader;
  testing_processes::Job job(2, [&](Bootstrap& bootstrap) {
    GroupOptions options;
    options.transport = "tcp";
    const auto group = Group::join(bootstrap, options);
    Segment filler(
        group, {.name = "filler", .slot_bytes = 4096, .depth = kSlots, .policy = Policy::kQueue});
    Segment model(group, {.name = "model", .slot_bytes = 8, .policy = Policy::kQueue});
    if (group->rank() == 0) *reader = getpid();
    group->barrier();
    if (group->rank() == 1) {
      const auto fill = [](std::span<std::byte> room) { return std::pair(room.size(), Tag{}); };
      kill(*reader, SIGSTOP);
      for (int i = 0; i < kSlots; ++i) {
        filler.scatter(fill);
        std::this_thread::sleep_for(2ms);
        if (!is_underway()) continue;
        std::this_thread::sleep_for(50ms);
        if (is_underway()) break;  // it will stay so
      }
      model.scatter(fill);
      model.close();
      std::this_thread::sleep_for(300ms);  // some ticks of the engine's own
      const bool was_underway = is_underway();
      for (int fd : connections()) shutdown(fd, SHUT_RDWR);
      kill(*reader, SIGCONT);
      CHECK_THAT(was_underway);
    } else {
      CHECK_THAT(model.await_update(2, 20s));
      CHECK_THAT(model.gather({}, [](auto) {}) == 1);
    }
    group->barrier();
    return 0;
  });
  testing_processes::expect_all_well(job);
}

}  // namespace
}  // namespace dstorm::remote
