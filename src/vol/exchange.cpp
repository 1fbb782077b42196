#include "vol/exchange.hpp"

#include <algorithm>
#include <utility>

#include "dstorm/errors.hpp"
#include "dstorm/host/turn.hpp"
#include "dstorm/host/wait.hpp"
#include "vol/elements.hpp"
#include "vol/folding.hpp"
#include "vol/kernels.hpp"

namespace vol {
namespace {

using dstorm::ConfigError;
using dstorm::Update;
using std::chrono::nanoseconds;

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

// Makes a call as a whole, or leaves.
template <class Function>
void Exchange::in_step(Function&& function) {
  const dstorm::Turn turn(segment_.turns(), "exchange", segment_.options().name);
  if (segment_.is_closed()) {
    throw dstorm::PeerError("an earlier call did not come to its end on this rank, which has left",
                            {segment_.group().rank()});
  }
  elsewhere_ = -1;
  wrong_.clear();
  missing_.clear();
  try {
    function();
  } catch (...) {
    segment_.shut();
    throw;
  }
}

// Calls function(updates) with the updates of this round from the other ranks.
template <class Function>
void Exchange::gather(nanoseconds limit, Function&& function) {
  dstorm::GatherOptions options;
  options.staleness = 0;
  options.timeout = limit;
  std::vector<int> missing = segment_.peers();
  segment_.gather(options, [&](std::span<const Update> updates) {
    for (const Update& update : updates) std::erase(missing, update.rank);
    function(updates);
  });
  for (const int rank : missing) {
    if (!is_missing(rank)) missing_.push_back(rank);
  }
}

bool Exchange::is_missing(int rank) const {
  return std::ranges::find(missing_, rank) != missing_.end();
}

void Exchange::throw_if_wrong() const {
  if (elsewhere_ >= 0) {
    throw OtherCall(
        "rank " + std::to_string(elsewhere_) +
        " made another call, or one with another dtype, length or operation, at the same time; "
        "all ranks of a group make the same calls in the same order");
  }
  if (!wrong_.empty()) throw ConfigError(wrong_);
  if (missing_.empty()) return;
  throw dstorm::PeerError(dstorm::describe_ranks(missing_) +
                              (missing_.size() == 1 ? " is" : " are") +
                              " dead, or left before this call",
                          missing_);
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
  if (update.format != kind) elsewhere_ = update.rank;
  if (is_wrong()) return;
  for (const Take& take : takes) {
    const std::size_t needed = take.of != 0 ? take.of : take.offset + take.bytes;
    const bool fits = take.of != 0 ? update.count == needed : update.count >= needed;
    if (take.rank != update.rank || fits) continue;
    wrong_ = "rank " + std::to_string(update.rank) + " gave " + std::to_string(update.count) +
             " bytes, and this rank needs " + std::to_string(needed) +
             " of them; tensors that belong together have the same size and dtype on all ranks";
    return;
  }
}

std::vector<int> Exchange::run(std::span<const Give> gives, std::span<const Take> takes,
                               std::uint32_t given_kind, nanoseconds limit, bool may_miss,
                               std::uint32_t call) {
  const std::uint32_t kind = given_kind ^ call_code(call);
  in_step([&] {
    const dstorm::Deadline deadline(limit);
    std::size_t total = 0;
    for (const Give& give : gives) total += give.bytes;
    std::size_t most = total;  // that a rank gives
    // A rank that finds something wrong stays for all rounds, so that the others' next calls do not
    // meet its last.
    for (std::size_t begin = 0; begin == 0 || begin < most; begin += slot_bytes()) {
      scatter(gives, begin, total, kind);
      gather(deadline.left(), [&](std::span<const Update> updates) {
        for (const Update& update : updates) {
          most = std::max<std::size_t>(most, update.count);
          note_if_wrong(update, kind, takes);
          if (!is_wrong()) copy(update, begin, takes);
        }
      });
      // Others may have seen the length of a rank that this one has found dead.
      for (const Take& take : takes) {
        if (is_missing(take.rank)) most = std::max(most, take.offset + take.bytes);
      }
    }
  });
  if (!missing_.empty()) segment_.group().check_standing();  // else it is this rank that is missed
  if (may_miss && !is_wrong()) return missing_;
  throw_if_wrong();
  return {};
}

void Exchange::fold(DType dtype, void* data, std::size_t count, const Fold& fold, nanoseconds limit,
                    std::uint32_t call) {
  const Elements elements(dtype, {{data, count}});
  Folding folding(elements);
  const std::uint32_t code = operation_code(fold) | static_cast<std::uint32_t>(dtype);
  const std::uint32_t kind = (kFoldKind | code) ^ call_code(call);
  const Give own{data, elements.bytes()};
  in_step([&] {
    const dstorm::Deadline deadline(limit);
    std::size_t most = elements.bytes();  // that a rank has
    for (std::size_t begin = 0; begin == 0 || begin < most; begin += slot_bytes()) {
      scatter(std::span(&own, 1), begin, elements.bytes(), kind);
      gather(deadline.left(), [&](std::span<const Update> updates) {
        for (const Update& update : updates) {
          most = std::max<std::size_t>(most, update.count);
          note_if_wrong(update, kind, {});
          if (!is_wrong() && update.count != elements.bytes()) {
            wrong_ = "rank " + std::to_string(update.rank) + " gave " +
                     std::to_string(update.count) + " bytes, and this rank has " +
                     std::to_string(elements.bytes()) +
                     "; all ranks reduce tensors of the same size";
          }
        }
        const bool are_all = updates.size() == segment_.peers().size();
        if (is_wrong() || !are_all || !missing_.empty()) return;
        Folding::Operands& operands = folding.operands_of(updates, segment_.group().rank());
        operands.origin = begin;
        folding.fold(fold, operands, {begin, std::min(begin + slot_bytes(), elements.bytes())},
                     nullptr);
      });
    }
  });
  if (!missing_.empty()) segment_.group().check_standing();
  throw_if_wrong();
}

}  // namespace vol
