// The messages that a client sends: which rows go where, and how.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <numeric>
#include <utility>

#include "vol/ps/client.hpp"

namespace vol::ps {
namespace {

// Consecutive rows of one server get a message without keys from so many on.
constexpr std::size_t kLongStretch = 1024;

}  // namespace

// The index of the first row from `begin` on that is beyond `row`, or `end`.
std::size_t Client::index_beyond(const Rows& rows, std::int64_t row, std::size_t begin,
                                 std::size_t end) {
  if (rows.keys == nullptr) {
    return std::min(end, static_cast<std::size_t>(row + 1 - rows.first));
  }
  while (begin < end && rows.keys[begin] <= row) ++begin;
  return begin;
}

// Cuts the stretches `of` the rows into parts that fit a message. If all rows have come from one
// message, the rows of one range are in one part (P2). `is_hot`: for a pull through trees (P12).
// Rows without any live server are noted as lost, and in no part.
std::vector<Client::Part> Client::split(const Rows& rows, std::span<const Stretch> of,
                                        bool is_hot) {
  const std::size_t most_keyed = kRoom / (sizeof(std::int64_t) + options_.row_bytes());
  const std::size_t most_plain = kRoom / options_.row_bytes();
  std::vector<Part> parts;
  std::vector<Part> open(static_cast<std::size_t>(servers_));
  const auto last_of_range = [&](std::size_t i) {
    return placement_.end_row(placement_.range_of(rows.at(i))) - 1;
  };
  const auto add_keyed = [&](int to, std::size_t begin, std::size_t end) {
    Part& part = open[static_cast<std::size_t>(to)];
    while (begin < end) {
      const std::size_t beyond = index_beyond(rows, last_of_range(begin), begin, end);
      if (part.rows != 0 && part.rows + (beyond - begin) > most_keyed) {
        parts.push_back(std::exchange(part, {}));
      }
      const std::size_t taken = std::min(beyond - begin, most_keyed);
      part.to = to;
      part.is_hot = is_hot;
      part.rows += taken;
      part.stretches.emplace_back(begin, begin + taken);
      begin += taken;
    }
  };
  const auto add = [&](int to, std::size_t begin, std::size_t end) {
    if (to < 0) return note_lost(rows.at(begin));
    const std::size_t count = end - begin;
    if (is_hot || rows.keys != nullptr || (count < kLongStretch && count <= most_keyed)) {
      return add_keyed(to, begin, end);
    }
    for (; begin < end; begin += std::min(end - begin, most_plain)) {
      const std::size_t until = std::min(end, begin + most_plain);
      parts.push_back({to, false, false, until - begin, {{begin, until}}});
    }
  };
  const auto server_of = [&](std::size_t i) {
    const std::size_t range = placement_.range_of(rows.at(i));
    if (!is_hot) return primary_[range];
    const auto is_live = [this](int s) { return live_[static_cast<std::size_t>(s)]; };
    const int parent = placement_.parent(range, mail_.rank(), options_.fan_out, is_live);
    return is_live(parent) ? parent : primary_[range];  // this rank's own may have died
  };
  for (const auto& [first, last] : of) {
    std::size_t begin = first;  // of a stretch of rows with one server
    for (std::size_t i = first; i < last;) {
      const int to = server_of(i);
      i = index_beyond(rows, last_of_range(i), i, last);
      if (i < last && server_of(i) == to) continue;
      add(to, begin, i);
      begin = i;
    }
  }
  for (Part& part : open) {
    if (part.rows != 0) parts.push_back(std::move(part));
  }
  return parts;
}

// Those of a pull. On one host the servers' memory is read, which is less work than any tree.
std::vector<Client::Part> Client::split_by_heat(const Rows& rows, Stretch of) {
  if (options_.hot.empty() || mail_.group().is_one_host()) return split(rows, {&of, 1});
  std::vector<Stretch> stretches[2];  // rows that are not hot, and those that are
  auto hot = options_.hot.begin();
  for (std::size_t i = of.first; i < of.second; ++i) {
    hot = std::lower_bound(hot, options_.hot.end(), rows.at(i));
    const bool is_hot = hot != options_.hot.end() && *hot == rows.at(i);
    std::vector<Stretch>& to = stretches[is_hot ? 1 : 0];
    if (!to.empty() && to.back().second == i) {
      ++to.back().second;
    } else {
      to.emplace_back(i, i + 1);
    }
  }
  std::vector<Part> parts = split(rows, stretches[0]);
  std::ranges::move(split(rows, stretches[1], true), std::back_inserter(parts));
  return parts;
}

namespace {

void copy_keys(const Rows& rows, std::span<const std::pair<std::size_t, std::size_t>> stretches,
               std::byte* to) {
  for (const auto& [begin, end] : stretches) {
    if (rows.keys != nullptr) {
      std::memcpy(to, rows.keys + begin, (end - begin) * sizeof(std::int64_t));
    } else {
      std::iota(reinterpret_cast<std::int64_t*>(to),
                reinterpret_cast<std::int64_t*>(to) + (end - begin), rows.at(begin));
    }
    to += (end - begin) * sizeof(std::int64_t);
  }
}

void gather(const std::byte* values, std::size_t row_bytes,
            std::span<const std::pair<std::size_t, std::size_t>> stretches, std::byte* to) {
  for (const auto& [begin, end] : stretches) {
    std::memcpy(to, values + begin * row_bytes, (end - begin) * row_bytes);
    to += (end - begin) * row_bytes;
  }
}

}  // namespace

// Says in the head which rows a part has. Returns how many bytes of keys are to follow. The message
// is to be sent before another one to this server (P7).
std::size_t Client::name_rows(Head& head, const Rows& rows, const Part& part) {
  head.count = part.rows;
  head.keys = part.has_keys ? KeyForm::kListed : KeyForm::kConsecutive;
  head.first = rows.at(part.stretches.front().first);
  if (!part.has_keys) return 0;
  KeyLists& lists = lists_[static_cast<std::size_t>(part.to)];
  if (lists.fits(part.rows)) {
    keys_.resize(part.rows);
    copy_keys(rows, part.stretches, reinterpret_cast<std::byte*>(keys_.data()));
    const std::uint64_t hash = KeyLists::hash_of(keys_);
    if (const std::optional<std::uint64_t> number = lists.find(keys_, hash)) {
      lists.use(*number);
      head.keys = KeyForm::kNumbered;
      head.first = static_cast<std::int64_t>(*number);
      return 0;
    }
    head.keys = KeyForm::kKept;
    head.first = static_cast<std::int64_t>(lists.add(keys_, hash));
  }
  return part.rows * sizeof(std::int64_t);
}

void Client::send_push(const Rows& rows, const std::byte* gradients,
                       std::optional<std::uint64_t> again, std::uint64_t clock) {
  const Stretch all{0, rows.count};
  const std::size_t row_bytes = options_.row_bytes();
  for (const Part& part : split(rows, {&all, 1})) {
    Head head{};
    head.kind = Head::Kind::kPush;
    head.client = static_cast<std::uint32_t>(mail_.rank());
    head.id = ++last_id_;
    head.push = again ? *again : ++last_push_;
    head.clock = clock;
    Sent sent{part.to, head.push, clock, rows.at(part.stretches.front().first), part.rows, {}, {}};
    if (options_.may_send_again()) {
      if (part.has_keys) {
        sent.keys.resize(part.rows);
        copy_keys(rows, part.stretches, reinterpret_cast<std::byte*>(sent.keys.data()));
      }
      sent.gradients.resize(part.rows * row_bytes);
      gather(gradients, row_bytes, part.stretches, sent.gradients.data());
    }
    Coder coder = options_.coder(part.rows);
    const std::size_t key_bytes = name_rows(head, rows, part);
    pushed_.front() += part.rows * (sizeof(std::int64_t) + row_bytes);
    std::byte* const room = mail_.begin(servers_ + part.to, kHeadBytes + key_bytes + coder.bytes());
    std::memcpy(room, &head, sizeof(head));
    if (key_bytes != 0) copy_keys(rows, part.stretches, room + kHeadBytes);
    std::byte* const values = room + kHeadBytes + key_bytes;
    if (coder.is_on()) {
      values_.resize(part.rows * row_bytes);
      gather(gradients, row_bytes, part.stretches, values_.data());
      encode(coder, options_.dtype, values_.data(), values);
    } else {
      gather(gradients, row_bytes, part.stretches, values);
    }
    mail_.end();
    sent_.emplace(head.id, std::move(sent));
  }
}

void Client::send_pull(Part part) {
  Head head{};
  head.kind = part.is_hot ? Head::Kind::kHotPull : Head::Kind::kPull;
  head.client = static_cast<std::uint32_t>(mail_.rank());
  head.id = ++last_id_;
  head.clock = asked_clock();
  const std::size_t key_bytes = name_rows(head, pull_.rows, part);
  std::byte* const room = mail_.begin(servers_ + part.to, kHeadBytes + key_bytes);
  std::memcpy(room, &head, sizeof(head));
  if (key_bytes != 0) copy_keys(pull_.rows, part.stretches, room + kHeadBytes);
  mail_.end();
  pull_.parts.emplace(head.id, std::move(part));
}

void Client::send_to_all(Head::Kind kind) {
  for (int server = 0; server < servers_; ++server) send_to_server(kind, server);
}

void Client::send_to_server(Head::Kind kind, int server) {
  Head head{};
  head.kind = kind;
  head.client = static_cast<std::uint32_t>(mail_.rank());
  head.id = restores_;
  head.clock = clock_;
  std::byte* const room = mail_.begin(servers_ + server, kHeadBytes);
  std::memcpy(room, &head, sizeof(head));
  mail_.end();
}

}  // namespace vol::ps
