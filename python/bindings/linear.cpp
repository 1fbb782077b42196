#include <algorithm>
#include <memory>
#include <utility>

#include "examples.hpp"

namespace malt_bindings {
namespace {

using learn::Csr;
using learn::Dense;
using learn::Linear;
using learn::LinearOptions;
using learn::Rows;

using Starts = py::array_t<std::int64_t, py::array::c_style | py::array::forcecast>;

template <class T>
Examples<T> csr_examples(const Starts& starts, const py::array& columns, const py::array& values,
                         std::int64_t features, const std::optional<py::array>& targets,
                         const std::optional<py::array>& weights, bool check) {
  Examples<T> examples;
  const Csr<T> csr{borrow<std::int64_t>(starts, "starts", 1),
                   borrow<std::int32_t>(columns, "columns", 1), borrow<T>(values, "values", 1),
                   features};
  if (check) {
    const py::gil_scoped_release no_gil;
    csr.check();
  }
  examples.matrix = csr;
  examples.keep(starts);
  examples.keep(columns);
  examples.keep(values);
  examples.set_targets(targets, weights);
  return examples;
}

template <class T>
Examples<T> dense_examples(const py::array& values, const std::optional<py::array>& targets,
                           const std::optional<py::array>& weights) {
  Examples<T> examples;
  const std::span<const T> all = borrow<T>(values, "values", 2);
  examples.matrix = Dense<T>{all, values.shape(1)};
  examples.keep(values);
  examples.set_targets(targets, weights);
  return examples;
}

learn::Rate to_rate(const std::string& name) {
  using learn::Rate;
  static const std::map<std::string, Rate> rates{{"constant", Rate::kConstant},
                                                 {"invscaling", Rate::kInverseScaling},
                                                 {"optimal", Rate::kOptimal},
                                                 {"adagrad", Rate::kAdaGrad}};
  return choose(rates, name, "learning_rate");
}

// A model in training, with the arrays that it trains.
template <class T>
struct Model {
  Linear<T> linear;
  std::vector<py::array> arrays;
};

template <class T>
std::unique_ptr<Model<T>> make_model(const LinearOptions& options, std::int64_t features,
                                     const py::array& weights,
                                     const std::optional<py::array>& average,
                                     const std::optional<py::array>& squares, std::int64_t steps) {
  learn::LinearArrays<T> arrays{borrow_to_write<T>(weights, "weights")};
  std::vector<py::array> kept{weights};
  if (average) {
    arrays.average = borrow_to_write<T>(*average, "average");
    kept.push_back(*average);
  }
  if (squares) {
    arrays.squares = borrow_to_write<T>(*squares, "squares");
    kept.push_back(*squares);
  }
  return std::make_unique<Model<T>>(
      Model<T>{Linear<T>(options, features, arrays, steps), std::move(kept)});
}

// Training calls Python's signal handlers after so many values, which take some tens of
// milliseconds.
constexpr std::int64_t kValuesAtOnce = std::int64_t{1} << 24;

template <class T>
double train(Model<T>& model, const Examples<T>& examples, std::int64_t first,
             std::optional<std::int64_t> last, const std::optional<py::array>& order) {
  Rows rows{first, 0, borrow<std::uint32_t>(order, "order")};
  const std::int64_t end = last.value_or(order ? std::ssize(rows.order) : examples.rows());
  const std::int64_t of_row = examples.values() / std::max(examples.rows(), std::int64_t{1});
  const std::int64_t at_once = kValuesAtOnce / std::max(of_row, std::int64_t{1}) + 1;
  double losses = 0;
  do {
    rows.last = end - rows.first > at_once ? rows.first + at_once : end;
    {
      const py::gil_scoped_release no_gil;
      losses += std::visit(
          [&](const auto& matrix) { return model.linear.train(matrix, examples.targets, rows); },
          examples.matrix);
    }
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    rows.first = rows.last;
  } while (rows.first < end);
  return losses;
}

template <class T>
double add_gradient(const Examples<T>& examples, const py::array& weights,
                    const py::array& gradient, std::int64_t first, std::optional<std::int64_t> last,
                    const std::optional<py::array>& order, const std::string& loss, double epsilon,
                    bool intercept, int outputs, const std::vector<double>& class_weights) {
  LinearOptions options;
  options.class_weights = class_weights;
  options.loss = to_loss(loss);
  options.epsilon = epsilon;
  options.intercept = intercept;
  options.outputs = outputs;
  const auto dimensions = static_cast<int>(weights.ndim());
  const std::span<const T> at = borrow<T>(weights, "weights", dimensions);
  const std::span<T> out = borrow_to_write<T>(gradient, "gradient");
  Rows rows{first, 0, borrow<std::uint32_t>(order, "order")};
  rows.last = last.value_or(order ? std::ssize(rows.order) : examples.rows());
  const py::gil_scoped_release no_gil;
  return std::visit(
      [&](const auto& matrix) {
        return learn::add_gradient(matrix, examples.targets, rows, options, at, out);
      },
      examples.matrix);
}

template <class T>
py::array_t<T> decide(const Examples<T>& examples, const py::array& weights, int outputs,
                      std::int64_t first, std::optional<std::int64_t> last) {
  const std::span<const T> trained =
      borrow<T>(weights, "weights", static_cast<int>(weights.ndim()));
  const std::int64_t end = last.value_or(examples.rows());
  py::array_t<T> values({std::max(end - first, std::int64_t{0}), std::int64_t{outputs}});
  const std::span<T> out{values.mutable_data(), static_cast<std::size_t>(values.size())};
  const py::gil_scoped_release no_gil;
  std::visit(
      [&](const auto& matrix) {
        learn::decision_values(matrix, trained, outputs, first, end, out);
      },
      examples.matrix);
  return values;
}

template <class T>
void bind_one(py::module_& module, const std::string& suffix) {
  using Bound = Examples<T>;
  py::class_<Bound>(module, ("Examples" + suffix).c_str(),
                    "Rows to train on, over the caller's arrays, which must not change meanwhile.")
      .def_static("csr", &csr_examples<T>, py::arg("starts"), py::arg("columns"), py::arg("values"),
                  py::arg("features"), py::arg("targets") = py::none(),
                  py::arg("weights") = py::none(), py::kw_only(), py::arg("check") = true,
                  "Of a CSR matrix: SciPy's indptr, indices (int32) and data, columns rising.\n\n"
                  "Args:\n    targets: one a row; -1 or 1, a number, or of several outputs a "
                  "class from 0.\n    weights: of each row's loss, or None.\n    check: whether "
                  "rows are checked now. DualAscent checks them itself; give unchecked ones to "
                  "nothing else.\n\n"
                  "Raises:\n    ConfigError: a wrong dtype or shape, or rows out of range.")
      .def_static("dense", &dense_examples<T>, py::arg("values"), py::arg("targets") = py::none(),
                  py::arg("weights") = py::none(), "Of an array (rows, features); as csr().")
      .def_property_readonly("rows", &Bound::rows)
      .def_property_readonly("features", &Bound::features)
      .def_property_readonly("values", &Bound::values, "How many values the matrix holds.");

  using Trained = Model<T>;
  py::class_<Trained>(module, ("Linear" + suffix).c_str(),
                      "A linear model in training, over the caller's arrays of (features + 1) x "
                      "outputs, whose last row are the intercepts.")
      .def(py::init([](const py::array& weights, std::int64_t features, int outputs,
                       const std::string& loss, double epsilon, double alpha, double l1_ratio,
                       const std::string& learning_rate, double eta0, double power_t,
                       bool intercept, const std::optional<py::array>& average,
                       std::int64_t average_from, const std::optional<py::array>& squares,
                       std::int64_t steps, const std::vector<double>& class_weights) {
             const LinearOptions options{to_loss(loss),          epsilon, alpha,        l1_ratio,
                                         to_rate(learning_rate), eta0,    power_t,      intercept,
                                         average_from,           outputs, class_weights};
             return make_model<T>(options, features, weights, average, squares, steps);
           }),
           py::arg("weights"), py::kw_only(), py::arg("features"), py::arg("outputs") = 1,
           py::arg("loss") = "hinge", py::arg("epsilon") = 0.1, py::arg("alpha") = 1e-4,
           py::arg("l1_ratio") = 0.0, py::arg("learning_rate") = "optimal", py::arg("eta0") = 0.01,
           py::arg("power_t") = 0.25, py::arg("intercept") = true, py::arg("average") = py::none(),
           py::arg("average_from") = 1, py::arg("squares") = py::none(), py::arg("steps") = 0,
           py::arg("class_weights") = std::vector<double>{},
           "Continues after `steps` steps. `loss` is scikit-learn's name of it, or 'softmax'; "
           "`learning_rate` 'constant', 'invscaling', 'optimal' or 'adagrad', which needs "
           "`squares`; `class_weights`, of several outputs, of a row's loss in that of its own "
           "class.\n\nRaises:\n    ConfigError: an option or an array is out of range.")
      .def("train", &train<T>, py::arg("examples"), py::arg("first") = 0,
           py::arg("last") = py::none(), py::kw_only(), py::arg("order") = py::none(),
           "One step for each of the rows first to last - 1, or order[first] to order[last - 1] "
           "(uint32).\n\nReturns the sum of their losses. The arrays are true after finish() "
           "only.\n\nRaises:\n    ConfigError: what does not fit.\n    KeyboardInterrupt: after "
           "some of the steps.")
      .def(
          "finish",
          [](Trained& self) {
            const py::gil_scoped_release no_gil;
            return self.linear.finish();
          },
          "Make the arrays true, before they are read, exchanged or changed. Returns whether all "
          "weights are finite.")
      .def_property_readonly("steps", [](const Trained& self) { return self.linear.steps(); });

  module.def("add_linear_gradient", &add_gradient<T>, py::arg("examples"), py::arg("weights"),
             py::arg("gradient"), py::arg("first") = 0, py::arg("last") = py::none(), py::kw_only(),
             py::arg("order") = py::none(), py::arg("loss") = "hinge", py::arg("epsilon") = 0.1,
             py::arg("intercept") = true, py::arg("outputs") = 1,
             py::arg("class_weights") = std::vector<double>{},
             "Add the slopes of the losses of rows first to last - 1 (or order[first], ...) in all "
             "weights, laid out as these.\n\nReturns the sum of the losses.\n\n"
             "Raises:\n    ConfigError: what does not fit.");
  module.def("linear_decisions", &decide<T>, py::arg("examples"), py::arg("weights"),
             py::arg("outputs") = 1, py::arg("first") = 0, py::arg("last") = py::none(),
             "X W + b of rows first to last - 1: an array (rows, outputs).\n\n"
             "Raises:\n    ConfigError: lengths do not fit.");
}

}  // namespace

void bind_linear(py::module_& module) {
  bind_one<float>(module, "Float32");
  bind_one<double>(module, "Float64");
  module.def(
      "shuffle",
      [](const py::array& order, std::uint64_t seed) {
        const auto all = borrow_to_write<std::uint32_t>(order, "order");
        const py::gil_scoped_release no_gil;
        learn::shuffle(all, seed);
      },
      py::arg("order"), py::arg("seed"),
      "Make an array of uint32 a permutation of 0, 1, ..., the same for the same seed.");
}

}  // namespace malt_bindings
