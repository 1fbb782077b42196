// Functions of the user's that are called when a vector's frontier has reached an iteration.
#pragma once

#include <map>
#include <optional>
#include <utility>

#include "regroup.hpp"

namespace malt_bindings {

class Notices {
 public:
  void add(std::int64_t iteration, py::object function) {
    due_.emplace(to_iteration(iteration), std::move(function));
  }
  // Calls what is due. The caller holds no turn: the functions may call MALT.
  void call(dstorm::Segment& segment) {
    while (!due_.empty() && due_.begin()->first <= segment.frontier()) {
      const auto next = due_.extract(due_.begin());
      next.mapped()(next.key());
    }
  }
  static void wait_for(dstorm::Segment& segment, std::int64_t iteration,
                       std::optional<double> timeout) {
    const auto limit = to_duration(timeout);
    const std::uint64_t target = to_iteration(iteration);
    const dstorm::Turn turn(segment.turns(), "wait_for", segment.options().name);
    in_group(segment.turns(), [&] { segment.wait_for(target, limit); });
  }

 private:
  static std::uint64_t to_iteration(std::int64_t iteration) {
    if (iteration < 0) {
      throw dstorm::ConfigError("iteration is " + std::to_string(iteration) +
                                "; it must be at least 0");
    }
    return static_cast<std::uint64_t>(iteration);
  }

  std::multimap<std::uint64_t, py::object> due_;
};

// Adds frontier(), wait_for() and on_frontier() to a class of vectors. `notices_of` and
// `segment_of` give the parts of a vector that they need.
template <class Class, class NoticesOf, class SegmentOf>
void add_frontier(Class& to, NoticesOf notices_of, SegmentOf segment_of) {
  using Vector = typename Class::type;
  to.def(
        "frontier",
        [=](Vector& self) {
          notices_of(self).call(segment_of(self));
          return segment_of(self).frontier();
        },
        "The highest iteration of which every live in-neighbour's update has arrived.\n\n"
        "Within an epoch, no update of it or of an earlier one arrives any more. It never goes "
        "back.")
      .def(
          "wait_for",
          [=](Vector& self, std::int64_t iteration, std::optional<double> timeout) {
            Notices::wait_for(segment_of(self), iteration, timeout);
            notices_of(self).call(segment_of(self));
          },
          py::arg("iteration"), py::kw_only(), py::arg("timeout") = py::none(),
          "Wait until frontier() is at least `iteration`, or no other rank is alive.\n\n"
          "Args:\n    iteration: from 0 on.\n    timeout: seconds to wait; that of malt.init() if "
          "None.\n\n"
          "Raises:\n    TimeoutError: the named ranks did not scatter it.\n"
          "    ConfigError: `iteration` is below 0.")
      .def(
          "on_frontier",
          [=](Vector& self, std::int64_t iteration,
              const py::typing::Callable<py::object(int)>& function) {
            notices_of(self).add(iteration, function);
          },
          py::arg("iteration"), py::arg("function"),
          "Have function(iteration) called once, when frontier() has reached `iteration`.\n\n"
          "It is called in the thread of this rank's next scatter, gather, wait_for or frontier of "
          "the vector, when that call has done its work. An error in it comes out of that call.\n\n"
          "Raises:\n    ConfigError: `iteration` is below 0.");
}

}  // namespace malt_bindings
