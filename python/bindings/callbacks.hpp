// Functions of the package that the core calls. malt.init() sets them before it makes a group.
#pragma once

#include "bindings.hpp"

namespace malt_bindings {

struct Callbacks {
  py::object new_epoch = py::none();            // ()
  py::object slow = py::none();                 // (rank, text): a wait takes long
  py::object look_again = py::none();           // (is_new) -> bool: GroupOptions::superseded
  py::object regroup = py::none();              // (): moves to the next group
  py::object keep_round = py::none();           // (name): keeps what a gather or an allreduce left
  py::object note_unsent = py::none();          // (name)
  py::object note_nan = py::none();             // (rank, name, call): it sends NaN
  py::object write = py::none();                // (name, arrays, values): copies them in
  py::object note_left = py::none();            // (name, ranks, scatters)
  py::object note_left_allreduce = py::none();  // (name, ranks)
  py::object do_nothing = py::none();           // (): a Python function, in a wait
};

// Never destroyed: the interpreter ends before the process does.
inline Callbacks& callbacks() {
  static auto* const set = new Callbacks;
  return *set;
}

// GroupOptions::superseded. The caller has no GIL.
inline bool look_again(bool is_new) {
  const py::gil_scoped_acquire gil;
  return callbacks().look_again(is_new).cast<bool>();
}

}  // namespace malt_bindings
