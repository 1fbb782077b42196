#include "vol/ps/server.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "dstorm/errors.hpp"

namespace vol::ps {
namespace {

constexpr std::chrono::hours kForEver{24 * 365};

}  // namespace

Server::Server(std::shared_ptr<dstorm::Group> group, const TableOptions& options,
               const Edition* edition, const Server* before)
    : options_(options),
      clients_(group->size() / 2),
      ranks_(options.ranks),
      placement_(options.rows, options.ranks, options.replicas, clients_, options.owners),
      mail_(std::move(group), options.name, kSlotBytes, kDepth),
      held_(placement_.ranges()),
      live_(static_cast<std::size_t>(2 * clients_), true),
      clocks_(static_cast<std::size_t>(clients_)),
      told_clocks_(static_cast<std::size_t>(clients_)),
      hot_(options.row_bytes()),
      lists_(static_cast<std::size_t>(clients_), KeyLists(options.cached_keys)),
      due_(static_cast<std::size_t>(clients_)),
      leaving_(static_cast<std::size_t>(clients_)) {
  for (std::size_t range = 0; range < held_.size(); ++range) {
    const int place = placement_.place_of(range, own());
    if (place > placement_.replicas()) continue;
    Held& held = held_[range];
    held.is_primary = place == 0;
    if (edition == nullptr) held.range = make_range(range);
    if (!held.is_primary) continue;
    for (int copy = 1; copy <= placement_.replicas(); ++copy) {
      held.copies.push_back(placement_.server(range, copy));
    }
  }
  if (edition != nullptr) move_from(*edition, before);
}

void Server::run() {
  const dstorm::Turn turn(mail_.turns(), "serve", mail_.name());
  show();
  for (std::size_t range = 0; range < held_.size(); ++range) {
    if (held_[range].range != nullptr) apply_kept_at_start(range);
  }
  const auto has_view = [this] {
    for (std::size_t member = 0; member < live_.size(); ++member) {
      if (live_[member] && !mail_.is_live(static_cast<int>(member))) return true;
    }
    return false;
  };
  const auto missed = [] { return std::string(); };
  while (!is_stopped_) {
    bool is_news = mail_.take_in([this](int sender, std::span<const std::byte> message) {
      return take_if_due(sender, message);
    });
    is_news = follow_view() || is_news;
    is_news = mail_.pump() || is_news;
    is_news = send_next_move() || is_news;
    if (!is_news) mail_.wait(has_view, kForEver, missed);
    mail_.group().check_standing();
  }
}

// ---- messages ----

void Server::throw_damaged(int sender, const char* what) const {
  mail_.group().check_standing();
  throw dstorm::Error("rank " + std::to_string(sender % clients_) + " wrote " + what + " for " +
                      mail_.name() + "; its memory is damaged");
}

// `values`: those that follow the keys.
Rows Server::read_rows(const Head& head, std::span<const std::byte> message, Values values) {
  const auto bytes = [&]() -> std::size_t {
    if (values == Values::kNone) return 0;
    return values == Values::kWhole ? head.count * options_.row_bytes()
                                    : options_.coder(head.count).bytes();
  };
  // A message that is sent because of this one, an answer or a copy's, fits a slot as well.
  const bool has_keys = head.keys != KeyForm::kConsecutive;
  const std::size_t most = kRoom / (options_.row_bytes() + (has_keys ? sizeof(std::int64_t) : 0));
  const std::size_t key_bytes = head.has_keys() ? head.count * sizeof(std::int64_t) : 0;
  if (head.client >= static_cast<std::uint32_t>(clients_) || head.count == 0 || head.count > most ||
      message.size() != kHeadBytes + key_bytes + bytes()) {
    throw_damaged(reading_, "invalid rows");
  }
  Rows rows{nullptr, head.first, static_cast<std::size_t>(head.count)};
  if (head.keys != KeyForm::kConsecutive) {
    rows = {read_keys(head, message.data() + kHeadBytes).data(), 0, rows.count};
  }
  const auto count = static_cast<std::int64_t>(rows.count);
  if (rows.at(0) < 0 || rows.at(0) > options_.rows - count ||
      rows.at(rows.count - 1) >= options_.rows) {
    throw_damaged(reading_, "invalid rows");
  }
  return rows;
}

// Keys of a message are copied, then checked; a list that is here has been. Valid until the next
// call.
std::span<const std::int64_t> Server::read_keys(const Head& head, const std::byte* keys) {
  const auto count = static_cast<std::size_t>(head.count);
  KeyLists& lists = lists_[head.client];
  const auto number = static_cast<std::uint64_t>(head.first);
  if (!head.has_keys()) {
    const std::vector<std::int64_t>* const list = lists.use(number);
    if (list == nullptr || list->size() != count) throw_damaged(reading_, "an unknown list");
    return *list;
  }
  keys_.resize(count);
  std::memcpy(keys_.data(), keys, count * sizeof(std::int64_t));
  if (std::ranges::adjacent_find(keys_, std::greater_equal()) != keys_.end()) {
    throw_damaged(reading_, "keys that do not grow");
  }
  if (head.keys != KeyForm::kKept) return keys_;
  if (!lists.fits(count) || lists.add(keys_, KeyLists::hash_of(keys_)) != number) {
    throw_damaged(reading_, "a list out of turn");
  }
  return keys_;
}

const std::byte* Server::decode(const Head& head, const std::byte* values) {
  Coder coder = options_.coder(head.count);
  if (!coder.is_on()) return values;
  values_.resize(head.count * options_.row_bytes());
  if (!coder.decode(values_.data(), values)) throw_damaged(reading_, "invalid values");
  return values_.data();
}

std::vector<Server::Stretch> Server::stretches_of(const Rows& rows) const {
  std::vector<Stretch> stretches;
  for (std::size_t begin = 0; begin < rows.count;) {
    const std::size_t range = placement_.range_of(rows.at(begin));
    const std::int64_t last = placement_.end_row(range);
    std::size_t end = begin + 1;
    if (rows.keys == nullptr) {
      end = std::min(rows.count, static_cast<std::size_t>(last - rows.first));
    } else {
      while (end < rows.count && rows.keys[end] < last) ++end;
    }
    stretches.push_back({begin, end, range});
    begin = end;
  }
  return stretches;
}

bool Server::take_if_due(int sender, std::span<const std::byte> message) {
  if (message.size() < kHeadBytes) throw_damaged(sender, "a message without a head");
  const Head head = head_of(message);
  const bool asks = head.kind == Head::Kind::kPush || head.kind == Head::Kind::kPull ||
                    head.kind == Head::Kind::kHotPull;
  if (asks && sender < clients_ && sender != own() && mail_.untaken(sender) >= kMostUntaken) {
    return false;
  }
  take(sender, head, message);
  return true;
}

void Server::take(int sender, const Head& head, std::span<const std::byte> message) {
  reading_ = sender;
  const bool is_client = sender < clients_;
  const auto values = [&] {
    return message.data() + kHeadBytes + (head.has_keys() ? head.count * sizeof(std::int64_t) : 0);
  };
  if (is_client && head.client != static_cast<std::uint32_t>(sender)) {
    throw_damaged(sender, "another client's message");
  }
  if (!is_client && std::ranges::find(ranks_, sender - clients_) == ranks_.end()) {
    throw_damaged(sender, "a message as a server, which it is not,");
  }
  switch (head.kind) {
    case Head::Kind::kPush: {
      if (!is_client) break;
      const Rows rows = read_rows(head, message, Values::kCoded);
      return take_push(head, rows, decode(head, values()));
    }
    case Head::Kind::kPull:
      if (!is_client) break;
      return take_pull(head, read_rows(head, message, Values::kNone));
    case Head::Kind::kHotPull:
      if (head.keys == KeyForm::kConsecutive) break;
      if (!is_client && head.keys != KeyForm::kListed) break;
      return take_hot_pull(sender, head, read_rows(head, message, Values::kNone));
    case Head::Kind::kHotValues: {
      if (is_client || head.keys != KeyForm::kListed) break;
      const Rows rows = read_rows(head, message, Values::kWhole);
      return take_hot_values(head, rows, values());
    }
    case Head::Kind::kLost:
      if (is_client) break;
      return take_hot_lost(head);
    case Head::Kind::kClock:
    case Head::Kind::kBye:
      if (is_client) return take_clock(head);
      break;
    case Head::Kind::kStop:
    case Head::Kind::kHandOver:
      if (sender != own()) break;
      if (head.kind == Head::Kind::kHandOver) return hand_over();
      is_stopped_ = true;
      return;
    case Head::Kind::kAwait:
    case Head::Kind::kRead:
    case Head::Kind::kWrite:
    case Head::Kind::kWritten:
    case Head::Kind::kContinue:
      if (sender != own()) break;
      return take_of_checkpoint(head, message.subspan(kHeadBytes));
    case Head::Kind::kLeaving:
      if (is_client) break;
      return take_leaving(sender - clients_, head);
    case Head::Kind::kLeavingKnown:
      if (is_client) break;
      return take_leaving_known(sender - clients_, head.id);
    case Head::Kind::kForward: {
      if (is_client || head.keys == KeyForm::kKept || head.keys == KeyForm::kNumbered) break;
      const Rows rows = read_rows(head, message, Values::kWhole);
      return take_forward(sender - clients_, head, rows, values());
    }
    case Head::Kind::kForwarded:
      return take_forwarded(head.id);
    case Head::Kind::kApplied:
      if (is_client) break;
      return take_applied(sender - clients_, head.clock);
    case Head::Kind::kCopyBegin:
    case Head::Kind::kCopyPart:
    case Head::Kind::kCopyEnd:
      if (is_client) break;
      take_copy(sender - clients_, head, message.subspan(kHeadBytes));
      if (head.id != 0) send_to_server(Head::Kind::kForwarded, head.id, sender - clients_);
      return;
    default:
      break;
  }
  throw_damaged(sender, "a message of an unknown kind");
}

// ---- pushes ----

std::unique_ptr<Range> Server::make_range(std::size_t range) const {
  return std::make_unique<Range>(options_, placement_.first_row(range), placement_.end_row(range),
                                 clients_);
}

Server::Held* Server::primary_of(std::size_t range) {
  Held& held = held_[range];
  if (held.range == nullptr) return nullptr;
  if (!held.is_primary) become_primary(range);  // the client knows of a death before this server
  return &held;
}

void Server::keep(Range& range, const Head& head, const Rows& rows, const std::byte* gradients) {
  Range::Kept kept{head.clock, static_cast<int>(head.client), head.push, {}, {}};
  for (std::size_t i = 0; i < rows.count; ++i) kept.keys.push_back(rows.at(i));
  kept.gradients.assign(gradients, gradients + rows.count * options_.row_bytes());
  range.keep(std::move(kept));
}

void Server::change(std::size_t number, const Head& head, const Rows& rows,
                    const std::byte* gradients, std::string& failure) {
  const Held& held = held_[number];
  if (options_.is_bsp() && (!held.is_primary || head.clock >= lowest_)) {  // P6
    return keep(*held.range, head, rows, gradients);
  }
  try {
    apply(number, rows, gradients);
  } catch (const std::exception& error) {  // of the user's function
    failure = error.what();
  }
}

void Server::take_push(const Head& head, const Rows& rows, const std::byte* gradients) {
  if (options_.is_bsp() && !live_[head.client]) return;  // P6
  const auto made = std::make_shared<Answer>(Answer{static_cast<int>(head.client), head.id});
  std::map<int, std::vector<Stretch>> by_copy;
  for (const Stretch& stretch : stretches_of(rows)) {
    Held* const held = primary_of(stretch.range);
    if (held == nullptr) {
      made->lost = rows.at(stretch.begin);
      continue;
    }
    if (held->range->note_push(made->client, head.push)) {  // P2
      change(stretch.range, head, rows.part(stretch.begin, stretch.end),
             gradients + stretch.begin * options_.row_bytes(), made->failure);
    }
    for (int copy : held->copies) by_copy[copy].push_back(stretch);
  }
  for (const auto& [copy, stretches] : by_copy) {
    forward(head, rows, gradients, stretches, copy, made);
  }
  answer_if_done(made);
}

// Rows without keys go in stretches without keys, as they fit a slot in no other way.
void Server::forward(const Head& head, const Rows& rows, const std::byte* gradients,
                     std::span<const Stretch> stretches, int to,
                     const std::shared_ptr<Answer>& answer) {
  const std::size_t row_bytes = options_.row_bytes();
  Head sent = head;
  sent.kind = Head::Kind::kForward;
  const auto send = [&](const Rows& part, const std::byte* values) {
    sent.id = ++last_id_;
    forwardings_.emplace(sent.id, Forwarding{to, answer});
    ++answer->missing;
    send_rows(sent, part, values, to);
  };
  if (rows.keys == nullptr) {
    for (const Stretch& each : stretches) {
      send(rows.part(each.begin, each.end), gradients + each.begin * row_bytes);
    }
    return;
  }
  std::vector<std::int64_t> keys;
  std::vector<std::byte> values;
  for (const Stretch& each : stretches) {
    keys.insert(keys.end(), rows.keys + each.begin, rows.keys + each.end);
    values.insert(values.end(), gradients + each.begin * row_bytes,
                  gradients + each.end * row_bytes);
  }
  send({keys.data(), 0, keys.size()}, values.data());
}

// They fit a slot.
void Server::send_rows(Head head, const Rows& rows, const std::byte* gradients, int to) {
  const std::size_t key_bytes = rows.keys != nullptr ? rows.count * sizeof(std::int64_t) : 0;
  const std::size_t value_bytes = rows.count * options_.row_bytes();
  head.first = rows.first;
  head.count = rows.count;
  head.keys = rows.keys != nullptr ? KeyForm::kListed : KeyForm::kConsecutive;
  std::byte* const room = mail_.begin(clients_ + to, kHeadBytes + key_bytes + value_bytes);
  std::memcpy(room, &head, sizeof(head));
  if (key_bytes != 0) std::memcpy(room + kHeadBytes, rows.keys, key_bytes);
  std::memcpy(room + kHeadBytes + key_bytes, gradients, value_bytes);
  mail_.end();
}

void Server::take_forward(int from, const Head& head, const Rows& rows,
                          const std::byte* gradients) {
  std::string failure;  // the primary's function has failed in the same way
  for (const Stretch& stretch : stretches_of(rows)) {
    Held& held = held_[stretch.range];
    const int place = placement_.place_of(stretch.range, from);
    const bool moves = held.mover == from;                             // P10 (c)
    if (!moves && (held.is_primary || place < held.source)) continue;  // P4
    const Rows part = rows.part(stretch.begin, stretch.end);
    const std::byte* const values = gradients + stretch.begin * options_.row_bytes();
    if (held.coming != nullptr) {
      if (moves || place == held.source)
        keep(*held.coming, head, part, values);  // kept by its primary
    } else if (held.range != nullptr) {
      follow(held, place);
      if (held.range->note_push(static_cast<int>(head.client), head.push)) {
        change(stretch.range, head, part, values, failure);
      }
    }
  }
  if (head.id != 0) send_to_server(Head::Kind::kForwarded, head.id, from);
}

void Server::take_forwarded(std::uint64_t id) {
  const auto found = forwardings_.find(id);
  if (found == forwardings_.end()) return;
  const std::shared_ptr<Answer> answer = found->second.answer;
  forwardings_.erase(found);
  --answer->missing;
  answer_if_done(answer);
}

void Server::answer_if_done(const std::shared_ptr<Answer>& done) {
  if (done->missing != 0) return;
  Head::Kind kind = done->failure.empty() ? Head::Kind::kAck : Head::Kind::kFailed;
  if (done->lost >= 0) kind = Head::Kind::kLost;
  answer(kind, done->client, done->id, done->lost, done->failure);
}

void Server::answer(Head::Kind kind, int client, std::uint64_t id, std::int64_t row,
                    const std::string& text) {
  Head head{};
  head.kind = kind;
  head.id = id;
  head.first = row;
  head.count = std::min(text.size(), kRoom);
  std::byte* const room = mail_.begin(client, kHeadBytes + head.count);
  std::memcpy(room, &head, sizeof(head));
  if (head.count != 0) std::memcpy(room + kHeadBytes, text.data(), head.count);
  mail_.end();
}

// ---- pulls ----

void Server::take_pull(const Head& head, const Rows& rows) {
  if (head.clock > lowest_) {  // P5
    for (const Stretch& stretch : stretches_of(rows)) {
      const Held& held = held_[stretch.range];
      if (held.range != nullptr || held.coming != nullptr) continue;
      // No clock brings the rows back.
      return answer(Head::Kind::kLost, static_cast<int>(head.client), head.id,
                    rows.at(stretch.begin));
    }
    Waiting pull{head, {}};
    if (rows.keys != nullptr) pull.keys.assign(rows.keys, rows.keys + rows.count);
    drop_oldest(waiting_, kMostWaiting,
                [&](const Waiting& each) { return each.head.client == head.client; });
    waiting_.push_back(std::move(pull));
  } else {
    answer_pull(head, rows);
  }
}

void Server::answer_pull(const Head& head, const Rows& rows) {
  const int client = static_cast<int>(head.client);
  const std::vector<Stretch> stretches = stretches_of(rows);
  for (const Stretch& stretch : stretches) {
    if (primary_of(stretch.range) == nullptr) {
      return answer(Head::Kind::kLost, client, head.id, rows.at(stretch.begin));
    }
  }
  const std::size_t row_bytes = options_.row_bytes();
  Head reply = head;
  reply.kind = Head::Kind::kValues;
  Coder coder = options_.coder(rows.count);
  std::byte* const room = mail_.begin(client, kHeadBytes + coder.bytes());
  std::memcpy(room, &reply, sizeof(reply));
  std::byte* values = room + kHeadBytes;
  if (coder.is_on()) {
    values_.resize(rows.count * row_bytes);
    values = values_.data();
  }
  for (const Stretch& stretch : stretches) {
    held_[stretch.range].range->read(rows.part(stretch.begin, stretch.end),
                                     values + stretch.begin * row_bytes);
  }
  if (coder.is_on()) encode(coder, options_.dtype, values, room + kHeadBytes);
  mail_.end();
}

}  // namespace vol::ps
