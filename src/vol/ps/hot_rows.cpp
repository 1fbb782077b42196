#include "vol/ps/hot_rows.hpp"

#include <cstring>

namespace vol::ps {

std::optional<std::uint64_t> HotRows::read(std::int64_t key, std::uint64_t clock,
                                           std::byte* to) const {
  const auto found = rows_.find(key);
  if (found == rows_.end()) return std::nullopt;
  const Row& row = found->second;
  if (row.values.empty() || row.clock < clock) return std::nullopt;  // P12 (b)
  std::memcpy(to, row.values.data(), row_bytes_);
  return row.clock;
}

bool HotRows::ask(std::int64_t key, std::uint64_t clock, int server, std::uint64_t id) {
  std::optional<Asked>& asked = rows_[key].asked;
  if (asked && asked->clock >= clock) return false;
  asked = Asked{clock, server, id};
  return true;
}

void HotRows::take(std::int64_t key, std::uint64_t clock, std::span<const std::byte> values,
                   std::uint64_t id) {
  const auto found = rows_.find(key);
  if (found == rows_.end()) return;  // nobody has asked for it
  Row& row = found->second;
  if (row.asked && row.asked->id == id) row.asked.reset();
  if (!row.values.empty() && row.clock >= clock) return;
  row.clock = clock;
  row.values.assign(values.begin(), values.end());
}

void HotRows::forget(const std::function<bool(int, std::uint64_t)>& is_over) {
  for (auto& [key, row] : rows_) {
    if (row.asked && is_over(row.asked->server, row.asked->id)) row.asked.reset();
  }
}

}  // namespace vol::ps
