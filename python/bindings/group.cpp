#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <thread>
#include <variant>

#include "callbacks.hpp"
#include "dstorm/host/wait.hpp"
#include "dstorm/recorder/recorder.hpp"

namespace malt_bindings {
namespace {

using AllGather = py::typing::Callable<py::typing::List<py::bytes>(py::bytes, dstorm::Deadline)>;

// A bootstrap written in Python: allgather(bytes, deadline) -> list of bytes, by rank.
class PythonBootstrap final : public dstorm::Bootstrap {
 public:
  PythonBootstrap(int rank, int size, std::vector<int> members, AllGather allgather)
      : rank_(rank), size_(size), members_(std::move(members)), allgather_(std::move(allgather)) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::vector<int> members() const override { return members_; }
  std::vector<dstorm::Bytes> allgather(std::span<const std::byte> mine,
                                       const dstorm::Deadline& deadline) override {
    const py::gil_scoped_acquire gil;
    const py::bytes data(reinterpret_cast<const char*>(mine.data()), mine.size());
    std::vector<dstorm::Bytes> all;
    for (const std::string& bytes : allgather_(data, deadline).cast<std::vector<std::string>>()) {
      dstorm::Bytes copy(bytes.size());
      if (!bytes.empty()) std::memcpy(copy.data(), bytes.data(), bytes.size());
      all.push_back(std::move(copy));
    }
    return all;
  }

 private:
  int rank_;
  int size_;
  std::vector<int> members_;
  AllGather allgather_;
};

// A wait calls this. If the main thread waits, it runs Python's signal handlers and the functions
// that malt.jobs.on_change() was given. An exception of theirs, such as KeyboardInterrupt, ends the
// wait. So does, in any thread, one that another thread has sent to it
// (PyThreadState_SetAsyncExc): Python raises that as soon as a Python function runs.
void check_signals() {
  const py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0 || Py_MakePendingCalls() != 0) throw py::error_already_set();
  callbacks().do_nothing();
}

int call_at_new_epoch(void* /*unused*/) {
  try {
    callbacks().new_epoch();
    return 0;
  } catch (py::error_already_set& error) {
    error.restore();
    return -1;
  }
}

// A wait of this rank takes long: logs that.
void say_slow(int rank, const std::string& text) {
  const py::gil_scoped_acquire gil;
  try {
    callbacks().slow(rank, text);
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("a notice of a slow wait");
  }
}

std::shared_ptr<dstorm::Group> join(int rank, int size, std::vector<int> members,
                                    AllGather allgather, double timeout,
                                    const dstorm::Deadline& deadline, const std::string& transport,
                                    double silence, bool lowest_wins, const std::string& interface,
                                    const std::string& toward, const py::bytes& secret,
                                    double slow_after, const std::shared_ptr<dstorm::Turns>& turns,
                                    std::optional<std::shared_ptr<dstorm::Recorder>> recorder,
                                    bool in_background) {
  PythonBootstrap bootstrap(rank, size, std::move(members), std::move(allgather));
  dstorm::GroupOptions options;
  options.timeout = *to_duration(timeout);
  options.deadline = deadline;
  options.transport = transport;
  options.silence = *to_duration(silence);
  options.tie = lowest_wins ? dstorm::TieRule::kLowest : dstorm::TieRule::kNeither;
  options.interface = interface;
  options.toward = toward;
  options.secret = secret;
  options.turns = turns;
  if (recorder) options.recorder = std::move(*recorder);
  if (!in_background) {
    options.interrupt = check_signals;
    options.superseded = look_again;
    options.slow_after = *to_duration(slow_after);
    options.slow = [rank](const std::string& text) { say_slow(rank, text); };
    options.changed = [] {  // in a thread that may outlive Python, at the end of the program
      if (Py_IsInitialized() != 0) Py_AddPendingCall(call_at_new_epoch, nullptr);
    };
  }
  const py::gil_scoped_release no_gil;
  return dstorm::Group::join(bootstrap, options);
}

// The name that Python gives a thread.
std::string name_of(std::uintptr_t thread) {
  try {
    const py::gil_scoped_acquire gil;
    const py::module_ threading = py::module_::import("threading");
    for (const py::handle one : threading.attr("enumerate")()) {
      const bool is_it = one.attr("ident").cast<std::uintptr_t>() == thread;
      if (is_it) return one.attr("name").cast<std::string>();
    }
  } catch (const py::error_already_set&) {
    return "";  // the message then has no name
  }
  return "";
}

// Sleeps without the GIL, which the thread that this one waits for may need.
void nap(std::chrono::nanoseconds time) {
  std::optional<py::gil_scoped_release> no_gil;
  if (PyGILState_Check() != 0) no_gil.emplace();
  std::this_thread::sleep_for(time);
  if (time.count() == 0) std::this_thread::yield();
}

// Makes several calls, with Python code between them, one call of the job.
class Held {
 public:
  Held(const std::shared_ptr<dstorm::Turns>& turns, const std::string& call)
      : turns_(turns), call_(PyUnicode_InternFromString(call.c_str())) {}
  void enter() {
    turn_.emplace(*turns_, PyUnicode_AsUTF8(call_));
    pause_.emplace(*turns_);
  }
  void exit() {
    pause_.reset();
    turn_.reset();
  }

 private:
  std::shared_ptr<dstorm::Turns> turns_;
  PyObject* call_;  // never freed: threads whose calls are refused may read it. There are few
  std::optional<dstorm::Turn> turn_;
  std::optional<dstorm::Turns::Pause> pause_;
};

// A limit of an exchange: seconds, or what is left of a call's.
using Limit = std::optional<std::variant<double, dstorm::Deadline>>;

std::optional<dstorm::Deadline> to_deadline(const Limit& limit) {
  if (!limit) return std::nullopt;
  if (const auto* const seconds = std::get_if<double>(&*limit)) return *to_duration(*seconds);
  return std::get<dstorm::Deadline>(*limit);
}

// Has the waits of a group share one deadline, with Python code between them.
class Within {
 public:
  Within(std::shared_ptr<dstorm::Group> group, const dstorm::Deadline& deadline)
      : group_(std::move(group)), deadline_(deadline) {}
  void enter() {
    within_.emplace(*group_, deadline_);
    pause_.emplace(*group_->turns());
  }
  void exit() {
    pause_.reset();
    within_.reset();
  }

 private:
  std::shared_ptr<dstorm::Group> group_;
  dstorm::Deadline deadline_;
  std::optional<dstorm::Group::Within> within_;
  std::optional<dstorm::Turns::Pause> pause_;
};

void bind_deadline(py::module_& module) {
  const auto seconds = [](std::chrono::nanoseconds time) {
    return std::chrono::duration<double>(time).count();
  };
  py::class_<dstorm::Deadline>(module, "Deadline",
                               "The time limit of a call that waits several times, from here on.")
      .def(py::init([](double limit, std::optional<double> left) {
             const dstorm::Deadline whole(*to_duration(limit));
             return left ? dstorm::Deadline(whole.limit(), *to_duration(left)) : whole;
           }),
           py::arg("limit"), py::arg("left") = py::none())
      .def_property_readonly(
          "left", [seconds](const dstorm::Deadline& self) { return seconds(self.left()); },
          "Seconds; 0 if it is over.")
      .def_property_readonly(
          "limit", [seconds](const dstorm::Deadline& self) { return seconds(self.limit()); },
          "Seconds, as given.");
  py::class_<Within>(module, "Within", "A call of several waits, as a context manager.")
      .def("__enter__", &Within::enter)
      .def(
          "__exit__",
          [](Within& self, const py::object&, const py::object&, const py::object&) {
            self.exit();
          },
          py::arg("kind"), py::arg("error"), py::arg("trace"));
}

void bind_turns(py::module_& module) {
  using dstorm::Turns;
  py::class_<Held>(module, "Held", "A call in progress, as a context manager.")
      .def("__enter__", &Held::enter)
      .def(
          "__exit__",
          [](Held& self, const py::object&, const py::object&, const py::object&) { self.exit(); },
          py::arg("kind"), py::arg("error"), py::arg("trace"));
  py::class_<Turns, std::shared_ptr<Turns>>(
      module, "Turns", "The calls of a job, which go one at a time; for the package.")
      .def(py::init([] { return std::make_shared<Turns>(Turns::Threads{name_of, nap}); }))
      .def(
          "hold",
          [](const std::shared_ptr<Turns>& self, const std::string& call) {
            return std::make_unique<Held>(self, call);
          },
          py::arg("call"), "A call that is made up of several. ConfigError as of one.")
      .def(
          "check", [](Turns& self, const std::string& call) { self.check(call.c_str(), true); },
          py::arg("call"), "Raise ConfigError where a call could not begin, but in a wait.")
      .def(
          "await_end",
          [](Turns& self, double limit) { return self.await_end(*to_duration(limit)); },
          py::arg("limit"),
          "Wait until no other thread's call is in progress. False: it still is.");
}

void bind_callbacks(py::module_& module) {
  module.def(
      "set_callbacks",
      [](py::object new_epoch, py::object slow, py::object look_again, py::object regroup,
         py::object keep_round, py::object note_unsent, py::object note_nan, py::object write,
         py::object note_left, py::object note_left_allreduce, py::object do_nothing) {
        callbacks() = {std::move(new_epoch),  std::move(slow),
                       std::move(look_again), std::move(regroup),
                       std::move(keep_round), std::move(note_unsent),
                       std::move(note_nan),   std::move(write),
                       std::move(note_left),  std::move(note_left_allreduce),
                       std::move(do_nothing)};
      },
      py::kw_only(), py::arg("new_epoch"), py::arg("slow"), py::arg("look_again"),
      py::arg("regroup"), py::arg("keep_round"), py::arg("note_unsent"), py::arg("note_nan"),
      py::arg("write"), py::arg("note_left"), py::arg("note_left_allreduce"), py::arg("do_nothing"),
      "Set the functions that the core calls; for the package.");
}

using Posts = py::typing::List<py::typing::Optional<py::bytes>>;

// Returns the bytes of every rank, by rank; None for the dead.
Posts exchange(dstorm::Group& group, const std::string& what, const std::string& mine,
               const Limit& timeout) {
  std::vector<std::optional<dstorm::Bytes>> posts;
  {
    const py::gil_scoped_release no_gil;
    posts = group.exchange(what, std::as_bytes(std::span(mine)), to_deadline(timeout));
  }
  py::list result;
  for (const std::optional<dstorm::Bytes>& post : posts) {
    if (post) {
      result.append(py::bytes(reinterpret_cast<const char*>(post->data()), post->size()));
    } else {
      result.append(py::none());
    }
  }
  return result;
}

}  // namespace

VectorStats stats_of(const dstorm::Segment& segment, const dstorm::Stats& counted,
                     const vol::Screened& screened) {
  VectorStats stats{counted, screened, {}};
  const dstorm::Turns::Look look(segment.turns());
  for (int r : segment.peers()) stats.routes.emplace(r, segment.group().route(r));
  return stats;
}

void bind_group(py::module_& module) {
  using dstorm::Group;
  using NoGil = py::call_guard<py::gil_scoped_release>;
  bind_deadline(module);
  bind_turns(module);
  bind_callbacks(module);
  using Route = Group::Route;
  const auto text_of = [](const Route& route) {
    return std::string(route.transport) + ": " + route.why;
  };
  py::class_<Route>(module, "Route", "How this rank reaches another.")
      .def_readonly("transport", &Route::transport,
                    "'shm', 'verbs', 'tcp', or 'self' for this rank.")
      .def_readonly("why", &Route::why)
      .def("__str__", text_of)
      .def("__repr__", [text_of](const Route& route) { return "Route(" + text_of(route) + ")"; });
  py::class_<Group, std::shared_ptr<Group>>(module, "Group", "The ranks of a job.")
      .def(py::init(&join), py::arg("rank"), py::arg("size"), py::arg("members"),
           py::arg("allgather"), py::arg("timeout"), py::arg("deadline"), py::arg("transport"),
           py::arg("silence"), py::arg("lowest_wins"), py::arg("interface"), py::arg("toward"),
           py::arg("secret"), py::arg("slow_after"), py::arg("turns"), py::arg("recorder"),
           py::kw_only(), py::arg("in_background"),
           "timeout: the limit of a wait that has none of its own. deadline: of joining. "
           "in_background: its waits run no Python, neither for signals nor for news.")
      .def_property_readonly("rank", &Group::rank)
      .def_property_readonly("size", &Group::size)
      .def_property_readonly("epoch", &Group::epoch)
      .def_property_readonly("has_left", [](const Group& group) { return group.has_left(); })
      .def_property_readonly("is_one_host", &Group::is_one_host,
                             "Whether all ranks share one memory.")
      .def("route", &Group::route, py::arg("rank"))
      .def("alive", [](const Group& group) { return to_tuple(group.alive()); })
      .def("is_left_out", &Group::is_left_out, py::arg("rank"),
           "Whether the rank has been evicted; its process may still live.")
      .def("check_standing", &Group::check_standing,
           "Raise the error of a rank that has left, or has been evicted or cut off.")
      .def(
          "barrier",
          [](Group& group, std::optional<double> timeout) { group.barrier(to_duration(timeout)); },
          py::arg("timeout") = py::none(), NoGil())
      .def(
          "exchange",
          [](Group& group, const std::string& what, const py::bytes& mine, const Limit& timeout,
             std::optional<py::typing::List<Posts>> kept) {
            Posts posts = exchange(group, what, mine, timeout);
            if (kept) kept->append(posts);
            return posts;
          },
          py::arg("what"), py::arg("mine"), py::arg("timeout") = py::none(),
          py::arg("kept") = py::none(),
          "Return what the live ranks give, by rank. `kept` gets it too, before an exception of a "
          "signal handler can end the call.")
      .def("supersede", &Group::supersede, py::arg("call"),
           "Have every rank of this host move to another group. Any thread.")
      .def("restore", &Group::restore, "Call the move off: the group goes on as before.")
      .def("keep_round", &Group::keep_round, py::arg("segment"),
           "Note that the result of its gather or allreduce is kept, so this rank may move.")
      .def_property_readonly("superseded_by", &Group::superseded_by,
                             "By which call, the first since it was made or restored, or 0.")
      .def_property_readonly("is_superseded", &Group::is_superseded)
      .def_property_readonly("pending", &Group::pending,
                             "Purpose of the exchange that an exception has ended; '': none.")
      .def_property_readonly("posted", &Group::posted,
                             "To how many exchanges this rank has posted.")
      .def(
          "await_posts",
          [](const Group& group, const std::vector<std::uint64_t>& by_rank, double timeout) {
            group.await_posts(by_rank, *to_duration(timeout));
          },
          py::arg("by_rank"), py::arg("timeout"), NoGil())
      .def(
          "leave",
          [](Group& group, std::optional<double> timeout) { group.leave(to_duration(timeout)); },
          py::arg("timeout") = py::none(), NoGil())
      .def(
          "within",
          [](std::shared_ptr<Group> group, const dstorm::Deadline& deadline) {
            return std::make_unique<Within>(std::move(group), deadline);
          },
          py::arg("deadline"),
          "A context in which the waits of this thread that have no limit of their own end by the "
          "deadline.");
}

}  // namespace malt_bindings
