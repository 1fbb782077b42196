// Dense vectors that are scattered and gathered.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dstorm/collective/allreduce.hpp"
#include "dstorm/collective/shared_fold.hpp"
#include "dstorm/segment.hpp"
#include "vol/codec.hpp"
#include "vol/fold.hpp"
#include "vol/kernels.hpp"
#include "vol/screen.hpp"

namespace vol {

struct VectorOptions {
  std::string name = {};  // in errors; one open vector each
  dstorm::Graph graph = dstorm::Graph::all();
  dstorm::Policy policy = dstorm::Policy::kLatest;
  int depth = 2;                  // slots per sender
  bool reject_nonfinite = false;  // refuse updates with NaN or infinity in them, and count them
  // Scale updates of a larger L2 norm down to it before they are folded, and count them; refuse
  // those that have none. For floats.
  std::optional<double> max_norm = std::nullopt;
  bool rejoins = false;  // this rank has come back; see dstorm::SegmentOptions
  Codec codec = {};      // of dense vectors of floats: what scatter() makes of them
};

// Several arrays can make one vector, in this order.
struct Piece {
  void* data;
  std::size_t count;  // elements
};

// A dense vector whose element type is a run-time value; Dense<T> below is the typed face.
// Threads: as of dstorm::Segment. Other threads may read the elements during a call, and see some
// from before and some from after it. Not movable: the ranks know it by its place.
class DenseVector {
 public:
  // Collective. Over the caller's memory, which must outlive the vector, or over memory of the
  // vector's own (zeros), which other ranks of the host can read, so that allreduce() copies less.
  // Throws ConfigError, on every rank, if the ranks disagree or there is no room, and on this one
  // if pieces share memory. (Two vectors may: each folds into it by itself.)
  DenseVector(std::shared_ptr<dstorm::Group> group, DType dtype, std::vector<Piece> pieces,
              VectorOptions options);
  DenseVector(std::shared_ptr<dstorm::Group> group, DType dtype, std::size_t count,
              VectorOptions options);

  // Collective: see dstorm::Segment::regroup. The values stay, and where they are.
  void regroup(std::shared_ptr<dstorm::Group> group);

  // Writes this vector into the memory of this round's live out-neighbours and returns them. See
  // dstorm::Segment::scatter for when it waits and what it throws.
  std::span<const int> scatter(const dstorm::Graph* graph = nullptr, bool may_lag = false);

  // Folds what has arrived into this vector; with nothing arrived it changes nothing. In rank
  // order, this rank in its place, so that over ALL every rank gets the same bits. At staleness 0
  // over ALL the work on a long vector is shared out between the ranks, with the same bits as
  // result. See dstorm::Segment::gather for waiting and errors. The result is valid until the next
  // call.
  const Gathered& gather(const Fold& fold, const dstorm::GatherOptions& options = {});

  // Exact and collective: the fold of the vectors of all live ranks as they are now, on all of
  // them; the order of their iterations does not matter. AVG, SUM, MEDIAN and TRIMMED_MEAN. A rank
  // that dies in the middle is left out and the others get a result without it. Vectors are folded
  // as they are, whatever reject_nonfinite, max_norm and codec say. Throws TimeoutError naming the ranks
  // that did not come; the vector is then unchanged. `last`: the one after the loop, which goes with
  // the others' last alone: where another rank makes one of its loop all throw ConfigError.
  const Gathered& allreduce(const Fold& fold,
                            std::optional<std::chrono::nanoseconds> timeout = std::nullopt,
                            bool last = false);

  DType dtype() const noexcept { return dtype_; }
  std::size_t count() const noexcept { return count_; }
  std::span<const Piece> pieces() const noexcept { return pieces_; }
  bool owns_memory() const noexcept { return owns_; }
  dstorm::Segment& segment() noexcept { return segment_; }
  const dstorm::Segment& segment() const noexcept { return segment_; }
  // See dstorm::Stats; bytes and waiting with those of allreduce(). Any thread, at any time.
  dstorm::Stats stats() const;
  Screened screened() const;  // likewise
  // Also by the destructor. The memory of the vector's own stays readable until then.
  void close();
  void shut() noexcept;  // see dstorm::Segment

 private:
  class MessageOperand;

  DenseVector(std::shared_ptr<dstorm::Group> group, DType dtype, std::vector<Piece> pieces,
              std::size_t own_count, VectorOptions options);

  void fold_updates(const Fold& fold, std::span<const dstorm::Update> updates);
  void run_user_fold(const Fold& fold, std::span<const dstorm::Update> updates);
  std::uint32_t format() const noexcept;
  void check_update(const dstorm::Update& update) const;
  void let_in(std::span<const dstorm::Update> updates);
  void copy_out(std::byte* to, std::size_t begin, std::size_t end) const;
  void copy_in(const std::byte* from, std::size_t begin, std::size_t end);
  template <class Visit>
  void visit(std::size_t begin, std::size_t end, Visit&& visit) const;
  template <class Visit>
  void backwards(std::size_t begin, std::size_t end, Visit&& visit) const;
  const Gathered& allreduce_apart(const Fold& fold, const dstorm::Operation& operation,
                                  dstorm::Clock::time_point start, std::chrono::nanoseconds limit);
  void count_shared_allreduce();
  void set_contributors(std::span<const int> members);
  void fold_part(const Fold& fold, std::size_t begin, std::size_t end);
  void copy_result_in();
  bool may_share(const Fold& fold, const dstorm::GatherOptions& options,
                 std::span<const dstorm::Update> updates);
  bool share_fold(const Fold& fold, std::chrono::nanoseconds timeout,
                  std::span<const dstorm::Update> updates);
  std::pair<std::size_t, std::size_t> part_of(std::size_t part, std::size_t parts) const;

  DType dtype_;
  std::size_t element_;  // bytes
  std::size_t count_;
  bool owns_;
  Screen screen_;
  Coder coder_;
  dstorm::Segment segment_;
  std::vector<Piece> pieces_;
  // Memory of the vector's own stays at its address, which belongs to the first segment's.
  std::shared_ptr<const dstorm::host::SegmentMemory> first_home_;
  dstorm::SharedFold allreduces_;
  std::uint64_t allreduce_ = 0;  // rounds so far
  // Between hosts, with a codec, and once a rank has been left out; made by the first.
  std::unique_ptr<dstorm::Allreduce> apart_;
  bool have_met_ = false;     // the ranks, to make it
  dstorm::Stats allreduced_;  // the bytes and waits of allreduces, but those of apart_
  dstorm::SharedFold shared_gathers_;
  std::uint64_t gathers_alone_ = 0;       // gathers not to be shared, since one was in vain
  std::uint64_t gathers_alone_next_ = 1;  // how many after the next in vain
  Gathered gathered_;
  std::vector<dstorm::Update> accepted_;
  // Of clipped and decoded updates; kept, as a user's fold may have kept views of them.
  std::vector<std::vector<std::byte>> copies_;
  std::vector<const void*> inputs_;
};

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kFloat32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::kFloat64;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::kInt32;
};
template <>
struct DTypeOf<std::int64_t> {
  static constexpr DType value = DType::kInt64;
};

// One update as a user's fold sees it; valid during the fold.
template <class T>
struct Arrived {
  int rank;
  std::uint64_t iteration;
  std::span<const T> values;
};

template <class T>
class Dense : public DenseVector {
 public:
  Dense(std::shared_ptr<dstorm::Group> group, VectorOptions options, std::span<T> values)
      : DenseVector(std::move(group), DTypeOf<T>::value, {{values.data(), values.size()}},
                    std::move(options)) {}
  Dense(std::shared_ptr<dstorm::Group> group, VectorOptions options,
        std::span<const std::span<T>> arrays)
      : DenseVector(std::move(group), DTypeOf<T>::value, pieces_of(arrays), std::move(options)) {}
  Dense(std::shared_ptr<dstorm::Group> group, VectorOptions options, std::size_t count)
      : DenseVector(std::move(group), DTypeOf<T>::value, count, std::move(options)) {}

  // The vector, if it is one array (its own or the caller's); the first of several otherwise.
  std::span<T> values() const noexcept {
    return {static_cast<T*>(pieces()[0].data), pieces()[0].count};
  }

  // A fold of the user's own: function(std::span<T> mine, std::span<const Arrived<T>> updates)
  // changes `mine` in place.
  template <class Function>
  static Fold fold(Function function) {
    return Fold::user([function = std::move(function)](std::span<std::byte> mine,
                                                       std::span<const dstorm::Update> updates) {
      std::vector<Arrived<T>> arrived;
      for (const dstorm::Update& update : updates) {
        arrived.push_back({update.rank,
                           update.iteration,
                           {reinterpret_cast<const T*>(update.payload.data()),
                            update.payload.size() / sizeof(T)}});
      }
      function(std::span(reinterpret_cast<T*>(mine.data()), mine.size() / sizeof(T)),
               std::span<const Arrived<T>>(arrived));
    });
  }

 private:
  static std::vector<Piece> pieces_of(std::span<const std::span<T>> arrays) {
    std::vector<Piece> pieces;
    for (const std::span<T>& array : arrays) pieces.push_back({array.data(), array.size()});
    return pieces;
  }
};

}  // namespace vol
