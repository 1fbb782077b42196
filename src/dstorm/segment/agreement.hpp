// The options of a segment: whether they can be met, and whether all ranks have the same.
#pragma once

#include "dstorm/segment.hpp"

namespace dstorm {

// Throws ConfigError if no job of `ranks` ranks can have such a segment.
void check_options(const SegmentOptions& options, int ranks);

// Collective over the live ranks. Throws the same ConfigError on all of them, which names every
// option that differs and the ranks that have each value. TimeoutError as Group::exchange.
void check_agreement(const SegmentOptions& options, Group& group);

// The segment in errors, and the name of the call that makes it: "segment 'w'".
std::string describe(const SegmentOptions& options);

}  // namespace dstorm
