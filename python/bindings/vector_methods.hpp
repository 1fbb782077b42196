// The common methods of the classes of dense vectors, in the host's memory and in a GPU's.
#pragma once

#include <memory>
#include <vector>

#include "missed.hpp"
#include "notices.hpp"
#include "regroup.hpp"

namespace malt_bindings {

// A tuple of ranks. Most calls return the same ranks as the call before, so they return the same
// object.
class RankTuple {
 public:
  py::object of(std::span<const int> ranks) {
    if (!object_ || !std::ranges::equal(ranks, ranks_)) {
      ranks_.assign(ranks.begin(), ranks.end());
      object_ = to_tuple(ranks);
    }
    return object_;
  }

 private:
  std::vector<int> ranks_;
  py::object object_;
};

// The result of a gather or an allreduce, likewise.
class GatheredObject {
 public:
  py::object of(const vol::Gathered& gathered) {
    if (inside_ == nullptr || *inside_ != gathered) {
      object_ = py::cast(gathered);
      inside_ = object_.cast<const vol::Gathered*>();
    }
    return object_;
  }

 private:
  py::object object_;
  const vol::Gathered* inside_ = nullptr;  // inside object_
};

// Adds the methods that concern the segment. A Vector has vector(), turns() and notices().
template <class Vector, class... Options>
void add_vector_methods(py::class_<Vector, Options...>& to) {
  to.def(
        "stats",
        [](const Vector& self) {
          return stats_of(self.vector().segment(), self.vector().stats(), self.vector().screened());
        },
        "This vector's counters. Any thread, at any time.")
      .def_property_readonly(
          "uses", &Vector::uses,
          "How often this rank has used it: calls that have ended, such as uses.allreduces.")
      .def(
          "close", [](const Vector& self) { self.vector().close(); },
          py::call_guard<py::gil_scoped_release>(),
          "Leave the vector: the other ranks no longer wait for this one. Idempotent.")
      .def(
          "regroup",
          [](const Vector& self, const std::shared_ptr<dstorm::Group>& group) {
            self.vector().regroup(group);
          },
          py::arg("group"), py::call_guard<py::gil_scoped_release>(),
          "Move to another group. Collective; for the package.")
      .def(
          "clock_of",
          [](const Vector& self, int rank) { return self.vector().segment().clock_of(rank); },
          py::arg("rank"), "The rank's last iteration that has arrived here; for the package.")
      .def(
          "await_update",
          [](const Vector& self, std::size_t live, double timeout) {
            return self.vector().segment().await_update(live, *to_duration(timeout));
          },
          py::arg("live"), py::arg("timeout"), py::call_guard<py::gil_scoped_release>(),
          "Wait for an update to gather, or until more or fewer ranks are alive; for the package.")
      .def_property_readonly(
          "is_used",
          [](const Vector& self) {
            const dstorm::Turns::Look look(self.turns());
            return self.vector().segment().is_used();
          },
          "Whether this rank has scattered, gathered or reduced it.")
      .def_property_readonly("is_closed",
                             [](const Vector& self) {
                               const dstorm::Turns::Look look(self.turns());
                               return self.vector().segment().is_closed();
                             })
      .def_property_readonly(
          "iteration",
          [](const Vector& self) {
            const dstorm::Turns::Look look(self.turns());
            return self.vector().segment().iteration();
          },
          "How often this rank has scattered it.")
      .def_property_readonly(
          "name", [](const Vector& self) { return self.vector().segment().options().name; })
      .def_property_readonly("dtype",
                             [](const Vector& self) { return from_dtype(self.vector().dtype()); })
      .def("__len__", [](const Vector& self) { return self.vector().count(); })
      .def("__repr__", [](const Vector& self) {
        const auto& options = self.vector().segment().options();
        return "<malt.Vector '" + options.name + "', " + options.kind + ", graph " +
               options.graph.name() + ">";
      });
  add_frontier(
      to, [](Vector& self) -> Notices& { return self.notices(); },
      [](Vector& self) -> dstorm::Segment& { return self.vector().segment(); });
}

}  // namespace malt_bindings
