#include "dstorm/collective/messages.hpp"

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.hpp"

namespace malt_bindings {
namespace {

using dstorm::Messages;
using NoGil = py::call_guard<py::gil_scoped_release>;
using Received = std::vector<std::tuple<int, py::bytes, bool>>;

bool try_send(Messages& self, const py::bytes& message) {
  const std::string_view bytes = message;
  const py::gil_scoped_release no_gil;
  return self.try_send(std::as_bytes(std::span(bytes)));
}

Received receive(Messages& self) {
  Received received;
  const py::gil_scoped_release no_gil;
  self.receive([&](int rank, std::span<const std::byte> message, bool is_old) {
    const py::gil_scoped_acquire gil;
    received.emplace_back(
        rank, py::bytes(reinterpret_cast<const char*>(message.data()), message.size()), is_old);
  });
  return received;
}

}  // namespace

void bind_messages(py::module_& module) {
  py::class_<Messages>(module, "Messages",
                       "Messages from each rank to all others; for the package.")
      .def(py::init<std::shared_ptr<dstorm::Group>, std::string, std::size_t, int, bool>(),
           py::arg("group"), py::arg("name"), py::arg("slot_bytes"), py::arg("depth"),
           py::arg("rejoins"), NoGil())
      .def("try_send", &try_send, py::arg("message"),
           "Send to all live ranks if that needs no wait.\n\nReturns:\n    Whether it did.")
      .def("receive", &receive,
           "Arrived messages: sender, bytes, and whether they are of an earlier group.")
      .def(
          "wait",
          [](Messages& self, bool for_room, const std::vector<int>& live, const std::string& what,
             double timeout) { return self.await(for_room, live, what, *to_duration(timeout)); },
          py::arg("for_room"), py::arg("live"), py::arg("what"), py::arg("timeout"),
          "Wait for a message, for room to send, or until other ranks live than `live`.\n\n"
          "Returns:\n    Whether one of these came within the time.",
          NoGil())
      .def("blockers", &Messages::blockers,
           "The live ranks that have yet to receive messages, which so keep slots in use.")
      .def("live", &Messages::live, "The ranks that live and have not closed it, sorted.")
      .def(
          "regroup",
          [](Messages& self, const std::shared_ptr<dstorm::Group>& group) { self.regroup(group); },
          py::arg("group"), "Move to another group. Collective.", NoGil())
      .def(
          "stats",
          [](const Messages& self) { return stats_of(self.segment(), self.segment().stats(), {}); },
          "Counters of the messages. Any thread, at any time.")
      .def(
          "close", [](Messages& self) { self.segment().close(); }, "Leave. Idempotent.")
      .def(
          "shut", [](Messages& self) { self.segment().shut(); },
          "Leave, at any time in any thread.")
      .def(
          "clock_of", [](Messages& self, int rank) { return self.segment().clock_of(rank); },
          py::arg("rank"), "How many messages of the rank have arrived here.")
      .def_property_readonly(
          "iteration",
          [](const Messages& self) {
            const dstorm::Turns::Look look(self.segment().turns());
            return self.segment().iteration();
          },
          "How many messages this rank has sent.")
      .def_property_readonly("is_used",
                             [](const Messages& self) {
                               const dstorm::Turns::Look look(self.segment().turns());
                               return self.segment().is_used();
                             })
      .def_property_readonly("is_closed", [](const Messages& self) {
        const dstorm::Turns::Look look(self.segment().turns());
        return self.segment().is_closed();
      });
}

}  // namespace malt_bindings
