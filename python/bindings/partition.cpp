#include "bindings.hpp"
#include "examples.hpp"
#include "learn/learn.hpp"

namespace malt_bindings {
namespace {

learn::Pattern to_pattern(const py::array& starts, const py::array& columns, std::int64_t width) {
  return {borrow<std::int64_t>(starts, "starts", 1), borrow<std::int32_t>(columns, "columns", 1),
          width};
}

template <class T>
py::array_t<T> copy_of(const std::vector<T>& values) {
  return py::array_t<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

}  // namespace

void bind_partition(py::module_& module) {
  module.def(
      "partition_rows",
      [](const py::array& starts, const py::array& columns, std::int64_t width, int parts,
         double slack, bool by_values, int passes, std::uint64_t seed) {
        const learn::Pattern matrix = to_pattern(starts, columns, width);
        std::vector<std::int32_t> rows;
        {
          const py::gil_scoped_release no_gil;
          rows = learn::partition_rows(matrix, {parts, slack, by_values, passes, seed});
        }
        return copy_of(rows);
      },
      py::arg("starts"), py::arg("columns"), py::arg("width"), py::kw_only(), py::arg("parts"),
      py::arg("slack"), py::arg("by_values"), py::arg("passes"), py::arg("seed"),
      "The part of each row of a CSR matrix (learn/partition.hpp): int32.");
  module.def(
      "partition_columns",
      [](const py::array& starts, const py::array& columns, std::int64_t width,
         const py::array& rows, int parts) {
        const learn::Pattern matrix = to_pattern(starts, columns, width);
        const auto placed = borrow<std::int32_t>(rows, "rows", 1);
        learn::PartitionedColumns found;
        {
          const py::gil_scoped_release no_gil;
          found = learn::partition_columns(matrix, placed, parts);
        }
        return std::pair(copy_of(found.owners), copy_of(found.is_shared));
      },
      py::arg("starts"), py::arg("columns"), py::arg("width"), py::kw_only(), py::arg("rows"),
      py::arg("parts"),
      "The owner of each column, int32, and whether parts share it, uint8 (learn/partition.hpp).");
  module.def(
      "partition_traffic",
      [](const py::array& starts, const py::array& columns, std::int64_t width,
         const py::array& rows, const py::array& owners, int parts) {
        const learn::Pattern matrix = to_pattern(starts, columns, width);
        const auto placed = borrow<std::int32_t>(rows, "rows", 1);
        const auto owned = borrow<std::int32_t>(owners, "owners", 1);
        learn::PartTraffic found;
        {
          const py::gil_scoped_release no_gil;
          found = learn::partition_traffic(matrix, placed, owned, parts);
        }
        return std::pair(copy_of(found.received), copy_of(found.sent));
      },
      py::arg("starts"), py::arg("columns"), py::arg("width"), py::kw_only(), py::arg("rows"),
      py::arg("owners"), py::arg("parts"),
      "How many columns each part gets, and sends: int64 by part (learn/partition.hpp).");
}

}  // namespace malt_bindings
