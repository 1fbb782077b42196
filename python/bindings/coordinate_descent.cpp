#include <array>
#include <utility>

#include "examples.hpp"

namespace malt_bindings {
namespace {

using learn::CoordinateDescent;

// A descent, with the arrays that hold its columns.
template <class T>
struct HeldDescent {
  CoordinateDescent<T> descent;
  std::vector<py::array> arrays;
};

template <class T>
std::unique_ptr<HeldDescent<T>> make_descent(const Examples<T>& columns, const py::array& targets,
                                             const learn::DescentOptions& options,
                                             const std::optional<py::array>& start,
                                             const std::optional<py::array>& roots) {
  const auto own = borrow<T>(targets, "targets", 1);
  const auto begin = borrow<T>(start, "start");
  const auto root = borrow<T>(roots, "roots");
  const py::gil_scoped_release no_gil;
  return std::make_unique<HeldDescent<T>>(
      HeldDescent<T>{std::visit(
                         [&](const auto& matrix) {
                           return CoordinateDescent<T>(options, matrix, own, begin, root);
                         },
                         columns.matrix),
                     columns.arrays});
}

template <class T>
void bind_descent(py::module_& module, const std::string& suffix) {
  using Bound = HeldDescent<T>;
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  py::class_<Bound>(module, ("CoordinateDescent" + suffix).c_str(),
                    "One rank's part in solving a lasso or an elastic net to a known gap "
                    "(learn/coordinate_descent.hpp).")
      .def(py::init([](const Examples<T>& columns, const py::array& targets, double alpha,
                       double l1_ratio, bool intercept, bool dynamic, int rank, int ranks,
                       std::uint64_t seed, bool positive, const std::optional<py::array>& start,
                       const std::optional<py::array>& roots) {
             return make_descent<T>(
                 columns, targets,
                 {alpha, l1_ratio, intercept, dynamic, rank, ranks, seed, positive}, start, roots);
           }),
           py::arg("columns"), py::arg("targets"), py::kw_only(), py::arg("alpha") = 1.0,
           py::arg("l1_ratio") = 1.0, py::arg("intercept") = true, py::arg("dynamic") = true,
           py::arg("rank") = 0, py::arg("ranks") = 1, py::arg("seed") = 0,
           py::arg("positive") = false, py::arg("start") = py::none(),
           py::arg("roots") = py::none(),
           "Args:\n"
           "    columns: the columns of X, as rows of examples; read in place.\n"
           "    targets: (rows,).\n"
           "    dynamic: the schedule: dynamic or random.\n"
           "    positive: whether no weight may be below 0.\n"
           "    start: (columns,) weights to begin with; settle() then comes first.\n"
           "    roots: (rows,) of the rows' weights; X and targets are already multiplied by "
           "them.\n\n"
           "Raises:\n"
           "    ConfigError: an option is out of range, or a value is not finite.")
      .def_property_readonly("change_length",
                             [](const Bound& self) { return self.descent.change_length(); })
      .def(
          "contribute",
          [](const Bound& self, const py::array& contribution) {
            const std::span<T> out = borrow_to_write<T>(contribution, "contribution");
            const py::gil_scoped_release released;
            self.descent.contribute(out);
          },
          py::arg("contribution"), "Write this rank's part of X w, to add up for settle().")
      .def(
          "settle",
          [](Bound& self, const py::array& sum) { self.descent.settle(borrow<T>(sum, "sum", 1)); },
          py::arg("sum"), "Take X w.")
      .def(
          "look",
          [](Bound& self) {
            const learn::DescentLook own = self.descent.look();
            return std::array<double, 4>{own.most, own.excess, own.size, own.square};
          },
          no_gil, "Four numbers for choose(): take the highest of the first, add the others up.")
      .def(
          "choose",
          [](Bound& self, const std::array<double, 4>& all) {
            const learn::DescentGap gap = self.descent.choose({all[0], all[1], all[2], all[3]});
            return std::pair(gap.primal, gap.dual);
          },
          py::arg("all"), no_gil,
          "Pick the columns of the next sweeps; return (primal, dual): the optimum is between.")
      .def(
          "sweep", [](Bound& self, double share, int most) { self.descent.sweep(share, most); },
          py::arg("share"), py::arg("most"), no_gil,
          "Sweep until a sweep lets the objective fall by at most `share` of the first.")
      .def(
          "take_change",
          [](Bound& self, const py::array& change) {
            self.descent.take_change(borrow_to_write<T>(change, "change"));
          },
          py::arg("change"), "Write this rank's change: an array of change_length.")
      .def(
          "add_changes",
          [](Bound& self, const py::array& sum) {
            return self.descent.add_changes(borrow<T>(sum, "sum", 1));
          },
          py::arg("sum"), "Take the sum of all ranks' changes; return the length of the step.")
      .def_property_readonly("fall", [](const Bound& self) { return self.descent.fall(); })
      .def_property_readonly("updates", [](const Bound& self) { return self.descent.updates(); })
      .def_property_readonly("looked", [](const Bound& self) { return self.descent.looked(); })
      .def_property_readonly(
          "mean", [](const Bound& self) { return self.descent.mean(); },
          "The sum of the columns' means times their weights.")
      .def_property_readonly(
          "weights",
          [](const Bound& self) {
            const std::span<const T> weights = self.descent.weights();
            return py::array_t<T>(static_cast<py::ssize_t>(weights.size()), weights.data());
          },
          "A copy: (columns,), of other ranks' columns 0.");
}

}  // namespace

void bind_coordinate_descent(py::module_& module) {
  bind_descent<float>(module, "Float32");
  bind_descent<double>(module, "Float64");
}

}  // namespace malt_bindings
