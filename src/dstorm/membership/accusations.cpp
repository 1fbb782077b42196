#include "dstorm/membership/accusations.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <optional>
#include <utility>

namespace dstorm {
namespace {

using Word = std::uint64_t;
constexpr std::size_t kBits = 64;
using Block = std::array<Word, kBits>;  // 64 x 64 bits of the matrix

Word bit_of(std::size_t index) { return Word{1} << index % kBits; }

template <class Each>
void for_each_bit(Word word, std::size_t first, Each&& each) {
  for (; word != 0; word &= word - 1)
    each(first + static_cast<std::size_t>(std::countr_zero(word)));
}

// Warren, "Hacker's Delight", section 7-3: swaps halves of the block, then halves of those, and so
// on.
void transpose(Block& block) {
  Word mask = 0x00000000FFFFFFFFU;
  for (std::size_t step = kBits / 2; step > 0; step /= 2, mask ^= mask << step) {
    for (std::size_t i = 0; i < kBits; i = (i + step + 1) & ~step) {
      const Word moved = (block[i] >> step ^ block[i + step]) & mask;
      block[i] ^= moved << step;
      block[i + step] ^= moved;
    }
  }
}

// One counter per column, stored bit by bit: plane p holds bit p of all counters. So adding a row
// of bits to all counters, and finding the highest counter, take a few steps a word. The planes of
// one word of columns lie side by side, the lowest first.
class Counts {
 public:
  Counts(std::size_t words, std::size_t most)
      : planes_(static_cast<std::size_t>(std::bit_width(most))), words_(words * planes_) {}

  void add(std::span<const Word> row) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      Word carry = row[i];
      for (Word* plane = of(i); carry != 0; ++plane) carry &= std::exchange(*plane, *plane ^ carry);
    }
  }
  // `row` must have been added before: no counter may fall below 0.
  void subtract(std::span<const Word> row) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      Word borrow = row[i];
      for (Word* plane = of(i); borrow != 0; ++plane) borrow &= * plane ^= borrow;
    }
  }
  // Keeps those of `columns` that have the highest counter, or all of them if it is 0. Returns
  // whether it is above 0.
  bool keep_highest(std::span<Word> columns) const {
    bool any = false;
    for (std::size_t plane = planes_; plane-- > 0;) {
      Word with = 0;
      for (std::size_t i = 0; i < columns.size(); ++i)
        with |= columns[i] & words_[i * planes_ + plane];
      if (with == 0) continue;
      any = true;
      for (std::size_t i = 0; i < columns.size(); ++i) columns[i] &= words_[i * planes_ + plane];
    }
    return any;
  }

 private:
  Word* of(std::size_t word) { return words_.data() + word * planes_; }

  std::size_t planes_;
  std::vector<Word> words_;
};

std::size_t highest_of(std::span<const Word> columns) {
  std::size_t i = columns.size() - 1;
  while (columns[i] == 0) --i;
  return i * kBits + static_cast<std::size_t>(std::bit_width(columns[i])) - 1;
}

}  // namespace

Accusations::Accusations(int ranks)
    : words_((static_cast<std::size_t>(ranks) + kBits - 1) / kBits),
      rows_(words_ * kBits),
      accused_(words_ * kBits) {}

void Accusations::set(int accuser, std::span<const int> accused) {
  std::vector<Word>& row = rows_[static_cast<std::size_t>(accuser)];
  accusers_ -= row.empty() ? 0 : 1;
  accusers_ += accused.empty() ? 0 : 1;
  for (std::size_t i = 0; i < row.size(); ++i) {
    for_each_bit(row[i], i * kBits, [this](std::size_t r) { --accused_[r]; });
  }
  row.assign(accused.empty() ? 0 : words_, 0);
  // Accused ranks often have neighbouring numbers, so their bits are collected before a word is
  // stored.
  std::size_t at = 0;
  Word word = 0;
  for (int r : accused) {
    const auto index = static_cast<std::size_t>(r);
    if (index >= rows_.size()) continue;
    if (index / kBits != at) {
      row[at] |= std::exchange(word, 0);
      at = index / kBits;
    }
    word |= bit_of(index);
    ++accused_[index];
  }
  if (!row.empty()) row[at] |= word;
}

std::vector<bool> Accusations::accused_by_two_hosts(std::span<const int> hosts) const {
  std::vector<std::optional<int>> first(rows_.size());
  std::vector<bool> by_two(rows_.size());
  for (std::size_t accuser = 0; accuser < rows_.size(); ++accuser) {
    if (rows_[accuser].empty() || accused_[accuser] > 0) continue;
    const int host = hosts.empty() ? static_cast<int>(accuser) : hosts[accuser];
    for (std::size_t i = 0; i < words_; ++i) {
      for_each_bit(rows_[accuser][i], i * kBits, [&](std::size_t r) {
        if (!first[r]) first[r] = host;
        if (*first[r] != host) by_two[r] = true;
      });
    }
  }
  return by_two;
}

// Row by row, the pairs of ranks of which one accuses the other.
std::vector<Accusations::Word> Accusations::pairs_among(const std::vector<Word>& members) const {
  std::vector<Word> pairs(rows_.size() * words_);
  for (std::size_t from = 0; from < words_; ++from) {
    std::array<const std::vector<Word>*, kBits> rows{};
    for_each_bit(members[from], 0, [&](std::size_t i) {
      if (!rows_[from * kBits + i].empty()) rows[i] = &rows_[from * kBits + i];
    });
    for (std::size_t to = 0; to < words_; ++to) {
      Block block{};
      Word any = 0;
      for (std::size_t i = 0; i < kBits; ++i) {
        if (rows[i] == nullptr) continue;
        block[i] = (*rows[i])[to] & members[to];
        pairs[(from * kBits + i) * words_ + to] |= block[i];
        any |= block[i];
      }
      if (any == 0) continue;
      transpose(block);
      for (std::size_t i = 0; i < kBits; ++i) pairs[(to * kBits + i) * words_ + from] |= block[i];
    }
  }
  return pairs;
}

std::vector<int> Accusations::at_peace(const std::vector<int>& members) const {
  if (!any()) return members;
  std::vector<Word> left(words_);
  for (int r : members)
    left[static_cast<std::size_t>(r) / kBits] |= bit_of(static_cast<std::size_t>(r));
  const std::vector<Word> pairs = pairs_among(left);
  const auto row = [&](std::size_t r) { return std::span(pairs).subspan(r * words_, words_); };
  // By rank: the number of ranks left that it accuses or is accused by.
  Counts counts(words_, rows_.size());
  for (int r : members) counts.add(row(static_cast<std::size_t>(r)));
  for (std::vector<Word> worst = left; counts.keep_highest(worst); worst = left) {
    const std::size_t going = highest_of(worst);
    left[going / kBits] &= ~bit_of(going);
    counts.subtract(row(going));
  }
  std::vector<int> staying;
  for (std::size_t word = 0; word < words_; ++word) {
    for_each_bit(left[word], word * kBits,
                 [&](std::size_t r) { staying.push_back(static_cast<int>(r)); });
  }
  return staying;
}

}  // namespace dstorm
