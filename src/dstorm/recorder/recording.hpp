// The reading side of a recorder.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dstorm/recorder/memory.hpp"

namespace dstorm {

// A value that the program reported.
struct Report {
  std::int64_t time;        // Clock, in nanoseconds
  std::uint64_t iteration;  // of the rank's last scatter, or its allreduces if it never scattered
  double value;
  std::uint64_t name;  // its index in Recording::report_names()
};

// The record of another process, or of this one. For one thread. The process that writes it need
// not run any more.
class Recording {
 public:
  // Maps the memory file behind `fd`, read-only. Throws ConfigError if it is no recorder's, or if
  // no rank has begun to record there.
  explicit Recording(int fd);

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  std::int64_t process() const noexcept { return memory_.header().process; }
  // When the rank began to record, by Clock, in nanoseconds.
  std::int64_t began() const noexcept { return memory_.header().clock; }
  // Added to a time of Clock, it gives the time since 1970, both in nanoseconds.
  std::int64_t wall_offset() const noexcept {
    return memory_.header().wall - memory_.header().clock;
  }
  const RecorderTotals& totals() const noexcept { return memory_.header().totals; }
  std::span<const RecorderPeer> peers() const noexcept { return memory_.peers(size_); }

  // The events since the last call, oldest first: calls first, then changes. The first call begins
  // with the oldest that are there.
  std::vector<Event> read();
  // The values reported since the last call, by name, then oldest first; begins as read() does.
  std::vector<Report> read_reports();
  // The names of all reports that read_reports() has returned; they only become more. A character
  // other than A-Z a-z 0-9 _ . / - is a '?' here.
  const std::vector<std::string>& report_names() const noexcept { return names_; }
  // How many events and reports were written over before read() or read_reports() came to them.
  std::uint64_t missed() const noexcept { return missed_; }

 private:
  RecorderMemory memory_;
  int rank_ = 0, size_ = 0;
  EventRing calls_, changes_;
  std::vector<std::string> names_;
  std::vector<EventRing> reports_;  // by name
  std::uint64_t missed_ = 0;
};

}  // namespace dstorm
