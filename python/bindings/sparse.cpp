#include "missed.hpp"
#include "notices.hpp"
#include "regroup.hpp"

namespace malt_bindings {
namespace {

using vol::ArrivedEntries;
using vol::Entries;
using vol::Fold;
using vol::Sparse;

template <class T>
py::array_t<T> copy_of(std::span<const T> values) {
  return py::array_t<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

// One sparse update as a fold written in Python sees it.
template <class T>
struct PythonEntries {
  int rank;
  std::uint64_t iteration;
  py::array_t<vol::Index> indices;
  py::array_t<T> values;
};

using Indices = py::array_t<std::int64_t, py::array::c_style | py::array::forcecast>;

// An array of T, if the conversion loses nothing: fractions and truth values do not become
// integers.
template <class T>
py::array_t<T, py::array::c_style | py::array::forcecast> to_numbers(const py::object& given,
                                                                     const char* what) {
  const py::array array = py::array::ensure(given);
  if (!array) {
    PyErr_Clear();
    throw dstorm::ConfigError(std::string(what) +
                              " is no array: " + py::repr(given).cast<std::string>());
  }
  const char kind = array.dtype().kind();
  const bool fits = kind == 'i' || kind == 'u' || (kind == 'f' && std::is_floating_point_v<T>);
  if (!fits && array.size() > 0) {
    throw dstorm::ConfigError(
        std::string(what) + " have dtype " + py::str(array.dtype()).cast<std::string>() + "; " +
        (std::is_floating_point_v<T> ? "they must be numbers" : "they must be integers"));
  }
  return array;
}

template <class T>
typename Sparse<T>::Pairs call(const py::object& fold, const Entries<T>& mine,
                               std::span<const ArrivedEntries<T>> updates) {
  const py::gil_scoped_acquire gil;
  const auto wrap = [](int rank, std::uint64_t iteration, const Entries<T>& entries) {
    return PythonEntries<T>{rank, iteration, copy_of<vol::Index>(entries.indices),
                            copy_of<T>(entries.values)};
  };
  py::list list;
  for (const auto& update : updates)
    list.append(wrap(update.rank, update.iteration, update.entries));
  const py::object result = fold(wrap(-1, 0, mine), list);
  if (!py::isinstance<py::tuple>(result) || py::len(result) != 2) {
    throw dstorm::ConfigError("a fold of a sparse vector returns (indices, values), not " +
                              py::repr(result).cast<std::string>());
  }
  const Indices indices = to_numbers<std::int64_t>(result[py::int_(0)], "indices");
  const auto values = to_numbers<T>(result[py::int_(1)], "values");
  return {{indices.data(), indices.data() + indices.size()},
          {values.data(), values.data() + values.size()}};
}

template <class T>
void bind_one(py::module_& module, const std::string& suffix) {
  py::class_<PythonEntries<T>>(module, ("SparseUpdate" + suffix).c_str(),
                               "One sparse update, as a fold of the user's own sees it.")
      .def_readonly("rank", &PythonEntries<T>::rank)
      .def_readonly("iteration", &PythonEntries<T>::iteration)
      .def_readonly("indices", &PythonEntries<T>::indices)
      .def_readonly("values", &PythonEntries<T>::values);

  struct Vector : Sparse<T> {
    using Sparse<T>::Sparse;
    ~Vector() { uses(); }
    const std::shared_ptr<Uses>& uses() { return missed.look(this->segment().stats()); }
    Missed missed;
    Notices notices;
  };
  py::class_<Vector> vector(
      module, ("SparseVector" + suffix).c_str(),
      "A sparse vector that is scattered and gathered. Made by malt.sparse_vector().");
  vector
      .def(py::init([](const std::shared_ptr<dstorm::Group>& group, std::size_t dim,
                       std::size_t capacity, const std::string& name, const dstorm::Graph& graph,
                       const std::string& policy, int depth, bool reject_nonfinite,
                       std::optional<double> max_norm, bool rejoins,
                       const py::array_t<std::uint8_t, py::array::c_style>& shared) {
             std::vector<std::uint8_t> held(shared.data(), shared.data() + shared.size());
             const py::gil_scoped_release no_gil;
             return std::make_unique<Vector>(
                 group, dim, capacity,
                 vol::VectorOptions{name, graph, to_policy(policy), depth, reject_nonfinite,
                                    max_norm, rejoins},
                 std::move(held));
           }),
           py::kw_only(), py::arg("group"), py::arg("dim"), py::arg("capacity"), py::arg("name"),
           py::arg("graph"), py::arg("policy"), py::arg("depth"), py::arg("reject_nonfinite"),
           py::arg("max_norm"), py::arg("rejoins"), py::arg("shared"))
      .def(
          "set",
          [](Vector& self, const py::object& given_indices, const py::object& given_values) {
            const Indices indices = to_numbers<std::int64_t>(given_indices, "indices");
            const auto values = to_numbers<T>(given_values, "values");
            self.set({indices.data(), static_cast<std::size_t>(indices.size())},
                     {values.data(), static_cast<std::size_t>(values.size())});
          },
          py::arg("indices"), py::arg("values"),
          "Replace what is stored; values of an index that comes twice are added.\n\n"
          "Raises:\n    ConfigError: lengths differ, an index is out of range, or there are more "
          "than "
          "`capacity`.")
      .def("clear", &Vector::clear)
      .def_property_readonly(
          "indices",
          [](const Vector& self) {
            py::array_t<vol::Index> copy;
            self.read([&](auto indices, auto) { copy = copy_of<vol::Index>(indices); });
            return copy;
          },
          "Strictly increasing, int32; a copy.")
      .def_property_readonly(
          "values",
          [](const Vector& self) {
            py::array_t<T> copy;
            self.read([&](auto, auto values) { copy = copy_of<T>(values); });
            return copy;
          },
          "One for each index; a copy.")
      .def(
          "scatter",
          [](Vector& self, const py::object& over) {
            const dstorm::Graph* graph = to_graph(over);
            dstorm::Turns& turns = self.segment().turns();
            auto ranks = [&] {
              const dstorm::Turn turn(turns, "scatter", self.segment().options().name);
              self.missed.note_scatter();
              return to_tuple(in_group(turns, [&] { return self.scatter(graph); }));
            }();
            self.notices.call(self.segment());
            return ranks;
          },
          py::arg("graph") = py::none(), "As of a dense vector.")
      .def(
          "gather",
          [](Vector& self, const py::object& fold, const py::object& staleness,
             const py::object& timeout, const py::object& quorum, const py::object& deadline) {
            const dstorm::GatherOptions options =
                to_gather_options(staleness, timeout, quorum, deadline);
            const Fold* built_in = to_built_in(fold);
            const typename Vector::UserFold own = [&](const auto& mine, auto updates) {
              return call<T>(fold, mine, updates);
            };
            dstorm::Turns& turns = self.segment().turns();
            auto gathered = [&] {
              const dstorm::Turn turn(turns, "gather", self.segment().options().name);
              auto result = in_group(turns, [&] {
                return built_in != nullptr ? self.gather(*built_in, options)
                                           : self.gather(own, options);
              });
              end_round(self.segment());
              self.missed.note_gather(self.segment(), options.staleness, result.count);
              return result;
            }();
            self.notices.call(self.segment());
            return gathered;
          },
          py::arg("fold") = Fold::avg(), py::kw_only(), py::arg("staleness") = py::none(),
          py::arg("timeout") = py::none(), py::arg("quorum") = py::none(),
          py::arg("deadline") = py::none(),
          "As of a dense vector in which everything not stored is zero. A function of the user's "
          "own "
          "fold(mine, updates) returns (indices, values), indices strictly increasing.")
      .def("stats",
           [](const Vector& self) {
             return stats_of(self.segment(), self.segment().stats(), self.screened());
           })
      .def_property_readonly("uses", &Vector::uses, "As of a dense vector.")
      .def("close", &Vector::close)
      .def("regroup", &Vector::regroup, py::arg("group"), py::call_guard<py::gil_scoped_release>(),
           "As of a dense vector.")
      .def(
          "clock_of", [](Vector& self, int rank) { return self.segment().clock_of(rank); },
          py::arg("rank"), "As of a dense vector.")
      .def_property_readonly("is_used",
                             [](const Vector& self) {
                               const dstorm::Turns::Look look(self.segment().turns());
                               return self.segment().is_used();
                             })
      .def_property_readonly("is_closed",
                             [](const Vector& self) {
                               const dstorm::Turns::Look look(self.segment().turns());
                               return self.segment().is_closed();
                             })
      .def_property_readonly("dim", &Vector::dim)
      .def_property_readonly("capacity", &Vector::capacity)
      .def_property_readonly("iteration",
                             [](const Vector& self) {
                               const dstorm::Turns::Look look(self.segment().turns());
                               return self.segment().iteration();
                             })
      .def_property_readonly("name",
                             [](const Vector& self) { return self.segment().options().name; })
      .def("__repr__", [](const Vector& self) {
        return "<malt.SparseVector '" + self.segment().options().name + "', " +
               self.segment().options().kind + ", graph " + self.segment().options().graph.name() +
               ">";
      });
  add_frontier(
      vector, [](Vector& self) -> Notices& { return self.notices; },
      [](Vector& self) -> dstorm::Segment& { return self.segment(); });
}

}  // namespace

void bind_sparse(py::module_& module) {
  bind_one<float>(module, "Float32");
  bind_one<double>(module, "Float64");
  bind_one<std::int32_t>(module, "Int32");
  bind_one<std::int64_t>(module, "Int64");
}

}  // namespace malt_bindings
