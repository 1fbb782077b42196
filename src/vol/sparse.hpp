// Sparse vectors: each rank scatters its own, and folds what has arrived. Elements that are not
// stored are zero.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "dstorm/segment.hpp"
#include "vol/dense.hpp"
#include "vol/fold.hpp"

namespace vol {

using Index = std::int32_t;

// The indices strictly increase; each has one value.
template <class T>
struct Entries {
  std::vector<Index> indices;
  std::vector<T> values;
};

template <class T>
struct ArrivedEntries {
  int rank;
  std::uint64_t iteration;
  Entries<T> entries;
};

// A sparse vector of `dim` elements, of which at most `capacity` are stored. Threads: as for
// dstorm::Segment; set() and clear() are calls too. An update holds the stored values and their
// indices, or all elements if that takes no more bytes.
template <class T>
class Sparse {
 public:
  // A fold of the user's own returns the new vector in the form that set() takes.
  using Pairs = std::pair<std::vector<std::int64_t>, std::vector<T>>;
  using UserFold =
      std::function<Pairs(const Entries<T>& mine, std::span<const ArrivedEntries<T>> updates)>;

  // Collective, blocking. Throws ConfigError unless 1 <= capacity <= dim < 2^31, and what the
  // constructor of dstorm::Segment throws. `shared`: for each element whether updates have it, not
  // 0 if so; empty: they have all. Throws ConfigError if its length is neither 0 nor dim.
  Sparse(std::shared_ptr<dstorm::Group> group, std::size_t dim, std::size_t capacity,
         VectorOptions options, std::vector<std::uint8_t> shared = {});

  // Replaces the stored elements. Any order is allowed; the values of an index that comes twice are
  // added. Throws ConfigError, changing nothing, if lengths differ, an index is outside [0, dim),
  // or more than `capacity` elements are left.
  void set(std::span<const std::int64_t> indices, std::span<const T> values);
  void clear();

  std::span<const Index> indices() const noexcept { return own_.indices; }
  std::span<const T> values() const noexcept { return own_.values; }
  // Calls visit(indices(), values()) between two calls. Any thread may call this at any time;
  // `visit` must be short.
  using Visit = std::function<void(std::span<const Index>, std::span<const T>)>;
  void read(const Visit& visit) const;

  // Collective: see dstorm::Segment::regroup. The stored elements stay.
  void regroup(std::shared_ptr<dstorm::Group> group) { segment_.regroup(std::move(group)); }

  // As DenseVector::scatter.
  std::span<const int> scatter(const dstorm::Graph* graph = nullptr);
  // As DenseVector::gather, for a vector in which all elements that are not stored are zero. Throws
  // ConfigError if the result has more than `capacity` elements; it has then folded nothing, and
  // the updates stay pending.
  const Gathered& gather(const Fold& fold, const dstorm::GatherOptions& options = {});
  const Gathered& gather(const UserFold& fold, const dstorm::GatherOptions& options = {});

  std::size_t dim() const noexcept { return dim_; }
  std::size_t capacity() const noexcept { return capacity_; }
  dstorm::Segment& segment() noexcept { return segment_; }
  const dstorm::Segment& segment() const noexcept { return segment_; }
  dstorm::Stats stats() const { return segment_.stats(); }  // any thread, at any time
  Screened screened() const;                                // any thread, at any time
  void close() { segment_.close(); }

 private:
  template <class Combine>
  const Gathered& gather_with(const dstorm::GatherOptions& options, Combine&& combine);
  const Entries<T>& select();
  Entries<T> decode(const dstorm::Update& update) const;
  Entries<T> combine(const Fold& fold, std::span<const ArrivedEntries<T>> updates,
                     std::span<const double> weights) const;
  Entries<T> sorted(std::span<const std::int64_t> indices, std::span<const T> values) const;
  void store(Entries<T> entries);
  bool goes_dense(std::size_t entries) const noexcept {
    return entries * (sizeof(Index) + sizeof(T)) >= dim_ * sizeof(T);
  }

  std::size_t dim_;
  std::size_t capacity_;
  std::vector<std::uint8_t> shared_;  // empty: all
  Screen screen_;
  dstorm::Segment segment_;
  Entries<T> own_;
  Entries<T> selected_;  // of own_, those that are shared
  Gathered gathered_;
};

extern template class Sparse<float>;
extern template class Sparse<double>;
extern template class Sparse<std::int32_t>;
extern template class Sparse<std::int64_t>;

}  // namespace vol
