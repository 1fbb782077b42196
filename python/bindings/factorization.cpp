#include "learn/factorization.hpp"

#include "bindings.hpp"

namespace malt_bindings {
namespace {

using learn::RatingBlocks;
using Ids = py::array_t<std::int32_t, py::array::c_style>;
using Floats = py::array_t<float, py::array::c_style>;

template <class T>
std::span<const T> to_span(const py::array_t<T, py::array::c_style>& array) {
  return {array.data(), static_cast<std::size_t>(array.size())};
}

std::span<float> to_writable(Floats& array) {
  return {array.mutable_data(), static_cast<std::size_t>(array.size())};
}

void check_rows(const Floats& user_factors, const Floats& item_factors) {
  if (user_factors.ndim() != 2 || item_factors.ndim() != 2 ||
      user_factors.shape(1) != item_factors.shape(1)) {
    throw dstorm::ConfigError("the factors are two matrices of as many columns");
  }
}

double train(const RatingBlocks& self, Floats user_factors, Floats item_factors, Floats user_biases,
             Floats item_biases, float mean, float lr, float reg,
             std::optional<std::pair<float, int>> implicit, std::int64_t first, std::int64_t rounds,
             int threads) {
  check_rows(user_factors, item_factors);
  const learn::Factors factors{user_factors.shape(0),     item_factors.shape(0),
                               user_factors.shape(1),     to_writable(user_factors),
                               to_writable(item_factors), to_writable(user_biases),
                               to_writable(item_biases),  mean};
  learn::FactorStep step{lr, reg, std::nullopt};
  if (implicit) step.implicit = learn::Confidence{implicit->first, implicit->second};
  const py::gil_scoped_release no_gil;
  return self.train(factors, step, first, rounds, threads);
}

Floats predict(const Floats& user_factors, const Floats& item_factors, const Floats& user_biases,
               const Floats& item_biases, float mean, const Ids& users, const Ids& items) {
  check_rows(user_factors, item_factors);
  const learn::FactorsOf<const float> factors{
      user_factors.shape(0), item_factors.shape(0), user_factors.shape(1), to_span(user_factors),
      to_span(item_factors), to_span(user_biases),  to_span(item_biases),  mean};
  Floats out(users.size());
  const std::span<float> written = to_writable(out);
  {
    const py::gil_scoped_release no_gil;
    learn::predict(factors, to_span(users), to_span(items), written);
  }
  return out;
}

}  // namespace

void bind_factorization(py::module_& module) {
  py::class_<RatingBlocks> blocks(
      module, "RatingBlocks",
      "Ratings in a grid of blocks, for matrix factorisation by SGD on several threads.");
  blocks.attr("most_bands") = RatingBlocks::kMostBands;
  blocks
      .def(py::init([](const Ids& users, const Ids& items, const Floats& values,
                       std::int64_t user_count, std::int64_t item_count, int bands,
                       std::uint64_t seed) {
             const learn::Ratings ratings{to_span(users), to_span(items), to_span(values)};
             const py::gil_scoped_release no_gil;
             return std::make_unique<RatingBlocks>(ratings, user_count, item_count, bands, seed);
           }),
           py::arg("users").noconvert(), py::arg("items").noconvert(),
           py::arg("values").noconvert(), py::kw_only(), py::arg("user_count"),
           py::arg("item_count"), py::arg("bands"), py::arg("seed"),
           "Copies the ratings: int32, int32 and float32, one element each.")
      .def_property_readonly("bands", &RatingBlocks::bands, "Rounds of an epoch.")
      .def("__len__", &RatingBlocks::size)
      .def("count", &RatingBlocks::count, py::kw_only(), py::arg("first"), py::arg("rounds"),
           "How many ratings `rounds` rounds from round `first` on train, without those drawn.")
      .def("train", train, py::arg("user_factors").noconvert(), py::arg("item_factors").noconvert(),
           py::arg("user_biases").noconvert(), py::arg("item_biases").noconvert(), py::kw_only(),
           py::arg("mean"), py::arg("lr"), py::arg("reg"), py::arg("implicit"), py::arg("first"),
           py::arg("rounds"), py::arg("threads"),
           "Train `rounds` rounds from round `first` on, in the float32 arrays given: two matrices "
           "of a multiple of 16 columns, and two vectors or two empty arrays.\n\n"
           "`implicit` is None or (alpha, negatives). Returns the sum of confidence * error^2.");
  module.def("predict_ratings", predict, py::arg("user_factors").noconvert(),
             py::arg("item_factors").noconvert(), py::arg("user_biases").noconvert(),
             py::arg("item_biases").noconvert(), py::kw_only(), py::arg("mean"),
             py::arg("users").noconvert(), py::arg("items").noconvert(),
             "mean + biases + the product of the rows, for each pair; float32.");
}

}  // namespace malt_bindings
