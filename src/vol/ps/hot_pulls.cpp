#include "vol/ps/hot_pulls.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "vol/ps/pulls.hpp"

namespace vol::ps {

void HotPulls::take(int sender, const Head& head, const Rows& rows) {
  const std::vector<std::int64_t>& hot = state_.options.hot;
  HotPull pull{sender, head, {}};
  for (std::size_t i = 0; i < rows.count; ++i) pull.keys.push_back(rows.at(i));
  if (!std::ranges::includes(hot, pull.keys)) state_.reader.throw_damaged("rows as hot ones");
  if (has_room(sender) && answer(pull)) return;
  const auto is_same = [=](const HotPull& each) { return each.asker == sender; };
  if (sender < state_.clients) {
    drop_oldest(waiting_, kMostWaiting, is_same);
  } else {
    // A server asks for a row at the clocks that its clients ask for, and once at each (P12 (c)).
    const std::size_t most = hot.size() * static_cast<std::size_t>(state_.clients);
    std::size_t keys = pull.keys.size();
    for (const HotPull& each : waiting_) keys += is_same(each) ? each.keys.size() : 0;
    while (keys > most) {
      const auto oldest = std::ranges::find_if(waiting_, is_same);
      if (oldest == waiting_.end()) break;
      keys -= oldest->keys.size();
      waiting_.erase(oldest);
    }
  }
  waiting_.push_back(std::move(pull));
}

// Whether an answer may be sent (P15). take_if_due() of the server sees to clients.
bool HotPulls::has_room(int asker) const {
  return asker < state_.clients || state_.mail.waiting_for(asker) == 0;
}

// Answers a client's pull if all its rows are here, and a server's with those that are (P12 (e)).
// Asks for the others, once that can be answered. Returns whether nothing is left to be answered.
bool HotPulls::answer(HotPull& pull) {
  const Rows rows{pull.keys.data(), 0, pull.keys.size()};
  const std::size_t row_bytes = state_.options.row_bytes();
  const std::uint64_t lowest = state_.clocks.lowest();
  std::vector<std::int64_t> here, left;
  std::vector<std::byte> values(rows.count * row_bytes);  // of the rows that are here
  std::uint64_t clock = Clocks::kBye;                     // of all of them
  std::map<int, std::vector<std::int64_t>> missing;       // by the server that is asked for them
  for (const Stretch& stretch : held_.stretches_of(rows)) {
    const int parent =
        state_.placement.parent(stretch.range, state_.own, state_.options.fan_out,
                                [this](int server) { return state_.members.is_live(server); });
    if (parent == state_.own) {
      Held* const held = replication_.primary_of(stretch.range);
      if (held == nullptr) {
        state_.writer.answer(Head::Kind::kLost, pull.asker, pull.head.id, rows.at(stretch.begin));
        return true;
      }
      const bool is_due = pull.head.clock <= lowest;  // P5
      const Rows part = rows.part(stretch.begin, stretch.end);
      if (is_due) held->range->read(part, values.data() + here.size() * row_bytes);
      if (is_due) clock = std::min(clock, lowest);
      std::vector<std::int64_t>& to = is_due ? here : left;
      to.insert(to.end(), part.keys, part.keys + part.count);
      continue;
    }
    for (std::size_t i = stretch.begin; i < stretch.end; ++i) {
      const std::int64_t key = rows.at(i);
      std::byte* const row = values.data() + here.size() * row_bytes;
      if (const auto read = rows_.read(key, pull.head.clock, row)) {
        clock = std::min(clock, *read);
        here.push_back(key);
        continue;
      }
      left.push_back(key);
      if (pull.head.clock <= lowest) missing[parent].push_back(key);  // P12 (c)
    }
  }
  for (const auto& [server, keys] : missing) ask(keys, pull.head.clock, server);
  const bool is_client = pull.asker < state_.clients;
  if (here.empty() || (is_client && !left.empty())) return false;
  answers_.fetch_add(1, std::memory_order_relaxed);
  if (is_client) {
    state_.writer.send_values(pull.head, values, pull.asker);
    return true;
  }
  Head reply = pull.head;
  reply.kind = Head::Kind::kHotValues;
  reply.client = 0;
  reply.clock = clock;
  state_.writer.send_rows(reply, {here.data(), 0, here.size()}, values.data(),
                          pull.asker - state_.clients);
  pull.keys = std::move(left);
  return pull.keys.empty();
}

void HotPulls::ask(const std::vector<std::int64_t>& keys, std::uint64_t clock, int parent) {
  const std::uint64_t id = state_.writer.next_id();
  std::vector<std::int64_t> asked;
  std::ranges::copy_if(keys, std::back_inserter(asked),
                       [&](std::int64_t key) { return rows_.ask(key, clock, parent, id); });
  if (asked.empty()) return;
  Head head{};
  head.kind = Head::Kind::kHotPull;
  head.id = id;
  head.clock = clock;
  head.count = asked.size();
  head.keys = KeyForm::kListed;
  state_.writer.send_to_server(parent, head, std::as_bytes(std::span(asked)));
}

void HotPulls::take_values(const Head& head, const Rows& rows, const std::byte* values) {
  const std::size_t row_bytes = state_.options.row_bytes();
  for (std::size_t i = 0; i < rows.count; ++i) {
    rows_.take(rows.at(i), head.clock, {values + i * row_bytes, row_bytes}, head.id);
  }
  answer_due();
}

// All that have asked for the row are told.
void HotPulls::take_lost(const Head& head) {
  rows_.forget([&](int, std::uint64_t id) { return id == head.id; });
  std::erase_if(waiting_, [&](const HotPull& pull) {
    if (std::ranges::find(pull.keys, head.first) == pull.keys.end()) return false;
    state_.writer.answer(Head::Kind::kLost, pull.asker, pull.head.id, head.first);
    return true;
  });
  answer_due();
}

void HotPulls::answer_due() {
  std::erase_if(waiting_, [this](HotPull& pull) {
    return !state_.mail.is_live(pull.asker) || (has_room(pull.asker) && answer(pull));
  });
}

void HotPulls::drop_dead() {
  rows_.forget([this](int server, std::uint64_t) { return !state_.members.is_live(server); });
  answer_due();
}

}  // namespace vol::ps
