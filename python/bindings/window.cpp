// Memory is given by its address, because a tensor may have an element type that NumPy lacks.
#include "dstorm/collective/window.hpp"

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "bindings.hpp"

namespace malt_bindings {
namespace {

using dstorm::Deadline;
using dstorm::Window;
using dstorm::WindowMemory;
using Address = std::uintptr_t;
using NoGil = py::call_guard<py::gil_scoped_release>;

// The end of a window may wait for its thread, and that one for the GIL.
struct WithoutGil {
  void operator()(Window* window) const {
    const py::gil_scoped_release no_gil;
    delete window;
  }
};
using Held = std::unique_ptr<Window, WithoutGil>;

constexpr std::size_t kShort = 32 << 10;  // bytes that are copied sooner than the GIL is let go

std::span<const std::byte> bytes_at(Address data, std::size_t bytes) {
  return {reinterpret_cast<const std::byte*>(data), bytes};
}

using Memory = std::shared_ptr<WindowMemory>;

Held make(const std::shared_ptr<dstorm::Group>& group, std::string name, Memory own,
          std::size_t first, std::size_t length, const py::bytes& note, double timeout) {
  const std::string_view given = note;
  const py::gil_scoped_release no_gil;
  const dstorm::Group::Within within(*group, *to_duration(timeout));
  return Held(new Window(group, std::move(name), std::move(own), Window::Place{first, length},
                         std::as_bytes(std::span(given))));
}

py::bytes note(const Window& self, int rank) {
  const dstorm::Bytes& note = self.note(rank);
  return {reinterpret_cast<const char*>(note.data()), note.size()};
}

py::array_t<std::uint8_t> array_over(const Memory& memory) {
  const std::span<std::byte> bytes = memory->bytes();
  const py::capsule base(new Memory(memory), [](void* held) { delete static_cast<Memory*>(held); });
  return {{bytes.size()}, {}, reinterpret_cast<std::uint8_t*>(bytes.data()), base};
}

void put(Window& self, int to, std::size_t offset, Address data, std::size_t bytes,
         double timeout) {
  const auto given = bytes_at(data, bytes);
  const Deadline deadline = *to_duration(timeout);
  if (bytes <= kShort && self.is_mapped(to)) {
    self.put(to, offset, given, deadline);
    return;
  }
  const py::gil_scoped_release no_gil;
  self.put(to, offset, given, deadline);
}

void signal(Window& self, int to, std::uint64_t count, double timeout) {
  const Deadline deadline = *to_duration(timeout);
  if (self.is_mapped(to)) {
    self.signal(to, count, deadline);
    return;
  }
  const py::gil_scoped_release no_gil;
  self.signal(to, count, deadline);
}

}  // namespace

void bind_window(py::module_& module) {
  py::class_<WindowMemory, Memory>(module, "WindowMemory",
                                   "Shared memory for windows; for the package.")
      .def(py::init([](Address data, std::size_t bytes) {
             return std::make_shared<WindowMemory>(bytes_at(data, bytes));
           }),
           py::arg("data"), py::arg("bytes"),
           "Memory that begins with a copy of the bytes at the address `data`.", NoGil())
      .def("array", &array_over, "The memory itself, which lives as long as the array.");
  py::class_<Window, Held>(module, "Window", "Memory that other ranks write into; for the package.")
      .def(py::init(&make), py::arg("group"), py::arg("name"), py::arg("memory"), py::arg("first"),
           py::arg("length"), py::arg("note"), py::arg("timeout"),
           "Collective. The others write to `length` bytes of the memory from `first`, and get the "
           "note.")
      .def("note", &note, py::arg("rank"), "The note that a rank gave.")
      .def("is_mapped", &Window::is_mapped, py::arg("rank"), "Whether there is array() of a rank.")
      .def(
          "array", [](const Window& self, int rank) { return array_over(self.memory(rank)); },
          py::arg("rank"), "The memory of a rank of this host itself.")
      .def("put", &put, py::arg("to"), py::arg("offset"), py::arg("data"), py::arg("bytes"),
           py::arg("timeout"), "Write the bytes at the address `data` into a rank's window.")
      .def("signal", &signal, py::arg("to"), py::arg("count"), py::arg("timeout"),
           "Tell a rank that this one has sent it so many signals.")
      .def(
          "await_signals",
          [](Window& self, int from, std::uint64_t count, double timeout) {
            self.await_signals(from, count, *to_duration(timeout));
          },
          py::arg("source"), py::arg("count"), py::arg("timeout"),
          "Return when a rank has sent this one so many signals.", NoGil())
      .def(
          "close", [](Window& self, double timeout) { self.close(*to_duration(timeout)); },
          py::arg("timeout"), "Return when all that live ranks have put here has come. Collective.",
          NoGil())
      .def(
          "shut", [](Window& self, double limit) { self.shut(*to_duration(limit)); },
          py::arg("limit"), "Leave. Any thread, at any time.", NoGil());
}

}  // namespace malt_bindings
