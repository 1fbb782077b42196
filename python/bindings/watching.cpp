#include <bit>

#include "bindings.hpp"
#include "dstorm/recorder/recorder.hpp"
#include "dstorm/recorder/recording.hpp"

namespace malt_bindings {
namespace {

using dstorm::Event;
using dstorm::Recording;
using dstorm::Report;

using Totals = py::typing::Dict<py::str, py::int_>;

Totals totals_of(const Recording& recording) {
  const dstorm::RecorderTotals& totals = recording.totals();
  Totals values;
  const auto add = [&](const char* name, const dstorm::SharedWord& word) {
    values[name] = word.load(std::memory_order_relaxed);
  };
  add("iteration", totals.iteration);
  add("scatters", totals.scatters);
  add("gathers", totals.gathers);
  add("allreduces", totals.allreduces);
  add("bytes_out", totals.bytes_out);
  add("bytes_in", totals.bytes_in);
  add("folded", totals.folded);
  add("waited", totals.waited);
  add("epoch", totals.epoch);
  add("waits_since", totals.waits_since);
  add("waits_for", totals.waits_for);
  return values;
}

// Returns an array of size x 6: nanoseconds waited, updates folded, the last one's staleness; calls
// that failed since the last that did not, the last one's error and port.
py::array_t<std::uint64_t> peers_of(const Recording& recording) {
  const std::span<const dstorm::RecorderPeer> peers = recording.peers();
  py::array_t<std::uint64_t> values({static_cast<py::ssize_t>(peers.size()), py::ssize_t{6}});
  auto view = values.mutable_unchecked<2>();
  for (std::size_t r = 0; r < peers.size(); ++r) {
    const auto row = static_cast<py::ssize_t>(r);
    view(row, 0) = peers[r].waited.load(std::memory_order_relaxed);
    view(row, 1) = peers[r].folded.load(std::memory_order_relaxed);
    view(row, 2) = peers[r].staleness.load(std::memory_order_relaxed);
    const auto failed =
        std::bit_cast<dstorm::FailedCalls>(peers[r].failed_calls.load(std::memory_order_relaxed));
    view(row, 3) = failed.count;
    view(row, 4) = failed.error;
    view(row, 5) = failed.port;
  }
  return values;
}

}  // namespace

void bind_recorder(py::module_& module) {
  PYBIND11_NUMPY_DTYPE(Report, time, iteration, value, name);
  PYBIND11_NUMPY_DTYPE(Event, began, lasted, iteration, bytes, ranks, kind, rank, count, staleness);
  py::class_<dstorm::Recorder, std::shared_ptr<dstorm::Recorder>>(
      module, "Recorder", "Records what this rank does, for other processes to read.")
      .def(py::init<int, int, int>(), py::arg("fd"), py::arg("rank"), py::arg("size"))
      .def_property_readonly("fd", &dstorm::Recorder::fd, "Of its memory, for other processes.")
      .def_property_readonly("rank", &dstorm::Recorder::rank)
      .def_property_readonly("size", &dstorm::Recorder::size)
      .def_property_readonly("update", &dstorm::Recorder::update,
                             "Of the last scatter, or the number of allreduces before any.")
      .def("report", &dstorm::Recorder::report, py::arg("name"), py::arg("value"),
           "Keeps a value with time and iteration; false if there is no place for another name.");
  py::class_<Recording>(module, "Recording", "The record of a process, finished or in progress.")
      .def(py::init<int>(), py::arg("fd"))
      .def_property_readonly("rank", &Recording::rank)
      .def_property_readonly("size", &Recording::size)
      .def_property_readonly("process", &Recording::process)
      .def_property_readonly("began", &Recording::began,
                             "When the rank began to record: nanoseconds, monotonic clock.")
      .def_property_readonly("wall_offset", &Recording::wall_offset,
                             "Nanoseconds from the events' clock (monotonic) to the time of day.")
      .def_property_readonly("missed", &Recording::missed,
                             "How many events were written over before they were read.")
      .def("totals", &totals_of, "Counters since the beginning; times are nanoseconds.")
      .def("peers", &peers_of,
           "By rank: nanoseconds waited for it, updates folded, staleness; calls to it that failed "
           "since the last that did not, the last one's error (errno) and port.")
      .def(
          "read",
          [](Recording& self) -> py::array {
            const std::vector<Event> events = self.read();
            return py::array_t<Event>(static_cast<py::ssize_t>(events.size()), events.data());
          },
          "The events since the last call, oldest first: calls, then deaths and epochs.")
      .def_property_readonly("report_names", &Recording::report_names,
                             "Of what read_reports() has returned, by index.")
      .def(
          "read_reports",
          [](Recording& self) -> py::array {
            const std::vector<Report> reports = self.read_reports();
            return py::array_t<Report>(static_cast<py::ssize_t>(reports.size()), reports.data());
          },
          "The values reported since the last call, by name, then oldest first.");
}

}  // namespace malt_bindings
