#include "vol/ps/shown_rows.hpp"

#include <unistd.h>

#include <cstring>
#include <utility>

#include "dstorm/errors.hpp"
#include "dstorm/slot/layout.hpp"

namespace vol::ps {
namespace {

constexpr int kMostCopies = 4;   // of rows that change meanwhile, before they are asked for
constexpr int kMostLooks = 400;  // at an odd version; a small push takes less than a microsecond
constexpr std::size_t kClockAt = dstorm::kLine;
constexpr std::size_t kVersionsAt = 2 * dstorm::kLine;

std::size_t rows_at(const Placement& placement) {
  return dstorm::round_up(kVersionsAt + placement.ranges() * sizeof(std::uint64_t), dstorm::kPage);
}

std::size_t bytes_of(const TableOptions& options, const Placement& placement) {
  return rows_at(placement) + static_cast<std::size_t>(options.rows) * options.row_bytes();
}

std::string name_of(const TableOptions& options) { return "table '" + options.name + "'"; }

// The server may write the words meanwhile: the loads are atomic, so that the compiler makes them
// once each, and before the version is loaded again.
template <class Word>
void copy_words(const std::byte* from, std::size_t bytes, std::byte* to) {
  const auto* const words = reinterpret_cast<const Word*>(from);
  for (std::size_t i = 0; i < bytes / sizeof(Word); ++i) {
    const Word word = __atomic_load_n(words + i, __ATOMIC_RELAXED);
    std::memcpy(to + i * sizeof(Word), &word, sizeof(Word));
  }
}

// A change begins and ends with this. One thread writes the version.
std::uint64_t next(const Version& version) { return version.load(std::memory_order_relaxed) + 1; }

}  // namespace

Change::Change(Version* version) : version_(version) {
  if (version_ == nullptr) return;
  version_->store(next(*version_), std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);  // P9 (a): odd before the values change
}

Change::~Change() {
  if (version_ != nullptr) version_->store(next(*version_), std::memory_order_release);  // P9 (a)
}

ShownRows::ShownRows(const TableOptions& options, const Placement& placement,
                     dstorm::host::Memory memory)
    : placement_(placement),
      what_(name_of(options)),
      row_bytes_(options.row_bytes()),
      memory_(std::move(memory)),
      rows_(memory_.data() + rows_at(placement)) {}

ShownRows::ShownRows(const TableOptions& options, const Placement& placement)
    : ShownRows(options, placement,
                dstorm::host::Memory::create(bytes_of(options, placement), rows_at(placement),
                                             name_of(options))) {
  memory_.reserve(0, rows_at(placement), what_);
  const dstorm::host::Token token = dstorm::host::make_token();
  std::memcpy(memory_.data(), &token, sizeof(token));
}

ShownRows::ShownRows(const TableOptions& options, const Placement& placement, const ShownAt& at)
    : ShownRows(options, placement,
                dstorm::host::Memory::open(at.process, at.descriptor, bytes_of(options, placement),
                                           name_of(options))) {
  memory_.close_fd();
  if (std::memcmp(memory_.data(), &at.token, sizeof(at.token)) != 0) {
    throw dstorm::ConfigError(what_ + ": process " + std::to_string(at.process) +
                              " is another one here");
  }
}

ShownAt ShownRows::at() const {
  ShownAt at{getpid(), memory_.fd(), {}};
  std::memcpy(&at.token, memory_.data(), sizeof(at.token));
  return at;
}

ShownRange ShownRows::reserve(std::size_t range) {
  const auto first = static_cast<std::size_t>(placement_.first_row(range)) * row_bytes_;
  const auto end = static_cast<std::size_t>(placement_.end_row(range)) * row_bytes_;
  memory_.reserve(rows_at(placement_) + first, end - first, what_);
  return {rows_ + first, &version(range)};
}

std::atomic<std::uint64_t>& ShownRows::clock() const {
  return *reinterpret_cast<std::atomic<std::uint64_t>*>(memory_.data() + kClockAt);
}

Version& ShownRows::version(std::size_t range) const {
  return reinterpret_cast<Version*>(memory_.data() + kVersionsAt)[range];
}

bool ShownRows::read(std::uint64_t clock, const Rows& rows, std::byte* to) const {
  if (this->clock().load(std::memory_order_acquire) < clock) return false;  // P9 (b)
  const Version& version = this->version(placement_.range_of(rows.at(0)));
  for (int copies = 0, looks = 0; copies < kMostCopies && looks < kMostLooks; ++looks) {
    const std::uint64_t before = version.load(std::memory_order_acquire);
    if (before == 0) return false;
    if (before % 2 != 0) continue;
    copy(rows, to);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (version.load(std::memory_order_relaxed) == before) return true;  // P9 (a)
    ++copies;
  }
  return false;
}

void ShownRows::copy(const Rows& rows, std::byte* to) const {
  const bool has_long_words = row_bytes_ % sizeof(std::uint64_t) == 0;
  const auto copy_stretch = [&](std::int64_t first, std::size_t count, std::byte* place) {
    if (has_long_words) {
      copy_words<std::uint64_t>(row(first), count * row_bytes_, place);
    } else {
      copy_words<std::uint32_t>(row(first), count * row_bytes_, place);
    }
  };
  if (rows.keys == nullptr) return copy_stretch(rows.first, rows.count, to);
  for (std::size_t i = 0; i < rows.count; ++i) {
    if (i + kRowsAhead < rows.count) __builtin_prefetch(row(rows.keys[i + kRowsAhead]));
    copy_stretch(rows.keys[i], 1, to + i * row_bytes_);
  }
}

}  // namespace vol::ps
