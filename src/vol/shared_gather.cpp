#include "vol/shared_gather.hpp"

#include <algorithm>
#include <cstring>

#include "dstorm/segment/parts.hpp"
#include "vol/boards.hpp"

namespace vol {
namespace {

using dstorm::Update;
using std::chrono::nanoseconds;

// A shared gather takes two more meetings of the ranks, and saves passes over memory. It pays from
// this many ranks and bytes on (docs/performance.md).
constexpr std::size_t kLeastRanks = 3;
constexpr std::size_t kLeastBytes = 32 * 1024;
// The result is copied in blocks that stay in the first-level cache.
constexpr std::size_t kBlockBytes = 8 * 1024;

// The code of one rank. The sum of such codes, in any order, shows which ranks' updates are folded.
std::uint64_t contributor_code(int rank) {
  return (static_cast<std::uint64_t>(rank) + 1) * 0x9E3779B97F4A7C15U >> 16 << 40;
}

}  // namespace

SharedGather::SharedGather(dstorm::Segment& segment, const Elements& elements, Folding& folding)
    : segment_(segment),
      elements_(elements),
      folding_(folding),
      shared_(segment.parts().state, kGatherBoard) {}

bool SharedGather::fold(const Fold& fold, const dstorm::GatherOptions& options,
                        std::span<const Update> updates) {
  if (!is_worth_it(fold, options, updates.size() + 1)) return false;
  if (alone_ > 0) {
    --alone_;
    return false;
  }
  if (!fold_part(fold, options.timeout.value_or(segment_.group().timeout()), updates)) {
    alone_ = next_alone_;
    next_alone_ = std::min<std::uint64_t>(next_alone_ * 2, 1024);
    return false;
  }
  next_alone_ = 1;
  copy_result_in(fold, folding_.operands_of(updates, segment_.group().rank()));
  return true;
}

// Whether sharing pays, and every rank can be expected to fold the same updates in the same way.
bool SharedGather::is_worth_it(const Fold& fold, const dstorm::GatherOptions& options,
                               std::size_t ranks) {
  return options.staleness == 0 && ranks >= kLeastRanks && elements_.bytes() >= kLeastBytes &&
         is_shareable(fold) && segment_.parts().scattering.last_sent() != nullptr &&
         segment_.group().is_one_host() && segment_.options().policy == dstorm::Policy::kLatest &&
         segment_.in_neighbours().size() + 1 == segment_.members().size();
}

// Folds into the common result, together with the other ranks. Returns false if not all joined in.
bool SharedGather::fold_part(const Fold& fold, nanoseconds timeout,
                             std::span<const Update> updates) {
  const int rank = segment_.group().rank();
  // Every rank must fold the same updates in the same way.
  std::uint64_t operation = operation_code(fold) + contributor_code(rank);
  for (const Update& update : updates) operation += contributor_code(update.rank);
  const std::size_t all_bytes = (updates.size() + 1) * elements_.bytes();
  const nanoseconds patience =
      std::min<nanoseconds>(timeout, std::chrono::milliseconds(50) + nanoseconds(all_bytes));
  if (!shared_.meet(segment_.iteration(), operation, 0, patience)) return false;
  Folding::Operands& sent = folding_.operands_of(updates, rank);
  sent.starts[Folding::place_of(updates, rank)] = segment_.parts().scattering.last_sent();
  folding_.fold(fold, sent,
                dstorm::part_range(elements_.bytes(), shared_.own_part(), shared_.members().size()),
                segment_.parts().state.memory().result());
  return shared_.finish(patience);
}

// The result contains this rank's vector as it was sent. Blocks that the rank has changed since
// then are folded here again, with their present values, as in a gather of this rank alone.
void SharedGather::copy_result_in(const Fold& fold, const Folding::Operands& operands) {
  const std::byte* const result = segment_.parts().state.memory().result();
  const std::byte* const sent = segment_.parts().scattering.last_sent();
  elements_.visit(elements_.whole(), [&](std::byte* data, std::size_t bytes, std::size_t place) {
    for (std::size_t at = 0; at < bytes; at += kBlockBytes) {
      const std::size_t block = std::min(kBlockBytes, bytes - at);
      if (std::memcmp(data + at, sent + place + at, block) == 0) {
        std::memcpy(data + at, result + place + at, block);
      } else {
        folding_.fold(fold, operands, {place + at, place + at + block}, nullptr);
      }
    }
  });
}

}  // namespace vol
