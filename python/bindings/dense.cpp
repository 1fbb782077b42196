#include "bindings.hpp"

namespace malt_bindings {
namespace {

using vol::DenseVector;
using vol::Fold;

// A NumPy array over memory that `owner` keeps mapped.
py::array view_of(const std::shared_ptr<DenseVector>& owner, void* data, std::size_t count) {
  const py::capsule base(new std::shared_ptr<DenseVector>(owner), [](void* held) {
    delete static_cast<std::shared_ptr<DenseVector>*>(held);
  });
  return py::array(from_dtype(owner->dtype()), {count}, {}, data, base);
}

// One update as a fold written in Python sees it.
struct PythonUpdate {
  int rank;
  std::uint64_t iteration;
  py::array values;
};

class PythonVector {
 public:
  PythonVector(const std::shared_ptr<dstorm::Group>& group, const py::dtype& dtype,
               const std::vector<py::array>& arrays, py::ssize_t own_count, py::object shown,
               vol::VectorOptions options)
      : array_(std::move(shown)), arrays_(arrays) {
    const vol::DType type = to_dtype(dtype);
    std::vector<vol::Piece> pieces;
    for (py::array& array : arrays_) {
      pieces.push_back({array.mutable_data(), static_cast<std::size_t>(array.size())});
    }
    const py::gil_scoped_release no_gil;
    vector_ =
        pieces.empty()
            ? std::make_shared<DenseVector>(group, type, static_cast<std::size_t>(own_count),
                                            std::move(options))
            : std::make_shared<DenseVector>(group, type, std::move(pieces), std::move(options));
  }
  ~PythonVector() { vector_->close(); }
  PythonVector(const PythonVector&) = delete;
  PythonVector& operator=(const PythonVector&) = delete;

  const py::object& array() {
    if (array_.is_none()) {
      array_ = view_of(vector_, vector_->pieces()[0].data, vector_->count());
    }
    return array_;
  }
  void set_array(py::object array) { array_ = std::move(array); }
  DenseVector& vector() const { return *vector_; }

  Ranks scatter(const py::object& over) {
    const dstorm::Graph* graph = to_graph(over);
    std::span<const int> ranks;
    {
      const py::gil_scoped_release no_gil;
      ranks = vector_->scatter(graph);
    }
    return to_tuple(ranks);
  }

  vol::Gathered gather(const py::object& fold, std::optional<std::int64_t> staleness,
                       std::optional<double> timeout) {
    const dstorm::GatherOptions options = to_gather_options(staleness, timeout);
    if (const Fold* built_in = to_built_in(fold)) {
      const py::gil_scoped_release no_gil;
      return vector_->gather(*built_in, options);
    }
    const Fold own =
        Fold::user([&](std::span<std::byte> mine, std::span<const dstorm::Update> updates) {
          const py::gil_scoped_acquire gil;
          run(fold, mine, updates);
        });
    const py::gil_scoped_release no_gil;
    return vector_->gather(own, options);
  }

  vol::Gathered allreduce(const Fold& fold, std::optional<double> timeout) {
    const auto limit = to_duration(timeout);
    const py::gil_scoped_release no_gil;
    return vector_->allreduce(fold, limit);
  }

 private:
  void run(const py::object& fold, std::span<std::byte> mine,
           std::span<const dstorm::Update> updates) {
    const std::size_t count = vector_->count();
    const py::array own = view_of(vector_, mine.data(), count);
    py::list list;
    for (const dstorm::Update& update : updates) {
      auto* data = const_cast<std::byte*>(update.payload.data());
      py::array values = view_of(vector_, data, count);
      values.attr("flags").attr("writeable") = false;
      list.append(PythonUpdate{update.rank, update.iteration, std::move(values)});
    }
    const py::object result = fold(own, list);
    if (!result.is_none()) own.attr("__setitem__")(py::ellipsis(), result);
  }

  py::object array_;
  std::vector<py::array> arrays_;  // keeps the caller's memory
  std::shared_ptr<DenseVector> vector_;
};

}  // namespace

void bind_dense(py::module_& module) {
  py::class_<PythonUpdate>(module, "Update", "One update, as a fold of the user's own sees it.")
      .def_readonly("rank", &PythonUpdate::rank)
      .def_readonly("iteration", &PythonUpdate::iteration)
      .def_readonly("values", &PythonUpdate::values, "Read-only; valid during the fold.");

  py::class_<PythonVector>(module, "Vector",
                           "A dense vector that is scattered and gathered. Made by malt.vector().")
      .def(py::init([](const std::shared_ptr<dstorm::Group>& group, const py::dtype& dtype,
                       const std::vector<py::array>& arrays, py::ssize_t own_count,
                       py::object shown, const std::string& name, const dstorm::Graph& graph,
                       const std::string& policy, int depth, bool reject_nonfinite) {
             return std::make_unique<PythonVector>(
                 group, dtype, arrays, own_count, std::move(shown),
                 vol::VectorOptions{name, graph, to_policy(policy), depth, reject_nonfinite});
           }),
           py::kw_only(), py::arg("group"), py::arg("dtype"), py::arg("arrays"),
           py::arg("own_count"), py::arg("shown"), py::arg("name"), py::arg("graph"),
           py::arg("policy"), py::arg("depth"), py::arg("reject_nonfinite"))
      .def_property("array", &PythonVector::array, &PythonVector::set_array,
                    "The caller's array (or list of them), or the vector's own memory.")
      .def("scatter", &PythonVector::scatter, py::arg("graph") = py::none(),
           "Write this vector into the memory of this round's out-neighbours.\n\n"
           "Under policy 'latest' it never waits; under 'queue' it waits for a free slot.\n\n"
           "Args:\n    graph: over which to send, this once, instead of the vector's own.\n"
           "Returns:\n    The ranks written to.\n"
           "Raises:\n    TimeoutError: every slot holds an update that the named ranks have yet to "
           "gather.")
      .def("gather", &PythonVector::gather, py::arg("fold") = vol::Fold::avg(), py::kw_only(),
           py::arg("staleness") = py::none(), py::arg("timeout") = py::none(),
           "Fold what has arrived into this vector. Asks no peer for anything.\n\n"
           "Args:\n    fold: AVG, SUM, WEIGHTED, REPLACE, MEDIAN, TRIMMED_MEAN(f), or a function\n"
           "        fold(mine, updates) that changes `mine` or returns what it becomes.\n"
           "    staleness: 0 waits for this iteration's update of every live in-neighbour (BSP),\n"
           "        k lets them be k iterations behind (SSP), None does not wait (ASP).\n"
           "    timeout: seconds to wait; that of malt.init() if None.\n"
           "Returns:\n    Gathered: count, ranks and staleness of the updates folded.\n"
           "Raises:\n    TimeoutError: the named ranks did not come; nothing was folded.")
      .def("allreduce", &PythonVector::allreduce, py::arg("fold") = vol::Fold::avg(), py::kw_only(),
           py::arg("timeout") = py::none(),
           "The exact fold of the vectors of all live ranks, on all of them. Collective.\n\n"
           "Args:\n    fold: AVG, SUM, MEDIAN or TRIMMED_MEAN(f).\n"
           "    timeout: seconds to wait; that of malt.init() if None.\n"
           "Raises:\n    TimeoutError: the named ranks did not come; the vector is unchanged.")
      .def(
          "stats", [](const PythonVector& self) { return self.vector().stats(); },
          "This vector's counters.")
      .def(
          "close", [](const PythonVector& self) { self.vector().close(); },
          "Leave the vector: others' waits leave this rank out. Idempotent.")
      .def_property_readonly(
          "iteration", [](const PythonVector& self) { return self.vector().segment().iteration(); },
          "How often this rank has scattered it.")
      .def_property_readonly(
          "name", [](const PythonVector& self) { return self.vector().segment().options().name; })
      .def_property_readonly(
          "dtype", [](const PythonVector& self) { return from_dtype(self.vector().dtype()); })
      .def("__len__", [](const PythonVector& self) { return self.vector().count(); })
      .def("__repr__", [](const PythonVector& self) {
        const auto& options = self.vector().segment().options();
        return "<malt.Vector '" + options.name + "', " + options.kind + ", graph " +
               options.graph.name() + ">";
      });
}

}  // namespace malt_bindings
