#include "vol/ps/pulls.hpp"

#include <utility>

namespace vol::ps {

void Pulls::take(const Head& head, const Rows& rows) {
  if (head.clock <= state_.clocks.lowest()) return answer(head, rows);  // P5
  for (const Stretch& stretch : held_.stretches_of(rows)) {
    const Held& held = held_[stretch.range];
    if (held.range != nullptr || held.coming != nullptr) continue;
    // No clock brings the rows back.
    return state_.writer.answer(Head::Kind::kLost, static_cast<int>(head.client), head.id,
                                rows.at(stretch.begin));
  }
  Waiting pull{head, {}};
  if (rows.keys != nullptr) pull.keys.assign(rows.keys, rows.keys + rows.count);
  drop_oldest(waiting_, kMostWaiting,
              [&](const Waiting& each) { return each.head.client == head.client; });
  waiting_.push_back(std::move(pull));
}

void Pulls::answer_due() {
  std::vector<Waiting> asked = std::exchange(waiting_, {});
  for (Waiting& pull : asked) {
    if (pull.head.clock > state_.clocks.lowest()) {
      waiting_.push_back(std::move(pull));
      continue;
    }
    const auto count = static_cast<std::size_t>(pull.head.count);
    const std::int64_t* const keys = pull.keys.empty() ? nullptr : pull.keys.data();
    answer(pull.head, {keys, pull.head.first, count});
  }
}

void Pulls::answer(const Head& head, const Rows& rows) {
  const int client = static_cast<int>(head.client);
  const std::vector<Stretch> stretches = held_.stretches_of(rows);
  for (const Stretch& stretch : stretches) {
    if (replication_.primary_of(stretch.range) == nullptr) {
      return state_.writer.answer(Head::Kind::kLost, client, head.id, rows.at(stretch.begin));
    }
  }
  const std::size_t row_bytes = state_.options.row_bytes();
  Coder coder = state_.options.coder(rows.count);
  std::byte* const room = state_.writer.begin_values(head, coder.bytes(), client);
  std::byte* values = room;
  if (coder.is_on()) {
    values_.resize(rows.count * row_bytes);
    values = values_.data();
  }
  for (const Stretch& stretch : stretches) {
    held_[stretch.range].range->read(rows.part(stretch.begin, stretch.end),
                                     values + stretch.begin * row_bytes);
  }
  if (coder.is_on()) encode(coder, state_.options.dtype, values, room);
  state_.writer.end();
}

}  // namespace vol::ps
