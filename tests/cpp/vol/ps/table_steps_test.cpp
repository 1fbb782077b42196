// Tables in which a rank is killed or stopped between any two messages of its client or its server:
// each push counts once, whole, whichever moment that is. And each call ends at its limit, wherever
// in it a server stops, and however slow it is.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "stressed.hpp"
#include "table_rank.hpp"

namespace vol::ps {
namespace {

constexpr int kRanks = 4;
constexpr int kRounds = 4;
constexpr std::int64_t kRows = 64;
constexpr auto kLimit = 20ms;  // of each call, which is made again until it succeeds
constexpr auto kPause = 60ms;

enum class Fault : std::uint8_t {
  kNone,
  kKill,
  kStop,   // of the whole process
  kDelay,  // of the member's thread alone
};

struct Moment {
  Fault fault = Fault::kNone;
  int member = 0;   // of the table's group
  int message = 0;  // before this one of the member's, counted from 1
};

// What the processes of a trial share.
struct Trial {
  Posts posts;
  std::array<std::atomic<int>, 2 * kRanks> messages{};  // that each member has sent
  std::array<std::atomic<int>, kRanks> begun{};         // pushes, by rank
  std::array<std::atomic<int>, kRanks> acknowledged{};
  std::array<std::atomic<bool>, kRanks> is_dead{};
  std::array<std::atomic<int>, kRanks> stage{};  // to which each rank has come
  std::array<std::array<double, kRows>, kRanks> seen{};
  std::atomic<int> stopped{-1};  // rank
  std::atomic<bool> has_failed{false};
};

Trial* trial_of_process = nullptr;
Moment moment_of_process;

// What a member does before each of its messages.
struct Pace {
  std::atomic<std::chrono::milliseconds> delay{};
  std::atomic<int> stops_after{-1};  // so many more messages; below 0: never
};
std::array<Pace, 4>* paces_of_process = nullptr;  // by member of a table on two ranks

void before_message(int member) {
  if (paces_of_process != nullptr) {
    Pace& pace = paces_of_process->at(static_cast<std::size_t>(member));
    std::this_thread::sleep_for(pace.delay.load());
    if (pace.stops_after >= 0) {
      if (--pace.stops_after < 0) std::raise(SIGSTOP);
    }
  }
  if (trial_of_process == nullptr) return;
  Trial& trial = *trial_of_process;
  const int number = ++trial.messages.at(static_cast<std::size_t>(member));
  const Moment& moment = moment_of_process;
  if (member != moment.member || number != moment.message) return;
  const int rank = member % kRanks;
  switch (moment.fault) {
    case Fault::kNone:
      break;
    case Fault::kKill:
      trial.is_dead.at(static_cast<std::size_t>(rank)) = true;
      std::raise(SIGKILL);
      break;
    case Fault::kStop:
      trial.stopped = rank;
      std::raise(SIGSTOP);
      break;
    case Fault::kDelay:
      std::this_thread::sleep_for(kPause);
      break;
  }
}

struct Setting {
  int replicas = 0;
  bool is_bsp = false;
  int dies_later = -1;  // a rank that is killed when all have pulled
};

// Makes the call until it takes no longer than its limit. A call that does has changed nothing, or
// goes on from there.
void insist(const std::function<void()>& call) {
  bool is_done = false;
  while (!is_done) {
    try {
      call();
      is_done = true;
    } catch (const dstorm::TimeoutError&) {
      std::this_thread::yield();
    }
  }
}

// Returns when all ranks that live have come to this stage.
void meet_living(Trial& trial, int rank, int stage) {
  trial.stage.at(static_cast<std::size_t>(rank)) = stage;
  for (std::size_t each = 0; each < kRanks; ++each) {
    while (trial.stage.at(each) < stage && !trial.is_dead.at(each) && !trial.has_failed) {
      std::this_thread::sleep_for(200us);
    }
  }
}

std::uint64_t push(Rank& one, double value) {
  const std::vector<double> gradients(kRows, value);
  std::uint64_t number = 0;
  insist([&] {
    number = one.client->push({nullptr, 0, gradients.size()},
                              reinterpret_cast<const std::byte*>(gradients.data()), kLimit);
  });
  return number;
}

std::vector<double> rows_of(Rank& one) {
  std::vector<double> values(static_cast<std::size_t>(kRows));
  insist([&] {
    one.client->pull({nullptr, 0, values.size()}, reinterpret_cast<std::byte*>(values.data()),
                     kLimit);
  });
  return values;
}

int sum(const std::array<std::atomic<int>, kRanks>& counts, int most_each = kRounds) {
  int total = 0;
  for (const auto& count : counts) total += std::min(count.load(), most_each);
  return total;
}

int run_rank(Trial& trial, int rank, const Setting& setting) {
  const auto index = static_cast<std::size_t>(rank);
  TableOptions options = options_of(kRows, 1);
  options.replicas = setting.replicas;
  if (setting.is_bsp) options.staleness = 0;
  trial_of_process = &trial;
  Rank one(trial.posts, rank, kRanks, options);
  for (int round = 0; round < kRounds; ++round) {
    ++trial.begun[index];
    const std::uint64_t number = push(one, 1);
    if (round % 2 == rank % 2) {
      insist([&] { one.client->wait(number, kLimit); });
      trial.acknowledged[index] = trial.begun[index].load();
    }
    if (setting.is_bsp || round % 3 == 2) insist([&] { one.client->advance(kLimit); });
    const int before = sum(trial.acknowledged, setting.is_bsp ? round + 1 : kRounds);
    const std::vector<double> values = rows_of(one);
    const auto [low, high] = std::ranges::minmax(values);
    CHECK_THAT(low >= before);
    CHECK_THAT(high <= sum(trial.begun));
  }
  insist([&] { one.client->wait({}, kLimit); });
  trial.acknowledged[index] = trial.begun[index].load();
  meet_living(trial, rank, 1);
  // Until the servers know of the death, and have taken what the dead rank had sent.
  const auto dead = std::ranges::count_if(trial.is_dead, [](const auto& is) { return is.load(); });
  while (one.live() > kRanks - dead) std::this_thread::sleep_for(200us);
  for (int time = 0; time < 2; ++time) {
    push(one, 0);
    insist([&] { one.client->wait({}, kLimit); });
  }
  meet_living(trial, rank, 2);

  const std::vector<double> values = rows_of(one);
  std::ranges::copy(values, trial.seen[index].begin());
  const auto [low, high] = std::ranges::minmax(values);
  CHECK_THAT(low >= sum(trial.acknowledged));
  CHECK_THAT(high <= sum(trial.begun));
  meet_living(trial, rank, 3);

  if (rank == setting.dies_later) {
    trial.is_dead[index] = true;
    std::raise(SIGKILL);
  }
  const std::vector<double> again = rows_of(one);
  for (std::size_t each = 0; each < kRanks; ++each) {
    if (trial.stage[each] < 3) continue;
    CHECK_THAT(std::ranges::equal(again, trial.seen[each]));
  }
  meet_living(trial, rank, 4);
  insist([&] { one.client->finish(kLimit); });
  return 0;
}

// Returns how many messages each member has sent.
std::array<int, 2 * kRanks> run(const Setting& setting, const Moment& moment) {
  Shared<Trial> trial;
  moment_of_process = moment;
  Job job(kRanks, [&](dstorm::Bootstrap& bootstrap) {
    const int status = run_rank(*trial, bootstrap.rank(), setting);
    if (status != 0) trial->has_failed = true;
    return status;
  });
  std::array<pid_t, kRanks> pids{};  // job.wait_all() writes the job's own
  for (int rank = 0; rank < kRanks; ++rank) pids.at(static_cast<std::size_t>(rank)) = job.pid(rank);
  std::jthread waking([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      if (const int rank = trial->stopped.exchange(-1); rank >= 0) {
        std::this_thread::sleep_for(kPause);
        kill(pids.at(static_cast<std::size_t>(rank)), SIGCONT);
      }
      std::this_thread::sleep_for(1ms);
    }
  });
  const std::vector<int> statuses = job.wait_all();
  waking.request_stop();
  waking.join();
  for (int rank = 0; rank < kRanks; ++rank) {
    const bool is_dead = trial->is_dead.at(static_cast<std::size_t>(rank));
    EXPECT_EQ(statuses.at(static_cast<std::size_t>(rank)), is_dead ? 128 + SIGKILL : 0)
        << "rank " << rank << ", replicas " << setting.replicas << ", bsp " << setting.is_bsp
        << ", dies later " << setting.dies_later << ", fault " << static_cast<int>(moment.fault)
        << " before message " << moment.message << " of member " << moment.member;
  }
  std::array<int, 2 * kRanks> sent{};
  std::ranges::copy(trial->messages, sent.begin());
  return sent;
}

TEST(TableSteps, AFaultBetweenAnyTwoMessagesLosesAndDoublesNothing) {
  std::mt19937 random(1);
  const auto draw = [&](int count) {
    return static_cast<int>(random() % static_cast<unsigned>(count));
  };
  for (const bool is_bsp : {false, true}) {
    for (const int replicas : {0, 1, 2}) {
      Setting setting{.replicas = replicas, .is_bsp = is_bsp};
      const std::array<int, 2 * kRanks> sent = run(setting, {});
      for (std::uint64_t trial = 0; trial < stressed(8); ++trial) {
        Moment moment;
        moment.member = draw(2 * kRanks);
        moment.message = 1 + draw(sent.at(static_cast<std::size_t>(moment.member)));
        moment.fault = std::array{Fault::kKill, Fault::kKill, Fault::kStop, Fault::kDelay}.at(
            static_cast<std::size_t>(replicas > 0 ? draw(4) : 2 + draw(2)));
        const int deaths = moment.fault == Fault::kKill ? 1 : 0;
        setting.dies_later = deaths < replicas ? draw(kRanks) : -1;
        if (deaths > 0 && setting.dies_later == moment.member % kRanks) setting.dies_later = -1;
        run(setting, moment);
        if (HasFailure()) return;
      }
    }
  }
}

// A call of rank 0, with a server that needs much longer for it than its limit, though no single
// message of it does.
struct Late {
  std::string name;
  std::function<void(Rank&, std::span<const std::int64_t> of_rank_1, Client::Limit)> call;
  int server = 1;             // the slow one
  bool is_held_back = false;  // rank 0 has pushes to be sent first
  bool times_out = true;
};

constexpr auto kLateLimit = 1s;
constexpr std::size_t kWidth = kMostRowBytes / sizeof(double);  // each row is a message

void push_ones(Rank& one, std::span<const std::int64_t> keys, Client::Limit limit) {
  const std::vector<double> gradients(keys.size() * kWidth, 1);
  one.client->push({keys.data(), 0, keys.size()},
                   reinterpret_cast<const std::byte*>(gradients.data()), limit);
}

std::vector<double> pull(Rank& one, std::span<const std::int64_t> keys, Client::Limit limit) {
  std::vector<double> values(keys.size() * kWidth);
  one.client->pull({keys.data(), 0, keys.size()}, reinterpret_cast<std::byte*>(values.data()),
                   limit);
  return values;
}

std::vector<std::byte> read_own(Rank& one, Client::Limit limit) {
  const std::size_t range = one.client->ranges(std::vector<int>{0, 1}).front();
  std::vector<std::byte> bytes(16 * kMostRowBytes);
  one.client->read(range, 0, bytes, limit);
  return bytes;
}

std::vector<Late> late_calls() {
  return {
      {.name = "push", .call = push_ones, .times_out = false},
      {.name = "wait",
       .call = [](Rank& one, auto, Client::Limit limit) { one.client->wait({}, limit); },
       .is_held_back = true},
      {.name = "pull",
       .call = [](Rank& one, auto keys, Client::Limit limit) { pull(one, keys, limit); }},
      {.name = "close",
       .call = [](Rank& one, auto, Client::Limit limit) { one.client->finish(limit); },
       .is_held_back = true},
      {.name = "read",
       .call = [](Rank& one, auto, Client::Limit limit) { read_own(one, limit); },
       .server = 0},
      {.name = "write",
       .call =
           [](Rank& one, auto, Client::Limit limit) {
             const std::size_t range = one.client->ranges(std::vector<int>{0, 1}).front();
             one.client->write(range, 0, std::vector<std::byte>(16 * kMostRowBytes), limit);
           },
       .server = 0},
  };
}

// Returns rank 0's exit status. `stops_after`: the server stops so; below 0: it is slow.
int run_late(Rank& one, const Late& late, Pace& pace, int stops_after, pid_t other) {
  std::vector<std::int64_t> keys;
  for (const std::int64_t key : every(400, 1)) {
    const Placement& placement = one.client->placement();
    if (placement.server(placement.range_of(key), 0) == 1) keys.push_back(key);
  }
  if (late.is_held_back) push_ones(one, keys, {});
  // The six requests or more of a read go one at a time, the 128 rows or more of rank 1 by tens.
  if (stops_after < 0) pace.delay = late.server == 0 ? 400ms : 40ms;
  pace.stops_after = stops_after;
  std::vector<int> ranks;
  std::string text;
  const auto since = std::chrono::steady_clock::now();
  try {
    late.call(one, keys, kLateLimit);
  } catch (const dstorm::TimeoutError& error) {
    ranks = error.ranks();
    text = error.what();
  }
  const auto taken = std::chrono::steady_clock::now() - since;
  pace.stops_after = -1;
  pace.delay = 0ms;
  if (stops_after >= 0) kill(other, SIGCONT);
  CHECK_THAT(taken < 2 * kLateLimit);
  CHECK_THAT(ranks == (late.times_out ? std::vector<int>{late.server} : std::vector<int>{}));
  CHECK_THAT(text.empty() || text.find("within 1 s") != std::string::npos);
  late.call(one, keys, {});
  if (late.name == "push" || late.is_held_back) {
    const double pushes = late.is_held_back ? 1 : 2;
    if (late.name != "close") CHECK_THAT(are_all(pull(one, keys, {}), pushes));
  }
  return 0;
}

TEST(TableSteps, ACallEndsAtItsLimitWhereverInItAServerStopsAndHoweverSlowItIs) {
  for (const Late& late : late_calls()) {
    for (const int stops_after : {-1, 0, 1, 7}) {
      if (late.server == 0 && stops_after >= 0) continue;
      if (kSanitized && stops_after > 0) continue;
      TableOptions options = options_of(400, kWidth);
      options.codec = Codec::float16();  // so that nothing is read in place, without a message
      if (late.is_held_back) options.threshold = 10;
      Shared<Posts> posts;
      Shared<std::array<Pace, 4>> paces;
      Shared<std::atomic<pid_t>> other;
      Shared<std::atomic<bool>> is_over;
      Job job(2, [&](dstorm::Bootstrap& bootstrap) {
        paces_of_process = &*paces;
        if (bootstrap.rank() == 1) *other = getpid();
        Rank one(*posts, bootstrap.rank(), 2, options);
        int status = 0;
        if (one.rank == 1) {
          if (late.name != "close") await(*is_over);
        } else {
          Pace& pace = paces->at(2 + static_cast<std::size_t>(late.server));
          status = run_late(one, late, pace, stops_after, *other);
          *is_over = true;
        }
        if (status == 0) one.client->finish({});
        return status;
      });
      EXPECT_EQ(job.wait_all(), (std::vector<int>{0, 0})) << late.name << ' ' << stops_after;
    }
  }
}

}  // namespace
}  // namespace vol::ps

// In the place of the library's, which it calls.
void dstorm::Mail::end() {
  vol::ps::before_message(rank());
  static const auto end =
      reinterpret_cast<void (*)(Mail*)>(dlsym(RTLD_NEXT, "_ZN6dstorm4Mail3endEv"));
  end(this);
}
