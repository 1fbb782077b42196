#include "vol/ps/server.hpp"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "dstorm/errors.hpp"

namespace vol::ps {
namespace {

using Kind = Head::Kind;
using Values = MessageReader::Values;

constexpr std::chrono::hours kForEver{24 * 365};

}  // namespace

Server::Server(std::shared_ptr<dstorm::Group> group, const TableOptions& options,
               const Edition* edition, const Server* before)
    : state_(std::move(group), options),
      held_(state_, edition == nullptr),
      arrivals_(static_cast<std::size_t>(state_.clients)) {
  if (edition == nullptr) return;
  state_.clocks.begin(edition->clocks, state_.ranks);
  departures_.begin(*edition, before == nullptr ? nullptr : &before->held_);
}

void Server::run() {
  dstorm::Mail& mail = state_.mail;
  const dstorm::Turn turn(mail.turns(), "serve", mail.name());
  held_.show();
  for (std::size_t range = 0; range < held_.size(); ++range) {
    if (held_[range].range != nullptr) held_.apply_kept_at_start(range);
  }
  const std::vector<bool>& live = state_.members.live;
  const auto has_work = [&] {
    if (clock_to_tell_ > told_) return true;
    for (std::size_t member = 0; member < live.size(); ++member) {
      if (live[member] && !mail.is_live(static_cast<int>(member))) return true;
    }
    return false;
  };
  const auto missed = [] { return std::string(); };
  while (!is_stopped_) {
    bool is_news = mail.take_in([this](int sender, std::span<const std::byte> message) {
      return take_if_due(sender, message);
    });
    is_news = follow_deaths() || is_news;
    if (mail.pump()) {
      is_news = true;
      hot_.answer_due();
    }
    is_news = departures_.send_next() || is_news;
    is_news = tell_clock() || is_news;
    is_news = state_.writer.send_latest() || is_news;
    if (!is_news) mail.wait(has_work, kForEver, missed);
    mail.group().check_standing();
  }
}

// ---- messages ----

bool Server::take_if_due(int sender, std::span<const std::byte> message) {
  state_.reader.begin(sender);
  if (message.size() < kHeadBytes) state_.reader.throw_damaged("a message without a head");
  const Head head = head_of(message);
  const bool asks =
      head.kind == Kind::kPush || head.kind == Kind::kPull || head.kind == Kind::kHotPull;
  const bool is_other_client = sender < state_.clients && sender != state_.own;
  if (asks && is_other_client &&
      (state_.mail.untaken(sender) >= kMostUntaken ||
       replication_.unanswered(sender) >= kMostWaiting)) {
    return false;
  }
  take(sender, head, message);
  return true;
}

void Server::take(int sender, const Head& head, std::span<const std::byte> message) {
  bool is_known = false;
  if (sender < state_.clients) {
    if (head.client != static_cast<std::uint32_t>(sender)) {
      state_.reader.throw_damaged("another client's message");
    }
    is_known = take_of_client(sender, head, message) ||
               (sender == state_.own && take_of_own_client(head, message));
  } else {
    const int server = sender - state_.clients;
    if (std::ranges::find(state_.ranks, server) == state_.ranks.end()) {
      state_.reader.throw_damaged("a message as a server, which it is not,");
    }
    is_known = take_of_server(server, head, message);
  }
  if (!is_known) state_.reader.throw_damaged("a message of an unknown kind");
}

bool Server::take_of_client(int client, const Head& head, std::span<const std::byte> message) {
  MessageReader& reader = state_.reader;
  switch (head.kind) {
    case Kind::kPush: {
      const Rows rows = reader.rows_of(head, message, Values::kCoded);
      replication_.take_push(head, rows, reader.values_of(head, message, Values::kCoded));
      return true;
    }
    case Kind::kPull:
      pulls_.take(head, reader.rows_of(head, message, Values::kNone));
      return true;
    case Kind::kHotPull:
      if (head.keys == KeyForm::kConsecutive) return false;
      hot_.take(client, head, reader.rows_of(head, message, Values::kNone));
      return true;
    case Kind::kClock:
    case Kind::kBye:
      take_clock(head);
      return true;
    default:
      return false;
  }
}

bool Server::take_of_own_client(const Head& head, std::span<const std::byte> message) {
  switch (head.kind) {
    case Kind::kStop:
      is_stopped_ = true;
      return true;
    case Kind::kHandOver:
      leaving_.begin();
      return true;
    case Kind::kContinue:
      clock_to_tell_ = told_ = 0;
      [[fallthrough]];
    case Kind::kAwait:
    case Kind::kRead:
    case Kind::kWrite:
    case Kind::kWritten:
      checkpoints_.take(head, message.subspan(kHeadBytes));
      return true;
    default:
      return false;
  }
}

bool Server::take_of_server(int server, const Head& head, std::span<const std::byte> message) {
  MessageReader& reader = state_.reader;
  const bool has_listed_keys = head.keys == KeyForm::kListed;
  switch (head.kind) {
    case Kind::kHotPull:
      if (!has_listed_keys) return false;
      hot_.take(state_.clients + server, head, reader.rows_of(head, message, Values::kNone));
      return true;
    case Kind::kHotValues: {
      if (!has_listed_keys) return false;
      const Rows rows = reader.rows_of(head, message, Values::kWhole);
      hot_.take_values(head, rows, reader.values_of(head, message, Values::kWhole));
      return true;
    }
    case Kind::kLost:
      hot_.take_lost(head);
      return true;
    case Kind::kClock:
      if (head.client != static_cast<std::uint32_t>(server)) return false;
      take_clock(head);
      return true;
    case Kind::kLeaving:
      leaving_.take(server, head);
      return true;
    case Kind::kLeavingKnown:
      leaving_.take_known(server, head.id);
      return true;
    case Kind::kForward: {
      if (!has_listed_keys && head.keys != KeyForm::kConsecutive) return false;
      const Rows rows = reader.rows_of(head, message, Values::kWhole);
      const std::byte* const values = reader.values_of(head, message, Values::kWhole);
      replication_.take_forward(server, head, rows, values);
      return true;
    }
    case Kind::kForwarded:
      replication_.take_forwarded(server, head.id);
      return true;
    case Kind::kApplied:
      replication_.take_applied(server, head.clock);
      return true;
    case Kind::kCopyBegin:
    case Kind::kCopyPart:
    case Kind::kCopyEnd:
      replication_.take_copy(server, head, message.subspan(kHeadBytes));
      replication_.answer_server(server, head.id);
      return true;
    default:
      return false;
  }
}

// ---- clocks and deaths ----

void Server::take_clock(const Head& head) {
  Clocks& clocks = state_.clocks;
  if (head.id != clocks.restores()) return;  // P13 (e)
  const std::uint64_t clock = std::max(clocks.of(head.client), head.clock);
  clocks.note(head.client, head.kind == Kind::kBye ? Clocks::kBye : clock);
  advance();
  checkpoints_.answer_await();
}

bool Server::tell_clock() {
  const std::uint64_t clock = clock_to_tell_;
  if (clock <= told_) return false;
  told_ = clock;
  Head head{};
  head.client = static_cast<std::uint32_t>(state_.own);
  head.id = state_.clocks.restores();
  head.clock = clock;
  take_clock(head);
  for (const int server : state_.ranks) {
    if (server != state_.own) state_.writer.tell_latest(server, Kind::kClock, head.id, clock);
  }
  return true;
}

void Server::advance() {
  const std::uint64_t lowest = state_.clocks.lowest_of_live(state_.members);
  if (lowest <= state_.clocks.lowest()) return;
  state_.clocks.set_lowest(lowest);
  if (state_.options.is_bsp()) replication_.apply_kept();
  held_.show_clock();  // P9 (b)
  pulls_.answer_due();
  hot_.answer_due();
  if (lowest == Clocks::kBye && !state_.is_over) {
    state_.is_over = true;
    state_.writer.answer(Kind::kAllBye, state_.own, 0);
  }
}

bool Server::follow_deaths() {
  bool has_changed = false;
  std::vector<bool>& live = state_.members.live;
  for (std::size_t member = 0; member < live.size(); ++member) {
    if (!live[member] || state_.mail.is_live(static_cast<int>(member))) continue;
    live[member] = false;
    has_changed = true;
  }
  if (!has_changed) return false;
  advance();
  if (state_.is_over) {  // nobody asks any more
    leaving_.begin_anew();
    return true;
  }
  replication_.settle();
  replication_.drop_dead_forwards();
  hot_.drop_dead();  // P12 (d)
  leaving_.begin_anew();
  checkpoints_.answer_await();
  return true;
}

}  // namespace vol::ps
