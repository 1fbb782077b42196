#include "dstorm/recorder/recording.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <string_view>

#include "dstorm/errors.hpp"

namespace dstorm {
namespace {

// Characters that every watcher and format can show.
bool is_of_a_name(char c) {
  const bool is_alphanumeric =
      (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
  return is_alphanumeric || std::string_view("_./-").find(c) != std::string_view::npos;
}

}  // namespace

Recording::Recording(int fd) : memory_(fd, false) {
  const RecorderHeader& header = memory_.header();
  if (header.magic.load(std::memory_order_acquire) != RecorderHeader::kMagic) {
    throw ConfigError("no rank has begun to record there");
  }
  // The header is another process's: its numbers are copied, then checked (E6).
  rank_ = header.rank;
  size_ = header.size;
  const std::size_t cells = header.cells;
  if (size_ < 1 || rank_ < 0 || rank_ >= size_ || cells < kLeastCells ||
      cells != memory_.room_for_cells(size_)) {
    throw ConfigError("the memory of a recorder is damaged: rank " + std::to_string(rank_) +
                      " of " + std::to_string(size_) + ", " + std::to_string(cells) + " cells");
  }
  calls_ = memory_.calls(size_, cells);
  calls_.rewind();
  changes_ = memory_.changes(size_);
  changes_.rewind();
}

std::vector<Event> Recording::read() {
  std::vector<Event> events;
  const auto keep = [&](const Event& event) { events.push_back(event); };
  missed_ += calls_.read(keep);
  missed_ += changes_.read(keep);
  return events;
}

std::vector<Report> Recording::read_reports() {
  const std::uint64_t known = memory_.header().names.load(std::memory_order_acquire);
  const std::size_t count = std::min<std::uint64_t>(known, kReportNames);
  while (names_.size() < count) {
    const auto& text = memory_.names(size_)[names_.size()].text;
    names_.emplace_back(text.data(), strnlen(text.data(), text.size()));
    std::ranges::replace_if(names_.back(), [](char c) { return !is_of_a_name(c); }, '?');
    reports_.push_back(memory_.reports(size_, reports_.size()));
    reports_.back().rewind();
  }
  std::vector<Report> reports;
  for (std::size_t name = 0; name < reports_.size(); ++name) {
    missed_ += reports_[name].read([&](const Event& event) {
      reports.push_back({.time = event.began,
                         .iteration = event.iteration,
                         .value = std::bit_cast<double>(event.ranks),
                         .name = name});
    });
  }
  return reports;
}

}  // namespace dstorm
