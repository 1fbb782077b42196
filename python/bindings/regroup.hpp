// Calls that begin in one group of the job and may end in the next.
#pragma once

#include "bindings.hpp"

namespace malt_bindings {

inline void regroup() { py::module_::import("malt._job.job").attr("regroup")(); }

// To be called at the end of a gather or an allreduce. If a rank is rejoining, keeps a copy of the
// result for it.
inline void end_round(const dstorm::Segment& segment) {
  if (!segment.group().is_superseded()) return;
  py::module_::import("malt._job.job").attr("keep_round")(segment.options().name);
}

// Calls `call` without the GIL, and returns its result. If the group has been superseded, this rank
// moves to the next group, and the call is made again. The caller must have the turn, because the
// result may lie in the vector, where the next call of another thread may change it.
template <class Call>
decltype(auto) in_group(dstorm::Turns& turns, Call&& call) {
  for (;;) {
    try {
      const py::gil_scoped_release no_gil;
      return call();
    } catch (const dstorm::Superseded&) {
      const dstorm::Turns::Pause pause(turns);
      regroup();
    }
  }
}

}  // namespace malt_bindings
