#include "vol/array_changes.hpp"

#include <algorithm>

#include "bindings.hpp"
#include "examples.hpp"

namespace malt_bindings {
namespace {

// Calls `with` with a value of the array's element type.
template <class With>
auto by_type(const py::array& array, With&& with) {
  switch (to_dtype(array.dtype())) {
    case vol::DType::kFloat32:
      return with(float{});
    case vol::DType::kFloat64:
      return with(double{});
    case vol::DType::kInt32:
      return with(std::int32_t{});
    default:
      return with(std::int64_t{});
  }
}

py::typing::Tuple<py::array_t<std::uint32_t>, py::array> find_changes(const py::array& array,
                                                                      const py::array& copy) {
  return by_type(array, [&](auto type) {
    using T = decltype(type);
    const auto mine = borrow<T>(array, "array", 1);
    const auto last = borrow<T>(copy, "copy", 1);
    if (mine.size() != last.size()) throw dstorm::ConfigError("the arrays have other lengths");
    std::vector<std::uint32_t> places(mine.size());
    std::vector<T> values(mine.size());
    const std::size_t found =
        vol::find_changes(mine.data(), last.data(), mine.size(), places.data(), values.data());
    const auto count = static_cast<py::ssize_t>(found);
    return py::typing::Tuple<py::array_t<std::uint32_t>, py::array>(py::make_tuple(
        py::array_t<std::uint32_t>(count, places.data()), py::array_t<T>(count, values.data())));
  });
}

void add_changes(const py::array& array, const py::array& places, const py::array& values) {
  by_type(array, [&](auto type) {
    using T = decltype(type);
    const auto mine = borrow_to_write<T>(array, "array");
    const auto at = borrow<std::uint32_t>(places, "places", 1);
    const auto by = borrow<T>(values, "values", 1);
    const auto last = std::max_element(at.begin(), at.end());
    if (at.size() != by.size() || (last != at.end() && *last >= mine.size())) {
      throw dstorm::ConfigError("the places are not as many as values, or beyond the array");
    }
    vol::add_changes(mine.data(), at.data(), by.data(), at.size());
  });
}

}  // namespace

void bind_changes(py::module_& module) {
  module.def("find_changes", find_changes, py::arg("array"), py::arg("copy"),
             "The indices (uint32, increasing) where two flat arrays differ, and array - copy "
             "there.");
  module.def("add_changes", add_changes, py::arg("array"), py::arg("places"), py::arg("values"),
             "array[places] += values, for places that are all different.");
}

}  // namespace malt_bindings
