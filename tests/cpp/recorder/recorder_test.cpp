#include "dstorm/recorder/recorder.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "dstorm/errors.hpp"
#include "dstorm/recorder/recording.hpp"
#include "dstorm/segment.hpp"
#include "processes.hpp"

namespace {

using dstorm::ConfigError;
using dstorm::Event;
using dstorm::EventCell;
using dstorm::EventKind;
using dstorm::EventRing;
using dstorm::FailedCalls;
using dstorm::Recorder;
using dstorm::Recording;
using dstorm::Report;
using dstorm::SharedWord;

constexpr std::size_t kBytes = std::size_t{1} << 21;

// A memory file as the launcher makes it.
class File {
 public:
  explicit File(std::size_t bytes = kBytes, bool is_sealed = true)
      : fd_(memfd_create("malt-recorder", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
    EXPECT_EQ(ftruncate(fd_, static_cast<off_t>(bytes)), 0);
    const int seals = is_sealed ? F_SEAL_SHRINK | F_SEAL_GROW : 0;
    EXPECT_EQ(fcntl(fd_, F_ADD_SEALS, seals), 0);
  }
  ~File() { close(fd_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

// All words of event n follow from n, so that a torn event shows.
Event event_of(std::uint64_t n) {
  return {.began = static_cast<std::int64_t>(n),
          .lasted = static_cast<std::int64_t>(n * 3),
          .iteration = n ^ 0x5555,
          .bytes = n + 7,
          .ranks = ~n,
          .kind = EventKind::kWait,
          .rank = static_cast<std::int32_t>(n),
          .count = static_cast<std::uint32_t>(n * 5),
          .staleness = static_cast<std::uint32_t>(n >> 3)};
}

bool is_event(const Event& event, std::uint64_t n) {
  const Event expected = event_of(n);
  return std::memcmp(&event, &expected, sizeof(event)) == 0;
}

TEST(EventRing, ReportsEventsInTheirOrder) {
  std::vector<EventCell> cells(64);
  SharedWord head{0};
  EventRing writer(&head, cells);
  EventRing reader(&head, cells);
  for (std::uint64_t n = 0; n < 10; ++n) writer.add(event_of(n));
  std::uint64_t next = 0;
  EXPECT_EQ(reader.read([&](const Event& event) { EXPECT_TRUE(is_event(event, next++)); }), 0U);
  EXPECT_EQ(next, 10U);
  EXPECT_EQ(reader.read([](const Event&) { FAIL() << "read twice"; }), 0U);
}

TEST(EventRing, CountsWhatALappedReaderMissed) {
  std::vector<EventCell> cells(64);
  SharedWord head{0};
  EventRing writer(&head, cells);
  EventRing reader(&head, cells);
  for (std::uint64_t n = 0; n < 100; ++n) writer.add(event_of(n));
  std::uint64_t next = 100 - 64;
  EXPECT_EQ(reader.read([&](const Event& event) { EXPECT_TRUE(is_event(event, next++)); }), 36U);
  EXPECT_EQ(next, 100U);
}

TEST(EventRing, DoesNotReportAnEventThatIsBeingWritten) {
  std::vector<EventCell> cells(64);
  SharedWord head{0};
  EventRing writer(&head, cells);
  EventRing reader(&head, cells);
  for (std::uint64_t n = 0; n < 3; ++n) writer.add(event_of(n));
  cells[1].sequence.store(0);  // as if its writer had begun the next one, or had been killed
  std::vector<std::int64_t> seen;
  EXPECT_EQ(reader.read([&](const Event& event) { seen.push_back(event.began); }), 1U);
  EXPECT_EQ(seen, (std::vector<std::int64_t>{0, 2}));
}

TEST(EventRing, EndsThoughItsHeadIsNonsense) {
  std::vector<EventCell> cells(64);
  SharedWord head{0};
  EventRing reader(&head, cells);
  head.store(~std::uint64_t{0});
  EXPECT_EQ(reader.read([](const Event&) { FAIL() << "there is none"; }), ~std::uint64_t{0});
}

// A writer that never waits, and a reader that it laps again and again.
TEST(EventRing, NeverReportsATornEvent) {
  constexpr std::uint64_t kEvents = 2'000'000;
  std::vector<EventCell> cells(64);
  SharedWord head{0};
  EventRing reader(&head, cells);
  std::thread writing([&] {
    EventRing writer(&head, cells);
    for (std::uint64_t n = 0; n < kEvents; ++n) writer.add(event_of(n));
  });
  std::uint64_t reported = 0;
  std::uint64_t missed = 0;
  std::uint64_t torn = 0;
  std::int64_t last = -1;
  while (reported + missed < kEvents) {
    missed += reader.read([&](const Event& event) {
      torn += is_event(event, static_cast<std::uint64_t>(event.began)) ? 0 : 1;
      EXPECT_GT(event.began, last);
      last = event.began;
      ++reported;
    });
  }
  writing.join();
  EXPECT_EQ(torn, 0U);
  EXPECT_EQ(reported + missed, kEvents);
  EXPECT_GT(reported, 0U);
}

TEST(Recorder, RecordsCallsWithTheRanksWaitedFor) {
  const File file;
  Recorder recorder(file.fd(), 1, 4);
  const std::vector<int> to{0, 2};
  recorder.scattered(Recorder::now(), 5, 800, to);
  recorder.wait_began(1000);
  recorder.waits_for(2);
  recorder.waits_for(3);
  recorder.waits_for(-1);
  recorder.wait_ended(1500);
  recorder.folds(3, 2, 400);
  recorder.gathered(Recorder::now());
  recorder.note_epoch(1, 3, std::vector<int>{0});

  Recording recording(file.fd());
  EXPECT_EQ(recording.rank(), 1);
  EXPECT_EQ(recording.size(), 4);
  EXPECT_EQ(recording.process(), getpid());
  const std::vector<Event> events = recording.read();
  ASSERT_EQ(events.size(), 6U);
  EXPECT_EQ(events[0].kind, EventKind::kScatter);
  EXPECT_EQ(events[0].ranks, 0b101U);
  EXPECT_EQ(events[0].bytes, 800U);
  EXPECT_EQ(events[1].kind, EventKind::kWait);
  EXPECT_EQ(events[1].lasted, 500);
  EXPECT_EQ(events[1].rank, 3);
  EXPECT_EQ(events[1].ranks, 0b1100U);
  EXPECT_EQ(events[2].kind, EventKind::kFold);
  EXPECT_EQ(events[2].staleness, 3U);
  EXPECT_EQ(events[3].kind, EventKind::kGather);
  EXPECT_EQ(events[3].bytes, 400U);
  EXPECT_EQ(events[4].kind, EventKind::kDeath);
  EXPECT_EQ(events[4].rank, 0);
  EXPECT_EQ(events[5].kind, EventKind::kEpoch);
  EXPECT_EQ(recording.totals().waited.load(), 500U);
  EXPECT_EQ(recording.peers()[3].waited.load(), 500U);
  EXPECT_EQ(recording.peers()[3].staleness.load(), 3U);
  EXPECT_EQ(recording.missed(), 0U);
}

TEST(Recorder, CountsCallsThatFailOneAfterAnother) {
  const File file;
  Recorder recorder(file.fd(), 0, 3);
  Recording recording(file.fd());
  const auto failed = [&] {
    return std::bit_cast<FailedCalls>(recording.peers()[2].failed_calls.load());
  };
  recorder.called(2, 4000, ETIMEDOUT);
  recorder.called(2, 65535, ECONNREFUSED);
  EXPECT_EQ(failed().count, 2U);
  EXPECT_EQ(failed().error, ECONNREFUSED);
  EXPECT_EQ(failed().port, 65535);
  EXPECT_EQ(recording.peers()[1].failed_calls.load(), 0U);
  recorder.called(2, 65535, 0);
  EXPECT_EQ(failed().count, 0U);
}

TEST(Recorder, ShowsAWaitInProgress) {
  const File file;
  Recorder recorder(file.fd(), 0, 2);
  const Recording recording(file.fd());
  recorder.wait_began(1000);
  recorder.waits_for(1);
  EXPECT_EQ(recording.totals().waits_since.load(), 1000U);
  EXPECT_EQ(recording.totals().waits_for.load(), 2U);  // the rank + 1
  recorder.wait_ended(2000);
  EXPECT_EQ(recording.totals().waits_since.load(), 0U);
}

TEST(Recorder, KeepsReportedValuesByName) {
  const File file;
  Recorder recorder(file.fd(), 0, 2);
  Recording recording(file.fd());
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(recorder.report("loss", 0.5));
  recorder.scattered(Recorder::now(), 7, 8, std::vector<int>{1});
  EXPECT_TRUE(recorder.report("rate", -infinity));
  EXPECT_TRUE(recorder.report("loss", std::nan("")));
  std::vector<Report> reports = recording.read_reports();
  EXPECT_EQ(recording.report_names(), (std::vector<std::string>{"loss", "rate"}));
  ASSERT_EQ(reports.size(), 3U);
  EXPECT_EQ(reports[0].name, 0U);
  EXPECT_EQ(reports[0].value, 0.5);
  EXPECT_EQ(reports[0].iteration, 0U);
  EXPECT_TRUE(std::isnan(reports[1].value));
  EXPECT_EQ(reports[1].iteration, 7U);
  EXPECT_GE(reports[1].time, reports[0].time);
  EXPECT_EQ(reports[2].name, 1U);
  EXPECT_EQ(reports[2].value, -infinity);
  EXPECT_TRUE(recording.read_reports().empty());
  EXPECT_TRUE(recorder.report("loss", 1));
  EXPECT_EQ(recording.read_reports().size(), 1U);
}

TEST(Recorder, CountsAllreducesInReportsOfARankThatNeverScatters) {
  const File file;
  Recorder recorder(file.fd(), 0, 2);
  for (int i = 0; i < 3; ++i) recorder.allreduced(Recorder::now(), 8, std::vector<int>{0, 1});
  EXPECT_TRUE(recorder.report("loss", 0.5));
  EXPECT_EQ(Recording(file.fd()).read_reports().front().iteration, 3U);
}

TEST(Recorder, KeepsARareNameBesideOneReportedOften) {
  const File file;
  Recorder recorder(file.fd(), 0, 2);
  EXPECT_TRUE(recorder.report("accuracy", 0.9));
  for (std::size_t i = 0; i < 3 * dstorm::kReportCells; ++i) {
    EXPECT_TRUE(recorder.report("loss", static_cast<double>(i)));
  }
  Recording recording(file.fd());
  const std::vector<Report> reports = recording.read_reports();
  EXPECT_EQ(reports.size(), 1 + dstorm::kReportCells);
  EXPECT_EQ(reports.front().value, 0.9);
  EXPECT_EQ(reports.back().value, static_cast<double>(3 * dstorm::kReportCells - 1));
  EXPECT_EQ(recording.missed(), 2 * dstorm::kReportCells);
}

TEST(Recorder, RefusesMoreNamesThanThereArePlaces) {
  const File file;
  Recorder recorder(file.fd(), 0, 2);
  const std::string prefix(dstorm::ReportName::kMostBytes - 2, 'x');
  const auto name = [&](std::size_t i) { return prefix + std::to_string(10 + i); };
  for (std::size_t i = 0; i < dstorm::kReportNames; ++i) {
    EXPECT_TRUE(recorder.report(name(i), 0));
  }
  EXPECT_FALSE(recorder.report("other", 0));
  EXPECT_TRUE(recorder.report(name(3), 1));
  Recording recording(file.fd());
  EXPECT_EQ(recording.read_reports().size(), dstorm::kReportNames + 1);
  EXPECT_EQ(recording.report_names().back(), name(dstorm::kReportNames - 1));
}

TEST(Recording, BelievesNoNumberOfNames) {
  const File file;
  Recorder recorder(file.fd(), 0, 2);
  EXPECT_TRUE(recorder.report("loss", 0.5));
  const std::uint64_t huge = ~std::uint64_t{0};
  ASSERT_EQ(pwrite(file.fd(), &huge, sizeof(huge), offsetof(dstorm::RecorderHeader, names)),
            static_cast<ssize_t>(sizeof(huge)));
  Recording recording(file.fd());
  EXPECT_EQ(recording.read_reports().size(), 1U);
  EXPECT_EQ(recording.report_names().size(), dstorm::kReportNames);
}

TEST(Recording, ReplacesWhatANameMayNotHave) {
  const File file;
  Recorder recorder(file.fd(), 0, 2);
  EXPECT_TRUE(recorder.report("a/b.c-d_E9", 0));
  EXPECT_TRUE(recorder.report("\"x\\\n\xff <b>", 0));
  Recording recording(file.fd());
  EXPECT_EQ(recording.read_reports().size(), 2U);
  EXPECT_EQ(recording.report_names(), (std::vector<std::string>{"a/b.c-d_E9", "?x?????b?"}));
}

// Several threads report, while a reader looks.
TEST(Recorder, ReportsOfSeveralThreadsAreWhole) {
  constexpr int kThreads = 3;
  constexpr int kReports = 20'000;
  const File file;
  Recorder recorder(file.fd(), 0, 2);
  Recording recording(file.fd());
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kReports; ++i) {
        EXPECT_TRUE(recorder.report("shared", i * kThreads + t));
        EXPECT_TRUE(recorder.report("of_" + std::to_string(t), t));
      }
    });
  }
  std::uint64_t read = 0;
  const auto look = [&] {
    for (const Report& report : recording.read_reports()) {
      const std::string& name = recording.report_names().at(report.name);
      if (name == "shared") {
        EXPECT_TRUE(report.value >= 0 && report.value < kReports * kThreads);
      } else {
        EXPECT_EQ(name, "of_" + std::to_string(static_cast<int>(report.value)));
      }
      ++read;
    }
    return read + recording.missed();
  };
  while (look() < std::uint64_t{2} * kThreads * kReports) {
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(look(), std::uint64_t{2} * kThreads * kReports);
}

TEST(Recorder, OutlivesItsProcess) {
  const File file;
  const pid_t pid = fork();
  if (pid == 0) {
    Recorder recorder(file.fd(), 0, 2);
    recorder.scattered(Recorder::now(), 1, 8, std::vector<int>{1});
    raise(SIGKILL);
  }
  waitpid(pid, nullptr, 0);
  Recording recording(file.fd());
  EXPECT_EQ(recording.process(), pid);
  EXPECT_EQ(recording.read().size(), 1U);
}

TEST(Recorder, RefusesMemoryThatCannotServe) {
  const File small(4096);
  EXPECT_THROW(Recorder(small.fd(), 0, 2), ConfigError);
  const File unsealed(kBytes, false);
  EXPECT_THROW(Recorder(unsealed.fd(), 0, 2), ConfigError);
  const File used;
  const Recorder first(used.fd(), 0, 2);
  EXPECT_THROW(Recorder(used.fd(), 1, 2), ConfigError);
  EXPECT_THROW(Recorder(-1, 0, 2), ConfigError);
}

TEST(Recording, RefusesMemoryThatIsDamagedOrNotBegun) {
  const File file;
  EXPECT_THROW(Recording(file.fd()), ConfigError);
  const Recorder recorder(file.fd(), 0, 2);
  const int huge = 1 << 30;
  ASSERT_EQ(pwrite(file.fd(), &huge, sizeof(huge), offsetof(dstorm::RecorderHeader, size)),
            static_cast<ssize_t>(sizeof(huge)));
  EXPECT_THROW(Recording(file.fd()), ConfigError);
}

// A group of ranks, one of which is late, and dies.
TEST(Recorder, ShowsWhoWasLateAndWhoDied) {
  using testing_processes::Job;
  const File file;
  Job job(3, [&](dstorm::Bootstrap& bootstrap) {
    dstorm::GroupOptions options;
    if (bootstrap.rank() == 0) options.recorder = std::make_shared<Recorder>(file.fd(), 0, 3);
    const auto group = testing_processes::join(bootstrap, options);
    dstorm::SegmentOptions segment_options;
    segment_options.name = "w";
    segment_options.slot_bytes = 64;
    dstorm::Segment segment(group, segment_options);
    const std::vector<std::byte> payload(64);
    for (int round = 0; round < 5; ++round) {
      if (group->rank() == 2) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      segment.scatter(std::span<const std::byte>(payload));
      dstorm::GatherOptions bsp;
      bsp.staleness = 0;
      segment.gather(bsp, [](std::span<const dstorm::Update>) {});
    }
    if (group->rank() == 2) raise(SIGKILL);
    while (group->epoch() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return 0;
  });
  EXPECT_EQ(job.wait_all(), (std::vector<int>{0, 0, 128 + SIGKILL}));
  Recording recording(file.fd());
  std::uint64_t scatters = 0;
  std::int64_t waited_for_2 = 0;
  bool died = false;
  bool is_new_epoch = false;
  for (const Event& event : recording.read()) {
    scatters += event.kind == EventKind::kScatter ? 1 : 0;
    if (event.kind == EventKind::kWait && event.rank == 2) waited_for_2 += event.lasted;
    died = died || (event.kind == EventKind::kDeath && event.rank == 2);
    is_new_epoch = is_new_epoch || (event.kind == EventKind::kEpoch && event.iteration > 0);
  }
  EXPECT_EQ(scatters, 5U);
  EXPECT_GT(waited_for_2, 50'000'000);  // most of the 100 ms
  EXPECT_TRUE(died);
  EXPECT_TRUE(is_new_epoch);
  EXPECT_EQ(recording.totals().bytes_in.load(), 5U * 2 * 64);
}

}  // namespace
