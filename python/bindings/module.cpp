#include <array>
#include <cstring>
#include <limits>

#include "bindings.hpp"
#include "dstorm/host/memory.hpp"
#include "dstorm/slot/checksum.hpp"
#include "vol/exchange.hpp"
#include "vol/kernels.hpp"

namespace malt_bindings {

std::optional<std::chrono::nanoseconds> to_duration(std::optional<double> seconds,
                                                    const char* name) {
  if (!seconds) return std::nullopt;
  if (!(*seconds >= 0)) {
    throw dstorm::ConfigError(std::string(name) + " is " + std::to_string(*seconds) +
                              " s; it must be at least 0");
  }
  constexpr double kMost = 1e9;  // 31 years, well inside what nanoseconds can count
  return std::chrono::nanoseconds(static_cast<std::int64_t>(std::min(*seconds, kMost) * 1e9));
}

namespace {

std::optional<std::chrono::nanoseconds> to_limit(const char* name, const py::object& seconds,
                                                 const char* expected) {
  py::detail::make_caster<std::optional<double>> caster;
  if (!caster.load(seconds, true)) {
    throw dstorm::ConfigError(std::string(name) + " is " + py::repr(seconds).cast<std::string>() +
                              "; it is " + expected);
  }
  return to_duration(py::detail::cast_op<std::optional<double>>(caster), name);
}

std::optional<std::uint64_t> to_staleness(const py::object& staleness) {
  py::detail::make_caster<std::optional<std::int64_t>> caster;
  const bool is_whole = caster.load(staleness, true);
  const auto given = is_whole ? py::detail::cast_op<std::optional<std::int64_t>>(caster) : -1;
  if (given && *given < 0) {
    throw dstorm::ConfigError(
        "staleness is " + py::repr(staleness).cast<std::string>() +
        "; it is 0 (BSP), a positive number of iterations (SSP) or None (ASP)");
  }
  return given;
}

double to_share(const py::object& quorum) {
  py::detail::make_caster<double> caster;
  const bool is_number = PyBool_Check(quorum.ptr()) == 0 && caster.load(quorum, true);
  const double share = is_number ? py::detail::cast_op<double>(caster) : 0;
  if (!(share > 0 && share <= 1)) {
    throw dstorm::ConfigError("quorum is " + py::repr(quorum).cast<std::string>() +
                              "; it is a share of the in-neighbours, above 0 and at most 1, or "
                              "None");
  }
  return share;
}

}  // namespace

dstorm::GatherOptions to_gather_options(const py::object& staleness, const py::object& timeout,
                                        const py::object& quorum, const py::object& deadline) {
  dstorm::GatherOptions options;
  options.staleness = to_staleness(staleness);
  options.timeout = to_limit("timeout", timeout, "a number of seconds, or None");
  if (!quorum.is_none() || !deadline.is_none()) {
    options.quorum.emplace();
    options.quorum->share = quorum.is_none() ? 1 : to_share(quorum);
    options.quorum->is_automatic =
        py::isinstance<py::str>(deadline) && deadline.cast<std::string>() == "auto";
    if (!options.quorum->is_automatic) {
      options.quorum->deadline =
          to_limit("deadline", deadline, "a number of seconds, 'auto' or None");
    }
  }
  return options;
}

dstorm::Policy to_policy(const std::string& name) {
  if (name == "latest") return dstorm::Policy::kLatest;
  if (name == "queue") return dstorm::Policy::kQueue;
  throw dstorm::ConfigError("policy is '" + name + "'; it is 'latest' or 'queue'");
}

const dstorm::Graph* to_graph(const py::object& graph) {
  return graph.is_none() ? nullptr : graph.cast<const dstorm::Graph*>();
}

const vol::Fold* to_built_in(py::handle fold) {
  py::detail::make_caster<vol::Fold> built_in;
  if (built_in.load(fold, false)) return static_cast<const vol::Fold*>(built_in);
  if (PyCallable_Check(fold.ptr()) == 0) {
    const std::string given = py::repr(fold).cast<std::string>();
    const bool is_mean = given == "'mean'" || given == "'avg'" || given == "'average'";
    throw py::type_error("fold is " + given + "; it is malt.AVG" + (is_mean ? " (the mean)" : "") +
                         ", SUM, WEIGHTED, REPLACE, MEDIAN, TRIMMED_MEAN(f), or a function "
                         "fold(mine, updates)");
  }
  return nullptr;
}

Ranks to_tuple(std::span<const int> ranks) {
  py::tuple tuple(ranks.size());
  for (std::size_t i = 0; i < ranks.size(); ++i) tuple[i] = ranks[i];
  return tuple;
}

vol::DType to_dtype(const py::dtype& dtype) {
  const auto itemsize = dtype.itemsize();
  if (dtype.kind() == 'f' && itemsize == 4) return vol::DType::kFloat32;
  if (dtype.kind() == 'f' && itemsize == 8) return vol::DType::kFloat64;
  if (dtype.kind() == 'i' && itemsize == 4) return vol::DType::kInt32;
  if (dtype.kind() == 'i' && itemsize == 8) return vol::DType::kInt64;
  throw dstorm::ConfigError("dtype is " + py::str(dtype).cast<std::string>() +
                            "; a vector has float32, float64, int32 or int64");
}

py::dtype from_dtype(vol::DType dtype) { return py::dtype(std::string(vol::dtype_name(dtype))); }

namespace {

void raise(const char* kind, const char* what, const std::vector<int>* ranks = nullptr) {
  const py::object type = py::module_::import("malt._errors").attr(kind);
  const py::object error = ranks == nullptr ? type(what) : type(what, to_tuple(*ranks));
  PyErr_SetObject(type.ptr(), error.ptr());
}

}  // namespace

void bind_errors(py::module_&) {
  py::register_exception_translator([](std::exception_ptr thrown) {
    if (!thrown) return;
    try {
      std::rethrow_exception(thrown);
    } catch (const dstorm::TimeoutError& error) {
      const std::string text = error.what();
      raise(
          "TimeoutError",
          (text + "; a longer limit: malt.init(timeout=...) or MALT_TIMEOUT, or timeout= of a call "
                  "that has it")
              .c_str(),
          &error.ranks());
    } catch (const dstorm::PeerError& error) {
      raise("PeerError", error.what(), &error.ranks());
    } catch (const dstorm::Superseded& error) {
      raise("SupersededError", error.what());
    } catch (const vol::OtherCall& error) {
      raise("OtherCallError", error.what());
    } catch (const dstorm::ConfigError& error) {
      raise("ConfigError", error.what());
    } catch (const dstorm::Error& error) {
      raise("Error", error.what());
    }
  });
}

std::uint64_t checksum(const py::array& array) {
  if ((array.flags() & py::array::c_style) == 0) {
    throw dstorm::ConfigError("the array is not contiguous");
  }
  const auto* bytes = static_cast<const std::byte*>(array.data());
  const auto size = static_cast<std::size_t>(array.nbytes());
  const py::gil_scoped_release no_gil;
  dstorm::Checksum sum;
  const std::size_t whole = size / sizeof(std::uint64_t) * sizeof(std::uint64_t);
  sum.add({bytes, whole});
  std::array<std::byte, sizeof(std::uint64_t)> rest{};  // the last bytes, filled up with zeros
  std::memcpy(rest.data(), bytes + whole, size - whole);
  if (size > whole) sum.add(rest);
  return sum.value();
}

void bind_checksum(py::module_& module) {
  module.def(
      "checksum", checksum, py::arg("array"),
      "CRC-64 of the bytes of a contiguous array. Of two arrays of the same length that differ, "
      "it is the same by chance only, in one of 2^64 cases.");
}

}  // namespace malt_bindings

PYBIND11_MODULE(_core, module) {
  module.doc() = "The compiled core of MALT. Use the package malt.";
  module.attr("__version__") = MALT_VERSION;
  module.def(
      "simd_level", [] { return std::string(vol::simd_level()); },
      "Instruction set of the built-in folds: 'avx512', 'avx2' or 'baseline'.");
  module.def("available_bytes", &dstorm::host::available_bytes,
             "Memory this process may still allocate, control groups considered, in bytes.");
  malt_bindings::bind_checksum(module);
  malt_bindings::bind_errors(module);
  malt_bindings::bind_graph(module);
  malt_bindings::bind_recorder(module);
  malt_bindings::bind_group(module);
  malt_bindings::bind_network(module);
  malt_bindings::bind_fault(module);
  malt_bindings::bind_fold(module);
  malt_bindings::bind_dense(module);
  malt_bindings::bind_device(module);
  malt_bindings::bind_sparse(module);
  malt_bindings::bind_duplex(module);
  malt_bindings::bind_mail(module);
  malt_bindings::bind_messages(module);
  malt_bindings::bind_window(module);
  malt_bindings::bind_process_group(module);
  malt_bindings::bind_rendezvous(module);
  malt_bindings::bind_linear(module);
  malt_bindings::bind_coordinate_descent(module);
  malt_bindings::bind_dual_ascent(module);
  malt_bindings::bind_svmlight(module);
  malt_bindings::bind_table(module);
  malt_bindings::bind_factorization(module);
  malt_bindings::bind_partition(module);
  malt_bindings::bind_topics(module);
  malt_bindings::bind_changes(module);
}
