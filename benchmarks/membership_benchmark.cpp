// What a step of the watcher costs a rank while an eighth of the others are silent: looking at the
// records of all in the memory of the host, and the tick after it. All but two loads a rank of what
// the system and the engine say.
//
//   membership_benchmark --benchmark_filter='/1024'
//
// "nothing new": as at nearly every step. "all new": every record that lies there has changed since
// the step before, and with it whom its rank accuses: the most that one step can be given to do.
#include <benchmark/benchmark.h>

#include <atomic>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "dstorm/membership/membership.hpp"
#include "dstorm/membership/record.hpp"

namespace {

using namespace std::chrono_literals;
using dstorm::Membership;
using dstorm::MembershipRecord;
using dstorm::RecordFormat;
using Accuses = std::function<bool(int accuser, int accused)>;

constexpr Membership::Time kTimeout = 5s;
constexpr Membership::Time kNow = 5s;
constexpr int kMostNews = 256;  // as in watcher.cpp

// One rank, and what lies in the memory of its host.
class Job {
 public:
  Job(int ranks, const Accuses& accuses)
      : ranks_(ranks),
        format_(ranks),
        stride_((format_.words() + 7) / 8 * 8),
        cells_(stride_ * static_cast<std::size_t>(ranks)),
        known_(static_cast<std::size_t>(ranks)),
        all_(static_cast<std::size_t>(ranks)),
        membership_(options(), {}) {
    for (int from = 1; from < living(); ++from) {
      for (const int first : {0, 1}) {  // whom it accuses, and all of those but one
        MembershipRecord record{.view = {0, all_}};
        for (int r = 0; r < ranks; ++r) {
          if (r != from && accuses(from, r)) record.accused.push_back(r);
        }
        if (first == 1 && !record.accused.empty()) record.accused.pop_back();
        (first == 0 ? even_ : odd_).push_back(record);
      }
    }
    renew();
    for (int seen = 0; seen < ranks; seen += kMostNews) step();
  }

  // Every rank that lives says something else.
  void renew() {
    ++beat_;
    for (int r = 1; r < living(); ++r) {
      MembershipRecord& record = (beat_ % 2 == 0 ? even_ : odd_)[static_cast<std::size_t>(r) - 1];
      record.beat = beat_;
      RecordFormat::store(cell(r), format_.pack(record));
    }
  }

  // As Watcher::step.
  void step() {
    int news = 0;
    for (int left = ranks_; left > 0 && news < kMostNews; --left) {
      next_look_ = (next_look_ + 1) % ranks_;
      const int r = next_look_;
      if (r == 0) continue;
      std::uint64_t& known = known_[static_cast<std::size_t>(r)];
      if (RecordFormat::beat(cell(r)) != known) {
        ++news;
        auto record = format_.unpack(RecordFormat::load(cell(r)), membership_.view().epoch);
        known = record->beat;
        membership_.observe(r, std::move(*record), kNow);
        membership_.hear(r, kNow);
      }
      membership_.reach(r, std::nullopt);
    }
    membership_.tick(kNow);
  }

 private:
  int living() const { return ranks_ - ranks_ / 8; }
  RecordFormat::Cell cell(int rank) {
    return RecordFormat::Cell(cells_).subspan(static_cast<std::size_t>(rank) * stride_,
                                              format_.words());
  }
  dstorm::MembershipOptions options() {
    std::iota(all_.begin(), all_.end(), 0);
    return {.rank = 0, .first = {0, all_}, .timeout = kTimeout - 1ms};
  }

  int ranks_;
  RecordFormat format_;
  std::size_t stride_;
  std::vector<std::atomic<std::uint64_t>> cells_;
  std::vector<std::uint64_t> known_;  // beats
  std::vector<int> all_;
  std::uint64_t beat_ = 0;
  int next_look_ = 0;
  Membership membership_;
  std::vector<MembershipRecord> even_, odd_;
};

void register_job(const std::string& accusations, int ranks, const Accuses& accuses) {
  const std::string name = accusations + "/" + std::to_string(ranks);
  benchmark::RegisterBenchmark(("nothing new/" + name).c_str(), [=](benchmark::State& state) {
    Job job(ranks, accuses);
    for (auto _ : state) job.step();
  })->Unit(benchmark::kMicrosecond);
  benchmark::RegisterBenchmark(("all new/" + name).c_str(), [=](benchmark::State& state) {
    Job job(ranks, accuses);
    for (auto _ : state) {
      state.PauseTiming();
      job.renew();
      state.ResumeTiming();
      job.step();
    }
  })->Unit(benchmark::kMicrosecond);
}

}  // namespace

int main(int argc, char** argv) {
  for (const int ranks : {64, 256, 1024}) {
    register_job("the dead are accused", ranks, [=](int, int r) { return r >= ranks - ranks / 8; });
    register_job("two halves accuse each other", ranks,
                 [=](int a, int r) { return (a < ranks / 2) != (r < ranks / 2); });
    register_job("one in ten is accused", ranks, [](int a, int r) {
      return std::minstd_rand(static_cast<unsigned>(a * 4096 + r + 1))() % 10 == 0;
    });
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
