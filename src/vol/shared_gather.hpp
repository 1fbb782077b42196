// A gather at staleness 0 whose fold the ranks of one host share out: each folds one part of the
// vector for all of them (dstorm/collective/shared_fold.hpp). The bits are those of a gather alone.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>

#include "dstorm/collective/shared_fold.hpp"
#include "dstorm/segment.hpp"
#include "vol/folding.hpp"

namespace vol {

// For the one thread that uses the vector.
class SharedGather {
 public:
  SharedGather(dstorm::Segment& segment, const Elements& elements, Folding& folding);

  // In a gather of all other ranks' updates, as they lie in their slots. False, and nothing
  // changed, if the work is not worth sharing or the other ranks do not all join in. A rank that
  // does not join costs the others some patience, and less often the more often it happens.
  bool fold(const Fold& fold, const dstorm::GatherOptions& options,
            std::span<const dstorm::Update> updates);

  // The segment has moved to another group.
  void reset() noexcept { alone_ = 0, next_alone_ = 1; }

 private:
  bool is_worth_it(const Fold& fold, const dstorm::GatherOptions& options, std::size_t ranks);
  bool fold_part(const Fold& fold, std::chrono::nanoseconds timeout,
                 std::span<const dstorm::Update> updates);
  void copy_result_in(const Fold& fold, const Folding::Operands& operands);

  dstorm::Segment& segment_;
  const Elements& elements_;
  Folding& folding_;
  dstorm::SharedFold shared_;
  std::uint64_t alone_ = 0;       // gathers not to be shared, since one was in vain
  std::uint64_t next_alone_ = 1;  // how many after the next in vain
};

}  // namespace vol
