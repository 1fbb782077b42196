// Calls that begin in one group of the job and may end in the next.
#pragma once

#include "bindings.hpp"

namespace malt_bindings {

inline void regroup() { py::module_::import("malt._job.job").attr("regroup")(); }

// At the end of a gather or an allreduce. Where a rank comes back, what this has left is kept for
// it.
inline void end_round(const dstorm::Segment& segment) {
  if (!segment.group().is_superseded()) return;
  py::module_::import("malt._job.job").attr("keep_round")(segment.options().name);
}

// What `call` returns, which is called without the GIL. Where its group has been superseded, this
// rank goes over to the next one, and the call is repeated. For who has the turn: what is returned
// may lie in the vector, and the next call of another thread may change it.
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
