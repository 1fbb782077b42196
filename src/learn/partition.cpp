// How rows are placed. counts[c * lanes + k] is how many rows of part k have column c, for columns
// that two rows or more have; the others cost nothing wherever their row is. A row's score for a
// part is the sum over its columns of
//     (1 - softness) [the part has the column] + softness * counts / rows that have the column.
// The first term is the cost that the row would save. While most parts have few rows yet, it says
// little, and the second one, the share of the column that the part has, says where others go.
#include "learn/partition.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <numeric>
#include <queue>
#include <string>
#include <utility>

#include "dstorm/errors.hpp"
#include "learn/splitmix.hpp"

namespace learn {
namespace {

using dstorm::ConfigError;

constexpr float kFirstSoftness = 0.5F;
constexpr float kLaterSoftness = 0.02F;  // decides between parts that cost the same
constexpr std::int64_t kFewMoves = 200;  // a pass that moves less than one in so many is the last
// In the first pass a part may be so many rows ahead of its share. While it is the only one with
// rows, it would attract all others.
constexpr double kRowsAhead = 2;
constexpr int kLanes = 8;

std::size_t place(std::int64_t i) { return static_cast<std::size_t>(i); }

void check_parts(int parts) {
  if (parts < 1 || parts > PartitionOptions::kMostParts) {
    throw ConfigError("parts is " + std::to_string(parts) + "; it is 1 to " +
                      std::to_string(PartitionOptions::kMostParts));
  }
}

void check_placed(std::span<const std::int32_t> placed, std::int64_t count, int parts,
                  const std::string& what) {
  if (std::ssize(placed) != count) {
    throw ConfigError("there are parts for " + std::to_string(placed.size()) + " " + what +
                      "s, but the matrix has " + std::to_string(count));
  }
  for (std::size_t i = 0; i < placed.size(); ++i) {
    if (placed[i] < 0 || placed[i] >= parts) {
      throw ConfigError("the part of " + what + " " + std::to_string(i) + " is " +
                        std::to_string(placed[i]) + "; it is 0 to " + std::to_string(parts - 1));
    }
  }
}

// The columns that two rows or more have, numbered anew, and the rows' elements in them.
struct SharedColumns {
  explicit SharedColumns(const Pattern& matrix) {
    std::vector<std::int32_t> degrees(place(matrix.width));
    for (const std::int32_t column : matrix.columns) ++degrees[place(column)];
    std::vector<std::int32_t> numbers(degrees.size(), -1);
    std::int32_t next = 0;
    for (std::size_t column = 0; column < degrees.size(); ++column) {
      if (degrees[column] < 2) continue;
      numbers[column] = next++;
      shares.push_back(1.0F / static_cast<float>(degrees[column]));
    }
    starts.reserve(matrix.starts.size());
    columns.reserve(matrix.columns.size());
    starts.push_back(0);
    for (std::int64_t row = 0; row < matrix.rows(); ++row) {
      for (const std::int32_t column : matrix.row(row)) {
        if (const std::int32_t number = numbers[place(column)]; number >= 0) {
          columns.push_back(number);
        }
      }
      starts.push_back(columns.size());
    }
  }
  std::span<const std::int32_t> row(std::size_t i) const {
    return std::span(columns).subspan(starts[i], starts[i + 1] - starts[i]);
  }

  std::vector<float> shares;  // by column, of one row that has it
  std::vector<std::size_t> starts;
  std::vector<std::int32_t> columns;
};

class RowPlacing {
 public:
  RowPlacing(const Pattern& matrix, const PartitionOptions& options)
      : matrix_(matrix),
        options_(options),
        shared_(matrix),
        lanes_(place((options.parts + kLanes - 1) / kLanes * kLanes)),
        counts_(shared_.shares.size() * lanes_),
        scores_(lanes_),
        loads_(place(options.parts)),
        held_(place(options.parts)),
        placed_(place(matrix.rows()), -1) {
    const auto total =
        static_cast<double>(options.by_values ? std::ssize(matrix.columns) : matrix.rows());
    mean_ = total / options.parts;
    mean_row_ = total / static_cast<double>(matrix.rows());
    most_ = std::max((1 + options.slack) * mean_, std::ceil(mean_));
  }

  std::vector<std::int32_t> run() {
    std::vector<std::int32_t> order(placed_.size());
    std::iota(order.begin(), order.end(), 0);
    SplitMix random(options_.seed);
    for (int pass = 0; pass < options_.passes; ++pass) {
      for (std::size_t i = order.size() - 1; i > 0; --i) {
        std::swap(order[i], order[random.below(i + 1)]);
      }
      std::int64_t moved = 0;
      double seen = 0;
      for (const std::int32_t row : order) {
        const double load = load_of(row);
        seen += load;
        const double ahead = (1 + options_.slack) * seen / options_.parts + kRowsAhead * mean_row_;
        moved += pass == 0 ? place_first(place(row), load, std::min(most_, ahead))
                           : place_again(place(row), load);
      }
      if (moved * kFewMoves < std::ssize(placed_)) break;
    }
    return std::move(placed_);
  }

 private:
  double load_of(std::int64_t row) const {
    return options_.by_values ? static_cast<double>(matrix_.row(row).size()) : 1.0;
  }

  bool place_first(std::size_t row, double load, double most) {
    score(row, kFirstSoftness);
    for (std::size_t part = 0; most_ > 0 && part < loads_.size(); ++part) {
      scores_[part] *= static_cast<float>(1 - loads_[part] / most_);
    }
    put(row, load, best(load, most, -1));
    return true;
  }

  bool place_again(std::size_t row, double load) {
    const std::int32_t before = placed_[row];
    add(row, before, -1);
    loads_[place(before)] -= load;
    --held_[place(before)];
    score(row, kLaterSoftness);
    put(row, load, best(load, most_, before));
    return placed_[row] != before;
  }

  void put(std::size_t row, double load, std::int32_t part) {
    add(row, part, 1);
    loads_[place(part)] += load;
    ++held_[place(part)];
    placed_[row] = part;
  }

  void add(std::size_t row, std::int32_t part, float by) {
    for (const std::int32_t column : shared_.row(row)) {
      counts_[place(column) * lanes_ + place(part)] += by;
    }
  }

  void score(std::size_t row, float softness) {
    for (std::size_t first = 0; first < lanes_; first += kLanes) {
      std::array<float, kLanes> sums{};
      for (const std::int32_t column : shared_.row(row)) {
        const float* const counts = &counts_[place(column) * lanes_ + first];
        const float weight = softness * shared_.shares[place(column)];
        for (std::size_t k = 0; k < kLanes; ++k) {
          sums[k] += counts[k] * weight + (counts[k] > 0 ? 1 - softness : 0);
        }
      }
      std::ranges::copy(sums, scores_.begin() + static_cast<std::ptrdiff_t>(first));
    }
  }

  // The part of the highest score among those with room; of equal ones `before`, else the one with
  // least load. Without room anywhere it is the one with least load. A row without load would not
  // change which one that is, so the rows are counted for it.
  std::int32_t best(double load, double most, std::int32_t before) const {
    constexpr float kEqual = 1e-5F;
    const std::vector<double>& weights = load > 0 ? loads_ : held_;
    std::int32_t found = -1;
    std::int32_t emptiest = 0;
    for (std::int32_t part = 0; part < options_.parts; ++part) {
      if (weights[place(part)] < weights[place(emptiest)]) emptiest = part;
      if (loads_[place(part)] + load > most) continue;
      const float more = found < 0 ? 1 : scores_[place(part)] - scores_[place(found)];
      const bool is_preferred = part == before || (found != before && found >= 0 &&
                                                   weights[place(part)] < weights[place(found)]);
      if (more > kEqual || (more > -kEqual && is_preferred)) found = part;
    }
    return found < 0 ? emptiest : found;
  }

  const Pattern& matrix_;
  const PartitionOptions& options_;
  const SharedColumns shared_;
  const std::size_t lanes_;
  std::vector<float> counts_;  // exact up to 2^24
  std::vector<float> scores_;
  std::vector<double> loads_;  // by part, in rows or elements
  std::vector<double> held_;   // by part, in rows
  std::vector<std::int32_t> placed_;
  double mean_ = 0, mean_row_ = 0, most_ = 0;
};

// Which parts have rows with a column: a bit for each.
class NeededBy {
 public:
  NeededBy(const Pattern& matrix, std::span<const std::int32_t> rows, int parts)
      : words_(place((parts + 63) / 64)), bits_(place(matrix.width) * words_) {
    for (std::int64_t row = 0; row < matrix.rows(); ++row) {
      const std::size_t part = place(rows[place(row)]);
      for (const std::int32_t column : matrix.row(row)) {
        bits_[place(column) * words_ + part / 64] |= std::uint64_t{1} << part % 64;
      }
    }
  }
  int count(std::size_t column) const {
    int count = 0;
    for (std::size_t word = 0; word < words_; ++word) {
      count += std::popcount(bits_[column * words_ + word]);
    }
    return count;
  }
  template <class Visit>
  void visit(std::size_t column, Visit&& visit) const {
    for (std::size_t word = 0; word < words_; ++word) {
      for (std::uint64_t left = bits_[column * words_ + word]; left != 0; left &= left - 1) {
        visit(word * 64 + static_cast<std::size_t>(std::countr_zero(left)));
      }
    }
  }

 private:
  std::size_t words_;
  std::vector<std::uint64_t> bits_;
};

}  // namespace

void Pattern::check() const {
  if (starts.size() < 2 || width < 1) {
    throw ConfigError("the matrix has " + std::to_string(std::max<std::int64_t>(rows(), 0)) +
                      " rows and " + std::to_string(width) +
                      " columns; a partition needs one of each at least");
  }
  if (starts.front() != 0 || starts.back() != std::ssize(columns) ||
      !std::ranges::is_sorted(starts)) {
    throw ConfigError("the rows of the matrix begin at " + std::to_string(starts.front()) +
                      " and end at " + std::to_string(starts.back()) + " of " +
                      std::to_string(columns.size()) +
                      " columns; they lie one after the other, from 0 to the end");
  }
  for (const std::int32_t column : columns) {
    if (column < 0 || column >= width) {
      throw ConfigError("the matrix has an element in column " + std::to_string(column) +
                        "; its columns are 0 to " + std::to_string(width - 1));
    }
  }
}

std::vector<std::int32_t> partition_rows(const Pattern& matrix, const PartitionOptions& options) {
  matrix.check();
  check_parts(options.parts);
  if (options.parts > matrix.rows()) {
    throw ConfigError("parts is " + std::to_string(options.parts) + ", but the matrix has " +
                      std::to_string(matrix.rows()) +
                      " rows: ask for at most so many parts, or give more rows");
  }
  if (!(options.slack >= 0 && options.slack <= 1)) {
    throw ConfigError("slack is " + std::to_string(options.slack) + "; it is 0 to 1");
  }
  if (options.passes < 1) {
    throw ConfigError("passes is " + std::to_string(options.passes) + "; it is at least 1");
  }
  return RowPlacing(matrix, options).run();
}

PartitionedColumns partition_columns(const Pattern& matrix, std::span<const std::int32_t> rows,
                                     int parts) {
  matrix.check();
  check_parts(parts);
  check_placed(rows, matrix.rows(), parts, "row");
  const NeededBy needed(matrix, rows, parts);
  const std::size_t width = place(matrix.width);
  const std::size_t nobody = place(parts);
  PartitionedColumns found{std::vector<std::int32_t>(width, -1), std::vector<std::uint8_t>(width)};
  std::vector<std::int64_t> transfers(place(parts));
  std::vector<std::int64_t> owned(place(parts));
  std::vector<std::vector<std::int32_t>> by_count(place(parts) + 1);
  for (std::size_t column = 0; column < width; ++column) {
    by_count[place(needed.count(column))].push_back(static_cast<std::int32_t>(column));
    needed.visit(column, [&](std::size_t part) { ++transfers[part]; });
  }
  // Those that most parts need first: the others then even out what is left.
  for (std::size_t count = by_count.size() - 1; count > 0; --count) {
    for (const std::int32_t column : by_count[count]) {
      std::size_t owner = nobody;
      needed.visit(place(column), [&](std::size_t part) {
        if (owner == nobody || transfers[part] < transfers[owner]) owner = part;
      });
      transfers[owner] += static_cast<std::int64_t>(count) - 2;  // sends it, and gets it no more
      ++owned[owner];
      found.owners[place(column)] = static_cast<std::int32_t>(owner);
      found.is_shared[place(column)] = count > 1 ? 1 : 0;
    }
  }
  using Owned = std::pair<std::int64_t, std::int32_t>;  // columns, of a part
  std::priority_queue<Owned, std::vector<Owned>, std::greater<>> fewest;
  for (std::int32_t part = 0; part < parts; ++part) fewest.emplace(owned[place(part)], part);
  for (const std::int32_t column : by_count[0]) {
    const auto [count, part] = fewest.top();
    fewest.pop();
    fewest.emplace(count + 1, part);
    found.owners[place(column)] = part;
  }
  return found;
}

PartTraffic partition_traffic(const Pattern& matrix, std::span<const std::int32_t> rows,
                              std::span<const std::int32_t> owners, int parts) {
  matrix.check();
  check_parts(parts);
  check_placed(rows, matrix.rows(), parts, "row");
  check_placed(owners, matrix.width, parts, "column");
  const NeededBy needed(matrix, rows, parts);
  PartTraffic traffic{std::vector<std::int64_t>(place(parts)),
                      std::vector<std::int64_t>(place(parts))};
  for (std::size_t column = 0; column < owners.size(); ++column) {
    const std::size_t owner = place(owners[column]);
    needed.visit(column, [&](std::size_t part) {
      if (part == owner) return;
      ++traffic.received[part];
      ++traffic.sent[owner];
    });
  }
  return traffic;
}

}  // namespace learn
