#include "vol/ps/key_lists.hpp"

#include <algorithm>
#include <iterator>

namespace vol::ps {

std::uint64_t KeyLists::hash_of(std::span<const std::int64_t> keys) {
  std::uint64_t hash = keys.size();
  for (std::int64_t key : keys) {  // As FNV-1a, of whole keys and with another factor
    hash = (hash ^ static_cast<std::uint64_t>(key)) * 0x9e3779b97f4a7c15U;
    hash ^= hash >> 32;
  }
  return hash;
}

std::optional<std::uint64_t> KeyLists::find(std::span<const std::int64_t> keys,
                                            std::uint64_t hash) const {
  const auto found = by_hash_.find(hash);
  if (found == by_hash_.end() || !std::ranges::equal(found->second->keys, keys)) return {};
  return found->second->number;
}

std::uint64_t KeyLists::add(std::span<const std::int64_t> keys, std::uint64_t hash) {
  held_keys_ += keys.size() + kListKeys;
  while (held_keys_ > most_keys_) drop(std::prev(lists_.end()));
  lists_.push_front({++last_number_, hash, {keys.begin(), keys.end()}});
  by_number_[last_number_] = lists_.begin();
  by_hash_[hash] = lists_.begin();
  return last_number_;
}

const std::vector<std::int64_t>* KeyLists::use(std::uint64_t number) {
  const auto found = by_number_.find(number);
  if (found == by_number_.end()) return nullptr;
  lists_.splice(lists_.begin(), lists_, found->second);
  return &found->second->keys;
}

void KeyLists::drop(Place place) {
  held_keys_ -= place->keys.size() + kListKeys;
  by_number_.erase(place->number);
  const auto found = by_hash_.find(place->hash);
  if (found != by_hash_.end() && found->second == place) by_hash_.erase(found);
  lists_.erase(place);
}

}  // namespace vol::ps
