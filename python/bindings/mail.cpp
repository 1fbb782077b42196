#include "dstorm/collective/mail.hpp"

#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "dstorm/host/turn.hpp"

namespace malt_bindings {
namespace {

using dstorm::Mail;
using dstorm::Turn;
using NoGil = py::call_guard<py::gil_scoped_release>;
using Received = std::vector<std::pair<int, py::bytes>>;

void send(Mail& self, int to, const py::bytes& head, const py::buffer& body) {
  const std::string_view front = head;
  const py::buffer_info rest = body.request();
  const auto bytes = static_cast<std::size_t>(rest.size * rest.itemsize);
  if (front.size() + bytes > self.slot_bytes()) {
    throw py::value_error("a message is longer than a slot");
  }
  const py::gil_scoped_release no_gil;
  const Turn turn(self.turns(), "send", self.name());
  self.group().check_standing();
  std::byte* const room = self.begin(to, front.size() + bytes);
  std::memcpy(room, front.data(), front.size());
  if (bytes > 0) std::memcpy(room + front.size(), rest.ptr, bytes);
  self.end();
}

std::size_t pump(Mail& self) {
  const Turn turn(self.turns(), "send", self.name());
  self.group().check_standing();
  self.pump();
  return self.waiting();
}

Received receive(Mail& self) {
  Received received;
  const py::gil_scoped_release no_gil;
  const Turn turn(self.turns(), "receive", self.name());
  self.group().check_standing();
  self.take_in([&](int sender, std::span<const std::byte> message) {
    const py::gil_scoped_acquire gil;
    received.emplace_back(sender,
                          py::bytes(reinterpret_cast<const char*>(message.data()), message.size()));
  });
  return received;
}

std::vector<int> live(const Mail& self) {
  std::vector<int> ranks;
  for (int rank = 0; rank < self.group().size(); ++rank) {
    if (rank == self.rank() || self.is_live(rank)) ranks.push_back(rank);
  }
  return ranks;
}

bool wait(Mail& self, const std::vector<int>& ranks, double timeout) {
  const Turn turn(self.turns(), "wait", self.name());
  self.group().check_standing();
  return self.wait([&] { return live(self) != ranks; }, *to_duration(timeout));
}

}  // namespace

void bind_mail(py::module_& module) {
  py::class_<Mail>(module, "Mail", "Messages from one rank to one other; for the package.")
      .def(py::init<std::shared_ptr<dstorm::Group>, std::string, std::size_t, int>(),
           py::arg("group"), py::arg("name"), py::arg("slot_bytes"), py::arg("depth"), NoGil())
      .def("send", &send, py::arg("to"), py::arg("head"), py::arg("body"),
           "Send `head` and `body`, a contiguous buffer, as one message. Never waits.")
      .def("pump", &pump,
           "Send what waits for room, as far as there is room now.\n\n"
           "Returns:\n    How many messages still wait.",
           NoGil())
      .def("receive", &receive, "Arrived messages: sender and bytes.")
      .def("wait", &wait, py::arg("live"), py::arg("timeout"),
           "Wait for a message, for room for a waiting one, or until other ranks live than "
           "`live`.\n\nReturns:\n    Whether one of these came within the time.",
           NoGil())
      .def("live", &live, "The ranks that live and have not closed it, sorted.", NoGil())
      .def("shut", &Mail::shut, "Leave, at any time in any thread.", NoGil());
}

}  // namespace malt_bindings
