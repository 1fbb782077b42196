#include "dstorm/recorder/recorder.hpp"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <string>

#include "dstorm/errors.hpp"

namespace dstorm {
namespace {

std::uint64_t bit_of(int rank) { return rank < 64 ? std::uint64_t{1} << rank : 0; }

std::uint64_t set_of(std::span<const int> ranks) {
  std::uint64_t set = 0;
  for (const int r : ranks) set |= bit_of(r);
  return set;
}

// Only one thread writes the word, so this needs no atomic addition (E7).
void add(SharedWord& word, std::uint64_t value) {
  word.store(word.load(std::memory_order_relaxed) + value, std::memory_order_relaxed);
}

}  // namespace

Recorder::Recorder(int fd, int rank, int size)
    : rank_(rank),
      size_(size),
      memory_(fd, true),
      totals_(memory_.header().totals),
      peers_(memory_.peers(size)) {
  const std::size_t cells = memory_.room_for_cells(size);
  if (cells < kLeastCells) {
    throw ConfigError("the memory of a recorder has room for " + std::to_string(cells) +
                      " events beside its totals for " + std::to_string(size) +
                      " ranks; it needs room for at least " + std::to_string(kLeastCells));
  }
  RecorderHeader& header = memory_.header();
  if (header.magic.load(std::memory_order_acquire) != 0) {
    throw ConfigError("the memory of a recorder is in use by process " +
                      std::to_string(header.process));
  }
  header.cells = cells;
  header.rank = rank;
  header.size = size;
  header.process = getpid();
  header.clock = now();
  header.wall =
      std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
  calls_ = memory_.calls(size, cells);
  changes_ = memory_.changes(size);
  reports_.reserve(kReportNames);
  header.magic.store(RecorderHeader::kMagic, std::memory_order_release);
}

void Recorder::scattered(Time began, std::uint64_t iteration, std::uint64_t bytes,
                         std::span<const int> to) noexcept {
  iteration_ = iteration;
  totals_.iteration.store(iteration, std::memory_order_relaxed);
  add(totals_.scatters, 1);
  add(totals_.bytes_out, bytes);
  calls_.add({.began = began,
              .lasted = now() - began,
              .iteration = iteration,
              .bytes = bytes,
              .ranks = set_of(to),
              .kind = EventKind::kScatter,
              .count = static_cast<std::uint32_t>(to.size())});
}

void Recorder::folds(int rank, std::uint64_t iteration, std::uint64_t bytes) noexcept {
  const std::uint64_t staleness = iteration_ > iteration ? iteration_ - iteration : 0;
  RecorderPeer& peer = peers_[static_cast<std::size_t>(rank)];
  add(peer.folded, 1);
  peer.staleness.store(staleness, std::memory_order_relaxed);
  fold_.bytes += bytes;
  fold_.ranks |= bit_of(rank);
  ++fold_.count;
  fold_.staleness = std::max(fold_.staleness, static_cast<std::uint32_t>(staleness));
}

void Recorder::called(int rank, std::uint16_t port, int error) noexcept {
  SharedWord& word = peers_[static_cast<std::size_t>(rank)].failed_calls;
  FailedCalls calls{};
  if (error != 0) {
    calls = std::bit_cast<FailedCalls>(word.load(std::memory_order_relaxed));
    calls = {calls.count + 1, static_cast<std::uint16_t>(error), port};
  }
  word.store(std::bit_cast<std::uint64_t>(calls), std::memory_order_relaxed);
}

void Recorder::gathered(Time began) noexcept {
  const Time ended = now();
  add(totals_.gathers, 1);
  add(totals_.bytes_in, fold_.bytes);
  add(totals_.folded, fold_.count);
  fold_.iteration = iteration_;
  if (fold_.count != 0) {
    fold_.kind = EventKind::kFold;
    fold_.began = std::max(began, wait_ended_);
    fold_.lasted = ended - fold_.began;
    calls_.add(fold_);
  }
  fold_.kind = EventKind::kGather;
  fold_.began = began;
  fold_.lasted = ended - began;
  calls_.add(fold_);
  fold_ = {};
}

void Recorder::allreduced(Time began, std::uint64_t bytes, std::span<const int> members) noexcept {
  add(totals_.allreduces, 1);
  add(totals_.bytes_out, bytes);
  add(totals_.bytes_in, bytes);
  calls_.add({.began = began,
              .lasted = now() - began,
              .iteration = iteration_,
              .bytes = bytes,
              .ranks = set_of(members),
              .kind = EventKind::kAllreduce,
              .count = static_cast<std::uint32_t>(members.size())});
}

void Recorder::wait_began(Time time) noexcept {
  wait_began_ = time;
  waits_for_ = -1;
  missing_ = 0;
  totals_.waits_for.store(0, std::memory_order_relaxed);
  totals_.waits_since.store(static_cast<std::uint64_t>(time), std::memory_order_relaxed);
}

void Recorder::note_missing(int rank) noexcept {
  waits_for_ = rank;
  missing_ |= bit_of(rank);
  totals_.waits_for.store(static_cast<std::uint64_t>(rank) + 1, std::memory_order_relaxed);
}

void Recorder::wait_ended(Time time) noexcept {
  const Time lasted = time - wait_began_;
  wait_ended_ = time;
  totals_.waits_since.store(0, std::memory_order_relaxed);
  add(totals_.waited, static_cast<std::uint64_t>(lasted));
  if (waits_for_ >= 0) {
    add(peers_[static_cast<std::size_t>(waits_for_)].waited, static_cast<std::uint64_t>(lasted));
  }
  calls_.add({.began = wait_began_,
              .lasted = lasted,
              .iteration = iteration_,
              .ranks = missing_,
              .kind = EventKind::kWait,
              .rank = waits_for_});
}

void Recorder::note_epoch(std::uint32_t epoch, std::size_t members,
                          std::span<const int> gone) noexcept {
  const std::lock_guard lock(mutex_);
  const Time time = now();
  totals_.epoch.store(epoch, std::memory_order_relaxed);
  for (const int r : gone) {
    changes_.add({.began = time, .iteration = epoch, .kind = EventKind::kDeath, .rank = r});
  }
  changes_.add({.began = time,
                .iteration = epoch,
                .ranks = set_of(gone),
                .kind = EventKind::kEpoch,
                .count = static_cast<std::uint32_t>(members)});
}

// Another thread may scatter meanwhile: the totals' words are atomic, iteration_ is not.
std::uint64_t Recorder::update() const noexcept {
  const std::uint64_t scattered = totals_.iteration.load(std::memory_order_relaxed);
  return scattered != 0 ? scattered : totals_.allreduces.load(std::memory_order_relaxed);
}

bool Recorder::report(std::string_view name, double value) noexcept {
  const std::lock_guard lock(reports_mutex_);
  const std::span<ReportName> names = memory_.names(size_);
  std::size_t place = 0;
  while (place < reports_.size() && name != names[place].text.data()) ++place;
  if (place == kReportNames) return false;
  if (place == reports_.size()) {
    name.copy(names[place].text.data(), ReportName::kMostBytes);
    reports_.push_back(memory_.reports(size_, place));
    memory_.header().names.store(reports_.size(), std::memory_order_release);
  }
  reports_[place].add({.began = now(),
                       .iteration = update(),
                       .ranks = std::bit_cast<std::uint64_t>(value),
                       .kind = EventKind::kReport});
  return true;
}

}  // namespace dstorm
