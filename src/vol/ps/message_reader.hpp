// Reads what a server is sent. The bytes lie in memory that another process writes, so they are
// copied or checked before they are used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "dstorm/collective/mail.hpp"
#include "vol/ps/key_lists.hpp"
#include "vol/ps/table.hpp"

namespace vol::ps {

// One message at a time.
class MessageReader {
 public:
  // The server of a table of so many clients, which gets its messages through `mail`.
  MessageReader(const TableOptions& options, int clients, const dstorm::Mail& mail);

  // The member whose message is read from here on.
  void begin(int sender) { sender_ = sender; }

  // The part after the keys: nothing, rows, or rows by the table's codec.
  enum class Values : std::uint8_t { kNone, kWhole, kCoded };
  // The rows that a message names. Valid until the next call. Throws Error if they are no rows of
  // the table, or do not fit the message.
  Rows rows_of(const Head& head, std::span<const std::byte> message, Values values);
  // The values of those rows, without the codec. Valid until the next call. Throws Error if the
  // codec cannot read them.
  const std::byte* values_of(const Head& head, std::span<const std::byte> message, Values values);

  // Throws Error: what the sender has written.
  [[noreturn]] void throw_damaged(const char* what) const;

 private:
  std::span<const std::int64_t> keys_of(const Head& head, const std::byte* keys);

  const TableOptions& options_;
  int clients_;
  const dstorm::Mail& mail_;
  int sender_ = -1;
  std::vector<KeyLists> lists_;  // by client
  std::vector<std::int64_t> keys_;
  std::vector<std::byte> values_;
};

}  // namespace vol::ps
