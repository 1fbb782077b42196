#include "missed.hpp"

namespace malt_bindings {

void bind_fold(py::module_& module) {
  using vol::Fold;
  using vol::Gathered;
  py::class_<Fold>(
      module, "Fold",
      "A built-in fold. Of integers AVG, MEDIAN and TRIMMED_MEAN are exact, rounded toward "
      "zero. SUM wraps around, as NumPy's sums do, since its bits then do not depend on the "
      "order of the ranks; take a wider dtype, or floats, where that can happen.")
      .def_property_readonly("fraction", &Fold::fraction, "Of TRIMMED_MEAN; 0 of the others.")
      .def("__repr__", &Fold::name);
  module.attr("AVG") = Fold::avg();
  module.attr("SUM") = Fold::sum();
  module.attr("WEIGHTED") = Fold::weighted();
  module.attr("REPLACE") = Fold::replace();
  module.attr("MEDIAN") = Fold::median();
  module.attr("LOWEST") = Fold::lowest();  // for the package
  module.def("trimmed_mean", &Fold::trimmed_mean, py::arg("fraction"));

  using vol::Codec;
  py::class_<Codec>(module, "Codec", "How a vector of floats goes over the wire in fewer bytes.")
      .def("__repr__", &Codec::name);
  module.attr("FLOAT16") = Codec::float16();
  module.attr("BFLOAT16") = Codec::bfloat16();
  module.attr("INT8") = Codec::int8();
  module.def("top_k", &Codec::top_k, py::arg("fraction"));

  py::class_<Gathered>(module, "Gathered", "A gather's result.")
      .def_readonly("count", &Gathered::count, "Updates folded.")
      .def_property_readonly(
          "ranks", [](const Gathered& gathered) { return to_tuple(gathered.ranks); },
          "Their senders, in the order of the fold.")
      .def_property_readonly(
          "staleness",
          [](const Gathered& gathered) -> Ranks { return py::tuple(py::cast(gathered.staleness)); },
          "This rank's iteration less the update's, for each; below 0: from ahead.")
      .def_property_readonly(
          "rejected", [](const Gathered& gathered) { return to_tuple(gathered.rejected); },
          "Senders of updates refused as not finite.")
      .def_property_readonly(
          "clipped", [](const Gathered& gathered) { return to_tuple(gathered.clipped); },
          "Senders of updates scaled down to max_norm, and then folded.")
      .def("__repr__", [](const Gathered& gathered) {
        return "Gathered(count=" + std::to_string(gathered.count) +
               ", ranks=" + py::repr(to_tuple(gathered.ranks)).cast<std::string>() + ")";
      });

  py::class_<Uses, std::shared_ptr<Uses>>(module, "Uses",
                                          "How a rank has used one vector; for the package.")
      .def_readonly("scatters", &Uses::scatters)
      .def_readonly("gathers", &Uses::gathers)
      .def_readonly("allreduces", &Uses::allreduces)
      .def_readonly("found", &Uses::found, "Updates folded here.")
      .def_readonly("folded", &Uses::folded, "This rank's updates that others have folded.");

  using Stats = VectorStats;
  py::class_<Stats>(module, "Stats",
                    "Counters of one vector. Of the updates this rank has sent (one to three ranks "
                    "counts three): sent = folded + overwritten + rejected + pending + to_dead.")
      .def_readonly("sent", &Stats::sent)
      .def_readonly("folded", &Stats::folded)
      .def_readonly("overwritten", &Stats::overwritten)
      .def_readonly("rejected", &Stats::rejected)
      .def_readonly("pending", &Stats::pending)
      .def_readonly("to_dead", &Stats::to_dead)
      .def_readonly("bytes_out", &Stats::bytes_out,
                    "Payload bytes sent, once per receiver; those of allreduce too, which on one "
                    "host the others read in place.")
      .def_readonly("bytes_in", &Stats::bytes_in,
                    "Payload bytes folded here, and those received by allreduce.")
      .def_readonly("wait_seconds", &Stats::wait_seconds,
                    "Time spent waiting in scatter, gather and allreduce.")
      .def_readonly("memory_bytes", &Stats::memory_bytes,
                    "Memory that the vector has taken on this host, for all ranks here together.")
      .def_property_readonly(
          "rejected_from", [](const Stats& stats) { return stats.screened.rejected_from; },
          "By rank: its updates that were refused here, if there were any.")
      .def_property_readonly(
          "clipped_from", [](const Stats& stats) { return stats.screened.clipped_from; },
          "By rank: its updates that were scaled down to max_norm here, if there were any.")
      .def_readonly("routes", &Stats::routes, "How this rank reaches each of the others.")
      .def("__repr__", [](const Stats& stats) {
        return "Stats(sent=" + std::to_string(stats.sent) +
               ", folded=" + std::to_string(stats.folded) +
               ", overwritten=" + std::to_string(stats.overwritten) +
               ", rejected=" + std::to_string(stats.rejected) +
               ", pending=" + std::to_string(stats.pending) +
               ", to_dead=" + std::to_string(stats.to_dead) +
               ", bytes_out=" + std::to_string(stats.bytes_out) +
               ", bytes_in=" + std::to_string(stats.bytes_in) +
               ", wait_seconds=" + std::to_string(stats.wait_seconds) +
               ", memory_bytes=" + std::to_string(stats.memory_bytes) + ")";
      });
}

}  // namespace malt_bindings
