// Fixed-size records that every rank gives all others through the bootstrap when it joins.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "dstorm/bootstrap.hpp"
#include "dstorm/errors.hpp"

namespace dstorm {

// Collective, blocking. Returns the records by rank; that of a rank that is no member stays empty.
// A record goes to other processes as bytes, so it holds no pointers. Throws TimeoutError, and
// ConfigError if a record has another size.
template <class Record>
std::vector<Record> call_roll(Bootstrap& bootstrap, const Record& mine, const Deadline& deadline) {
  static_assert(std::is_trivially_copyable_v<Record>);
  const auto all = bootstrap.allgather(std::as_bytes(std::span(&mine, 1)), deadline);
  std::vector<Record> records(all.size());
  for (int rank : bootstrap.members()) {
    const auto r = static_cast<std::size_t>(rank);
    if (all[r].size() != sizeof(Record)) {
      throw ConfigError("rank " + std::to_string(r) + " sent " + std::to_string(all[r].size()) +
                        " bytes where " + std::to_string(sizeof(Record)) +
                        " were due; all ranks must run the same version of MALT");
    }
    std::memcpy(&records[r], all[r].data(), sizeof(Record));
  }
  return records;
}

// Text in a record is cut to fit, and ends with a zero.
inline void set_text(std::span<char> to, std::string_view text) {
  const std::size_t bytes = std::min(text.size(), to.size() - 1);
  std::memcpy(to.data(), text.data(), bytes);
  to[bytes] = '\0';
}

inline std::string get_text(std::span<const char> from) {
  return std::string(from.data(), strnlen(from.data(), from.size()));
}

// Runs a step that may fail on this rank, and puts the error into the record for the others.
template <class Record, class Step>
void attempt(Record& mine, Step&& step) {
  try {
    step();
  } catch (const Error& error) {
    set_text(mine.error, error.what());
  }
}

// Throws the same ConfigError on every rank if any rank has set the `error` of its record.
template <class Record>
void throw_if_any_failed(const std::vector<Record>& records) {
  std::string errors;
  for (std::size_t r = 0; r < records.size(); ++r) {
    const std::string error = get_text(records[r].error);
    if (error.empty() || errors.find(error) != std::string::npos) continue;
    errors += (errors.empty() ? "rank " : "; rank ") + std::to_string(r) + ": " + error;
  }
  if (!errors.empty()) throw ConfigError(errors);
}

}  // namespace dstorm
