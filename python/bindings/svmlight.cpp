#include "learn/svmlight.hpp"

#include <memory>

#include "bindings.hpp"

namespace malt_bindings {
namespace {

using learn::BadLine;
using learn::GrowingArray;
using learn::SvmlightParser;

// A NumPy array over the same memory, which it owns from now on.
template <class T>
py::array_t<T> to_array(GrowingArray<T>&& values) {
  auto kept = std::make_unique<GrowingArray<T>>(std::move(values));
  GrowingArray<T>* array = kept.get();
  const py::capsule owner(kept.get(),
                          [](void* memory) { delete static_cast<GrowingArray<T>*>(memory); });
  static_cast<void>(kept.release());  // the capsule owns it now
  return py::array_t<T>(static_cast<py::ssize_t>(array->size()), array->data(), owner);
}

template <class T>
using Arrays = py::typing::Tuple<py::array_t<double>, py::array_t<std::int64_t>,
                                 py::array_t<std::int32_t>, py::array_t<T>>;

template <class T>
void bind_one(py::module_& module, const std::string& suffix) {
  using Parser = SvmlightParser<T>;
  py::class_<Parser>(module, ("SvmlightParser" + suffix).c_str(),
                     "Parses svmlight text, which comes in blocks. For malt.load_data().")
      .def(py::init([](std::int32_t first_index, std::int32_t last_index, int threads) {
             return std::make_unique<Parser>(
                 learn::SvmlightOptions{first_index, last_index, threads});
           }),
           py::kw_only(), py::arg("first_index"), py::arg("last_index"), py::arg("threads"))
      .def(
          "feed",
          [](Parser& self, const py::buffer& block) {
            const py::buffer_info bytes = block.request();
            const py::gil_scoped_release no_gil;
            self.feed({static_cast<const char*>(bytes.ptr),
                       static_cast<std::size_t>(bytes.size * bytes.itemsize)});
          },
          py::arg("block"), "The next bytes of a text; its last line waits for what follows.")
      .def("end_text", &Parser::end_text, py::call_guard<py::gil_scoped_release>(),
           "The next bytes fed are those of another text.")
      .def_property_readonly("rows", &Parser::rows, "Since the last take().")
      .def_property_readonly("lowest_index", &Parser::lowest_index, "2**31 - 1 if there is none.")
      .def_property_readonly("highest_index", &Parser::highest_index, "-1 if there is none.")
      .def_property_readonly("bad_count", &Parser::bad_count, "Lines skipped, in all texts.")
      .def(
          "take_bad_lines",
          [](Parser& self) {
            std::vector<std::tuple<std::int64_t, std::string, std::string>> bad_lines;
            for (const BadLine& bad : self.take_bad_lines()) {
              bad_lines.emplace_back(bad.line, bad.reason, bad.text);
            }
            return bad_lines;
          },
          "The first few since the last call: line of its text, reason, text.")
      .def(
          "take",
          [](Parser& self, std::int32_t base) {
            learn::SvmlightRows<T> rows;
            {
              const py::gil_scoped_release no_gil;
              rows = self.take(base);
            }
            return Arrays<T>(py::make_tuple(
                to_array(std::move(rows.labels)), to_array(std::move(rows.starts)),
                to_array(std::move(rows.columns)), to_array(std::move(rows.values))));
          },
          py::arg("base"),
          "Hands over labels, starts, columns and values; columns are indices less `base`.");
}

}  // namespace

void bind_svmlight(py::module_& module) {
  bind_one<float>(module, "Float32");
  bind_one<double>(module, "Float64");
}

}  // namespace malt_bindings
