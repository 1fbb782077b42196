// Calls that begin in one group of the job and may end in the next.
#pragma once

#include "bindings.hpp"

namespace malt_bindings {

inline void regroup() { py::module_::import("malt._job").attr("regroup")(); }

// What `call` returns, which is called without the GIL. Where its group has been superseded, this
// rank goes over to the next one, and the call is repeated.
template <class Call>
decltype(auto) in_group(Call&& call) {
  for (;; regroup()) {
    try {
      const py::gil_scoped_release no_gil;
      return call();
    } catch (const dstorm::Superseded&) {
      continue;
    }
  }
}

}  // namespace malt_bindings
