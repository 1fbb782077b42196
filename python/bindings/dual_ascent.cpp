#include <algorithm>
#include <array>
#include <utility>

#include "examples.hpp"

namespace malt_bindings {
namespace {

using learn::Csr;
using learn::Dense;
using learn::DualAscent;

// An ascent, with the arrays that hold its rows.
template <class T>
struct Solver {
  DualAscent<T> ascent;
  std::vector<py::array> arrays;
};

// The memory of dealt rows.
struct Deal {
  std::optional<py::array> rows;
  std::optional<py::array> lists;
  int rank = 0;
};

template <class T>
std::unique_ptr<Solver<T>> make_solver(const Examples<T>& examples,
                                       const learn::DualOptions& options, const py::array& targets,
                                       const std::optional<py::array>& weights,
                                       const std::optional<py::array>& alphas, double intercept,
                                       const Deal& dealt) {
  std::vector<py::array> arrays = examples.arrays;
  arrays.push_back(targets);
  for (const auto& each : {weights, dealt.rows, dealt.lists}) {
    if (each) arrays.push_back(*each);
  }
  const learn::Targets<T> own{borrow<T>(targets, "targets", 1), borrow<T>(weights, "weights")};
  const learn::DualStart<T> start{borrow<T>(alphas, "alphas"), intercept};
  learn::DualDeal<T> deal{{}, {}, dealt.rank};
  if (dealt.rows) deal.memory = borrow_to_write<T>(*dealt.rows, "dealt");
  if (dealt.lists) deal.lists = borrow_to_write<std::uint32_t>(*dealt.lists, "lists");
  const py::gil_scoped_release no_gil;
  return std::make_unique<Solver<T>>(Solver<T>{
      std::visit(
          [&](const auto& matrix) { return DualAscent<T>(options, matrix, own, start, deal); },
          examples.matrix),
      std::move(arrays)});
}

using Scales = std::array<double, 7>;
learn::DualScales to_scales(const Scales& all) {
  return {all[0], all[1], all[2], all[3], all[4], all[5], all[6]};
}

template <class T>
void bind_one(py::module_& module, const std::string& suffix) {
  using Bound = Solver<T>;
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  py::class_<Bound>(module, ("DualAscent" + suffix).c_str(),
                    "One rank's part in solving a linear model with an L2 penalty to a known gap "
                    "(learn/dual_ascent.hpp): |w|^2 / 2 + c * sum of weight * loss.")
      .def(
          py::init([](const Examples<T>& examples, const py::array& targets,
                      const std::optional<py::array>& weights, const std::string& loss,
                      double epsilon, double c, bool intercept, int ranks, std::uint64_t seed,
                      double least_kappa, int together, const std::optional<py::array>& alphas,
                      double start_intercept, const std::optional<py::array>& dealt,
                      const std::optional<py::array>& lists, int rank) {
            return make_solver<T>(
                examples,
                {to_loss(loss), epsilon, c, intercept, ranks, seed, least_kappa, together}, targets,
                weights, alphas, start_intercept, {dealt, lists, rank});
          }),
          py::arg("examples"), py::arg("targets"), py::arg("weights") = py::none(), py::kw_only(),
          py::arg("loss") = "hinge", py::arg("epsilon") = 0.1, py::arg("c") = 1.0,
          py::arg("intercept") = false, py::arg("ranks") = 1, py::arg("seed") = 0,
          py::arg("least_kappa") = 0.0, py::arg("together") = 1, py::arg("alphas") = py::none(),
          py::arg("start_intercept") = 0.0, py::arg("dealt") = py::none(),
          py::arg("lists") = py::none(), py::arg("rank") = 0,
          "Over the rows of `examples`, with targets and weights of these arrays. `alphas` and "
          "`start_intercept`: of an earlier solution for the same rows. `dealt` and `lists` "
          "(uint32): memory that this rank shares with the others, zero at first, of 4 values a "
          "row and of dealt_list_length() a rank; the rows are dealt out anew for every "
          "sweep.\n\nRaises:\n    ConfigError: an option, a target, a weight or a length is out of "
          "range; or one rank alone has one label, with log_loss and an intercept.")
      .def(
          "begin_sweep",
          [](Bound& self, bool may_accelerate) { return self.ascent.begin_sweep(may_accelerate); },
          no_gil, py::arg("may_accelerate") = true,
          "On all ranks, with the last sweep's changes added. Returns the sweep's rows here. "
          "`may_accelerate`: whether the sum of the ranks' estimates has not risen.\n\nRaises:\n"
          "    ConfigError: of several ranks, before settle().")
      .def(
          "sweep",
          [](Bound& self, int piece, int pieces) { return self.ascent.sweep(piece, pieces); },
          no_gil, py::arg("piece"), py::arg("pieces"),
          "One step for each row of a piece of the sweep. Returns the number of rows.")
      .def_static(
          "sweep_together",
          [](const std::vector<Bound*>& solvers) {
            std::vector<DualAscent<T>*> ascents(solvers.size());
            std::transform(solvers.begin(), solvers.end(), ascents.begin(),
                           [](Bound* solver) { return &solver->ascent; });
            DualAscent<T>::sweep_together(ascents);
          },
          no_gil, py::arg("solvers"),
          "sweep(0, 1) of each, in one pass over the rows that they share.")
      .def(
          "ascend",
          [](Bound& self, int sweeps, double enough) {
            const learn::DualSweeps done = self.ascent.ascend(sweeps, enough);
            return std::pair(done.visited, done.gap);
          },
          no_gil, py::arg("sweeps"), py::arg("enough"),
          "Of one rank alone: (rows visited, the gap that is forecast) of at most so many sweeps, "
          "until the forecast is at most `enough`.")
      .def_property_readonly(
          "estimate", [](const Bound& self) { return self.ascent.estimate(); },
          "An estimate of the gap, to be added up over the ranks: the sum of each row's share in "
          "it, before its step in this sweep.")
      .def(
          "take_change",
          [](Bound& self, const py::array& change) {
            self.ascent.take_change(borrow_to_write<T>(change, "change"));
          },
          py::arg("change"),
          "Write this rank's change since the last exchange: features + 2 values.")
      .def(
          "add_changes",
          [](Bound& self, const py::array& sum) {
            self.ascent.add_changes(borrow<T>(sum, "sum", 1));
          },
          py::arg("sum"), "Take the sum of all ranks' changes.")
      .def_property_readonly("contribution_length",
                             [](const Bound& self) { return self.ascent.contribution_length(); })
      .def(
          "scales",
          [](const Bound& self) {
            const learn::DualScales own = self.ascent.scales();
            return Scales{own.rows,  own.positive,  own.negative, own.cost,
                          own.norms, own.curvature, own.labels};
          },
          no_gil, "Seven numbers to add up over the ranks, for contribute().")
      .def(
          "contribute",
          [](Bound& self, const Scales& all, const py::array& contribution) {
            const std::span<double> out = borrow_to_write<double>(contribution, "contribution");
            const py::gil_scoped_release released;
            self.ascent.contribute(to_scales(all), out);
          },
          py::arg("all"), py::arg("contribution"),
          "Write this rank's part of the weights: a float64 array of contribution_length, to add "
          "up for settle().\n\nRaises:\n    ConfigError: all ranks together have one label, with "
          "log_loss and an intercept.")
      .def(
          "settle",
          [](Bound& self, const py::array& sum) {
            self.ascent.settle(borrow<double>(sum, "sum", 1));
          },
          py::arg("sum"), "Take the weights.\n\nRaises:\n    ConfigError: a weight is not finite.")
      .def(
          "losses",
          [](Bound& self, const Scales& all, const py::array& contribution) {
            const std::span<double> out = borrow_to_write<double>(contribution, "contribution");
            const py::gil_scoped_release released;
            const learn::DualLosses own = self.ascent.losses(to_scales(all), out);
            return std::pair(own.primal, own.dual);
          },
          py::arg("all"), py::arg("contribution"),
          "Two numbers to add up over the ranks, for gap(); also writes what contribute() does. "
          "The "
          "sweep's changes have been added.\n\nRaises:\n    ConfigError: of several ranks, before "
          "settle(); or as contribute().")
      .def(
          "gap",
          [](const Bound& self, double primal, double dual, const py::array& sum) {
            const learn::DualGap gap =
                self.ascent.gap({primal, dual}, borrow<double>(sum, "sum", 1));
            return std::pair(gap.primal, gap.dual);
          },
          py::arg("primal"), py::arg("dual"), py::arg("sum"),
          "(primal, dual): the optimum is between them. `sum`: of the contributions.")
      .def(
          "set_ranks", [](Bound& self, int ranks) { self.ascent.set_ranks(ranks); },
          py::arg("ranks"), "So many ranks are left; settle next.")
      .def(
          "copy_alphas",
          [](const Bound& self, const py::array& alphas) {
            self.ascent.copy_alphas(borrow_to_write<T>(alphas, "alphas"));
          },
          py::arg("alphas"), "Write one value for each row.")
      .def_property_readonly(
          "weights",
          [](const Bound& self) {
            const std::span<const T> weights = self.ascent.weights();
            return py::array_t<T>(static_cast<py::ssize_t>(weights.size()), weights.data());
          },
          "A copy: (features,).")
      .def_property_readonly("intercept",
                             [](const Bound& self) { return self.ascent.intercept(); });
}

}  // namespace

void bind_dual_ascent(py::module_& module) {
  bind_one<float>(module, "Float32");
  bind_one<double>(module, "Float64");
  module.def(
      "forecast_gap", &learn::forecast_gap, py::arg("estimate"), py::arg("before"),
      "The gap that is forecast at the end of a sweep, from its estimate and the one before.");
  module.def("dealt_list_length", &learn::dealt_list_length, py::arg("rows"), py::arg("ranks"),
             "How long each rank's part of `lists` is.");
}

}  // namespace malt_bindings
