// The parts of malt.torch's process group. It gives memory by its address, because a tensor may
// have an element type that NumPy lacks.
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "dstorm/collective/link.hpp"
#include "vol/exchange.hpp"

namespace malt_bindings {
namespace {

using Address = std::uintptr_t;
using NoGil = py::call_guard<py::gil_scoped_release>;
using Gives = std::vector<std::pair<Address, std::size_t>>;
using Ended = py::typing::List<py::none>;
using Takes = std::vector<std::tuple<int, std::size_t, std::size_t, Address, std::size_t>>;

std::chrono::nanoseconds limit_of(double seconds) { return *to_duration(seconds); }

std::vector<int> run(vol::Exchange& exchange, const Gives& gives, const Takes& takes,
                     std::uint32_t kind, double timeout, bool may_miss, std::uint32_t call) {
  std::vector<vol::Exchange::Give> given;
  given.reserve(gives.size());
  for (const auto& [data, bytes] : gives) {
    given.push_back({reinterpret_cast<const void*>(data), bytes});
  }
  std::vector<vol::Exchange::Take> taken;
  taken.reserve(takes.size());
  for (const auto& [rank, offset, bytes, to, of] : takes) {
    taken.push_back({rank, offset, bytes, reinterpret_cast<void*>(to), of});
  }
  return exchange.run(given, taken, kind, limit_of(timeout), may_miss, call);
}

// Makes what all ranks of a group make together, within one limit: the group's if none is given.
template <class Made, class... Arguments>
std::unique_ptr<Made> make_within(const std::shared_ptr<dstorm::Group>& group,
                                  std::optional<double> timeout, Arguments&&... arguments) {
  const auto limit = to_duration(timeout);
  const py::gil_scoped_release no_gil;
  const dstorm::Group::Within within(*group, limit.value_or(group->timeout()));
  return std::make_unique<Made>(group, std::forward<Arguments>(arguments)...);
}

// Adds to `ended`, which an exception of a signal handler cannot prevent any more.
void note_end(Ended& ended) { ended.append(py::none()); }

// NumPy knows no bfloat16.
vol::DType dtype_named(const std::string& name) {
  for (const vol::DType half : {vol::DType::kFloat16, vol::DType::kBfloat16}) {
    if (name == vol::dtype_name(half)) return half;
  }
  return to_dtype(py::dtype(name));
}

vol::Fold fold_of(bool mean) { return mean ? vol::Fold::avg() : vol::Fold::sum(); }

// A vector that is only reduced, wherever its elements lie at the time.
class Reducer {
 public:
  Reducer(const std::shared_ptr<dstorm::Group>& group, vol::DType dtype, std::size_t count,
          const std::string& name)
      : vector_(group, dtype, {{nullptr, count}}, options_of(name)) {}

  std::vector<int> allreduce(Address data, std::size_t count, bool mean, double timeout,
                             std::uint32_t call) {
    const py::gil_scoped_release no_gil;
    vector_.move_to(reinterpret_cast<void*>(data), count);
    std::vector<int> ranks = vector_.allreduce(fold_of(mean), limit_of(timeout), false, call).ranks;
    ++count_;
    return ranks;
  }
  std::uint64_t count() const { return count_; }
  void shut() { vector_.shut(); }

 private:
  static vol::VectorOptions options_of(const std::string& name) {
    vol::VectorOptions options;
    options.name = name;
    options.policy = dstorm::Policy::kQueue;  // one slot is enough
    options.depth = 1;
    return options;
  }

  vol::DenseVector vector_;
  std::uint64_t count_ = 0;
};

}  // namespace

void bind_process_group(py::module_& module) {
  using Group = std::shared_ptr<dstorm::Group>;
  py::class_<vol::Exchange>(module, "Exchange",
                            "Rounds in which each rank gives bytes; for the package.")
      .def(py::init([](const Group& group, const std::string& name, std::size_t slot_bytes,
                       double timeout) {
             return make_within<vol::Exchange>(group, timeout, name, slot_bytes);
           }),
           py::arg("group"), py::arg("name"), py::arg("slot_bytes"), py::arg("timeout"))
      .def("run", &run, py::arg("gives"), py::arg("takes"), py::arg("kind"), py::arg("timeout"),
           py::arg("may_miss") = false, py::arg("call") = 0,
           "Give stretches (address, bytes) and copy (rank, offset, bytes, address, of) of the "
           "others'. Collective; all ranks give the same number of the call.\n\n"
           "Returns:\n    The ranks that were missing.",
           NoGil())
      .def(
          "fold",
          [](vol::Exchange& self, Address data, std::size_t count, std::uint32_t dtype, bool mean,
             double timeout, std::uint32_t call) {
            self.fold(static_cast<vol::DType>(dtype), reinterpret_cast<void*>(data), count,
                      fold_of(mean), limit_of(timeout), call);
          },
          py::arg("data"), py::arg("count"), py::arg("dtype"), py::arg("mean"), py::arg("timeout"),
          py::arg("call"),
          "Replace elements by the sum or mean of all ranks'. Collective; `call` as for run().",
          NoGil())
      .def("shut", &vol::Exchange::shut, "Leave. Any thread, at any time.");
  py::class_<Reducer>(module, "Reducer",
                      "A vector that is reduced wherever it lies; for the package.")
      .def(py::init([](const Group& group, const std::string& dtype, std::size_t count,
                       const std::string& name, std::optional<double> timeout) {
             return make_within<Reducer>(group, timeout, dtype_named(dtype), count, name);
           }),
           py::arg("group"), py::arg("dtype"), py::arg("count"), py::arg("name"),
           py::arg("timeout") = py::none())
      .def("allreduce", &Reducer::allreduce, py::arg("data"), py::arg("count"), py::arg("mean"),
           py::arg("timeout"), py::arg("call") = 0,
           "Replace `count` elements by the sum or mean of the live ranks'. Collective. All ranks "
           "give the same number of the call.\n\n"
           "Returns:\n    The other ranks that took part.")
      .def_property_readonly("count", &Reducer::count, "How many times this rank has reduced.")
      .def("shut", &Reducer::shut, "Leave. Any thread, at any time.");
  py::class_<dstorm::Link>(module, "Link",
                           "Messages from rank 0 to rank 1 of a group; for the package.")
      .def(py::init([](const Group& group, const std::string& name, std::size_t slot_bytes,
                       int depth, double timeout) {
             return make_within<dstorm::Link>(group, timeout, name, slot_bytes, depth);
           }),
           py::arg("group"), py::arg("name"), py::arg("slot_bytes"), py::arg("depth"),
           py::arg("timeout"))
      .def(
          "send",
          [](dstorm::Link& self, Address data, std::size_t bytes, std::uint32_t tag,
             double timeout) {
            self.send({reinterpret_cast<const std::byte*>(data), bytes}, tag, limit_of(timeout));
          },
          py::arg("data"), py::arg("bytes"), py::arg("tag"), py::arg("timeout"), NoGil())
      .def(
          "try_send",
          [](dstorm::Link& self, Address data, std::size_t bytes, std::uint32_t tag, Ended ended) {
            {
              const py::gil_scoped_release no_gil;
              if (!self.try_send({reinterpret_cast<const std::byte*>(data), bytes}, tag)) {
                return false;
              }
            }
            note_end(ended);
            return true;
          },
          py::arg("data"), py::arg("bytes"), py::arg("tag"), py::arg("ended"),
          "Send if that needs no wait; `ended` then gets an element, before an exception of a "
          "signal handler can end the call.\n\nReturns:\n    Whether it did.")
      .def(
          "receive",
          [](dstorm::Link& self, Address data, std::size_t bytes, std::uint32_t tag, double timeout,
             Ended ended) {
            {
              const py::gil_scoped_release no_gil;
              self.receive({reinterpret_cast<std::byte*>(data), bytes}, tag, limit_of(timeout));
            }
            note_end(ended);
          },
          py::arg("data"), py::arg("bytes"), py::arg("tag"), py::arg("timeout"), py::arg("ended"),
          "Receive a message; `ended` as for try_send().")
      .def(
          "await_tag",
          [](dstorm::Link& self, const std::vector<std::uint32_t>& tags, double timeout) {
            return self.await(tags, limit_of(timeout));
          },
          py::arg("tags"), py::arg("timeout"),
          "Wait for a message; the place of its tag in `tags`, or -1.", NoGil())
      .def("check_room", &dstorm::Link::check_room, py::arg("tag"),
           "Raise ConfigError if messages of other tags leave no room for one of this tag.",
           NoGil())
      .def("shut", &dstorm::Link::shut, "Leave. Any thread, at any time.");
}

}  // namespace malt_bindings
