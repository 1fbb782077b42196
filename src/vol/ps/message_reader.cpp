#include "vol/ps/message_reader.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>

#include "dstorm/errors.hpp"

namespace vol::ps {

MessageReader::MessageReader(const TableOptions& options, int clients, const dstorm::Mail& mail)
    : options_(options),
      clients_(clients),
      mail_(mail),
      lists_(static_cast<std::size_t>(clients), KeyLists(options.cached_keys)) {}

void MessageReader::throw_damaged(const char* what) const {
  mail_.group().check_standing();
  throw dstorm::Error("rank " + std::to_string(sender_ % clients_) + " wrote " + what + " for " +
                      mail_.name() + "; its memory is damaged");
}

Rows MessageReader::rows_of(const Head& head, std::span<const std::byte> message, Values values) {
  const auto bytes = [&]() -> std::size_t {
    if (values == Values::kNone) return 0;
    return values == Values::kWhole ? head.count * options_.row_bytes()
                                    : options_.coder(head.count).bytes();
  };
  // A message that is sent because of this one, an answer or a copy's, fits a slot as well.
  const bool has_keys = head.keys != KeyForm::kConsecutive;
  const std::size_t most = kRoom / (options_.row_bytes() + (has_keys ? sizeof(std::int64_t) : 0));
  const std::size_t key_bytes = head.has_keys() ? head.count * sizeof(std::int64_t) : 0;
  if (head.client >= static_cast<std::uint32_t>(clients_) || head.count == 0 || head.count > most ||
      message.size() != kHeadBytes + key_bytes + bytes()) {
    throw_damaged("invalid rows");
  }
  Rows rows{nullptr, head.first, static_cast<std::size_t>(head.count)};
  if (head.keys != KeyForm::kConsecutive) {
    rows = {keys_of(head, message.data() + kHeadBytes).data(), 0, rows.count};
  }
  const auto count = static_cast<std::int64_t>(rows.count);
  if (rows.at(0) < 0 || rows.at(0) > options_.rows - count ||
      rows.at(rows.count - 1) >= options_.rows) {
    throw_damaged("invalid rows");
  }
  return rows;
}

// Keys of a message are copied, then checked; a list that is here has been. Valid until the next
// call.
std::span<const std::int64_t> MessageReader::keys_of(const Head& head, const std::byte* keys) {
  const auto count = static_cast<std::size_t>(head.count);
  KeyLists& lists = lists_[head.client];
  const auto number = static_cast<std::uint64_t>(head.first);
  if (!head.has_keys()) {
    const std::vector<std::int64_t>* const list = lists.use(number);
    if (list == nullptr || list->size() != count) throw_damaged("an unknown list");
    return *list;
  }
  keys_.resize(count);
  std::memcpy(keys_.data(), keys, count * sizeof(std::int64_t));
  if (std::ranges::adjacent_find(keys_, std::greater_equal()) != keys_.end()) {
    throw_damaged("keys that do not grow");
  }
  if (head.keys != KeyForm::kKept) return keys_;
  if (!lists.fits(count) || lists.add(keys_, KeyLists::hash_of(keys_)) != number) {
    throw_damaged("a list out of turn");
  }
  return keys_;
}

const std::byte* MessageReader::values_of(const Head& head, std::span<const std::byte> message,
                                          Values values) {
  const std::size_t key_bytes = head.has_keys() ? head.count * sizeof(std::int64_t) : 0;
  const std::byte* const from = message.data() + kHeadBytes + key_bytes;
  Coder coder = options_.coder(head.count);
  if (values == Values::kWhole || !coder.is_on()) return from;
  values_.resize(head.count * options_.row_bytes());
  if (!coder.decode(values_.data(), from)) throw_damaged("invalid values");
  return values_.data();
}

}  // namespace vol::ps
