// The parts that a segment is made of. Segment itself is what a user calls.
#pragma once

#include "dstorm/segment/frontier.hpp"
#include "dstorm/segment/gathering.hpp"
#include "dstorm/segment/regrouping.hpp"
#include "dstorm/segment/scattering.hpp"
#include "dstorm/segment/state.hpp"
#include "dstorm/segment/strays.hpp"

namespace dstorm {

struct SegmentParts {
  SegmentParts(std::shared_ptr<Group> group, SegmentOptions options)
      : state(std::move(group), std::move(options)) {}

  SegmentState state;
  Strays strays{state};
  Scattering scattering{state, strays};
  Gathering gathering{state, strays};
  Frontier frontier{state};
  Regrouping regrouping{state, strays};
};

}  // namespace dstorm
