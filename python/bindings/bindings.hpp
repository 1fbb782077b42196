// The bindings translate between Python and C++, and do nothing else.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <chrono>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dstorm/host/turn.hpp"  // a binding converts arguments within its call
#include "vol/vol.hpp"

namespace malt_bindings {

namespace py = pybind11;

void bind_duplex(py::module_& module);
void bind_errors(py::module_& module);
void bind_graph(py::module_& module);
void bind_group(py::module_& module);
void bind_mail(py::module_& module);
void bind_messages(py::module_& module);
void bind_network(py::module_& module);
void bind_partition(py::module_& module);
void bind_process_group(py::module_& module);
void bind_recorder(py::module_& module);
void bind_rendezvous(py::module_& module);
void bind_fault(py::module_& module);
void bind_fold(py::module_& module);
void bind_dense(py::module_& module);
void bind_device(py::module_& module);
void bind_sparse(py::module_& module);
void bind_linear(py::module_& module);
void bind_coordinate_descent(py::module_& module);
void bind_dual_ascent(py::module_& module);
void bind_svmlight(py::module_& module);
void bind_table(py::module_& module);
void bind_factorization(py::module_& module);
void bind_changes(py::module_& module);
void bind_topics(py::module_& module);
void bind_window(py::module_& module);

// Seconds as Python gives them; throws ConfigError, with the name, below zero.
std::optional<std::chrono::nanoseconds> to_duration(std::optional<double> seconds,
                                                    const char* name = "timeout");
// Of gather()'s arguments: `quorum` is None or a share, `deadline` is None, "auto" or seconds.
dstorm::GatherOptions to_gather_options(const py::object& staleness,
                                        const py::object& timeout = py::none(),
                                        const py::object& quorum = py::none(),
                                        const py::object& deadline = py::none());
dstorm::Policy to_policy(const std::string& name);
// The graph given with a call; null for None. (A pointer parameter would do the same, but pybind11
// takes a microsecond to find that None is no Graph.)
const dstorm::Graph* to_graph(const py::object& graph);
// The built-in fold; null for a callable of the user's own. Throws TypeError for anything else.
const vol::Fold* to_built_in(py::handle fold);
using Ranks = py::typing::Tuple<int, py::ellipsis>;
Ranks to_tuple(std::span<const int> ranks);
vol::DType to_dtype(const py::dtype& dtype);
py::dtype from_dtype(vol::DType dtype);

// A vector's counters, and how its rank reaches each of the others.
struct VectorStats : dstorm::Stats {
  vol::Screened screened;
  std::map<int, dstorm::Group::Route> routes;
};
VectorStats stats_of(const dstorm::Segment& segment, const dstorm::Stats& counted,
                     const vol::Screened& screened);

}  // namespace malt_bindings
