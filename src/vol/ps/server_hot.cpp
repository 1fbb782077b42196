// The server's side of hot rows (P12, in hot_rows.hpp).
#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <map>
#include <utility>

#include "vol/ps/server.hpp"

namespace vol::ps {

void Server::take_hot_pull(int sender, const Head& head, const Rows& rows) {
  HotPull pull{sender, head, {}};
  for (std::size_t i = 0; i < rows.count; ++i) pull.keys.push_back(rows.at(i));
  if (!std::ranges::includes(options_.hot, pull.keys)) throw_damaged(sender, "rows as hot ones");
  if (answer_hot(pull)) return;
  // A server asks for a row at the clocks that its clients ask for, and once at each (P12 (c)).
  const std::size_t most =
      sender < clients_ ? kMostWaiting : options_.hot.size() * static_cast<std::size_t>(clients_);
  drop_oldest(hot_pulls_, most, [=](const HotPull& each) { return each.asker == sender; });
  hot_pulls_.push_back(std::move(pull));
}

// Answers a pull if all its rows are here; else asks for those that are not. Returns whether it has
// answered.
bool Server::answer_hot(const HotPull& pull) {
  const Rows rows{pull.keys.data(), 0, pull.keys.size()};
  const std::size_t row_bytes = options_.row_bytes();
  std::vector<std::byte> values(rows.count * row_bytes);
  std::uint64_t clock = std::numeric_limits<std::uint64_t>::max();  // of all rows
  bool is_whole = true;
  std::map<int, std::vector<std::int64_t>> missing;  // by the server that is asked for them
  for (const Stretch& stretch : stretches_of(rows)) {
    const int parent = placement_.parent(stretch.range, own(), options_.fan_out,
                                         [this](int server) { return is_live(server); });
    std::byte* const to = values.data() + stretch.begin * row_bytes;
    if (parent == own()) {
      Held* const held = primary_of(stretch.range);
      if (held == nullptr) {
        answer(Head::Kind::kLost, pull.asker, pull.head.id, rows.at(stretch.begin));
        return true;
      }
      if (pull.head.clock > lowest_) {  // P5
        is_whole = false;
        continue;
      }
      held->range->read(rows.part(stretch.begin, stretch.end), to);
      clock = std::min(clock, lowest_);
      continue;
    }
    for (std::size_t i = stretch.begin; i < stretch.end; ++i) {
      std::byte* const row = values.data() + i * row_bytes;
      if (const auto read = hot_.read(rows.at(i), pull.head.clock, row)) {
        clock = std::min(clock, *read);
        continue;
      }
      is_whole = false;
      missing[parent].push_back(rows.at(i));
    }
  }
  for (const auto& [parent, keys] : missing) ask_for_hot(keys, pull.head.clock, parent);
  if (!is_whole) return false;
  hot_answers_.fetch_add(1, std::memory_order_relaxed);
  if (pull.asker < clients_) {
    send_values(pull.head, values, pull.asker);
  } else {
    Head reply = pull.head;
    reply.kind = Head::Kind::kHotValues;
    reply.client = 0;
    reply.clock = clock;
    send_rows(reply, rows, values.data(), pull.asker - clients_);
  }
  return true;
}

void Server::send_values(const Head& head, std::span<const std::byte> values, int client) {
  Head reply = head;
  reply.kind = Head::Kind::kValues;
  Coder coder = options_.coder(head.count);
  std::byte* const room = mail_.begin(client, kHeadBytes + coder.bytes());
  std::memcpy(room, &reply, sizeof(reply));
  if (coder.is_on()) {
    encode(coder, options_.dtype, values.data(), room + kHeadBytes);
  } else {
    std::memcpy(room + kHeadBytes, values.data(), values.size());
  }
  mail_.end();
}

void Server::ask_for_hot(const std::vector<std::int64_t>& keys, std::uint64_t clock, int parent) {
  const std::uint64_t id = last_id_ + 1;
  std::vector<std::int64_t> asked;
  std::ranges::copy_if(keys, std::back_inserter(asked),
                       [&](std::int64_t key) { return hot_.ask(key, clock, parent, id); });
  if (asked.empty()) return;
  Head head{};
  head.kind = Head::Kind::kHotPull;
  head.id = ++last_id_;
  head.clock = clock;
  head.count = asked.size();
  head.keys = KeyForm::kListed;
  const std::size_t key_bytes = asked.size() * sizeof(std::int64_t);
  std::byte* const room = mail_.begin(clients_ + parent, kHeadBytes + key_bytes);
  std::memcpy(room, &head, sizeof(head));
  std::memcpy(room + kHeadBytes, asked.data(), key_bytes);
  mail_.end();
}

void Server::take_hot_values(const Head& head, const Rows& rows, const std::byte* values) {
  const std::size_t row_bytes = options_.row_bytes();
  for (std::size_t i = 0; i < rows.count; ++i) {
    hot_.take(rows.at(i), head.clock, {values + i * row_bytes, row_bytes}, head.id);
  }
  serve_hot();
}

// A parent has answered that `row` is lost: so say all that have asked for it.
void Server::take_hot_lost(const Head& head) {
  hot_.forget([&](int, std::uint64_t id) { return id == head.id; });
  std::erase_if(hot_pulls_, [&](const HotPull& pull) {
    if (std::ranges::find(pull.keys, head.first) == pull.keys.end()) return false;
    answer(Head::Kind::kLost, pull.asker, pull.head.id, head.first);
    return true;
  });
  serve_hot();
}

// Does for the pulls that wait what has become possible.
void Server::serve_hot() {
  std::erase_if(hot_pulls_, [this](const HotPull& pull) {
    return !mail_.is_live(pull.asker) || answer_hot(pull);
  });
}

}  // namespace vol::ps
