#include "dstorm/membership/record.hpp"

#include <bit>

#include "dstorm/slot/checksum.hpp"

namespace dstorm {
namespace {

std::uint64_t checksum_of(std::span<const std::uint64_t> words) {
  Checksum checksum;
  checksum.add(std::as_bytes(words));
  return checksum.value();
}

std::uint64_t word_of(Ballot ballot) {
  return std::uint64_t{ballot.round} << 32 | static_cast<std::uint32_t>(ballot.rank);
}

Ballot ballot_of(std::uint64_t word) {
  return {static_cast<std::uint32_t>(word >> 32), static_cast<std::int32_t>(word)};
}

std::vector<int> ranks_of(std::span<const std::uint64_t> words) {
  std::size_t count = 0;
  for (const std::uint64_t word : words) count += static_cast<std::size_t>(std::popcount(word));
  std::vector<int> ranks(count);
  int* next = ranks.data();
  for (std::size_t i = 0; i < words.size(); ++i) {
    for (std::uint64_t word = words[i]; word != 0; word &= word - 1) {
      *next++ = static_cast<int>(i) * 64 + std::countr_zero(word);
    }
  }
  return ranks;
}

}  // namespace

RecordFormat::Words RecordFormat::pack(const MembershipRecord& record) const {
  Words words{record.beat,
              record.news,
              record.view.epoch,
              word_of(record.promised),
              word_of(record.accepted),
              word_of(record.proposed)};
  words.reserve(this->words());
  for (const std::vector<int>* set : {&record.view.members, &record.accused, &record.ended,
                                      &record.accepted_members, &record.proposed_members}) {
    const std::size_t begin = words.size();
    words.resize(begin + words_of_set());
    for (int r : *set)
      words[begin + static_cast<std::size_t>(r) / 64] |= std::uint64_t{1} << r % 64;
  }
  words.push_back(checksum_of(words));
  return words;
}

// Whether the words name only ranks that the job has.
bool RecordFormat::is_set(std::span<const std::uint64_t> words) const {
  return ranks_ % 64 == 0 || words.back() >> ranks_ % 64 == 0;
}

std::optional<MembershipRecord> RecordFormat::unpack(
    std::span<const std::uint64_t> words, std::optional<std::uint64_t> known_epoch) const {
  if (words.size() != this->words() || checksum_of(words.first(words.size() - 1)) != words.back()) {
    return std::nullopt;
  }
  MembershipRecord record{.beat = words[0],
                          .news = words[1],
                          .view = {.epoch = words[2]},
                          .promised = ballot_of(words[3]),
                          .accepted = ballot_of(words[4]),
                          .proposed = ballot_of(words[5])};
  for (const Ballot& ballot : {record.promised, record.accepted, record.proposed}) {
    if (ballot.rank < 0 || ballot.rank >= ranks_) return std::nullopt;
  }
  std::size_t at = kFixed;
  for (std::vector<int>* set : {&record.view.members, &record.accused, &record.ended,
                                &record.accepted_members, &record.proposed_members}) {
    const auto packed = words.subspan(at, words_of_set());
    at += words_of_set();
    if (!is_set(packed)) return std::nullopt;
    if (set != &record.view.members || record.view.epoch != known_epoch) *set = ranks_of(packed);
  }
  return record;
}

void RecordFormat::store(Cell cell, std::span<const std::uint64_t> words) {
  for (std::size_t i = 0; i < cell.size(); ++i) {
    cell[i].store(words[i], std::memory_order_relaxed);
  }
}

RecordFormat::Words RecordFormat::load(Cell cell) {
  Words words(cell.size());
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = cell[i].load(std::memory_order_relaxed);
  return words;
}

}  // namespace dstorm
