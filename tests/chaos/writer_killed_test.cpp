// A writer is killed (SIGKILL) between two instructions of a scatter, between any two: a tracer
// lets it do so many, one at a time. Its readers get the whole update or nothing of it, and go on
// without it.
//
//   writer_killed_test                    of the slot protocol with a small payload, every
//   instruction;
//                                         of whole scatters, in jobs, some
//   MALT_STRESS=1000 writer_killed_test   every instruction of all (hours)
#include <gtest/gtest.h>
#include <sys/ptrace.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <tuple>

#include "dstorm/dstorm.hpp"
#include "dstorm/host/wait.hpp"
#include "dstorm/slot/reader.hpp"
#include "dstorm/slot/writer.hpp"
#include "processes.hpp"
#include "stressed.hpp"

namespace dstorm {
namespace {

using namespace std::chrono_literals;
using testing_processes::Job;
using testing_processes::join;
using testing_processes::Shared;

constexpr int kWriter = 0;
constexpr int kRanks = 3;
constexpr int kDepth = 2;
constexpr double kGenerousMs = 5000;  // the machine may be busy with other things

// Ordinary stores, so that the payload takes some instructions a word and not one for all of it.
void fill(std::byte* room, std::size_t bytes, std::uint64_t iteration) {
  auto* words = reinterpret_cast<volatile std::uint64_t*>(room);
  for (std::size_t i = 0; i < bytes / sizeof(*words); ++i) words[i] = iteration << 32 | i;
}

bool is_whole(std::span<const std::byte> payload, std::size_t bytes, std::uint64_t iteration) {
  if (payload.size() != bytes) return false;
  const auto* words = reinterpret_cast<const std::uint64_t*>(payload.data());
  for (std::size_t i = 0; i < bytes / sizeof(*words); ++i) {
    if (words[i] != (iteration << 32 | i)) return false;
  }
  return true;
}

// Run by the one to be killed: the tracer counts the instructions of `call`.
template <class Call>
void run_traced(Call&& call) {
  ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
  raise(SIGSTOP);
  call();
  raise(SIGSTOP);
}

// Lets a child that is in run_traced() do `most` instructions, or all of the call if it has fewer;
// returns how many it was. -1: it is not where it should be.
long step(pid_t child, long most) {
  int status = 0;
  waitpid(child, &status, 0);
  if (!WIFSTOPPED(status) || WSTOPSIG(status) != SIGSTOP) return -1;
  for (long done = 0; done < most; ++done) {
    ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr);
    waitpid(child, &status, 0);
    if (!WIFSTOPPED(status)) return -1;
    if (WSTOPSIG(status) == SIGSTOP) return done;
  }
  return most;
}

constexpr long kAll = 10'000'000;

// From one death to the next, so that there are stressed(deaths).
long stride_of(long all, double deaths) {
  return std::max(all / static_cast<long>(stressed(deaths)), 1L);
}

std::string name_of(Policy policy) { return policy == Policy::kLatest ? "Latest" : "Queue"; }

// ---- the slot protocol alone: one mailbox ----

class KilledInASlot : public testing::TestWithParam<std::tuple<Policy, std::size_t>> {
 protected:
  static constexpr std::size_t kRoom = 65536;
  struct alignas(kPage) Memory {
    std::array<std::byte, kRoom> bytes;
  };

  Policy policy() const { return std::get<0>(GetParam()); }
  std::size_t bytes() const { return std::get<1>(GetParam()); }

  bool send(SlotWriter& writer, std::uint64_t iteration) const {
    const int slot = writer.claim(policy(), [](int) { return true; });
    if (slot < 0) return false;
    fill(writer.payload(slot), bytes(), iteration);
    SlotHeader header{};
    header.iteration = iteration;
    header.payload_bytes = bytes();
    writer.publish(slot, header, std::array{1, 2});
    return true;
  }

  // Reads all there is for `rank`, as a gather does; the last iteration, 0 if something is not
  // whole.
  std::uint64_t read(Mailbox box, int rank) const {
    SlotReader reader(box, rank);
    for (;;) {
      const std::uint64_t last = reader.consumed();
      reader.hold_from(last + 1);
      SlotReader::fence();
      const int slot = policy() == Policy::kLatest ? reader.newest(last)
                                                   : reader.oldest(last, ~std::uint64_t{0});
      if (slot < 0) {
        reader.let_go();
        return last;
      }
      const SlotHeader header = reader.header(slot);
      if (policy() == Policy::kQueue && header.iteration != last + 1) return 0;
      if (!is_whole({reader.payload(slot), header.payload_bytes}, bytes(), header.iteration)) {
        return 0;
      }
      reader.consume(header.iteration, reader.ordinal(slot), true);
      reader.let_go();
    }
  }

  // A writer that has sent what fills the mailbox (LATEST: so that it takes a slot back), or all of
  // it but one slot (QUEUE), dies after `instructions` of the next. Returns how many there were.
  long kill_after(long instructions) {
    memory_->bytes.fill({});
    const Mailbox box(memory_->bytes.data(), shape_);
    SlotWriter writer(box, kWriter);
    const std::uint64_t before = policy() == Policy::kLatest ? kDepth : kDepth - 1;
    for (std::uint64_t i = 1; i <= before; ++i) EXPECT_TRUE(send(writer, i));
    const pid_t child = fork();
    if (child == 0) {
      run_traced([&] { send(writer, before + 1); });
      _exit(1);
    }
    const long done = step(child, instructions);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    const bool is_out = SlotReader(box, 1).clock() == before + 1;  // S6: and then it is all there
    for (const int rank : {1, 2}) {
      const std::uint64_t last = read(box, rank);
      EXPECT_TRUE(last == before + 1 || (last == before && !is_out))
          << "rank " << rank << " got " << last << " after " << done << " instructions";
    }
    return done;
  }

 private:
  Shared<Memory> memory_;
  MailboxShape shape_{kRanks, kDepth, bytes()};
};

TEST_P(KilledInASlot, ReadersGetAllOrNothing) {
  const long all = kill_after(kAll);
  ASSERT_GT(all, 50);
  const long stride = stride_of(all, bytes() == 64 ? 1000 : 20);
  long killed = 1;
  for (long k = 0; k < all && !HasFailure(); k += stride, ++killed) ASSERT_EQ(kill_after(k), k);
  std::printf("row writer killed: slot, %s, %zu B: %ld times in %ld instructions\n",
              name_of(policy()).c_str(), bytes(), killed, all);
}

INSTANTIATE_TEST_SUITE_P(, KilledInASlot,
                         testing::Combine(testing::Values(Policy::kLatest, Policy::kQueue),
                                          testing::Values(64, 4096)),
                         [](const auto& given) {
                           return name_of(std::get<0>(given.param)) +
                                  std::to_string(std::get<1>(given.param));
                         });

// ---- whole scatters, in a job ----

enum class Reading : std::uint8_t {
  kInStep,    // everyone scatters and gathers at staleness 0
  kAsItComes  // rank 1 gathers all the time, rank 2 when the writer is dead
};

struct Notes {
  std::atomic<Clock::rep> died_at;                      // 0: not yet
  std::atomic<Clock::rep> slowest;                      // from then until a reader went on
  std::array<std::atomic<std::uint64_t>, kRanks> last;  // that each got of the writer
};

using Case = std::tuple<const char*, Policy, std::size_t, Reading>;

std::string name_of(const Case& given) {
  const auto& [transport, policy, bytes, reading] = given;
  return transport + name_of(policy) + std::to_string(bytes) +
         (reading == Reading::kInStep ? "InStep" : "AsItComes");
}

class KilledInAScatter : public testing::TestWithParam<Case> {
 protected:
  std::string transport() const { return std::get<0>(GetParam()); }
  Policy policy() const { return std::get<1>(GetParam()); }
  std::size_t bytes() const { return std::get<2>(GetParam()); }
  bool in_step() const { return std::get<3>(GetParam()) == Reading::kInStep; }
  // Updates before the one in which the writer dies. As it comes, LATEST: all slots are taken.
  std::uint64_t before() const {
    return in_step() || policy() == Policy::kLatest ? kDepth : kDepth - 1;
  }

  int be_rank(Bootstrap& bootstrap, Notes& notes) const {
    GroupOptions given;
    given.timeout = 60s;
    given.silence =
        60s;  // who is traced is slow, and may hold the lock that its other threads need
    given.transport = transport();
    const auto group = join(bootstrap, given);
    SegmentOptions options;
    options.name = "s";
    options.slot_bytes = bytes();
    options.depth = kDepth;
    options.policy = policy();
    Segment segment(group, options);
    const auto scatter = [&] {
      segment.scatter([&](std::span<std::byte> room) {
        fill(room.data(), room.size(), segment.iteration() + 1);
        return std::pair(room.size(), Tag{});
      });
    };
    std::uint64_t last = 0;
    bool is_well = true;
    const auto gather = [&](const GatherOptions& when) {
      return segment.gather(when, [&](std::span<const Update> updates) {
        for (const Update& update : updates) {
          is_well = is_well && is_whole(update.payload, bytes(), update.iteration);
          if (update.rank != kWriter) continue;
          is_well = is_well && (policy() == Policy::kLatest ? update.iteration > last
                                                            : update.iteration == last + 1);
          last = update.iteration;
        }
      });
    };
    const GatherOptions bsp{.staleness = 0};
    if (in_step() || group->rank() == kWriter) {
      for (std::uint64_t i = 1; i <= before(); ++i) {
        scatter();
        if (in_step()) gather(bsp);
      }
    }
    group->barrier();
    if (group->rank() == kWriter) {
      run_traced(scatter);
      return 1;
    }
    if (in_step()) {
      scatter();
      gather(bsp);
    } else {
      while (group->is_live(kWriter)) {
        if (group->rank() == 1) gather({});
        std::this_thread::sleep_for(10us);
      }
      gather({});
      CHECK_THAT(gather({}) == 0);
    }
    if (const Clock::rep died_at = notes.died_at; died_at != 0) {
      const Clock::rep took = Clock::now().time_since_epoch().count() - died_at;
      for (Clock::rep most = notes.slowest;
           took > most && !notes.slowest.compare_exchange_weak(most, took);) {
      }
    }
    notes.last[static_cast<std::size_t>(group->rank())] = last;
    while (group->is_live(kWriter)) std::this_thread::sleep_for(100us);
    group->barrier();  // or one that still gathers as it comes would get the next one's update
    scatter();
    CHECK_THAT(gather(bsp) == 1);  // the other reader's
    CHECK_THAT(is_well);
    group->barrier();
    const Stats stats = segment.stats();
    CHECK_THAT(stats.sent == stats.folded + stats.overwritten + stats.pending + stats.to_dead);
    return 0;
  }

  // The writer dies after so many instructions. Returns how many there were.
  long kill_after(long instructions) {
    notes_->died_at = 0;
    Job job(kRanks, [this](Bootstrap& bootstrap) { return be_rank(bootstrap, *notes_); });
    const long done = step(job.pid(kWriter), instructions);
    notes_->died_at = Clock::now().time_since_epoch().count();
    job.signal(kWriter, SIGKILL);
    EXPECT_EQ(job.wait_all(), (std::vector<int>{128 + SIGKILL, 0, 0}))
        << "after " << done << " instructions";
    check_what_came(done < instructions);
    return done;
  }

  // How much of it is still on its way when a writer on another host dies, nobody can say.
  void check_what_came(bool all) const {
    for (const int rank : {1, 2}) {
      const std::uint64_t last = notes_->last[static_cast<std::size_t>(rank)];
      EXPECT_LE(last, before() + 1);
      if (transport() != "shm") continue;
      EXPECT_GE(last, before() + (all && in_step() ? 1 : 0));
    }
    if (transport() == "shm" && in_step()) {
      EXPECT_EQ(notes_->last[1], notes_->last[2]) << "one folded what the other did not";
    }
  }

  double slowest_ms() const { return static_cast<double>(notes_->slowest) / 1e6; }

 private:
  Shared<Notes> notes_;
};

TEST_P(KilledInAScatter, ReadersGetAllOrNothingAndGoOn) {
  const long all = kill_after(kAll);
  ASSERT_GT(all, 50);
  const long stride = stride_of(all, 8);
  long killed = 1;
  for (long k = 0; k < all && !HasFailure(); k += stride, ++killed) kill_after(k);
  EXPECT_LT(slowest_ms(), kGenerousMs);
  std::printf(
      "row writer killed: job, %s: %ld times in %ld instructions, slowest to go on %.2f ms\n",
      testing::UnitTest::GetInstance()->current_test_info()->name(), killed, all, slowest_ms());
}

constexpr auto kPolicies = {Policy::kLatest, Policy::kQueue};
constexpr auto kReadings = {Reading::kInStep, Reading::kAsItComes};
constexpr auto kNameOf = [](const auto& given) { return name_of(given.param); };

INSTANTIATE_TEST_SUITE_P(, KilledInAScatter,
                         testing::Combine(testing::Values("shm"), testing::ValuesIn(kPolicies),
                                          testing::Values(64, 4096), testing::ValuesIn(kReadings)),
                         kNameOf);
INSTANTIATE_TEST_SUITE_P(Between, KilledInAScatter,
                         testing::Combine(testing::Values("tcp"), testing::ValuesIn(kPolicies),
                                          testing::Values(64), testing::ValuesIn(kReadings)),
                         kNameOf);

}  // namespace
}  // namespace dstorm
