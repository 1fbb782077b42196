// Key lists that a client has sent to a server before. They are sent again as a number.
//  P7 The two sides of a pair have the same lists under the same numbers after each message. Both
//     start without lists, and do the same for a message: they add its list, or use the one of its
//     number. The messages arrive all and in order (P1), so no number is unknown. A server that
//     takes over from a dead one knows nothing of the dead one's lists: the client has other lists
//     with it, and splits anew what it sends there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace vol::ps {

// One side of a pair of a client and a server. Lists that were used least recently make room for
// new ones.
class KeyLists {
 public:
  // Room for so many keys, of all lists. A list counts kListKeys more than it has.
  explicit KeyLists(std::size_t most_keys) : most_keys_(most_keys) {}

  static constexpr std::size_t kListKeys = 16;

  bool fits(std::size_t keys) const { return keys + kListKeys <= most_keys_; }
  static std::uint64_t hash_of(std::span<const std::int64_t> keys);
  // The number of a list with these keys, whose hash is `hash`; none if there is none. It is not
  // used by this.
  std::optional<std::uint64_t> find(std::span<const std::int64_t> keys, std::uint64_t hash) const;
  // Adds a list that fits and is not there, and returns its number.
  std::uint64_t add(std::span<const std::int64_t> keys, std::uint64_t hash);
  // The list, which is now the most recently used one; null: there is none of this number. Valid
  // until the next add().
  const std::vector<std::int64_t>* use(std::uint64_t number);

 private:
  struct List {
    std::uint64_t number;
    std::uint64_t hash;
    std::vector<std::int64_t> keys;
  };
  using Place = std::list<List>::iterator;

  void drop(Place place);

  std::size_t most_keys_;
  std::size_t held_keys_ = 0;
  std::uint64_t last_number_ = 0;
  std::list<List> lists_;  // the most recently used one comes first
  std::unordered_map<std::uint64_t, Place> by_number_;
  std::unordered_map<std::uint64_t, Place> by_hash_;  // one of those that have the hash
};

}  // namespace vol::ps
