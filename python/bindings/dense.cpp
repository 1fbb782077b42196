#include <algorithm>
#include <utility>

#include "method.hpp"
#include "nan_watch.hpp"
#include "vector_methods.hpp"

namespace malt_bindings {
namespace {

using dstorm::Turn;
using vol::DenseVector;
using vol::Fold;

// A NumPy array over memory that `owner` keeps mapped.
py::array view_of(const std::shared_ptr<DenseVector>& owner, void* data, std::size_t count) {
  const py::capsule base(new std::shared_ptr<DenseVector>(owner), [](void* held) {
    delete static_cast<std::shared_ptr<DenseVector>*>(held);
  });
  return py::array(from_dtype(owner->dtype()), {count}, {}, data, base);
}

// One update as a fold written in Python sees it.
struct PythonUpdate {
  int rank;
  std::uint64_t iteration;
  py::array values;
};

class PythonVector {
 public:
  PythonVector(const std::shared_ptr<dstorm::Group>& group, const py::dtype& dtype,
               const std::vector<py::array>& arrays, py::ssize_t own_count, py::object shown,
               py::object watch, vol::VectorOptions options)
      : array_(std::move(shown)), arrays_(arrays), watch_(std::move(watch)) {
    const vol::DType type = to_dtype(dtype);
    const bool has_nan = type == vol::DType::kFloat32 || type == vol::DType::kFloat64;
    if (!has_nan || options.reject_nonfinite || options.max_norm || group->size() == 1) {
      nan_watch_.stop();
    }
    std::vector<vol::Piece> pieces;
    for (py::array& array : arrays_) {
      pieces.push_back({array.mutable_data(), static_cast<std::size_t>(array.size())});
    }
    const py::gil_scoped_release no_gil;
    vector_ =
        pieces.empty()
            ? std::make_shared<DenseVector>(group, type, static_cast<std::size_t>(own_count),
                                            std::move(options))
            : std::make_shared<DenseVector>(group, type, std::move(pieces), std::move(options));
  }
  ~PythonVector() {
    uses();
    vector_->drop();
  }
  PythonVector(const PythonVector&) = delete;
  PythonVector& operator=(const PythonVector&) = delete;

  const py::object& array() {
    watch_ = py::none();  // the program uses the array that this returns
    if (array_.is_none()) {
      array_ = view_of(vector_, vector_->pieces()[0].data, vector_->count());
    }
    return array_;
  }
  void show(py::object array) { array_ = std::move(array); }
  // `v.array = x` copies; after `v.array += x` the values are there already.
  void write(const py::object& values) {
    if (!values.is(array())) callbacks().write(name(), array(), values);
  }
  const std::shared_ptr<Uses>& uses() { return missed_.look(vector_->segment().stats()); }
  DenseVector& vector() const { return *vector_; }
  dstorm::Turns& turns() const { return vector_->segment().turns(); }
  const std::string& name() const { return vector_->segment().options().name; }

  // A scatter or a gather, after which the functions that its vector's frontier calls are called.
  template <auto method>
  py::object then_notify(PyObject* const* arguments, std::size_t count, PyObject* keywords) {
    py::object result = (this->*method)(arguments, count, keywords);
    notices_.call(vector_->segment());
    return result;
  }
  Notices& notices() { return notices_; }

  py::object scatter(PyObject* const* arguments, std::size_t count, PyObject* keywords) {
    static const Parameters<1> parameters("scatter", 1, {"graph"});
    const auto given = parameters.match(arguments, count, keywords);
    const auto* graph = parameters.get<const dstorm::Graph*>(given, 0, nullptr);
    look_for_nan("scatter");
    const Turn turn(turns(), "scatter", name());
    missed_.note_scatter();
    return scattered_.of(in_group(turns(), [&] { return vector_->scatter(graph); }));
  }

  py::object gather(PyObject* const* arguments, std::size_t count, PyObject* keywords) {
    static const Parameters<5> parameters("gather", 1,
                                          {"fold", "staleness", "timeout", "quorum", "deadline"});
    const auto given = parameters.match(arguments, count, keywords);
    const dstorm::GatherOptions options =
        to_gather_options(parameters.get<py::object>(given, 1, py::none()),
                          parameters.get<py::object>(given, 2, py::none()),
                          parameters.get<py::object>(given, 3, py::none()),
                          parameters.get<py::object>(given, 4, py::none()));
    const Fold fold = to_fold(given[0]);
    check_used();
    const Turn turn(turns(), "gather", name());
    const vol::Gathered& gathered =
        in_group(turns(), [&]() -> const vol::Gathered& { return vector_->gather(fold, options); });
    end_round(vector_->segment());
    if (gathered.count > 0) nan_watch_.after_fold(vector_->pieces(), vector_->dtype());
    missed_.note_gather(vector_->segment(), options.staleness, gathered.count);
    return gathered_.of(gathered);
  }

  py::object allreduce(PyObject* const* arguments, std::size_t count, PyObject* keywords) {
    static const Parameters<3> parameters("allreduce", 1, {"fold", "timeout", "last"});
    const auto given = parameters.match(arguments, count, keywords);
    const auto limit = to_duration(parameters.get<std::optional<double>>(given, 1, std::nullopt));
    const bool last = parameters.get<bool>(given, 2, false);
    const Fold fold = to_fold(given[0]);
    check_used();
    look_for_nan("allreduce");
    const Turn turn(turns(), "allreduce", name());
    const vol::Gathered& gathered = in_group(
        turns(), [&]() -> const vol::Gathered& { return vector_->allreduce(fold, limit, last); });
    end_round(vector_->segment());
    nan_watch_.after_fold(vector_->pieces(), vector_->dtype());
    missed_.note_allreduce(vector_->segment(), gathered.ranks);
    return gathered_.of(gathered);
  }

 private:
  // Calls watch_ at folds 3 to 8, and then ever more seldom, until it returns false. At the first
  // two, a program that uses the vector through array() may not have called array() yet.
  void check_used() {
    if (watch_.is_none() || ++folds_ < next_look_) return;
    next_look_ = std::max(next_look_ + 1, next_look_ / 8 * 16);
    if (!watch_().cast<bool>()) watch_ = py::none();
  }

  void look_for_nan(const char* call) {
    nan_watch_.before_send(vector_->pieces(), vector_->dtype(), vector_->segment(), call);
  }

  // `given` must outlive the fold.
  Fold to_fold(PyObject* given) {
    if (given == nullptr) return Fold::avg();
    if (const Fold* built_in = to_built_in(given)) return *built_in;
    nan_watch_.stop();
    return Fold::user(
        [this, given](std::span<std::byte> mine, std::span<const dstorm::Update> updates) {
          const py::gil_scoped_acquire gil;
          run(py::reinterpret_borrow<py::object>(given), mine, updates);
        });
  }

  void run(const py::object& fold, std::span<std::byte> mine,
           std::span<const dstorm::Update> updates) {
    const std::size_t count = vector_->count();
    const py::array own = view_of(vector_, mine.data(), count);
    py::list list;
    for (const dstorm::Update& update : updates) {
      auto* data = const_cast<std::byte*>(update.payload.data());
      py::array values = view_of(vector_, data, count);
      values.attr("flags").attr("writeable") = false;
      list.append(PythonUpdate{update.rank, update.iteration, std::move(values)});
    }
    const py::object result = fold(own, list);
    if (!result.is_none()) own.attr("__setitem__")(py::ellipsis(), result);
  }

  py::object array_;
  std::vector<py::array> arrays_;  // keeps the caller's memory alive
  py::object watch_;               // a function to call, or None; see check_used()
  int folds_ = 0;
  int next_look_ = 3;
  NanWatch nan_watch_;
  Missed missed_;
  Notices notices_;
  GatheredObject gathered_;
  RankTuple scattered_;
  std::shared_ptr<DenseVector> vector_;
};

using Rows = py::array_t<std::int64_t, py::array::c_style>;

// A vector over this rank's row of `rows`, which has a row for each rank. Each update is gathered
// into the row of its sender.
class RowVector final : public PythonVector {
 public:
  RowVector(const std::shared_ptr<dstorm::Group>& group, const Rows& rows,
            vol::VectorOptions options)
      : RowVector(group, rows, rows[py::int_(group->rank())].cast<py::array>(),
                  std::move(options)) {}

  py::object scatter_row(PyObject* const* arguments, std::size_t count, PyObject* keywords) {
    static const Parameters<0> parameters("scatter_row", 0, {});
    parameters.match(arguments, count, keywords);
    const Turn turn(turns(), "scatter", name());
    return scattered_.of(in_group(turns(), [&] { return vector().scatter(nullptr, true); }));
  }

  py::object gather_rows(PyObject* const* arguments, std::size_t count, PyObject* keywords) {
    static const Parameters<1> parameters("gather_rows", 0, {"staleness"});
    const auto given = parameters.match(arguments, count, keywords);
    const auto options = to_gather_options(parameters.get<py::object>(given, 0, py::none()));
    const Turn turn(turns(), "gather", name());
    const std::vector<int> alive = in_group(turns(), [&] {
      const dstorm::Group& group = vector().segment().group();
      if (!options.staleness) group.check_open();
      std::vector<int> before = group.alive();
      vector().gather(into_rows_, options);
      return before;
    });
    end_round(vector().segment());
    return alive_.of(alive);
  }

 private:
  RowVector(const std::shared_ptr<dstorm::Group>& group, const Rows& rows, const py::array& own,
            vol::VectorOptions options)
      : PythonVector(group, own.dtype(), {own}, 0, own, py::none(), std::move(options)),
        rows_(rows),
        into_rows_(Fold::into_rows(std::as_writable_bytes(
            std::span(rows_.mutable_data(), static_cast<std::size_t>(rows_.size()))))) {}

  Rows rows_;
  Fold into_rows_;
  RankTuple scattered_;
  RankTuple alive_;  // at the last gather_rows()
};

void bind_rows(py::module_& module) {
  py::class_<RowVector, PythonVector> rows(
      module, "RowVector",
      "A vector over this rank's row of `rows`, one for each rank; for the package.");
  add_method<RowVector, &RowVector::scatter_row>(
      rows, "scatter_row",
      "scatter_row(self: malt._core.RowVector) -> tuple[int, ...]\n\n"
      "Scatter. Other hosts may get the update only together with this rank's next one.\n\n"
      "Returns:\n    The ranks written to.");
  add_method<RowVector, &RowVector::gather_rows>(
      rows, "gather_rows",
      "gather_rows(self: malt._core.RowVector, *, staleness: typing.SupportsIndex | None = None) "
      "-> tuple[int, ...]\n\n"
      "Gather each update into the row of its sender.\n\n"
      "Without a staleness, move to the next group if there is one.\n\n"
      "Returns:\n    The ranks that were alive before. The last rows of the other ranks have "
      "arrived.");
  rows.def(py::init([](const std::shared_ptr<dstorm::Group>& group, const Rows& of_ranks,
                       const std::string& name, int depth, bool rejoins) {
             vol::VectorOptions options;
             options.name = name;
             options.depth = depth;
             options.rejoins = rejoins;
             return std::make_unique<RowVector>(group, of_ranks, std::move(options));
           }),
           py::kw_only(), py::arg("group"), py::arg("rows").noconvert(), py::arg("name"),
           py::arg("depth"), py::arg("rejoins"));
}

}  // namespace

void bind_dense(py::module_& module) {
  py::class_<PythonUpdate>(module, "Update", "One update, as a fold of the user's own sees it.")
      .def_readonly("rank", &PythonUpdate::rank)
      .def_readonly("iteration", &PythonUpdate::iteration)
      .def_readonly("values", &PythonUpdate::values, "Read-only; valid during the fold.");

  py::class_<PythonVector> vector(
      module, "Vector", "A dense vector that is scattered and gathered. Made by malt.vector().");
  add_method<PythonVector, &PythonVector::then_notify<&PythonVector::scatter>>(
      vector, "scatter",
      "scatter(self: malt._core.Vector, graph: malt._core.Graph | None = None) -> tuple[int, "
      "...]\n\n"
      "Write this vector into the memory of this round's out-neighbours.\n\n"
      "Under policy 'latest' it never waits; under 'queue' it waits for a free slot.\n\n"
      "Args:\n    graph: over which to send, this once, instead of the vector's own.\n\n"
      "Returns:\n    The ranks written to.\n\n"
      "Raises:\n    TimeoutError: every slot holds an update that the named ranks have yet to "
      "gather.");
  add_method<PythonVector, &PythonVector::then_notify<&PythonVector::gather>>(
      vector, "gather",
      "gather(self: malt._core.Vector, fold: malt._core.Fold | "
      "collections.abc.Callable[[numpy.ndarray, list[malt._core.Update]], typing.Any] = ..., *, "
      "staleness: typing.SupportsIndex | None = None, timeout: typing.SupportsFloat | None = None, "
      "quorum: typing.SupportsFloat | None = None, deadline: typing.SupportsFloat | str | None = "
      "None) -> malt._core.Gathered\n\n"
      "Fold what has arrived into this vector. Asks no peer for anything.\n\n"
      "Args:\n    fold: AVG (the default), SUM, WEIGHTED, REPLACE, MEDIAN, TRIMMED_MEAN(f), or a\n"
      "        function fold(mine, updates) that changes `mine` or returns what it becomes.\n"
      "        Of integers AVG, MEDIAN and TRIMMED_MEAN are exact, rounded toward zero; SUM wraps\n"
      "        around, as NumPy's does; WEIGHTED is computed in double precision.\n"
      "    staleness: 0 waits for this iteration's update of every live in-neighbour (BSP),\n"
      "        k lets them be k iterations behind (SSP), None does not wait (ASP).\n"
      "    timeout: seconds to wait; that of malt.init() if None.\n"
      "    quorum: the share of the live in-neighbours (above 0, at most 1; rounded up) to wait\n"
      "        for until they have scattered this iteration; then fold who is there. None:\n"
      "        nobody, or with a deadline all. Not with staleness=0, which waits for all.\n"
      "    deadline: seconds after which to fold who is there although the quorum is not;\n"
      "        \"auto\": three times as long as quorums took in the last gathers. None: the\n"
      "        timeout, which is an error.\n\n"
      "Returns:\n    Gathered: count, ranks and staleness of the updates folded.\n\n"
      "Raises:\n    TimeoutError: the named ranks did not come; nothing was folded.\n"
      "    ConfigError: an argument is out of range; another thread's call waits, or a fold makes "
      "the call (malt.vector() says "
      "more).");
  add_method<PythonVector, &PythonVector::allreduce>(
      vector, "allreduce",
      "allreduce(self: malt._core.Vector, fold: malt._core.Fold = ..., *, "
      "timeout: typing.SupportsFloat | None = None, last: bool = False) -> malt._core.Gathered\n\n"
      "The exact fold of the vectors of all live ranks, on all of them. Collective.\n\n"
      "If an exception ends the call (a time limit, Ctrl-C), the vector is unchanged. Call it "
      "again: others may have ended it, and this rank then gets the same result. If they have not, "
      "theirs end with a TimeoutError, which names this rank. After another collective call, such "
      "as malt.barrier(), it is a new call on all ranks.\n\n"
      "Args:\n    fold: AVG (the default), SUM, MEDIAN or TRIMMED_MEAN(f); of integers as in "
      "gather().\n"
      "    timeout: seconds to wait; that of malt.init() if None.\n"
      "    last: True for the call after the loop. It takes part in one allreduce only with\n"
      "        calls of other ranks that say so too.\n\n"
      "Raises:\n    TimeoutError: the named ranks did not come; the vector is unchanged.\n"
      "    ConfigError: on all ranks: they name different folds, or only some are at their last; "
      "the vector is unchanged.");
  vector
      .def(py::init([](const std::shared_ptr<dstorm::Group>& group, const py::dtype& dtype,
                       const std::vector<py::array>& arrays, py::ssize_t own_count,
                       py::object shown, const std::string& name, const dstorm::Graph& graph,
                       const std::string& policy, int depth, bool reject_nonfinite,
                       std::optional<double> max_norm, bool rejoins,
                       const std::optional<vol::Codec>& codec, py::object watch) {
             return std::make_unique<PythonVector>(
                 group, dtype, arrays, own_count, std::move(shown), std::move(watch),
                 vol::VectorOptions{name, graph, to_policy(policy), depth, reject_nonfinite,
                                    max_norm, rejoins, codec.value_or(vol::Codec())});
           }),
           py::kw_only(), py::arg("group"), py::arg("dtype"), py::arg("arrays"),
           py::arg("own_count"), py::arg("shown"), py::arg("name"), py::arg("graph"),
           py::arg("policy"), py::arg("depth"), py::arg("reject_nonfinite"), py::arg("max_norm"),
           py::arg("rejoins"), py::arg("codec") = py::none(), py::arg("watch") = py::none())
      .def("show", &PythonVector::show, py::arg("array"),
           "Have `array` return this view of the vector's own memory; for the package.")
      .def_property("array", &PythonVector::array, &PythonVector::write,
                    "The caller's array (or a sequence of them), or the vector's own memory.\n\n"
                    "Assigning to it (`v.array = x`) copies the values into that memory.\n\n"
                    "Raises:\n    ConfigError: the values have another shape, or do not fit the "
                    "dtype.");
  add_vector_methods(vector);
  bind_rows(module);
}

}  // namespace malt_bindings
