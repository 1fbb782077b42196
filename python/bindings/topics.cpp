#include "bindings.hpp"
#include "examples.hpp"
#include "learn/digamma.hpp"
#include "learn/learn.hpp"

namespace malt_bindings {
namespace {

using learn::TopicTokens;

learn::WordCounts to_documents(const py::array& starts, const py::array& words,
                               const py::array& counts, std::int64_t vocabulary) {
  return {borrow<std::int64_t>(starts, "starts", 1), borrow<std::int32_t>(words, "words", 1),
          borrow<std::int32_t>(counts, "counts", 1), vocabulary};
}

template <class Call>
void with_counts(const py::array& by_word, const py::array& totals, std::vector<double> alpha,
                 double beta, Call&& call) {
  const learn::TopicCounts counts{borrow_to_write<std::int32_t>(by_word, "by_word"),
                                  borrow_to_write<std::int64_t>(totals, "totals")};
  const learn::TopicPriors priors{std::move(alpha), beta};
  const py::gil_scoped_release no_gil;
  call(counts, priors);
}

void draw(TopicTokens& self, const py::array& by_word, const py::array& totals,
          std::vector<double> alpha, double beta, std::uint64_t seed) {
  with_counts(by_word, totals, std::move(alpha), beta,
              [&](const auto& counts, const auto& priors) { self.draw(counts, priors, seed); });
}

void sweep(TopicTokens& self, const py::array& by_word, const py::array& totals,
           std::vector<double> alpha, double beta, std::uint64_t seed, std::int64_t step,
           std::int64_t steps) {
  with_counts(by_word, totals, std::move(alpha), beta, [&](const auto& counts, const auto& priors) {
    self.sweep(counts, priors, seed, step, steps);
  });
}

template <class Count>
double sum_of_rises(const py::array& counts, double x) {
  const std::span<const Count> values =
      borrow<Count>(counts, "counts", static_cast<int>(counts.ndim()));
  const py::gil_scoped_release no_gil;
  return learn::sum_of_rises(values, x);
}

py::array_t<float> infer(const py::array& starts, const py::array& words, const py::array& counts,
                         const py::array& shares, const py::array& alpha, int most_steps,
                         float tolerance) {
  const std::span<const float> by_word = borrow<float>(shares, "shares", 2);
  const learn::TopicInference inference{by_word, borrow<float>(alpha, "alpha", 1), most_steps,
                                        tolerance};
  const learn::WordCounts documents = to_documents(starts, words, counts, shares.shape(0));
  py::array_t<float> expected({documents.documents(), static_cast<std::int64_t>(alpha.size())});
  const std::span<float> out{expected.mutable_data(), static_cast<std::size_t>(expected.size())};
  {
    const py::gil_scoped_release no_gil;
    inference.infer(documents, out);
  }
  return expected;
}

}  // namespace

void bind_topics(py::module_& module) {
  py::class_<TopicTokens> tokens(module, "TopicTokens",
                                 "The tokens of some documents, and their topics.");
  tokens.attr("most_topics") = TopicTokens::kMostTopics;
  tokens
      .def(py::init([](const py::array& starts, const py::array& words, const py::array& counts,
                       std::int64_t vocabulary, std::int64_t topics) {
             const learn::WordCounts documents = to_documents(starts, words, counts, vocabulary);
             const py::gil_scoped_release no_gil;
             return std::make_unique<TopicTokens>(documents, topics);
           }),
           py::arg("starts"), py::arg("words"), py::arg("counts"), py::kw_only(),
           py::arg("vocabulary"), py::arg("topics"),
           "Copies the documents, rows of a CSR matrix: int64 starts, int32 words and counts.")
      .def("__len__", &TopicTokens::size)
      .def("draw", draw, py::arg("by_word"), py::arg("totals"), py::kw_only(), py::arg("alpha"),
           py::arg("beta"), py::arg("seed"),
           "Draw a first topic for each token, and count it in `by_word` (int32, words x topics) "
           "and `totals` (int64, by topic).")
      .def("sweep", sweep, py::arg("by_word"), py::arg("totals"), py::kw_only(), py::arg("alpha"),
           py::arg("beta"), py::arg("seed"), py::arg("step"), py::arg("steps"),
           "Sample the topic of each token once, in `steps` calls; the counts change accordingly.")
      .def(
          "restore",
          [](TopicTokens& self, const py::array& topics) {
            self.restore(borrow<std::uint16_t>(topics, "topics", 1));
          },
          py::arg("topics"), "Take topics that save() returned, which the counts count already.")
      .def(
          "save",
          [](const TopicTokens& self) {
            py::array_t<std::uint16_t> topics(self.size());
            self.save({topics.mutable_data(), static_cast<std::size_t>(topics.size())});
            return topics;
          },
          "The topics, document by document: uint16.")
      .def(
          "add_to_fixed_point",
          [](const TopicTokens& self, const std::vector<double>& alpha, const py::array& sums) {
            return self.add_to_fixed_point(alpha, borrow_to_write<double>(sums, "sums"));
          },
          py::arg("alpha"), py::arg("sums"),
          "Add the documents' terms of Minka's fixed point for alpha to `sums` (float64, by topic);"
          " return those of their lengths.");
  module.def(
      "sum_of_digamma_rises",
      [](const py::array& counts, double x) {
        return py::isinstance<py::array_t<std::int64_t>>(counts)
                   ? sum_of_rises<std::int64_t>(counts, x)
                   : sum_of_rises<std::int32_t>(counts, x);
      },
      py::arg("counts"), py::arg("x"),
      "The sum over `counts` (int32 or int64) of digamma(count + x) - digamma(x).");
  module.def("infer_topics", infer, py::arg("starts"), py::arg("words"), py::arg("counts"),
             py::kw_only(), py::arg("shares"), py::arg("alpha"), py::arg("most_steps"),
             py::arg("tolerance"),
             "alpha plus the expected tokens of each topic, for documents as in TopicTokens; "
             "`shares` (float32, words x topics) has each word's share of a topic.");
}

}  // namespace malt_bindings
