#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "callbacks.hpp"
#include "vol/ps/client.hpp"
#include "vol/ps/server_thread.hpp"

namespace malt_bindings {
namespace {

using vol::ps::Client;
using vol::ps::Edition;
using vol::ps::Rows;
using vol::ps::Rule;
using vol::ps::Server;
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

using GroupPointer = std::shared_ptr<dstorm::Group>;

// This rank's client and server of one edition of a table.
struct Seat {
  GroupPointer clients;
  std::unique_ptr<ServerThread> server;
  std::unique_ptr<Client> client;

  Seat(GroupPointer clients_group, GroupPointer servers_group, const TableOptions& options,
       const Edition* edition, const Server* before)
      : clients(std::move(clients_group)),
        server(std::make_unique<ServerThread>(std::move(servers_group), options, edition, before,
                                              clients->deadline())) {
    try {
      client = std::make_unique<Client>(clients, options, *server, edition);
    } catch (...) {
      server->stop(clients->timeout());
      throw;
    }
    server->await_made();
  }
  // Ends the server's thread, which may be in a Python function. So the caller has no GIL.
  void leave(const Client::Limit& limit = std::nullopt) const {
    const dstorm::Deadline deadline = limit ? *limit : clients->deadline();
    clients->leave(deadline.left());
    server->stop(deadline.left());
  }
};

class Table {
 public:
  explicit Table(TableOptions options) : options_(std::move(options)) {}
  ~Table() { leave(std::nullopt); }
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  // Stops this rank's server, once all ranks have settled, and returns what the rank brings to the
  // next edition.
  py::bytes stop(Client::Limit limit) {
    vol::ps::Brought brought;
    {
      const py::gil_scoped_release no_gil;
      Client& client = this->client();
      try {
        client.stop_server(limit);
      } catch (const dstorm::Error&) {  // this rank was evicted from the table's group
        seat_->server->stop();
      }
      before_ = seat_->server->await_stopped();
      if (before_ != nullptr) brought = before_->brought();
      brought.clock = client.clock();
      brought.has_closed = client.has_closed() ? 1 : 0;
      for (const int rank : client.lost_with()) {
        brought.lost_with.push_back(static_cast<std::uint32_t>(rank));
      }
      brought.pushes.resize(static_cast<std::size_t>(seat_->clients->size() / 2));
      std::uint64_t& own = brought.pushes[static_cast<std::size_t>(seat_->clients->rank())];
      own = std::max(own, client.last_push());
    }
    const std::vector<std::byte> packed = brought.pack();
    return {reinterpret_cast<const char*>(packed.data()), packed.size()};
  }
  // Begins an edition, the first one if nobody brings anything. `job` is the job's group in it.
  // Collective.
  void begin(GroupPointer clients, GroupPointer servers, std::optional<GroupPointer> job,
             std::vector<int> ranks, const std::vector<std::optional<py::bytes>>& brought) {
    std::vector<std::optional<vol::ps::Brought>> all(brought.size());
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      if (!brought[rank]) continue;
      const std::string_view bytes = *brought[rank];
      all[rank] = vol::ps::Brought::unpack(std::as_bytes(std::span(bytes)));
    }
    const py::gil_scoped_release no_gil;
    options_.ranks = std::move(ranks);
    edition_.reset();
    if (!all.empty()) {
      const vol::ps::Placement placement(options_.rows, options_.ranks, options_.replicas,
                                         clients->size() / 2, options_.owners);
      edition_.emplace(all, placement.ranges());
    }
    if (job) {
      options_.is_superseded = [group = *job] { return group->is_superseded(); };
      options_.look_again = look_again;
    }
    const Edition* const edition = edition_ ? &*edition_ : nullptr;
    next_.emplace(std::move(clients), std::move(servers), options_, edition, before_);
  }
  std::vector<int> movers() const { return next_->server->movers(); }
  // Goes over to the edition that has begun, and frees the last one.
  void commit() {
    const py::gil_scoped_release no_gil;
    moved_ += next_->server->moved();
    if (seat_) {
      next_->client->take_over(*seat_->client);
      hot_answers_ += seat_->server->hot_answers();
      seat_->leave();
    }
    seat_ = std::move(next_);
    next_.reset();
    before_ = nullptr;
  }
  // Ends the edition that has begun; it may be begun again.
  void abandon() {
    const py::gil_scoped_release no_gil;
    if (next_) next_->leave();
    next_.reset();
  }

  std::uint64_t push(const Keys& keys, std::int64_t first, const py::array& gradients,
                     Client::Limit limit) {
    const Rows rows = rows_of(keys, first, gradients);
    const auto* const from = static_cast<const std::byte*>(gradients.data());
    const py::gil_scoped_release no_gil;
    return client().push(rows, from, limit);
  }
  void pull(const Keys& keys, std::int64_t first, py::array& to, Client::Limit limit) {
    const Rows rows = rows_of(keys, first, to);
    auto* const values = static_cast<std::byte*>(to.mutable_data());
    const py::gil_scoped_release no_gil;
    client().pull(rows, values, limit);
  }
  // (number, first row, one past the last row) of each range of which this rank is the primary.
  std::vector<std::tuple<std::size_t, std::int64_t, std::int64_t>> ranges(
      const std::vector<int>& live) const {
    std::vector<std::tuple<std::size_t, std::int64_t, std::int64_t>> made;
    const vol::ps::Placement& placement = client().placement();
    for (const std::size_t range : client().ranges(live)) {
      made.emplace_back(range, placement.first_row(range), placement.end_row(range));
    }
    return made;
  }
  void read(std::size_t range, std::uint64_t offset, py::array& to, Client::Limit limit) {
    const std::span bytes(static_cast<std::byte*>(to.mutable_data()),
                          static_cast<std::size_t>(to.nbytes()));
    const py::gil_scoped_release no_gil;
    client().read(range, offset, bytes, limit);
  }
  void write(std::size_t range, std::uint64_t offset, const py::array& from, Client::Limit limit) {
    const std::span bytes(static_cast<const std::byte*>(from.data()),
                          static_cast<std::size_t>(from.nbytes()));
    const py::gil_scoped_release no_gil;
    client().write(range, offset, bytes, limit);
  }
  Client& client() const {
    if (!seat_) throw dstorm::ConfigError("table '" + options_.name + "' has no group");
    return *seat_->client;
  }
  std::size_t moved() const { return moved_; }
  std::uint64_t hot_answers() const {
    return hot_answers_ + (seat_ ? seat_->server->hot_answers() : 0);
  }
  void leave(const Client::Limit& limit) {
    const py::gil_scoped_release no_gil;
    for (const std::optional<Seat>* seat : {&next_, &seat_}) {
      if (*seat) (*seat)->leave(limit);
    }
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

  TableOptions options_;
  std::optional<Edition> edition_;  // null: the first one
  std::optional<Seat> seat_;
  std::optional<Seat> next_;        // that has begun
  const Server* before_ = nullptr;  // the stopped server of seat_
  std::uint64_t hot_answers_ = 0;   // in earlier editions
  std::size_t moved_ = 0;           // ranges that have been sent to this rank in moves
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
  using NoGil = py::call_guard<py::gil_scoped_release>;
  const auto make = [](std::string name, std::int64_t rows, std::size_t width,
                       const py::dtype& dtype, double initial,
                       const std::pair<std::string, std::vector<double>>& rule,
                       std::optional<UpdateFunction> function, std::vector<py::ssize_t> row_shape,
                       int replicas, std::optional<std::uint64_t> staleness,
                       const std::optional<vol::Codec>& codec, double threshold,
                       std::size_t cached_keys, std::vector<std::int64_t> hot,
                       std::vector<int> owners) {
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
    options.replicas = replicas;
    options.staleness = staleness;
    options.codec = codec.value_or(vol::Codec());
    options.threshold = threshold;
    options.cached_keys = cached_keys;
    options.hot = std::move(hot);
    options.owners = std::move(owners);
    return std::make_unique<Table>(std::move(options));
  };
  const auto advance = [](Table& self, Client::Limit limit) { self.client().advance(limit); };
  const auto wait = [](Table& self, std::optional<std::uint64_t> push, Client::Limit limit) {
    self.client().wait(push, limit);
  };
  const auto finish = [](Table& self, Client::Limit limit) { self.client().finish(limit); };
  const auto settle = [](Table& self, Client::Limit limit) { self.client().settle(limit); };
  const auto hand_over = [](Table& self, Client::Limit limit) { self.client().hand_over(limit); };
  using Clocks = std::vector<std::uint64_t>;
  const auto drop_pushes = [](Table& self, Client::Limit limit) {
    self.client().drop_pushes(limit);
  };
  const auto await_clocks = [](Table& self, const Clocks& clocks, Client::Limit limit) {
    self.client().await_clocks(clocks, limit);
  };
  const auto end_write = [](Table& self, std::size_t range, Client::Limit limit) {
    self.client().end_write(range, limit);
  };
  const auto continue_from = [](Table& self, const Clocks& clocks, Client::Limit limit) {
    self.client().continue_from(clocks, limit);
  };
  py::class_<Table>(module, "Table", "A rank's part of a table; for the package.")
      .def(py::init(make), py::arg("name"), py::arg("rows"), py::arg("width"), py::arg("dtype"),
           py::arg("initial"), py::arg("rule"), py::arg("function"), py::arg("row_shape"),
           py::arg("replicas"), py::arg("staleness"), py::arg("codec"), py::arg("threshold"),
           py::arg("cached_keys"), py::arg("hot"), py::arg("owners"))
      .def_static("range_shift", &vol::ps::Placement::shift_of, py::arg("rows"), py::arg("most"),
                  "The rows of a range, as a power of two, of a table on at most so many ranks.")
      .def("push", &Table::push, py::arg("keys"), py::arg("first"), py::arg("gradients"),
           py::arg("limit"))
      .def("pull", &Table::pull, py::arg("keys"), py::arg("first"), py::arg("to"), py::arg("limit"))
      .def("wait", wait, py::arg("push"), py::arg("limit"), NoGil())
      .def("advance", advance, py::arg("limit"), NoGil())
      .def("finish", finish, py::arg("limit"), NoGil())
      .def("begin", &Table::begin, py::arg("clients"), py::arg("servers"), py::arg("job"),
           py::arg("ranks"), py::arg("brought"),
           "Begin the first edition, or the next one with what each rank brings. Collective.")
      .def("movers", &Table::movers,
           "The ranks whose ranges have yet to come here in the edition that has begun.")
      .def("commit", &Table::commit, "Go over to the edition that has begun.")
      .def("abandon", &Table::abandon, "End the edition that has begun; it may begin again.")
      .def("settle", settle, py::arg("limit"), NoGil(),
           "Wait until all pushes are acknowledged. Their errors stay for later calls.")
      .def("stop", &Table::stop, py::arg("limit"),
           "Stop this rank's server; return what the rank brings to the next edition.")
      .def("hand_over", hand_over, py::arg("limit"), NoGil(),
           "Hand this rank's ranges over to other ranks; no call but leave() may follow.")
      .def("drop_pushes", drop_pushes, py::arg("limit"), NoGil(),
           "Wait until all pushes are acknowledged; drop their errors, and what is held back.")
      .def("await_clocks", await_clocks, py::arg("clocks"), py::arg("limit"), NoGil(),
           "Wait until this rank's server knows of these clocks; 2**64 - 1: that the rank is dead.")
      .def("ranges", &Table::ranges, py::arg("live"),
           "Of which this rank is the primary: number, first row, one past the last row.")
      .def("read", &Table::read, py::arg("range"), py::arg("offset"), py::arg("to"),
           py::arg("limit"), "Copy bytes of a range of which this rank is the primary.")
      .def("write", &Table::write, py::arg("range"), py::arg("offset"), py::arg("given"),
           py::arg("limit"), "Put bytes there.")
      .def("end_write", end_write, py::arg("range"), py::arg("limit"), NoGil(),
           "Wait until the copies of a range that has been written are whole.")
      .def("continue_from", continue_from, py::arg("clocks"), py::arg("limit"), NoGil(),
           "Set the clocks of all ranks.")
      .def_property_readonly("last_push", [](Table& self) { return self.client().last_push(); })
      .def_property_readonly(
          "moved", [](Table& self) { return self.moved(); },
          "How many ranges have been sent to this rank in moves.")
      .def_property_readonly("clock", [](Table& self) { return self.client().clock(); })
      .def_property_readonly("bytes_out", [](Table& self) { return self.client().bytes_out(); })
      .def_property_readonly("bytes_in", [](Table& self) { return self.client().bytes_in(); })
      .def_property_readonly("bytes_own", [](Table& self) { return self.client().bytes_own(); })
      .def_property_readonly("rows_held_back",
                             [](Table& self) { return self.client().rows_held_back(); })
      .def_property_readonly("hot_answers", &Table::hot_answers)
      .def("leave", &Table::leave, py::arg("limit") = py::none(),
           "Leave, within the limit. Any thread, at any time.");
}

}  // namespace malt_bindings
