#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "vol/ps/client.hpp"
#include "vol/ps/server_thread.hpp"

namespace malt_bindings {
namespace {

using vol::ps::Client;
using vol::ps::Rows;
using vol::ps::Rule;
using vol::ps::ServerThread;
using vol::ps::TableOptions;
using UpdateFunction = py::typing::Callable<void(py::array, py::array)>;
using Keys = std::optional<py::array_t<std::int64_t, py::array::c_style>>;

// An update rule written in Python: function(values, gradients) changes `values`, a copy of some
// rows, in place. An exception of it becomes one that the server passes on as text.
class PythonRule {
 public:
  PythonRule(UpdateFunction function, std::vector<py::ssize_t> row_shape, vol::DType dtype)
      : function_(std::move(function)), shape_(std::move(row_shape)), dtype_(dtype) {
    shape_.insert(shape_.begin(), 0);
  }
  void operator()(std::byte* values, const std::byte* gradients, std::size_t rows) {
    const py::gil_scoped_acquire gil;
    try {
      shape_.front() = static_cast<py::ssize_t>(rows);
      py::array changed(from_dtype(dtype_), shape_, values);
      const py::array given(from_dtype(dtype_), shape_, gradients);
      if (!function_(changed, given).is_none()) {
        throw dstorm::ConfigError("it returned a value; it changes its first argument in place");
      }
      std::memcpy(values, changed.data(), static_cast<std::size_t>(changed.nbytes()));
    } catch (const py::error_already_set& error) {
      throw dstorm::Error(error.what());
    }
  }

 private:
  UpdateFunction function_;
  std::vector<py::ssize_t> shape_;
  vol::DType dtype_;
};

class Table {
 public:
  Table(std::shared_ptr<dstorm::Group> clients, std::shared_ptr<dstorm::Group> servers,
        TableOptions options)
      : clients_(std::move(clients)), options_(std::move(options)) {
    const py::gil_scoped_release no_gil;
    try {
      server_.emplace(std::move(servers), options_);
      client_.emplace(clients_, options_);
      server_->await_made();
    } catch (...) {
      server_.reset();
      throw;
    }
  }
  ~Table() { leave(); }
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  std::uint64_t push(const Keys& keys, std::int64_t first, const py::array& gradients,
                     std::optional<double> timeout) {
    const Rows rows = rows_of(keys, first, gradients);
    const auto* const from = static_cast<const std::byte*>(gradients.data());
    const py::gil_scoped_release no_gil;
    return client_->push(rows, from, to_duration(timeout));
  }
  void pull(const Keys& keys, std::int64_t first, py::array& to, std::optional<double> timeout) {
    const Rows rows = rows_of(keys, first, to);
    auto* const values = static_cast<std::byte*>(to.mutable_data());
    const py::gil_scoped_release no_gil;
    client_->pull(rows, values, to_duration(timeout));
  }
  Client& client() { return *client_; }
  // Ends the server's thread, which may be in a Python function. So the GIL is released.
  void leave() {
    const py::gil_scoped_release no_gil;
    clients_->leave();
    if (server_) server_->stop();
  }

 private:
  Rows rows_of(const Keys& keys, std::int64_t first, const py::array& values) const {
    const auto bytes = static_cast<std::size_t>(values.nbytes());
    const Rows rows{keys ? keys->data() : nullptr, first, bytes / options_.row_bytes()};
    const bool fits = !keys || static_cast<std::size_t>(keys->size()) == rows.count;
    if (!fits || bytes != rows.count * options_.row_bytes() ||
        (values.flags() & py::array::c_style) == 0) {
      throw dstorm::ConfigError("table '" + options_.name + "': values do not fit the keys");
    }
    return rows;
  }

  std::shared_ptr<dstorm::Group> clients_;
  TableOptions options_;
  std::optional<ServerThread> server_;
  std::optional<Client> client_;
};

Rule rule_of(const std::string& kind, const std::vector<double>& numbers) {
  const std::vector<std::string> kinds{"Add", "Assign", "SGD", "Momentum", "AdaGrad", "FTRL"};
  const auto found = std::ranges::find(kinds, kind);
  if (found == kinds.end()) throw dstorm::ConfigError("there is no update rule " + kind);
  Rule rule;
  rule.kind = static_cast<Rule::Kind>(found - kinds.begin() + 1);
  const auto number = [&](std::size_t i) { return i < numbers.size() ? numbers[i] : 0; };
  rule.rate = number(0);
  switch (rule.kind) {
    case Rule::Kind::kMomentum:
      rule.momentum = number(1);
      break;
    case Rule::Kind::kAdaGrad:
      rule.epsilon = number(1);
      break;
    case Rule::Kind::kFtrl:
      rule.beta = number(1);
      rule.l1 = number(2);
      rule.l2 = number(3);
      break;
    default:
      break;
  }
  return rule;
}

}  // namespace

void bind_table(py::module_& module) {
  using Group = std::shared_ptr<dstorm::Group>;
  using NoGil = py::call_guard<py::gil_scoped_release>;
  const auto make = [](Group clients, Group servers, std::string name, std::int64_t rows,
                       std::size_t width, const py::dtype& dtype, double initial,
                       const std::pair<std::string, std::vector<double>>& rule,
                       std::optional<UpdateFunction> function, std::vector<py::ssize_t> row_shape,
                       std::vector<int> ranks, int replicas, std::optional<std::uint64_t> staleness,
                       const std::optional<vol::Codec>& codec, double threshold,
                       std::size_t cached_keys) {
    TableOptions options;
    options.name = std::move(name);
    options.rows = rows;
    options.width = width;
    options.dtype = to_dtype(dtype);
    options.initial = initial;
    if (function) {
      options.rule.kind = Rule::Kind::kFunction;
      options.rule.function = PythonRule(std::move(*function), std::move(row_shape), options.dtype);
    } else {
      options.rule = rule_of(rule.first, rule.second);
    }
    options.ranks = std::move(ranks);
    options.replicas = replicas;
    options.staleness = staleness;
    options.codec = codec.value_or(vol::Codec());
    options.threshold = threshold;
    options.cached_keys = cached_keys;
    return std::make_unique<Table>(std::move(clients), std::move(servers), std::move(options));
  };
  const auto advance = [](Table& self, std::optional<double> timeout) {
    self.client().advance(to_duration(timeout));
  };
  const auto wait = [](Table& self, std::optional<std::uint64_t> push,
                       std::optional<double> timeout) {
    self.client().wait(push, to_duration(timeout));
  };
  const auto finish = [](Table& self, std::optional<double> timeout) {
    self.client().finish(to_duration(timeout));
  };
  py::class_<Table>(module, "Table", "A rank's part of a table; for the package.")
      .def(py::init(make), py::arg("clients"), py::arg("servers"), py::arg("name"), py::arg("rows"),
           py::arg("width"), py::arg("dtype"), py::arg("initial"), py::arg("rule"),
           py::arg("function"), py::arg("row_shape"), py::arg("ranks"), py::arg("replicas"),
           py::arg("staleness"), py::arg("codec"), py::arg("threshold"), py::arg("cached_keys"))
      .def("push", &Table::push, py::arg("keys"), py::arg("first"), py::arg("gradients"),
           py::arg("timeout"))
      .def("pull", &Table::pull, py::arg("keys"), py::arg("first"), py::arg("to"),
           py::arg("timeout"))
      .def("wait", wait, py::arg("push"), py::arg("timeout"), NoGil())
      .def("advance", advance, py::arg("timeout"), NoGil())
      .def("finish", finish, py::arg("timeout"), NoGil())
      .def_property_readonly("clock", [](Table& self) { return self.client().clock(); })
      .def_property_readonly("bytes_out", [](Table& self) { return self.client().bytes_out(); })
      .def_property_readonly("bytes_in", [](Table& self) { return self.client().bytes_in(); })
      .def_property_readonly("rows_held_back",
                             [](Table& self) { return self.client().rows_held_back(); })
      .def("leave", &Table::leave, "Leave at once. Any thread, at any time.");
}

}  // namespace malt_bindings
