#include <utility>

#include "method.hpp"
#include "vector_methods.hpp"
#include "vol/device/compiler.hpp"
#include "vol/device/vector.hpp"

namespace malt_bindings {
namespace {

using dstorm::Turn;
using dstorm::device::Driver;
using vol::DeviceVector;
using vol::Fold;
using vol::device::Stream;

class PythonDeviceVector {
 public:
  using Streams = py::typing::Callable<py::int_()>;
  using Places = std::vector<std::pair<std::uintptr_t, std::size_t>>;  // address, elements

  // `stream` returns the handle of the stream on which the caller works. It raises an error if the
  // arrays are no longer where they were.
  PythonDeviceVector(const std::shared_ptr<dstorm::Group>& group, const py::dtype& dtype,
                     const Places& places, py::object shown, Streams stream,
                     const std::string& slots, vol::VectorOptions options)
      : array_(std::move(shown)), stream_(std::move(stream)) {
    const vol::DType type = to_dtype(dtype);
    std::vector<vol::Piece> pieces;
    for (const auto& [address, count] : places) {
      pieces.push_back({reinterpret_cast<void*>(address), count});
    }
    const auto kind = dstorm::device::slot_kind(slots);
    const py::gil_scoped_release no_gil;
    vector_ =
        std::make_shared<DeviceVector>(group, type, std::move(pieces), std::move(options), kind);
  }
  ~PythonDeviceVector() {
    uses();
    const py::gil_scoped_release no_gil;  // it may wait for the GPU
    vector_.reset();
  }
  PythonDeviceVector(const PythonDeviceVector&) = delete;
  PythonDeviceVector& operator=(const PythonDeviceVector&) = delete;

  const py::object& array() const { return array_; }
  const std::shared_ptr<Uses>& uses() { return missed_.look(vector_->segment().stats()); }
  DeviceVector& vector() const { return *vector_; }
  dstorm::Turns& turns() const { return vector_->segment().turns(); }
  const std::string& name() const { return vector_->segment().options().name; }
  Notices& notices() { return notices_; }

  template <auto method>
  py::object then_notify(PyObject* const* arguments, std::size_t count, PyObject* keywords) {
    py::object result = (this->*method)(arguments, count, keywords);
    notices_.call(vector_->segment());
    return result;
  }

  py::object scatter(PyObject* const* arguments, std::size_t count, PyObject* keywords) {
    static const Parameters<1> parameters("scatter", 1, {"graph"});
    const auto given = parameters.match(arguments, count, keywords);
    const auto* graph = parameters.get<const dstorm::Graph*>(given, 0, nullptr);
    const Stream on = stream();
    const Turn turn(turns(), "scatter", name());
    missed_.note_scatter();
    return scattered_.of(in_group(turns(), [&] { return vector_->scatter(on, graph); }));
  }

  py::object gather(PyObject* const* arguments, std::size_t count, PyObject* keywords) {
    static const Parameters<5> parameters("gather", 1,
                                          {"fold", "staleness", "timeout", "quorum", "deadline"});
    const auto given = parameters.match(arguments, count, keywords);
    const dstorm::GatherOptions options =
        to_gather_options(parameters.get<py::object>(given, 1, py::none()),
                          parameters.get<py::object>(given, 2, py::none()),
                          parameters.get<py::object>(given, 3, py::none()),
                          parameters.get<py::object>(given, 4, py::none()));
    const Fold fold = to_fold(given[0]);
    const Stream on = stream();
    const Turn turn(turns(), "gather", name());
    const vol::Gathered& gathered = in_group(
        turns(), [&]() -> const vol::Gathered& { return vector_->gather(on, fold, options); });
    end_round(vector_->segment());
    missed_.note_gather(vector_->segment(), options.staleness, gathered.count);
    return gathered_.of(gathered);
  }

  py::object allreduce(PyObject* const* arguments, std::size_t count, PyObject* keywords) {
    static const Parameters<3> parameters("allreduce", 1, {"fold", "timeout", "last"});
    const auto given = parameters.match(arguments, count, keywords);
    const auto limit = to_duration(parameters.get<std::optional<double>>(given, 1, std::nullopt));
    const bool last = parameters.get<bool>(given, 2, false);
    const Fold fold = to_fold(given[0]);
    const Stream on = stream();
    const Turn turn(turns(), "allreduce", name());
    const vol::Gathered& gathered = in_group(turns(), [&]() -> const vol::Gathered& {
      return vector_->allreduce(on, fold, limit, last);
    });
    end_round(vector_->segment());
    missed_.note_allreduce(vector_->segment(), gathered.ranks);
    return gathered_.of(gathered);
  }

  py::array read() const {
    py::array values(from_dtype(vector_->dtype()), static_cast<py::ssize_t>(vector_->count()));
    const std::span to(static_cast<std::byte*>(values.mutable_data()),
                       static_cast<std::size_t>(values.nbytes()));
    const Stream on = stream();
    const py::gil_scoped_release no_gil;
    vector_->read(to, on);
    return values;
  }

  void write(const py::array& values) {
    if (!values.dtype().is(from_dtype(vector_->dtype())) ||
        static_cast<std::size_t>(values.size()) != vector_->count() ||
        (values.flags() & py::array::c_style) == 0) {
      throw dstorm::ConfigError("vector '" + name() + "' is written from a contiguous array of " +
                                std::to_string(vector_->count()) + " elements of its own dtype");
    }
    const std::span from(static_cast<const std::byte*>(values.data()),
                         static_cast<std::size_t>(values.nbytes()));
    const Stream on = stream();
    const py::gil_scoped_release no_gil;
    vector_->write(from, on);
  }

 private:
  Stream stream() const { return reinterpret_cast<Stream>(stream_().cast<std::uintptr_t>()); }

  static Fold to_fold(PyObject* given) {
    if (given == nullptr) return Fold::avg();
    if (const Fold* built_in = to_built_in(given)) return *built_in;
    return Fold::user([](auto, auto) {});  // which gather() refuses
  }

  py::object array_;
  Streams stream_;
  Missed missed_;
  Notices notices_;
  GatheredObject gathered_;
  RankTuple scattered_;
  std::shared_ptr<DeviceVector> vector_;
};

// As Reducer (process_group.cpp), of tensors on a GPU.
class DeviceReducer {
 public:
  // `data`: any memory on the GPU.
  DeviceReducer(const std::shared_ptr<dstorm::Group>& group, const std::string& dtype,
                std::size_t count, const std::string& name, std::uintptr_t data,
                const std::string& slots, double timeout) {
    vol::VectorOptions options;
    options.name = name;
    const vol::DType type = to_dtype(py::dtype(dtype));
    const auto kind = dstorm::device::slot_kind(slots);
    const py::gil_scoped_release no_gil;
    const dstorm::Group::Within within(*group, *to_duration(timeout));
    vector_ = std::make_unique<DeviceVector>(
        group, type, std::vector<vol::Piece>{{reinterpret_cast<void*>(data), count}},
        std::move(options), kind, false);
  }

  ~DeviceReducer() {
    const py::gil_scoped_release no_gil;  // it may wait for the GPU
    vector_.reset();
  }
  DeviceReducer(const DeviceReducer&) = delete;
  DeviceReducer& operator=(const DeviceReducer&) = delete;

  std::vector<int> allreduce(std::uintptr_t data, std::size_t count, bool mean, double timeout,
                             std::uintptr_t stream) {
    const py::gil_scoped_release no_gil;
    vector_->move_to(reinterpret_cast<void*>(data), count);
    return vector_
        ->allreduce(reinterpret_cast<Stream>(stream), mean ? Fold::avg() : Fold::sum(),
                    to_duration(timeout))
        .ranks;
  }
  void shut() {
    const py::gil_scoped_release no_gil;
    vector_->shut();
  }

 private:
  std::unique_ptr<DeviceVector> vector_;
};

// One line for each GPU, or the reason why there is none.
std::vector<std::string> describe_gpus() {
  const Driver* const driver = Driver::find();
  if (driver == nullptr) return {Driver::why_not()};
  std::vector<std::string> lines;
  int count = 0;
  dstorm::device::check(driver->device_count(&count), "counting the GPUs");
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    char device[256] = {};
    std::size_t bytes = 0;
    driver->device_name(device, sizeof(device) - 1, ordinal);
    driver->device_memory(&bytes, ordinal);
    lines.push_back("GPU " + std::to_string(ordinal) + ": " + device + ", " +
                    std::to_string(bytes >> 20) + " MB");
  }
  return lines;
}

std::string describe_driver() {
  const Driver* const driver = Driver::find();
  int version = 0;
  if (driver == nullptr || driver->driver_version(&version) != dstorm::device::kSuccess) return "";
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace

void bind_device(py::module_& module) {
  module.def(
      "has_gpu", [] { return Driver::find() != nullptr; },
      "Whether NVIDIA's driver works in this process and finds a GPU.");
  module.def("describe_gpus", &describe_gpus,
             "A line for each GPU that this process sees, or one that says why there is none.");
  module.def("cuda_version", &describe_driver, "Of the driver, as '13.0'; '' without one.");
  module.def("nvrtc_library", &vol::device::nvrtc_library,
             "The library that compiles the kernels.\n\nRaises:\n    ConfigError: there is none.");
  module.def("look_for_nvrtc_in", &vol::device::look_for_nvrtc_in, py::arg("folders"),
             "Also look for libnvrtc there.");

  py::class_<DeviceReducer>(module, "DeviceReducer",
                            "A vector that is reduced wherever it lies on a GPU; for the package.")
      .def(py::init<const std::shared_ptr<dstorm::Group>&, const std::string&, std::size_t,
                    const std::string&, std::uintptr_t, const std::string&, double>(),
           py::arg("group"), py::arg("dtype"), py::arg("count"), py::arg("name"), py::arg("data"),
           py::arg("slots"), py::arg("timeout"))
      .def("allreduce", &DeviceReducer::allreduce, py::arg("data"), py::arg("count"),
           py::arg("mean"), py::arg("timeout"), py::arg("stream"),
           "Replace `count` elements by the sum or mean of the live ranks'. Collective.\n\n"
           "Returns:\n    The other ranks that took part.")
      .def("shut", &DeviceReducer::shut, "Leave. Any thread, at any time.");

  py::class_<PythonDeviceVector> vector(
      module, "DeviceVector",
      "A dense vector in the memory of a GPU. Made by malt.vector().\n\n"
      "Its calls are those of a Vector, in the order of the caller's current stream.");
  add_method<PythonDeviceVector, &PythonDeviceVector::then_notify<&PythonDeviceVector::scatter>>(
      vector, "scatter",
      "scatter(self: malt._core.DeviceVector, graph: malt._core.Graph | None = None) -> tuple[int, "
      "...]\n\n"
      "Write this vector to this round's out-neighbours, behind what the stream has.\n\n"
      "Returns before the GPU has done so. Waits only for this vector's scatter before, and under "
      "policy 'queue' for a free slot.\n\n"
      "Args:\n    graph: over which to send, this once, instead of the vector's own.\n\n"
      "Returns:\n    The ranks written to.\n\n"
      "Raises:\n    TimeoutError: every slot holds an update that the named ranks have yet to "
      "gather.\n    ConfigError: an array has moved; the stream is being captured.\n"
      "    Error: the GPU has failed.");
  add_method<PythonDeviceVector, &PythonDeviceVector::then_notify<&PythonDeviceVector::gather>>(
      vector, "gather",
      "gather(self: malt._core.DeviceVector, fold: malt._core.Fold = ..., *, "
      "staleness: typing.SupportsIndex | None = None, timeout: typing.SupportsFloat | None = None, "
      "quorum: typing.SupportsFloat | None = None, deadline: typing.SupportsFloat | str | None = "
      "None) -> malt._core.Gathered\n\n"
      "Fold what has arrived into this vector, before what the stream gets next.\n\n"
      "Args:\n    fold: AVG (the default), SUM, WEIGHTED, REPLACE, MEDIAN or TRIMMED_MEAN(f).\n"
      "    staleness: this and the following as of Vector.gather(); a wait is one of this thread.\n"
      "    timeout: seconds.\n    quorum: the share of the in-neighbours to wait for.\n"
      "    deadline: seconds, or \"auto\".\n\n"
      "Returns:\n    Gathered: count, ranks and staleness of the updates folded.\n\n"
      "Raises:\n    TimeoutError: the named ranks did not come; nothing was folded.\n"
      "    ConfigError: as scatter(); or the fold is a function.\n"
      "    Error: the GPU has failed.");
  add_method<PythonDeviceVector, &PythonDeviceVector::allreduce>(
      vector, "allreduce",
      "allreduce(self: malt._core.DeviceVector, fold: malt._core.Fold = ..., *, "
      "timeout: typing.SupportsFloat | None = None, last: bool = False) -> malt._core.Gathered\n\n"
      "The exact fold of the vectors of all live ranks, on all of them. Collective.\n\n"
      "Args:\n    fold: AVG (the default), SUM, MEDIAN or TRIMMED_MEAN(f).\n"
      "    timeout: seconds to wait; that of malt.init() if None.\n"
      "    last: as of Vector.allreduce().\n\n"
      "Raises:\n    TimeoutError: the named ranks did not come; the vector is unchanged, and when "
      "this rank calls again, what it has sent already counts.\n"
      "    ConfigError: as of Vector.allreduce() and scatter().");
  vector
      .def(py::init([](const std::shared_ptr<dstorm::Group>& group, const py::dtype& dtype,
                       const PythonDeviceVector::Places& places, py::object shown,
                       PythonDeviceVector::Streams stream, const std::string& slots,
                       const std::string& name, const dstorm::Graph& graph,
                       const std::string& policy, int depth, bool reject_nonfinite,
                       std::optional<double> max_norm, bool rejoins,
                       const std::optional<vol::Codec>& codec) {
             return std::make_unique<PythonDeviceVector>(
                 group, dtype, places, std::move(shown), std::move(stream), slots,
                 vol::VectorOptions{name, graph, to_policy(policy), depth, reject_nonfinite,
                                    max_norm, rejoins, codec.value_or(vol::Codec())});
           }),
           py::kw_only(), py::arg("group"), py::arg("dtype"), py::arg("places"), py::arg("shown"),
           py::arg("stream"), py::arg("slots"), py::arg("name"), py::arg("graph"),
           py::arg("policy"), py::arg("depth"), py::arg("reject_nonfinite"), py::arg("max_norm"),
           py::arg("rejoins"), py::arg("codec") = py::none())
      .def_property_readonly("array", &PythonDeviceVector::array,
                             "The caller's array, or list of them.")
      .def_property_readonly(
          "slots",
          [](const PythonDeviceVector& self) {
            const auto& slots = self.vector().slots();
            return slots.kind == dstorm::device::SlotKind::kIpc ? std::string("ipc")
                                                                : "host: " + slots.why;
          },
          "Place of updates: 'ipc', in the memory of the senders' GPUs; or 'host: ...', with the "
          "reason.")
      .def(
          "leave",
          [](const PythonDeviceVector& self, std::optional<double>) { self.vector().shut(); },
          py::arg("timeout") = py::none(), py::call_guard<py::gil_scoped_release>(),
          "Close, when the GPU has finished, for which there is a limit of its own; for the "
          "package.")
      .def("read", &PythonDeviceVector::read,
           "Return a copy of the elements in the host's memory. Waits for the GPU.")
      .def("write", &PythonDeviceVector::write, py::arg("values"),
           "Replace the elements by those of a NumPy array. Waits for the GPU.");
  add_vector_methods(vector);
}

}  // namespace malt_bindings
