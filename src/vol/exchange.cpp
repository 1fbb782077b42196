#include "vol/exchange.hpp"

#include <algorithm>
#include <utility>

#include "dstorm/errors.hpp"
#include "dstorm/host/turn.hpp"
#include "vol/elements.hpp"
#include "vol/folding.hpp"
#include "vol/kernels.hpp"

namespace vol {
namespace {

using dstorm::ConfigError;
using dstorm::Update;
using std::chrono::nanoseconds;
using Clock = std::chrono::steady_clock;

constexpr std::uint32_t kFoldKind = 1U << 31;

dstorm::SegmentOptions segment_options(std::string name, std::size_t slot_bytes) {
  dstorm::SegmentOptions options;
  options.name = std::move(name);
  options.slot_bytes = slot_bytes;
  options.kind = "exchange of bytes";
  return options;
}

}  // namespace

Exchange::Exchange(std::shared_ptr<dstorm::Group> group, std::string name, std::size_t slot_bytes)
    : segment_(std::move(group), segment_options(std::move(name), slot_bytes)) {}

// Sends the bytes from `begin` on that fit a slot.
void Exchange::scatter(std::span<const Give> gives, std::size_t begin, std::size_t total,
                       std::uint32_t kind) {
  segment_.scatter([&](std::span<std::byte> room) {
    std::size_t start = 0;  // of the stretch
    std::size_t filled = 0;
    for (const Give& give : gives) {
      const std::size_t end = start + give.bytes;
      const std::size_t from = std::max(begin, start);
      const std::size_t to = std::min(begin + room.size(), end);
      if (from < to) {
        vol::copy(room.data() + filled, static_cast<const std::byte*>(give.data) + (from - start),
                  to - from);
        filled += to - from;
      }
      start = end;
    }
    return std::pair(filled, dstorm::Tag{total, kind});
  });
}

// Calls function(updates) with the updates of this round from all other ranks.
template <class Function>
void Exchange::gather(nanoseconds limit, bool may_miss, Function&& function) {
  dstorm::GatherOptions options;
  options.staleness = 0;
  options.timeout = std::max(limit, nanoseconds(0));
  std::vector<int> missing = segment_.peers();
  segment_.gather(options, [&](std::span<const Update> updates) {
    for (const Update& update : updates) std::erase(missing, update.rank);
    if (missing.empty() || may_miss) function(updates);
  });
  if (missing.empty() || may_miss) return;
  throw dstorm::PeerError(dstorm::describe_ranks(missing) + (missing.size() == 1 ? " is" : " are") +
                              " dead, or left before this call",
                          missing);
}

void Exchange::copy(const Update& update, std::size_t begin, std::span<const Take> takes) const {
  const std::size_t end = begin + update.payload.size();
  for (const Take& take : takes) {
    if (take.rank != update.rank) continue;
    const std::size_t from = std::max(begin, take.offset);
    const std::size_t to = std::min(end, take.offset + take.bytes);
    if (from >= to) continue;
    vol::copy(static_cast<std::byte*>(take.to) + (from - take.offset),
              update.payload.data() + (from - begin), to - from);
  }
}

void Exchange::note_if_wrong(const Update& update, std::uint32_t kind,
                             std::span<const Take> takes) {
  if (!wrong_.empty()) return;
  if (update.format != kind) {
    wrong_ = "rank " + std::to_string(update.rank) +
             " made another call, or one with another dtype or operation, at the same time; all "
             "ranks of a group make the same calls in the same order";
    return;
  }
  for (const Take& take : takes) {
    if (take.rank != update.rank || take.offset + take.bytes <= update.count) continue;
    wrong_ = "rank " + std::to_string(update.rank) + " gave " + std::to_string(update.count) +
             " bytes, and this rank needs " + std::to_string(take.offset + take.bytes) +
             " of them; tensors that belong together have the same size on all ranks";
    return;
  }
}

void Exchange::run(std::span<const Give> gives, std::span<const Take> takes, std::uint32_t kind,
                   nanoseconds limit, bool may_miss) {
  const dstorm::Turn turn(segment_.turns(), "exchange", segment_.options().name);
  const auto start = Clock::now();
  std::size_t total = 0;
  for (const Give& give : gives) total += give.bytes;
  std::size_t most = total;  // that a rank gives
  wrong_.clear();
  // A rank that finds something wrong stays for all rounds, so that no other rank waits for it.
  for (std::size_t begin = 0; begin == 0 || begin < most; begin += slot_bytes()) {
    scatter(gives, begin, total, kind);
    gather(limit - (Clock::now() - start), may_miss, [&](std::span<const Update> updates) {
      for (const Update& update : updates) {
        most = std::max<std::size_t>(most, update.count);
        note_if_wrong(update, kind, takes);
        if (wrong_.empty()) copy(update, begin, takes);
      }
    });
  }
  if (!wrong_.empty()) throw ConfigError(wrong_);
}

void Exchange::fold(DType dtype, void* data, std::size_t count, const Fold& fold,
                    nanoseconds limit) {
  const dstorm::Turn turn(segment_.turns(), "exchange", segment_.options().name);
  const auto start = Clock::now();
  const Elements elements(dtype, {{data, count}});
  Folding folding(elements);
  const std::uint32_t kind = kFoldKind | operation_code(fold) | static_cast<std::uint32_t>(dtype);
  const Give own{data, elements.bytes()};
  std::size_t most = elements.bytes();  // that a rank has
  wrong_.clear();
  for (std::size_t begin = 0; begin == 0 || begin < most; begin += slot_bytes()) {
    scatter(std::span(&own, 1), begin, elements.bytes(), kind);
    gather(limit - (Clock::now() - start), false, [&](std::span<const Update> updates) {
      for (const Update& update : updates) {
        most = std::max<std::size_t>(most, update.count);
        note_if_wrong(update, kind, {});
        if (wrong_.empty() && update.count != elements.bytes()) {
          wrong_ = "rank " + std::to_string(update.rank) + " gave " + std::to_string(update.count) +
                   " bytes, and this rank has " + std::to_string(elements.bytes()) +
                   "; all ranks reduce tensors of the same size";
        }
      }
      if (!wrong_.empty()) return;
      Folding::Operands& operands = folding.operands_of(updates, segment_.group().rank());
      operands.origin = begin;
      folding.fold(fold, operands, {begin, std::min(begin + slot_bytes(), elements.bytes())},
                   nullptr);
    });
  }
  if (!wrong_.empty()) throw ConfigError(wrong_);
}

}  // namespace vol
