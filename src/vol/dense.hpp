// Dense vectors that are scattered and gathered.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dstorm/segment.hpp"
#include "vol/codec.hpp"
#include "vol/dtype.hpp"
#include "vol/fold.hpp"
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
  bool rejoins = false;  // this rank is rejoining; see dstorm::SegmentOptions
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

  ~DenseVector();

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
  // as they are, whatever reject_nonfinite, max_norm and codec say. Throws TimeoutError naming the
  // ranks that did not come; the vector is then unchanged. `last`: the one after the loop, which
  // goes with the others' last alone: where another rank makes one of its loop all throw
  // ConfigError.
  const Gathered& allreduce(const Fold& fold,
                            std::optional<std::chrono::nanoseconds> timeout = std::nullopt,
                            bool last = false);

  DType dtype() const noexcept;
  std::size_t count() const noexcept;
  std::span<const Piece> pieces() const noexcept;
  bool owns_memory() const noexcept;
  dstorm::Segment& segment() noexcept;
  const dstorm::Segment& segment() const noexcept;
  // See dstorm::Stats; bytes and waiting with those of allreduce(). Any thread, at any time.
  dstorm::Stats stats() const;
  Screened screened() const;  // the same
  // The destructor closes too. The memory of the vector's own stays readable until then.
  void close();
  void shut() noexcept;  // see dstorm::Segment

 private:
  struct Parts;

  std::unique_ptr<Parts> parts_;
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
