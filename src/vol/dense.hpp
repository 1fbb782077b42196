// Dense vectors: each rank scatters its own to its out-neighbours, and folds what has arrived from
// its in-neighbours.
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
  std::string name = {};  // in errors; two open vectors of a job may not share one
  dstorm::Graph graph = dstorm::Graph::all();
  dstorm::Policy policy = dstorm::Policy::kLatest;
  int depth = 2;                  // slots per sender
  bool reject_nonfinite = false;  // refuse and count updates that contain NaN or infinity
  // Updates with a larger L2 norm are scaled down to this norm before they are folded, and counted.
  // Updates that contain NaN or infinity are then refused too. For floats only.
  std::optional<double> max_norm = std::nullopt;
  bool rejoins = false;  // this rank is rejoining; see dstorm::SegmentOptions
  Codec codec = {};      // of dense vectors of floats: what scatter() makes of them
};

// Several arrays can make one vector, in this order.
struct Piece {
  void* data;
  std::size_t count;  // elements
};

// A dense vector whose element type is a run-time value; Dense<T> below is the typed face. Threads:
// as for dstorm::Segment. Other threads may read the elements during a call, and may then see some
// from before the call and some from after it. The object cannot be moved.
class DenseVector {
 public:
  // Collective, blocking. The first constructor uses the caller's memory, which must outlive the
  // vector. The second makes memory of the vector's own, filled with zeros; the other ranks of the
  // host can read it, so allreduce() copies less. Both throw what the constructor of
  // dstorm::Segment throws. The first also throws ConfigError, on this rank only, if two pieces
  // share memory. Two vectors may share memory: each folds into it by itself.
  DenseVector(std::shared_ptr<dstorm::Group> group, DType dtype, std::vector<Piece> pieces,
              VectorOptions options);
  DenseVector(std::shared_ptr<dstorm::Group> group, DType dtype, std::size_t count,
              VectorOptions options);

  ~DenseVector();

  // Collective: see dstorm::Segment::regroup. The values and their addresses stay the same.
  void regroup(std::shared_ptr<dstorm::Group> group);

  // Writes this vector into the memory of this round's live out-neighbours and returns them. See
  // dstorm::Segment::scatter for when it waits and what it throws.
  std::span<const int> scatter(const dstorm::Graph* graph = nullptr, bool may_lag = false);

  // Folds what has arrived into this vector; if nothing has arrived, it changes nothing. It folds
  // in rank order, with this rank's own vector in its place, so over ALL every rank gets the same
  // bits. At staleness 0 over ALL, the ranks of a single host share out the work on a long vector;
  // the bits stay the same. See dstorm::Segment::gather for waiting and errors. The result is valid
  // until the next call.
  const Gathered& gather(const Fold& fold, const dstorm::GatherOptions& options = {});

  // Collective, blocking, exact: replaces the vectors of all live ranks, at whatever iteration they
  // are, by the fold of all these vectors. Takes AVG, SUM, MEDIAN and TRIMMED_MEAN. If a rank dies
  // in the middle, all others get the same result, with its vector or without it. Vectors are
  // folded as they are, whatever reject_nonfinite, max_norm and codec say. Throws TimeoutError
  // naming the ranks that did not come; the vector is then unchanged. `last` marks the allreduce
  // after the loop: if some ranks make their last one while others make one of the loop, all throw
  // ConfigError. So they do if `call`, a number that the caller gives its calls, differs.
  const Gathered& allreduce(const Fold& fold,
                            std::optional<std::chrono::nanoseconds> timeout = std::nullopt,
                            bool last = false, std::uint32_t call = 0);

  // Moves a vector over one array of the caller's to other memory. `count` is at most that with
  // which the vector was made; if it differs, the vector can only be reduced: by all ranks with the
  // same count, and between hosts at a higher cost. Not collective.
  void move_to(void* data, std::size_t count);

  DType dtype() const noexcept;
  std::size_t count() const noexcept;
  std::span<const Piece> pieces() const noexcept;
  bool owns_memory() const noexcept;
  dstorm::Segment& segment() noexcept;
  const dstorm::Segment& segment() const noexcept;
  // See dstorm::Stats; the bytes and the time waited include those of allreduce(). Any thread may
  // call this at any time.
  dstorm::Stats stats() const;
  Screened screened() const;  // any thread, at any time
  // Leaves the vector, as dstorm::Segment::close(). The destructor drops it. Memory of the vector's
  // own can be read until the vector is destroyed.
  void close();
  void shut() noexcept;  // see dstorm::Segment
  void drop() noexcept;  // as that of a Segment

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

  // The elements, if the vector is one array (its own or the caller's). If it consists of several
  // arrays, those of the first.
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
