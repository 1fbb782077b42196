// Groups the ratings: one counting sort by (band of users, band of items, tile of users).
#include <cmath>
#include <string>

#include "dstorm/errors.hpp"
#include "learn/factorization.hpp"
#include "learn/splitmix.hpp"

namespace learn {
namespace {

// This many users' rows, of rank 32, fill a third of a first-level cache of 48 KB.
constexpr std::int64_t kTileUsers = 128;

std::size_t index(std::int64_t value) { return static_cast<std::size_t>(value); }

[[noreturn]] void refuse(std::size_t n, const std::string& what) {
  throw dstorm::ConfigError("rating " + std::to_string(n) + " " + what);
}

void check_ids(std::span<const std::int32_t> ids, const char* name, std::int64_t count) {
  for (std::size_t n = 0; n < ids.size(); ++n) {
    if (ids[n] < 0 || ids[n] >= count) {
      refuse(n, std::string("has ") + name + " " + std::to_string(ids[n]) + "; there are " +
                    std::to_string(count) + ", counted from 0");
    }
  }
}

void check_ratings(const Ratings& ratings, std::int64_t users, std::int64_t items, int bands) {
  const std::size_t size = ratings.values.size();
  if (ratings.users.size() != size || ratings.items.size() != size) {
    throw dstorm::ConfigError("there are " + std::to_string(ratings.users.size()) + " users and " +
                              std::to_string(ratings.items.size()) + " items for " +
                              std::to_string(size) + " ratings; each rating needs one of both");
  }
  if (bands < 1 || bands > RatingBlocks::kMostBands) {
    throw dstorm::ConfigError("bands is " + std::to_string(bands) + "; it is from 1 to " +
                              std::to_string(RatingBlocks::kMostBands));
  }
  if (users < 1 || items < 1) {
    throw dstorm::ConfigError("there are " + std::to_string(users) + " users and " +
                              std::to_string(items) + " items; there is at least one of each");
  }
  check_ids(ratings.users, "user", users);
  check_ids(ratings.items, "item", items);
  for (std::size_t n = 0; n < size; ++n) {
    if (!std::isfinite(ratings.values[n])) {
      refuse(n, "is " + std::to_string(ratings.values[n]) + "; it must be finite");
    }
  }
}

// The rows at which the bands begin, and the last one ends: each band has about as many ratings.
std::vector<std::int64_t> cut(std::span<const std::int32_t> ids, std::int64_t rows, int bands) {
  std::vector<std::int64_t> counts(index(rows));
  for (const std::int32_t id : ids) ++counts[static_cast<std::size_t>(id)];
  std::vector<std::int64_t> starts{0};
  const auto total = static_cast<std::int64_t>(ids.size());
  std::int64_t before = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    before += counts[index(row)];
    // The cut is made where half of the next row would be on either side of it.
    const std::int64_t next = row + 1 < rows ? counts[index(row + 1)] : 0;
    const auto wanted = static_cast<std::int64_t>(starts.size()) * total;
    if (starts.size() < static_cast<std::size_t>(bands) && (before + next / 2) * bands >= wanted) {
      starts.push_back(row + 1);
    }
  }
  starts.resize(static_cast<std::size_t>(bands) + 1, rows);
  return starts;
}

// The band of each row.
std::vector<std::int32_t> bands_of(const std::vector<std::int64_t>& starts) {
  std::vector<std::int32_t> bands(index(starts.back()));
  for (std::size_t band = 0; band + 1 < starts.size(); ++band) {
    for (std::int64_t row = starts[band]; row < starts[band + 1]; ++row) {
      bands[index(row)] = static_cast<std::int32_t>(band);
    }
  }
  return bands;
}

}  // namespace

RatingBlocks::RatingBlocks(const Ratings& ratings, std::int64_t users, std::int64_t items,
                           int bands, std::uint64_t seed)
    : bands_(bands), seed_(seed), users_(users), items_(items) {
  check_ratings(ratings, users, items, bands);
  const std::vector<std::int64_t> user_starts = cut(ratings.users, users, bands);
  item_starts_ = cut(ratings.items, items, bands);
  const std::vector<std::int32_t> user_bands = bands_of(user_starts);
  const std::vector<std::int32_t> item_bands = bands_of(item_starts_);

  // Keys rise by band of users, band of items, tile: a band of users has `tiles` keys in a block.
  const std::size_t width = static_cast<std::size_t>(bands);
  std::vector<std::size_t> tiles(width);
  std::vector<std::size_t> first_keys(width + 1);
  for (std::size_t band = 0; band < width; ++band) {
    const std::int64_t rows = user_starts[band + 1] - user_starts[band];
    tiles[band] = index((rows + kTileUsers - 1) / kTileUsers);
    first_keys[band + 1] = first_keys[band] + width * tiles[band];
  }
  const auto key = [&](std::size_t n) {
    const auto user_band = static_cast<std::size_t>(user_bands[index(ratings.users[n])]);
    const auto item_band = static_cast<std::size_t>(item_bands[index(ratings.items[n])]);
    const std::size_t tile = index((ratings.users[n] - user_starts[user_band]) / kTileUsers);
    return first_keys[user_band] + item_band * tiles[user_band] + tile;
  };

  const std::size_t size = ratings.values.size();
  // of the keys; at first each is one index too high
  std::vector<std::size_t> ends(first_keys[width] + 1);
  for (std::size_t n = 0; n < size; ++n) ++ends[key(n) + 1];
  for (std::size_t k = 1; k < ends.size(); ++k) ends[k] += ends[k - 1];
  for (std::size_t band = 0; band < width; ++band) {
    for (std::size_t other = 0; other < width; ++other) {
      starts_.push_back(static_cast<std::int64_t>(ends[first_keys[band] + other * tiles[band]]));
    }
  }
  starts_.push_back(static_cast<std::int64_t>(size));

  ratings_.resize(size);
  for (std::size_t n = 0; n < size; ++n) {
    ratings_[ends[key(n)]++] = {ratings.users[n], ratings.items[n], ratings.values[n]};
    least_ = n == 0 ? ratings.values[n] : std::fmin(least_, ratings.values[n]);
  }
  SplitMix random(seed);
  std::size_t start = 0;
  for (const std::size_t end : ends) {
    shuffle(ratings_.data() + start, end - start, random);
    start = end;
  }
}

}  // namespace learn
