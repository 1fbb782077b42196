// Records that the live ranks give one another when they set up a device's slots.
#pragma once

#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "dstorm/group.hpp"
#include "dstorm/host/roll_call.hpp"

namespace dstorm::device {

// Collective: see Group::exchange. Returns the records by rank; that of a dead rank is as made by
// default. A Record begins with `bool has_come = false`, which this sets.
template <class Record>
std::vector<Record> post(Group& group, std::string_view step, Record mine) {
  static_assert(sizeof(Record) <= Group::kMostExchanged);
  mine.has_come = true;
  const auto posts = group.exchange(step, std::as_bytes(std::span(&mine, 1)));
  std::vector<Record> records(posts.size());
  for (std::size_t r = 0; r < posts.size(); ++r) {
    if (posts[r] && posts[r]->size() == sizeof(Record)) {
      std::memcpy(&records[r], posts[r]->data(), sizeof(Record));
    }
  }
  return records;
}

// The same after a step that may have failed on some rank (attempt): then throws its error, as a
// ConfigError, on all ranks.
template <class Record>
std::vector<Record> post_or_throw(Group& group, std::string_view step, const Record& mine) {
  auto records = post(group, step, mine);
  throw_if_any_failed(records);
  return records;
}

// The record of a step that leaves nothing to say but whether it has worked.
struct Outcome {
  bool has_come = false;
  char error[512] = {};
};

}  // namespace dstorm::device
