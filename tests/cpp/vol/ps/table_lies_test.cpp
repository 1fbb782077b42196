// A rank that sends other messages than a client and a server do: the table of an honest rank may
// be lost with it, and says so. Nothing is written or read beyond its place, and nothing grows
// without a bound.
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "dstorm/collective/mail.hpp"
#include "dstorm/errors.hpp"
#include "sanitizers.hpp"
#include "table_rank.hpp"

namespace vol::ps {
namespace {

constexpr std::int64_t kRows = 60'000;

// Has the place of the last rank, with neither a client nor a server.
class Liar {
  int ranks_;
  std::shared_ptr<dstorm::Group> groups_[2];
  std::optional<dstorm::Mail> mails_[2];  // of the client and of the server

 public:
  explicit Liar(Posts& posts, int ranks = 2) : ranks_(ranks) {
    const auto begin = [&](int which) {
      testing_processes::ForkBootstrap bootstrap(posts, ranks - 1 + ranks * which, 2 * ranks);
      groups_[which] = testing_processes::join(bootstrap);
      mails_[which].emplace(groups_[which], "t", kSlotBytes, kDepth);
    };
    std::thread server([&] { begin(1); });
    begin(0);
    server.join();
  }

  // To the server of rank 0, as the client or as the server of this rank.
  void say(const Head& head, std::span<const std::byte> body = {}, bool as_server = false) {
    std::vector<std::byte> message(kHeadBytes + body.size());
    std::memcpy(message.data(), &head, sizeof(head));
    if (!body.empty()) std::memcpy(message.data() + kHeadBytes, body.data(), body.size());
    say(message, as_server);
  }
  void say(std::span<const std::byte> message, bool as_server = false) {
    mails_[as_server]->send(ranks_, message);
    mails_[as_server]->pump();
  }
  // To the client of rank 0, as the server of this rank.
  void say_to_client(const Head& head) {
    std::vector<std::byte> message(kHeadBytes);
    std::memcpy(message.data(), &head, sizeof(head));
    mails_[1]->send(0, message);
  }
  // How many failures of pushes come to this rank's client within a tenth of a second.
  std::size_t failures() {
    std::size_t count = 0;
    for (int look = 0; look < 100; ++look) {
      pump();
      mails_[0]->take_in([&](int, std::span<const std::byte> message) {
        count += head_of(message).kind == Head::Kind::kFailed ? 1 : 0;
      });
    }
    return count;
  }
  void pump() {
    mails_[0]->pump();
    mails_[1]->pump();
    std::this_thread::sleep_for(1ms);
  }

  // How many messages of the server of rank 0 have come when it has said that it has this one.
  std::size_t forwarded_up_to(std::uint64_t last) {
    while (!mails_[1]->has_taken_all(ranks_)) pump();
    std::size_t count = 0;
    bool has_last = false;
    while (!has_last) {
      mails_[1]->pump();
      mails_[1]->take_in([&](int, std::span<const std::byte> message) {
        const Head head = head_of(message);
        ++count;
        has_last = has_last || (head.kind == Head::Kind::kForwarded && head.id == last);
      });
    }
    return count;
  }

  // The ids of the answers that come until one has this id. `has_copies`: this rank's server says
  // meanwhile that it has what is forwarded to it.
  std::vector<std::uint64_t> answers_up_to(std::uint64_t last, bool has_copies = false) {
    std::vector<std::uint64_t> ids;
    while (ids.empty() || ids.back() != last) {
      for (std::optional<dstorm::Mail>& mail : mails_) mail->pump();
      if (has_copies) {
        mails_[1]->take_in([&](int sender, std::span<const std::byte> message) {
          Head head = head_of(message);
          if (sender != ranks_ || head.kind != Head::Kind::kForward) return;
          head.kind = Head::Kind::kForwarded;
          say(head, {}, true);
        });
      }
      mails_[0]->take_in([&](int, std::span<const std::byte> message) {
        const Head head = head_of(message);
        if (head.kind == Head::Kind::kValues || head.kind == Head::Kind::kAck) {
          ids.push_back(head.id);
        }
      });
    }
    return ids;
  }
};

Head head_as(Head::Kind kind, KeyForm keys, std::int64_t first, std::uint64_t count) {
  Head head{};
  head.kind = kind;
  head.client = 1;
  head.id = head.push = 1;
  head.first = first;
  head.count = count;
  head.keys = keys;
  return head;
}

std::vector<std::byte> bytes_of(const std::vector<std::int64_t>& keys) {
  const auto bytes = std::as_bytes(std::span(keys));
  return {bytes.begin(), bytes.end()};
}

// A range of which this server is the primary.
std::size_t range_of_primary(const Placement& placement, int server) {
  std::size_t range = 0;
  while (placement.server(range, 0) != server) ++range;
  return range;
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const dstorm::Error& error) {
    return error.what();
  }
  return "";
}

// Rank 0 is honest, and rank 1 lies; then it ends, so no server is left.
void expect_refused(const TableOptions& options, const std::function<void(Liar&)>& lie) {
  Shared<Posts> posts;
  Shared<std::atomic<bool>> is_refused;
  Job job(2, [&](dstorm::Bootstrap& bootstrap) {
    if (bootstrap.rank() == 1) {
      Liar liar(*posts);
      lie(liar);
      while (!*is_refused) liar.pump();
      return 0;
    }
    Rank one(*posts, 0, 2, options);
    while (one.live() == 2) std::this_thread::sleep_for(1ms);
    *is_refused = true;
    while (one.live() != 0) std::this_thread::sleep_for(1ms);
    const std::vector<std::int64_t> keys = every(options.rows, 2);
    const auto push_and_wait = [&] { one.client->wait(one.add(keys, 1), {}); };
    const std::string first = refusal(push_and_wait);
    CHECK_THAT(first.find("are lost with ranks 0, 1") != std::string::npos);
    CHECK_THAT(first.find("This rank's server ended: rank 1 wrote ") != std::string::npos);
    CHECK_THAT(refusal([&] { one.pull(keys); }).find("are lost with") != std::string::npos);
    CHECK_THAT(refusal([&] { one.all(); }).find("are lost with") != std::string::npos);
    one.client->finish({});
    return 0;
  });
  expect_all_well(job);
}

TEST(TableLies, AMessageThatIsNoneIsRefused) {
  TableOptions options = options_of(kRows, 1);
  options.replicas = 1;
  expect_refused(options, [](Liar& liar) { liar.say(std::vector<std::byte>(1)); });
}

// It fits a slot as it comes, and would not as it is forwarded.
TEST(TableLies, ACodedPushOfMoreRowsThanASlotHasIsRefused) {
  TableOptions options = options_of(kRows, 1);
  options.replicas = 1;
  options.codec = Codec::int8();
  expect_refused(options, [&](Liar& liar) {
    const auto count = static_cast<std::size_t>(kRows);
    const std::vector<std::byte> body(options.coder(count).bytes());
    liar.say(head_as(Head::Kind::kPush, KeyForm::kConsecutive, 0, count), body);
  });
}

TEST(TableLies, AHotPullOfMoreThanASlotHasIsRefused) {
  TableOptions options = options_of(200, 2000);
  options.replicas = 1;
  options.hot = every(200, 1);
  for (const bool as_server : {false, true}) {
    expect_refused(options, [&](Liar& liar) {
      const std::vector<std::int64_t> keys = every(200, 1);
      liar.say(head_as(Head::Kind::kHotPull, KeyForm::kListed, 0, keys.size()), bytes_of(keys),
               as_server);
    });
  }
  expect_refused(options, [](Liar& liar) {
    liar.say(head_as(Head::Kind::kHotPull, KeyForm::kConsecutive, 0, 8));
  });
}

TEST(TableLies, AHotPullOfOtherRowsIsRefused) {
  TableOptions options = options_of(kRows, 1);
  options.replicas = 1;
  options.hot = {5, 9};
  expect_refused(options, [](Liar& liar) {
    liar.say(head_as(Head::Kind::kHotPull, KeyForm::kListed, 0, 2), bytes_of({5, 8}));
  });
}

// P14: of pulls that wait for a clock, the latest stay.
TEST(TableLies, PullsThatWaitHaveABound) {
  constexpr std::uint64_t kPulls = kMostWaiting + 50;
  TableOptions options = options_of(kRows, 1);
  options.staleness = 0;
  const Placement placement(kRows, {0, 1}, 0, 2);
  const std::size_t range = range_of_primary(placement, 0);
  Shared<Posts> posts;
  Shared<std::atomic<bool>> is_told, is_over;
  Job job(2, [&](dstorm::Bootstrap& bootstrap) {
    if (bootstrap.rank() == 0) {
      Rank one(*posts, 0, 2, options);
      await(*is_told);
      one.client->advance({});
      await(*is_over);
      return 0;
    }
    Liar liar(*posts);
    Head pull = head_as(Head::Kind::kPull, KeyForm::kConsecutive, placement.first_row(range), 1);
    pull.clock = 1;
    for (pull.id = 1; pull.id <= kPulls; ++pull.id) liar.say(pull);
    Head clock = head_as(Head::Kind::kClock, KeyForm::kConsecutive, 0, 0);
    clock.clock = 1;
    clock.id = 0;
    liar.say(clock);
    *is_told = true;
    const std::vector<std::uint64_t> ids = liar.answers_up_to(kPulls);
    CHECK_THAT(ids.size() == kMostWaiting && ids.front() == kPulls - kMostWaiting + 1);
    *is_over = true;
    return 0;
  });
  expect_all_well(job);
}

std::size_t resident_bytes() {
  std::size_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

// P15: the server of rank 0 serves rank 1 meanwhile, and all that rank 2 has asked for, in its
// order, when that takes its answers.
TEST(TableLies, AnswersThatAClientDoesNotTakeHaveABound) {
  constexpr std::uint64_t kAsked = 2000;  // every tenth is a push
  constexpr std::size_t kWidth = kMostRowBytes / sizeof(double);
  const TableOptions options = options_of(300, kWidth);
  const Placement placement(options.rows, {0, 1, 2}, 0, 3);
  const std::size_t range = range_of_primary(placement, 0);
  const std::int64_t row = placement.first_row(range);
  Shared<Posts> posts;
  Shared<std::atomic<bool>> is_ready, is_served, is_over;
  Job job(3, [&](dstorm::Bootstrap& bootstrap) {
    if (bootstrap.rank() == 0) {
      Rank one(*posts, 0, 3, options);
      const std::size_t before = resident_bytes();
      *is_ready = true;
      await(*is_served);
      const std::size_t after = resident_bytes();
      *is_over = true;
      // AddressSanitizer keeps freed memory.
      CHECK_THAT(kSanitized ||
                 after < before + (kMostUntaken + 2 * kDepth) * kSlotBytes + (16 << 20));
      while (one.live() == 3) std::this_thread::sleep_for(1ms);
      CHECK_THAT(are_all(one.pull({row}), kAsked * 0.1));
      return 0;
    }
    if (bootstrap.rank() == 1) {
      Rank one(*posts, 1, 3, options);
      await(*is_ready);
      std::this_thread::sleep_for(200ms);  // rank 2 asks first
      std::vector<double> values(kWidth);
      bool is_right = true;
      try {
        for (int round = 0; round < 200; ++round) {
          one.add({row + 1}, 1);  // so that the pull is not in place, without a message
          one.client->pull({nullptr, row + 1, 1}, std::as_writable_bytes(std::span(values)).data(),
                           20s);
        }
        one.client->wait({}, 20s);
      } catch (const dstorm::TimeoutError&) {
        is_right = false;  // the check fails when the other ranks have been let go
      }
      *is_served = true;
      await(*is_over);
      CHECK_THAT(is_right && are_all(values, 200));
      while (one.live() == 3) std::this_thread::sleep_for(1ms);
      return 0;
    }
    Liar liar(*posts, 3);
    await(*is_ready);
    Head head = head_as(Head::Kind::kPull, KeyForm::kConsecutive, row, 1);
    head.client = 2;
    const std::vector<double> gradient(kWidth, 1);
    for (head.id = 1; head.id <= kAsked; ++head.id) {
      const bool is_push = head.id % 10 == 0;
      head.kind = is_push ? Head::Kind::kPush : Head::Kind::kPull;
      head.push = head.id;
      liar.say(head, is_push ? std::as_bytes(std::span(gradient)) : std::span<const std::byte>());
    }
    while (!*is_over) liar.pump();
    const std::vector<std::uint64_t> ids = liar.answers_up_to(kAsked);
    CHECK_THAT(ids.size() == kAsked && std::ranges::is_sorted(ids));
    return 0;
  });
  expect_all_well(job);
}

// P15: the copy of each push is at the liar's server, which takes nothing. All that has been pushed
// is there when it has.
TEST(TableLies, PushesWhoseCopiesNobodyTakesHaveABound) {
  constexpr std::uint64_t kPushes = kSanitized ? 1000 : 4000;
  constexpr std::size_t kWidth = kMostRowBytes / sizeof(double);
  TableOptions options = options_of(200, kWidth);
  options.replicas = 1;
  const Placement placement(options.rows, {0, 1}, 1, 2);
  const std::int64_t row = placement.first_row(range_of_primary(placement, 0));
  Shared<Posts> posts;
  Shared<std::atomic<bool>> is_ready, is_flooded, is_over;
  Job job(2, [&](dstorm::Bootstrap& bootstrap) {
    if (bootstrap.rank() == 0) {
      Rank one(*posts, 0, 2, options);
      const std::size_t before = resident_bytes();
      *is_ready = true;
      await(*is_flooded);
      const std::size_t after = resident_bytes();
      *is_over = true;
      CHECK_THAT(kSanitized || after < before + kMostWaiting * kSlotBytes + (32 << 20));
      while (one.live() == 2) std::this_thread::sleep_for(1ms);
      CHECK_THAT(are_all(one.pull({row}), kPushes));
      return 0;
    }
    Liar liar(*posts);
    await(*is_ready);
    Head head = head_as(Head::Kind::kPush, KeyForm::kConsecutive, row, 1);
    const std::vector<double> gradient(kWidth, 1);
    for (head.id = 1; head.id <= kPushes; ++head.id) {
      head.push = head.id;
      liar.say(head, std::as_bytes(std::span(gradient)));
    }
    for (int look = 0; look < 500; ++look) liar.pump();
    *is_flooded = true;
    await(*is_over);
    CHECK_THAT(liar.answers_up_to(kPushes, true).size() == kPushes);
    return 0;
  });
  expect_all_well(job);
}

// P15: rows for which the liar's server asks and which it does not take. Other ranks are served.
TEST(TableLies, HotRowsThatAServerDoesNotTakeHaveABound) {
  constexpr std::size_t kWidth = kMostRowBytes / sizeof(double);
  TableOptions options = options_of(200, kWidth);
  options.hot = every(200, 1);
  const Placement placement(options.rows, {0, 1}, 0, 2);
  const std::int64_t row = placement.first_row(range_of_primary(placement, 0));
  Shared<Posts> posts;
  Shared<std::atomic<bool>> is_ready, is_flooded;
  Job job(2, [&](dstorm::Bootstrap& bootstrap) {
    if (bootstrap.rank() == 0) {
      Rank one(*posts, 0, 2, options);
      one.client->wait(one.add({row}, 3), {});
      const std::size_t before = resident_bytes();
      *is_ready = true;
      await(*is_flooded);
      CHECK_THAT(kSanitized || resident_bytes() < before + (32 << 20));
      CHECK_THAT(are_all(one.pull({row}), 3));
      return 0;
    }
    Liar liar(*posts);
    await(*is_ready);
    Head head = head_as(Head::Kind::kHotPull, KeyForm::kListed, 0, 1);
    for (head.id = 1; head.id <= 4000; ++head.id) liar.say(head, bytes_of({row}), true);
    for (int look = 0; look < 500; ++look) liar.pump();
    *is_flooded = true;
    return 0;
  });
  expect_all_well(job);
}

// P15: 5,000 forwarded pushes, for which the liar takes no answers before it has sent them all.
TEST(TableLies, AnswersToForwardedPushesDoNotPileUp) {
  constexpr std::uint64_t kForwards = 5000;
  TableOptions options = options_of(kRows, 1);
  options.replicas = 1;
  const Placement placement(options.rows, {0, 1}, 1, 2);
  Shared<Posts> posts;
  Job job(2, [&](dstorm::Bootstrap& bootstrap) {
    if (bootstrap.rank() == 0) {
      Rank one(*posts, 0, 2, options);
      while (one.live() == 2) std::this_thread::sleep_for(1ms);
      return 0;
    }
    Liar liar(*posts);
    const std::int64_t row = placement.first_row(range_of_primary(placement, 1));
    Head head = head_as(Head::Kind::kForward, KeyForm::kConsecutive, row, 1);
    const double gradient = 1;
    for (head.id = 1; head.id <= kForwards; ++head.id) {
      head.push = head.id;
      liar.say(head, std::as_bytes(std::span(&gradient, 1)), true);
    }
    CHECK_THAT(liar.forwarded_up_to(kForwards) < 2 * kDepth);
    return 0;
  });
  expect_all_well(job);
}

// P16: at staleness 0 for a clock that has not ended, and for a copy that has not.
TEST(TableLies, ACopyIsSentNoMorePushesThanAPrimaryKeeps) {
  constexpr std::size_t kWidth = kMostRowBytes / sizeof(double);
  TableOptions options = options_of(64, kWidth);
  options.replicas = 1;
  options.most_kept = 64 << 20;
  const Placement placement(options.rows, {0, 1}, 1, 2);
  const std::size_t range = range_of_primary(placement, 1);
  for (const bool copies : {false, true}) {
    if (!copies) options.staleness = 0;
    expect_refused(options, [&](Liar& liar) {
      Head head = head_as(Head::Kind::kCopyBegin, KeyForm::kConsecutive,
                          static_cast<std::int64_t>(range), 0);
      head.id = 0;
      if (copies) liar.say(head, {}, true);
      head = head_as(Head::Kind::kForward, KeyForm::kConsecutive, placement.first_row(range), 1);
      head.id = 0;
      const std::vector<double> gradient(kWidth, 1);
      for (; head.push * kMostRowBytes <= 2 * options.most_kept; ++head.push) {
        liar.say(head, std::as_bytes(std::span(gradient)), true);
      }
    });
    options.staleness.reset();
  }
}

// P15: a client that takes nothing is told of no more failures than it may have answers.
TEST(TableLies, FailuresOfKeptPushesHaveABound) {
  constexpr std::uint64_t kPushes = 300;
  TableOptions options = options_of(kRows, 1);
  options.staleness = 0;
  options.rule.kind = Rule::Kind::kFunction;
  options.rule.function = [](auto&&...) { throw std::runtime_error("no"); };
  const Placement placement(kRows, {0, 1}, 0, 2);
  const std::int64_t row = placement.first_row(range_of_primary(placement, 0));
  Shared<Posts> posts;
  Shared<std::atomic<bool>> is_kept, is_applied, is_over;
  Job job(2, [&](dstorm::Bootstrap& bootstrap) {
    if (bootstrap.rank() == 0) {
      Rank one(*posts, 0, 2, options);
      await(*is_kept);
      one.client->advance({});
      one.pull({row});
      *is_applied = true;
      await(*is_over);
      return 0;
    }
    Liar liar(*posts);
    Head head = head_as(Head::Kind::kPush, KeyForm::kConsecutive, row, 1);
    const double gradient = 1;
    for (head.id = 1; head.id <= kPushes; ++head.id) {
      head.push = head.id;
      liar.say(head, std::as_bytes(std::span(&gradient, 1)));
    }
    liar.answers_up_to(kPushes);
    Head clock = head_as(Head::Kind::kClock, KeyForm::kConsecutive, 0, 0);
    clock.id = 0;
    clock.clock = 1;
    liar.say(clock);
    *is_kept = true;
    await(*is_applied);
    CHECK_THAT(liar.failures() <= kMostUntaken);
    *is_over = true;
    return 0;
  });
  expect_all_well(job);
}

// Only a client's own server says that all have closed the table.
TEST(TableLies, AnotherServersWordThatAllHaveClosedIsRefused) {
  Shared<Posts> posts;
  Shared<std::atomic<bool>> is_over;
  Job job(2, [&](dstorm::Bootstrap& bootstrap) {
    if (bootstrap.rank() == 0) {
      Rank one(*posts, 0, 2, options_of(kRows, 1));
      const std::string told = refusal([&] { one.client->finish(20s); });
      *is_over = true;
      CHECK_THAT(told.find("rank 1 wrote an invalid answer for t") == 0);
      return 0;
    }
    Liar liar(*posts);
    liar.say_to_client(head_as(Head::Kind::kAllBye, KeyForm::kConsecutive, 0, 0));
    await(*is_over);
    return 0;
  });
  expect_all_well(job);
}

}  // namespace
}  // namespace vol::ps
