#include "bindings.hpp"

namespace malt_bindings {
namespace {

// The result of __reduce__ for pickle: how to make the graph again, or the name of the built-in
// graph.
py::object reduce(const py::object& graph) {
  const auto& self = graph.cast<const dstorm::Graph&>();
  if (const auto pairs = self.pairs())
    return py::make_tuple(py::type::of(graph), py::make_tuple(*pairs));
  if (const auto drawing = self.drawing()) {
    const py::object make = py::module_::import("malt._core").attr("random_graph");
    return py::make_tuple(make, py::make_tuple(drawing->first, drawing->second));
  }
  return py::str(self.name());
}

}  // namespace

void bind_graph(py::module_& module) {
  using dstorm::Graph;
  py::class_<Graph>(module, "Graph",
                    "The ranks to which each rank sends in each round. ``Graph(edges)`` makes one "
                    "from (from, to) pairs of ranks; ALL, HALTON, RING, EXPONENTIAL, ONE_PEER, "
                    "STAR and RANDOM(k, seed) are ready-made.")
      .def(py::init(&Graph::edges), py::arg("edges"))
      .def("out", &Graph::out, py::arg("rank"), py::arg("size"), py::arg("round") = 0,
           "The ranks that `rank` sends to in this round, sorted.")
      .def("in_", &Graph::in, py::arg("rank"), py::arg("size"), py::arg("round") = 0,
           "The ranks that send to `rank` in this round, sorted.")
      .def("weights", &Graph::weights, py::arg("rank"), py::arg("size"), py::arg("round") = 0,
           "Mixing weight of each rank of in_(); what is missing to 1 is the rank's own.")
      .def("period", &Graph::period, py::arg("size"), "Rounds after which the graph repeats.")
      .def("check", &Graph::check, py::arg("size"), py::call_guard<py::gil_scoped_release>(),
           "Raise ConfigError, naming the unreachable ranks, unless every rank can reach every "
           "other over one period.")
      .def("spectral_gap", &Graph::spectral_gap, py::arg("size"),
           py::call_guard<py::gil_scoped_release>(),
           "How fast averaging over the graph agrees, per round: 1 at once, 0 never.")
      .def("__repr__", &Graph::name)
      .def("__eq__",
           [](const Graph& self, const py::object& other) {
             return py::isinstance<Graph>(other) && self == other.cast<const Graph&>();
           })
      .def("__hash__", &Graph::fingerprint)
      .def("__reduce__", &reduce);
  module.def("random_graph", &Graph::random, py::arg("k"), py::arg("seed"));
  module.def(
      "memory_of",
      [](const Graph& graph, std::size_t slot_bytes, int depth, std::size_t result_bytes, int ranks,
         const std::vector<int>& locals) {
        dstorm::SegmentOptions options;
        options.graph = graph;
        options.slot_bytes = slot_bytes;
        options.depth = depth;
        options.result_bytes = result_bytes;
        return dstorm::memory_of(options, ranks, locals);
      },
      py::arg("graph"), py::arg("slot_bytes"), py::arg("depth"), py::arg("result_bytes"),
      py::arg("ranks"), py::arg("locals"),
      "Bytes that a vector takes on the host of the ranks `locals`; for `malt plan`.");
  module.attr("ALL") = Graph::all();
  module.attr("HALTON") = Graph::halton();
  module.attr("RING") = Graph::ring();
  module.attr("EXPONENTIAL") = Graph::exponential();
  module.attr("ONE_PEER") = Graph::one_peer();
  module.attr("STAR") = Graph::star();
}

}  // namespace malt_bindings
