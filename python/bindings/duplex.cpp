// Memory is given by its address, because a tensor may have an element type that NumPy lacks.
#include "dstorm/collective/duplex.hpp"

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "bindings.hpp"

namespace malt_bindings {
namespace {

using dstorm::Duplex;
using NoGil = py::call_guard<py::gil_scoped_release>;

template <class Send>
auto send_of(const py::bytes& head, std::uintptr_t data, std::size_t bytes, const Send& send) {
  const std::string_view front = head;
  const py::gil_scoped_release no_gil;
  return send(std::as_bytes(std::span(front)),
              std::span(reinterpret_cast<const std::byte*>(data), bytes));
}

std::pair<py::bytes, std::size_t> peek(Duplex& self, double timeout) {
  Duplex::Arrived arrived;
  {
    const py::gil_scoped_release no_gil;
    arrived = self.peek(*to_duration(timeout));
  }
  const auto* const begin = reinterpret_cast<const char*>(arrived.head.data());
  return {py::bytes(begin, arrived.head.size()), arrived.body_bytes};
}

}  // namespace

void bind_duplex(py::module_& module) {
  py::class_<Duplex>(module, "Duplex", "Messages between two ranks, each way; for the package.")
      .def(py::init<std::shared_ptr<dstorm::Group>, std::string, int, std::size_t, int, int>(),
           py::arg("group"), py::arg("name"), py::arg("peer"), py::arg("slot_bytes"),
           py::arg("depth"), py::arg("spare") = 0, NoGil())
      .def(
          "send",
          [](Duplex& self, const py::bytes& head, std::uintptr_t data, std::size_t bytes) {
            send_of(head, data, bytes, [&](auto front, auto body) { self.send(front, body); });
          },
          py::arg("head"), py::arg("data"), py::arg("bytes"),
          "Send `head` and the bytes at the address `data`. Waits for a slot that is not spare.")
      .def(
          "try_send",
          [](Duplex& self, const py::bytes& head, std::uintptr_t data, std::size_t bytes) {
            return send_of(head, data, bytes,
                           [&](auto front, auto body) { return self.try_send(front, body); });
          },
          py::arg("head"), py::arg("data"), py::arg("bytes"),
          "Send if that needs no wait, also into a spare slot.\n\nReturns:\n    Whether it did.")
      .def("peek", &peek, py::arg("timeout"),
           "Wait for a message.\n\nReturns:\n    The head of the oldest one, and its body's bytes.")
      .def(
          "take",
          [](Duplex& self, std::uintptr_t data, std::size_t bytes) {
            self.take({reinterpret_cast<std::byte*>(data), bytes});
          },
          py::arg("data"), py::arg("bytes"),
          "Copy the body of the message that peek() returned to the address `data`.", NoGil())
      .def("shut", &Duplex::shut, "Leave, at any time in any thread.", NoGil());
}

}  // namespace malt_bindings
