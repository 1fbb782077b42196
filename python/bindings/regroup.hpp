// Calls that begin in one group of the job and may end in the next.
#pragma once

#include "callbacks.hpp"

namespace malt_bindings {

// At the end of a gather or an allreduce. If a rank is rejoining, what the call left is kept for
// it.
inline void end_round(const dstorm::Segment& segment) {
  if (!segment.group().is_superseded()) return;
  callbacks().keep_round(segment.options().name);
}

// Calls `call` without the GIL and returns its result. If the group has been superseded, this rank
// moves to the next group and makes the call again. The caller holds the turn: the result may lie
// in the vector, and the next call of another thread may change it.
template <class Call>
decltype(auto) in_group(dstorm::Turns& turns, Call&& call) {
  for (;;) {
    try {
      const py::gil_scoped_release no_gil;
      return call();
    } catch (const dstorm::Superseded&) {
      const dstorm::Turns::Pause pause(turns);
      callbacks().regroup();
    }
  }
}

}  // namespace malt_bindings
