// The calls of a client, and what arrives. The client sends the pushes of a range to its primary in
// the order of their numbers (P2 in server.hpp): look() comes before every message, and what a dead
// server has not acknowledged is sent again before anything else is sent.
#include "vol/ps/client.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <iterator>

#include "dstorm/errors.hpp"
#include "dstorm/host/turn.hpp"
#include "dstorm/host/wait.hpp"

namespace vol::ps {
namespace {

// Messages on their way. They bound what servers and clients keep in memory for one another. They
// are fewer than slots, so messages seldom wait for one.
constexpr std::size_t kMostSent = 10;
constexpr std::size_t kMostAsked = 6;
constexpr std::size_t kMostQueued = 1024;  // messages without a slot, beyond which clock() waits

void spread(const std::byte* from, std::size_t row_bytes,
            std::span<const std::pair<std::size_t, std::size_t>> stretches, std::byte* values) {
  for (const auto& [begin, end] : stretches) {
    std::memcpy(values + begin * row_bytes, from, (end - begin) * row_bytes);
    from += (end - begin) * row_bytes;
  }
}

}  // namespace

Client::Client(std::shared_ptr<dstorm::Group> group, const TableOptions& options,
               ServerThread& own_server, const Edition* edition)
    : options_(options),
      own_server_(own_server),
      servers_(group->size() / 2),
      placement_(options.rows, options.ranks, options.replicas, servers_, options.owners),
      mail_(std::move(group), options.name, kSlotBytes, kDepth),
      live_(static_cast<std::size_t>(servers_), true),
      held_back_(options),
      owes_(live_.size()),
      shown_(static_cast<std::size_t>(servers_)),
      lists_(static_cast<std::size_t>(servers_), KeyLists(options.cached_keys)) {
  for (std::size_t range = 0; range < placement_.ranges(); ++range) {
    primary_.push_back(placement_.server(range, 0));
  }
  if (edition == nullptr) return;
  const auto rank = static_cast<std::size_t>(mail_.rank());
  clock_ = edition->clocks[rank];
  last_push_ = edition->pushes[rank];  // P10 (d)
  lost_with_ = edition->lost_with;
}

void Client::check(const Rows& rows) const {
  if (is_finished_) throw dstorm::ConfigError("table '" + options_.name + "' has been closed");
  if (rows.count == 0) return;
  const auto refuse = [&](std::size_t i, const std::string& why) {
    throw dstorm::ConfigError("table '" + options_.name + "': key " + std::to_string(rows.at(i)) +
                              ", at index " + std::to_string(i) + ", " + why);
  };
  for (std::size_t i = 1; rows.keys != nullptr && i < rows.count; ++i) {
    if (rows.keys[i] == rows.keys[i - 1]) {
      refuse(i, "comes twice; give each key once, with the sum of its gradients");
    }
    if (rows.keys[i] < rows.keys[i - 1]) {
      refuse(i, "is below the one before it; sort the keys (numpy.unique does)");
    }
  }
  const std::string range =
      "is not a row of the table, which has rows 0 to " + std::to_string(options_.rows - 1);
  if (rows.at(0) < 0) refuse(0, range);
  const std::size_t last = rows.count - 1;
  if (rows.at(last) >= options_.rows) refuse(last, range);
}

void Client::take(int sender, std::span<const std::byte> message) {
  const auto throw_damaged = [&] {
    mail_.group().check_standing();
    throw dstorm::Error("rank " + std::to_string(sender % servers_) +
                        " wrote an invalid answer for " + options_.name +
                        "; its memory is damaged");
  };
  if (sender < servers_ || message.size() < kHeadBytes) throw_damaged();
  const Head head = head_of(message);
  const int server = sender - servers_;
  const bool is_own = server == mail_.rank();
  const bool is_for_own = head.kind == Head::Kind::kBytes || head.kind == Head::Kind::kAllBye ||
                          head.kind == Head::Kind::kHandedOver;
  if (is_for_own && !is_own) throw_damaged();
  std::uint64_t& owes = owes_[static_cast<std::size_t>(server)];
  if (head.id >= owes) owes = 0;                 // it takes messages in their order
  const auto is_asked = [&](const auto& open) {  // a question of this server's
    const auto found = open.find(head.id);
    return found != open.end() && found->second.to == server;
  };
  const bool is_of_push = is_asked(sent_);
  const bool is_of_pull = is_asked(pull_.parts);
  switch (head.kind) {
    case Head::Kind::kAck:
      if (is_of_push) sent_.erase(head.id);
      if (is_own && head.id == asked_own_) asked_own_ = 0;
      break;
    case Head::Kind::kBytes:
      if (head.id != asked_own_) break;  // the call has ended with an error
      if (message.size() - kHeadBytes != own_to_.size()) throw_damaged();
      std::memcpy(own_to_.data(), message.data() + kHeadBytes, own_to_.size());
      asked_own_ = 0;
      break;
    case Head::Kind::kValues:
      if (is_of_pull) take_values(head, message.subspan(kHeadBytes));
      break;
    case Head::Kind::kLost:
      if (head.first < 0 || head.first >= options_.rows) throw_damaged();
      if (is_of_pull && ask_primary(head.id)) break;
      if (is_of_push) sent_.erase(head.id);
      if (is_of_pull) pull_.parts.erase(head.id);
      if (is_of_push || is_of_pull || (is_own && head.id == asked_own_)) note_lost(head.first);
      break;
    case Head::Kind::kFailed:
      if (is_of_push) sent_.erase(head.id);
      note_failure({reinterpret_cast<const char*>(message.data()) + kHeadBytes,
                    message.size() - kHeadBytes});
      break;
    case Head::Kind::kAllBye:
      has_all_bye_ = true;
      break;
    case Head::Kind::kHandedOver:
      has_handed_over_ = true;
      break;
    case Head::Kind::kShown:
      if (message.size() != kHeadBytes + sizeof(ShownAt)) throw_damaged();
      see(server, message.subspan(kHeadBytes));
      break;
    default:
      throw_damaged();
  }
}

void Client::see(int server, std::span<const std::byte> body) {
  if (!live_[static_cast<std::size_t>(server)]) return;
  ShownAt at{};
  std::memcpy(&at, body.data(), sizeof(at));
  std::optional<ShownRows>& shown = shown_[static_cast<std::size_t>(server)];
  try {
    shown.emplace(options_, placement_, at);
  } catch (const dstorm::ConfigError&) {
    shown.reset();  // this process may not open it: pulls go by messages
  }
}

// Copies the part's rows from the server's memory; returns false if they have to be asked for (P9).
bool Client::read_in_place(const Part& part) {
  const std::optional<ShownRows>& shown = shown_[static_cast<std::size_t>(part.to)];
  if (!shown) return false;
  if (std::ranges::any_of(sent_, [&](const auto& each) { return each.second.to == part.to; })) {
    return false;
  }
  const std::size_t row_bytes = options_.row_bytes();
  for (const auto& [first, last] : part.stretches) {
    for (std::size_t begin = first; begin < last;) {
      const std::size_t range = placement_.range_of(pull_.rows.at(begin));
      const std::size_t end = index_beyond(pull_.rows, placement_.end_row(range) - 1, begin, last);
      const Rows rows = pull_.rows.part(begin, end);
      if (!shown->read(asked_clock(), rows, pull_.to + begin * row_bytes)) return false;
      begin = end;
    }
  }
  if (!mail_.is_live(servers_ + part.to)) return false;  // P9 (d)
  rows_in_place_ += part.rows;
  return true;
}

// An answer that nobody waits for any more is dropped: the pull ended with an error, or was asked
// of another server too.
void Client::take_values(const Head& head, std::span<const std::byte> values) {
  const auto found = pull_.parts.find(head.id);
  if (found == pull_.parts.end()) return;
  const std::size_t row_bytes = options_.row_bytes();
  const Part& part = found->second;
  Coder coder = options_.coder(part.rows);
  if (values.size() != coder.bytes()) {
    throw dstorm::Error("table '" + options_.name + "': an answer has " +
                        std::to_string(values.size()) + " bytes; memory is damaged");
  }
  const std::byte* from = values.data();
  if (coder.is_on()) {
    values_.resize(part.rows * row_bytes);
    if (!coder.decode(values_.data(), from)) {
      throw dstorm::Error("table '" + options_.name + "': an answer has values that codec " +
                          options_.codec.name() + " does not write; memory is damaged");
    }
    from = values_.data();
  }
  spread(from, row_bytes, part.stretches, pull_.to);
  pull_.parts.erase(found);
}

// ---- calls ----

void Client::look() {
  mail_.take_in([this](int sender, std::span<const std::byte> message) { take(sender, message); });
  follow_view();
  mail_.pump();
}

void Client::throw_if_failed() {
  mail_.group().check_standing();
  if (failure_.empty() || is_settling_) return;
  std::string text = std::exchange(failure_, {});
  const std::vector<int> ranks = std::exchange(failed_ranks_, {});
  if (const std::size_t more = std::exchange(more_failures_, 0); more > 0) {
    text += ". Messages of pushes that have failed since then: " + std::to_string(more);
  }
  if (ranks.empty()) throw dstorm::Error(text);
  throw dstorm::PeerError(text, ranks);
}

// The first failure is told, and how many came after it; but lost rows before anything else.
void Client::note_failure(std::string_view text, const std::vector<int>& dead) {
  if (!failure_.empty()) ++more_failures_;
  if (failure_.empty() || (failed_ranks_.empty() && !dead.empty())) {
    failure_ = "table '" + options_.name + "': ";
    failure_ += text;
    failed_ranks_ = dead;
  }
}

bool Client::may_look_again(bool on_ranks) const {
  return on_ranks && options_.is_superseded && options_.is_superseded();
}

void Client::wait_until(const std::function<bool()>& done, const dstorm::Deadline& deadline,
                        const char* what, std::optional<std::uint64_t> clock) {
  const bool on_ranks = clock.has_value();
  bool is_new = true;
  const auto has_view = [&] {
    if (may_look_again(on_ranks)) return true;
    for (std::size_t server = 0; server < live_.size(); ++server) {
      if (live_[server] && !mail_.is_live(servers_ + static_cast<int>(server))) return true;
    }
    return false;
  };
  const auto missed = [&] {
    return std::string(what) + " of table '" + options_.name + "': " + missing(clock).second;
  };
  for (;;) {
    look();
    throw_if_failed();
    if (done()) return;
    if (may_look_again(on_ranks)) {
      const dstorm::Turns::Pause pause(mail_.turns(), dstorm::Turns::Code::kOwn);
      if (!options_.look_again(std::exchange(is_new, false))) {
        throw dstorm::Superseded(missed());  // P10 (a)
      }
    }
    const std::chrono::nanoseconds left = deadline.left();
    if (left.count() > 0 && mail_.wait(has_view, left, missed)) continue;
    look();
    if (done()) return;
    throw dstorm::TimeoutError(missed() + " within " + dstorm::format_seconds(deadline.limit()),
                               missing(clock).first);
  }
}

bool Client::has_sent(std::optional<std::uint64_t> push) const {
  if (!push) return sent_.empty();
  return std::ranges::all_of(sent_, [&](const auto& each) { return each.second.push > *push; });
}

std::uint64_t Client::push(const Rows& rows, const std::byte* gradients, Limit limit) {
  const dstorm::Turn turn(mail_.turns(), "push", options_.name);
  const dstorm::Deadline deadline = deadline_of(limit);
  check(rows);
  // In pieces, so that each can wait until there is room for it. If a wait ends in vain, the rest
  // is sent without any: of a push that has begun, no part is missing.
  const std::size_t piece = most_at_once();
  std::exception_ptr failure;
  bool waits = true;
  for (std::size_t begin = 0; begin == 0 || begin < rows.count; begin += piece) {
    try {
      if (waits) wait_until([this] { return sent_.size() < kMostSent; }, deadline, "push");
    } catch (const dstorm::TimeoutError&) {
      if (begin == 0) throw;
      waits = false;
    } catch (...) {  // of an earlier push, or of a handler of signals
      if (begin == 0) throw;
      failure = std::current_exception();
      waits = false;
    }
    const Rows part = rows.part(begin, std::min(rows.count, begin + piece));
    const std::byte* const values = gradients + begin * options_.row_bytes();
    if (options_.threshold > 0) {
      const HeldBack::Sifted sifted = held_back_.add(part, values);
      send_push(sifted.rows(), sifted.gradients.data(), {}, clock_);
    } else {
      send_push(part, values, {}, clock_);
    }
  }
  if (failure) std::rethrow_exception(failure);
  return last_push_;
}

// Rows that are sent without a wait when there is room for messages.
std::size_t Client::most_at_once() const {
  const std::size_t message = kRoom / (sizeof(std::int64_t) + options_.row_bytes());
  return std::max<std::size_t>(1, kMostSent / 2 * message);
}

void Client::send_held_back(const dstorm::Deadline& deadline, const char* what) {
  while (held_back_.rows() > 0) {
    wait_until([this] { return sent_.size() < kMostSent; }, deadline, what);
    const HeldBack::Sifted sifted = held_back_.take(most_at_once());
    send_push(sifted.rows(), sifted.gradients.data(), {}, clock_);
  }
}

void Client::wait(std::optional<std::uint64_t> push, Limit limit) {
  const dstorm::Turn turn(mail_.turns(), "wait", options_.name);
  const dstorm::Deadline deadline = deadline_of(limit);
  check({});
  if (push && *push > last_push_) {
    throw dstorm::ConfigError("table '" + options_.name + "': there is no push " +
                              std::to_string(*push) + "; the last one is " +
                              std::to_string(last_push_));
  }
  if (!push) send_held_back(deadline, "wait");
  wait_until([&] { return has_sent(push); }, deadline, "wait");
}

void Client::pull(const Rows& rows, std::byte* to, Limit limit) {
  const dstorm::Turn turn(mail_.turns(), "pull", options_.name);
  const dstorm::Deadline deadline = deadline_of(limit);
  check(rows);
  look();
  throw_if_failed();
  pull_ = {rows, to};
  try {
    // Cut as a push is if there are key lists, so that both use the same ones.
    const std::size_t most = options_.cached_keys > 0 ? most_at_once() : rows.count;
    std::vector<Part> parts;
    for (std::size_t begin = 0; begin < rows.count; begin += most) {
      const Stretch stretch{begin, std::min(rows.count, begin + most)};
      std::ranges::move(split_by_heat(rows, stretch), std::back_inserter(parts));
    }
    for (const Part& part : parts) {
      if (read_in_place(part)) continue;
      const auto server = static_cast<std::size_t>(part.to);
      const auto has_room = [&] {
        const bool is_free = owes_[server] == 0 || mail_.has_taken_all(servers_ + part.to);
        return pull_.parts.size() < kMostAsked && (is_free || !live_[server]);
      };
      wait_until(has_room, deadline, "pull", asked_clock());
      // The server may have died since the rows were split.
      if (live_[server]) {
        send_pull(part);
      } else {
        send_again(part);
      }
    }
    wait_until([this] { return pull_.parts.empty(); }, deadline, "pull", asked_clock());
  } catch (...) {
    for (const auto& [id, part] : pull_.parts) owes_[static_cast<std::size_t>(part.to)] = id;
    pull_ = {};
    throw;
  }
  pull_ = {};
}

void Client::advance(Limit limit) {
  const dstorm::Turn turn(mail_.turns(), "clock", options_.name);
  const dstorm::Deadline deadline = deadline_of(limit);
  check({});
  const auto is_ready = [this] { return sent_.empty() && mail_.waiting() < kMostQueued; };
  wait_until(is_ready, deadline, "clock");  // P5
  if (options_.is_bsp()) await_others(clock_ + 1 - std::min(most_ahead(), clock_ + 1), deadline);
  pushed_.push_front(0);
  pushed_.pop_back();
  ++clock_;
  send_to_all(Head::Kind::kClock);
  if (mail_.waiting() > 0) own_server_.tell_clock(clock_);
}

// By how many clocks this rank may come to be ahead of others, so that a server can keep what it
// has pushed in these, and once more as much as in this one (P16).
std::uint64_t Client::most_ahead() const {
  std::uint64_t ahead = 0;
  std::size_t bytes = pushed_.front();
  for (const std::size_t each : pushed_) {
    bytes += each;
    if (ahead > 0 && bytes > options_.most_kept) break;
    ++ahead;
  }
  return ahead;
}

// Waits until this rank's server, so every server, may apply the pushes below `clock` (P6, P16).
// Without need it does not: out of a wait for other ranks this rank may go to the next edition, and
// then with a clock that is behind what else its program has done in this iteration.
void Client::await_others(std::uint64_t clock, const dstorm::Deadline& deadline) {
  if (behind(clock).empty()) return;
  Head head{};
  head.kind = Head::Kind::kAwait;
  const std::vector<std::uint64_t> clocks(live_.size(), clock);
  ask_own(head, std::as_bytes(std::span(clocks)), {}, deadline, "clock", clock);
}

void Client::finish(Limit limit) {
  const dstorm::Turn turn(mail_.turns(), "close", options_.name);
  const dstorm::Deadline deadline = deadline_of(limit);
  if (is_finished_) return;
  send_held_back(deadline, "close");
  wait_until([this] { return sent_.empty(); }, deadline, "close");
  send_to_all(Head::Kind::kBye);
  is_finished_ = has_closed_ = true;
  const auto is_over = [this] { return has_all_bye_ || !mail_.is_live(servers_ + mail_.rank()); };
  wait_until(is_over, deadline, "close", kIsDead);
}

}  // namespace vol::ps
