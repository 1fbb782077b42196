#include "vol/ps/edition.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>

#include "dstorm/errors.hpp"

namespace vol::ps {
namespace {

template <class T>
void put(std::vector<std::byte>& bytes, std::span<const T> values) {
  const std::size_t at = bytes.size();
  bytes.resize(at + values.size_bytes());
  if (!values.empty()) std::memcpy(bytes.data() + at, values.data(), values.size_bytes());
}

template <class T>
void put_list(std::vector<std::byte>& bytes, const std::vector<T>& values) {
  const std::uint64_t count = values.size();
  put<std::uint64_t>(bytes, {&count, 1});
  put<T>(bytes, values);
}

class Unpacker {
 public:
  explicit Unpacker(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::uint64_t number() {
    std::uint64_t value = 0;
    copy(&value, sizeof(value));
    return value;
  }
  template <class T>
  std::vector<T> list() {
    const std::uint64_t count = number();
    if (count > bytes_.size() / sizeof(T)) throw_damaged();
    std::vector<T> values(count);
    copy(values.data(), count * sizeof(T));
    return values;
  }

 private:
  [[noreturn]] static void throw_damaged() {
    throw dstorm::Error("what a rank brings to the next edition of a table is damaged");
  }
  void copy(void* to, std::size_t bytes) {
    if (bytes > bytes_.size()) throw_damaged();
    if (bytes != 0) std::memcpy(to, bytes_.data(), bytes);
    bytes_ = bytes_.subspan(bytes);
  }

  std::span<const std::byte> bytes_;
};

}  // namespace

std::vector<std::byte> Brought::pack() const {
  std::vector<std::byte> bytes;
  put<std::uint64_t>(bytes, {&clock, 1});
  put<std::uint64_t>(bytes, {&has_closed, 1});
  put_list(bytes, pushes);
  put_list(bytes, ranks);
  put_list(bytes, dead);
  put_list(bytes, lost_with);
  put_list(bytes, ranges);
  return bytes;
}

Brought Brought::unpack(std::span<const std::byte> bytes) {
  Unpacker from(bytes);
  Brought made;
  made.clock = from.number();
  made.has_closed = from.number();
  made.pushes = from.list<std::uint64_t>();
  made.ranks = from.list<std::uint32_t>();
  made.dead = from.list<std::uint32_t>();
  made.lost_with = from.list<std::uint32_t>();
  made.ranges = from.list<Range>();
  return made;
}

Edition::Edition(std::span<const std::optional<Brought>> brought, std::size_t count)
    : clocks(brought.size()), pushes(brought.size()), ranges(count) {
  constexpr std::uint64_t kNone = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t lowest = kNone;                 // of ranks that do not close the table
  std::uint64_t beyond = 0;                     // the clocks of all ranks
  std::vector<bool> was_there(brought.size());  // in the last edition
  std::vector<bool> is_dead(brought.size());
  for (const std::optional<Brought>& each : brought) {
    if (!each) continue;
    if (each->has_closed == 0) lowest = std::min(lowest, each->clock);
    beyond = std::max(beyond, each->clock + 1);
    for (std::size_t client = 0; client < std::min(pushes.size(), each->pushes.size()); ++client) {
      pushes[client] = std::max(pushes[client], each->pushes[client]);
    }
    for (const std::uint32_t rank : each->ranks) {
      if (rank < was_there.size()) was_there[rank] = true;
    }
    for (const std::uint32_t server : each->dead) {
      if (server < is_dead.size()) is_dead[server] = true;
    }
    lost_with.insert(lost_with.end(), each->lost_with.begin(), each->lost_with.end());
  }
  const std::uint64_t joined = lowest == kNone ? beyond : lowest;  // P10 (f)
  for (std::size_t client = 0; client < brought.size(); ++client) {
    clocks[client] = brought[client] ? brought[client]->clock : joined;
    if (is_dead[client] || (was_there[client] && !brought[client])) {
      lost_with.push_back(static_cast<int>(client));
    }
  }
  std::ranges::sort(lost_with);
  lost_with.erase(std::unique(lost_with.begin(), lost_with.end()), lost_with.end());
  if (find_senders(brought, is_dead)) lost_with.clear();
}

// Returns whether each range has one.
bool Edition::find_senders(std::span<const std::optional<Brought>> brought,
                           const std::vector<bool>& is_dead) {
  struct Has {
    int server;
    Brought::Range range;
  };
  std::vector<std::vector<Has>> by_range(ranges.size());
  for (std::size_t server = 0; server < brought.size(); ++server) {
    if (!brought[server] || is_dead[server]) continue;
    for (const Brought::Range& range : brought[server]->ranges) {
      if (range.number >= ranges.size()) continue;
      by_range[range.number].push_back({static_cast<int>(server), range});
    }
  }
  bool has_all = true;
  for (std::size_t number = 0; number < ranges.size(); ++number) {
    std::vector<Has>& all = by_range[number];
    std::ranges::sort(all, {}, [](const Has& has) { return has.range.place; });
    // Servers before the latest primary count as dead: they may lack what it has acknowledged.
    std::uint16_t latest = 0;
    for (const Has& has : all) latest = std::max(latest, has.range.source);
    std::erase_if(all, [=](const Has& has) { return has.range.place < latest; });
    has_all = has_all && !all.empty();
    if (all.empty()) continue;
    ranges[number].sender = all.front().server;
    for (const Has& has : all) {
      const bool is_same = has.range.check == all.front().range.check &&
                           has.range.source == all.front().range.source;
      if (is_same) ranges[number].having.push_back(has.server);
    }
  }
  return has_all;
}

}  // namespace vol::ps
