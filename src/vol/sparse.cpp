// How a sparse vector works. The stored elements lie in own_, sorted by index. scatter() writes
// them into the slot as values and then indices, or as a dense vector if that takes no more bytes.
// gather() decodes and screens each update (gather_with()), and then combines them with the stored
// elements. For a built-in fold, combine() gives every vector a value at each index that any of
// them has, so that the kernels of dense vectors can fold them. A fold of the user's own gets the
// elements themselves.
#include "vol/sparse.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "dstorm/host/turn.hpp"
#include "vol/apply_fold.hpp"

namespace vol {
namespace {

using dstorm::ConfigError;
using dstorm::Turn;
using dstorm::Update;

// Slot formats: the element type, with this bit if the payload is dense. Without it the payload is
// the values, then the indices.
constexpr std::uint32_t kDenseBit = 1U << 8;

dstorm::SegmentOptions segment_options(const VectorOptions& options, DType dtype, std::size_t dim,
                                       std::size_t capacity, std::span<const std::uint8_t> shared) {
  if (dim == 0 || dim > static_cast<std::size_t>(std::numeric_limits<Index>::max())) {
    throw ConfigError("sparse vector '" + options.name + "': dim is " + std::to_string(dim) +
                      "; it must be from 1 to " +
                      std::to_string(std::numeric_limits<Index>::max()) +
                      "; split a longer vector");
  }
  if (capacity == 0 || capacity > dim) {
    throw ConfigError("sparse vector '" + options.name + "': capacity is " +
                      std::to_string(capacity) + "; it must be from 1 to dim (" +
                      std::to_string(dim) + ")");
  }
  const std::size_t element = dtype_size(dtype);
  dstorm::SegmentOptions segment;
  segment.name = options.name;
  segment.call = "vector '" + options.name + "'";
  segment.slot_bytes = std::min(capacity * (element + sizeof(Index)), dim * element);
  segment.depth = options.depth;
  segment.policy = options.policy;
  segment.graph = options.graph;
  segment.rejoins = options.rejoins;
  segment.kind = "sparse " + std::string(dtype_name(dtype)) + " x " + std::to_string(dim) +
                 ", capacity " + std::to_string(capacity);
  if (!shared.empty()) {
    std::uint64_t sum = 0xcbf29ce484222325U;  // FNV-1a, for a comparison with the other ranks'
    for (const std::uint8_t each : shared) {
      sum = (sum ^ static_cast<std::uint64_t>(each != 0)) * 0x100000001b3U;
    }
    segment.kind += ", shared elements with checksum " + std::to_string(sum);
  }
  return segment;
}

[[noreturn]] void throw_damaged(int rank, const char* what) {
  throw dstorm::Error("rank " + std::to_string(rank) + " sent a sparse update with " + what +
                      "; its memory is damaged");
}

}  // namespace

template <class T>
Sparse<T>::Sparse(std::shared_ptr<dstorm::Group> group, std::size_t dim, std::size_t capacity,
                  VectorOptions options, std::vector<std::uint8_t> shared)
    : dim_(dim),
      capacity_(capacity),
      shared_(std::move(shared)),
      screen_(options.reject_nonfinite, options.max_norm, DTypeOf<T>::value,
              "sparse vector '" + options.name + "'"),
      segment_(std::move(group),
               segment_options(options, DTypeOf<T>::value, dim, capacity, shared_)) {
  if (!shared_.empty() && shared_.size() != dim) {
    throw ConfigError("sparse vector '" + options.name + "': " + std::to_string(shared_.size()) +
                      " elements are shared or not, but it has " + std::to_string(dim));
  }
}

template <class T>
void Sparse<T>::set(std::span<const std::int64_t> indices, std::span<const T> values) {
  const Turn turn(segment_.turns(), "set", segment_.options().name);
  store(sorted(indices, values));
}

template <class T>
Entries<T> Sparse<T>::sorted(std::span<const std::int64_t> indices,
                             std::span<const T> values) const {
  const std::string what = "sparse vector '" + segment_.options().name + "'";
  if (indices.size() != values.size()) {
    throw ConfigError(what + ": " + std::to_string(indices.size()) + " indices but " +
                      std::to_string(values.size()) + " values");
  }
  for (const std::int64_t index : indices) {
    if (index < 0 || index >= static_cast<std::int64_t>(dim_)) {
      throw ConfigError(what + ": index " + std::to_string(index) + " is outside [0, " +
                        std::to_string(dim_) + ")");
    }
  }
  std::vector<std::size_t> order(indices.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (!std::is_sorted(indices.begin(), indices.end())) {
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return indices[a] < indices[b]; });
  }
  Entries<T> entries;
  for (const std::size_t at : order) {
    const auto index = static_cast<Index>(indices[at]);
    if (!entries.indices.empty() && entries.indices.back() == index) {
      entries.values.back() += values[at];
    } else {
      entries.indices.push_back(index);
      entries.values.push_back(values[at]);
    }
  }
  return entries;
}

template <class T>
void Sparse<T>::clear() {
  const Turn turn(segment_.turns(), "clear", segment_.options().name);
  own_.indices.clear();
  own_.values.clear();
}

template <class T>
void Sparse<T>::store(Entries<T> entries) {
  if (entries.indices.size() > capacity_) {
    throw ConfigError("sparse vector '" + segment_.options().name +
                      "': " + std::to_string(entries.indices.size()) +
                      " elements do not fit its capacity of " + std::to_string(capacity_) +
                      "; make it with a larger one (at most dim, " + std::to_string(dim_) + ")");
  }
  own_ = std::move(entries);
}

template <class T>
void Sparse<T>::read(const Visit& visit) const {
  const dstorm::Turns::Look look(segment_.turns());
  visit(indices(), values());
}

template <class T>
Screened Sparse<T>::screened() const {
  const dstorm::Turns::Look look(segment_.turns());
  return screen_.counts();
}

template <class T>
std::span<const int> Sparse<T>::scatter(const dstorm::Graph* graph) {
  const Turn turn(segment_.turns(), "scatter", segment_.options().name);
  const Entries<T>& sent = select();
  const std::size_t count = sent.indices.size();
  const auto format = static_cast<std::uint32_t>(DTypeOf<T>::value);
  return segment_.scatter(
      [&](std::span<std::byte> room) {
        if (goes_dense(count)) {
          T* values = reinterpret_cast<T*>(room.data());
          std::fill_n(values, dim_, T{0});
          for (std::size_t i = 0; i < count; ++i) {
            values[static_cast<std::size_t>(sent.indices[i])] = sent.values[i];
          }
          return std::pair(dim_ * sizeof(T), dstorm::Tag{dim_, format | kDenseBit});
        }
        const std::size_t value_bytes = count * sizeof(T);
        const std::size_t index_bytes = count * sizeof(Index);
        if (count > 0) {
          std::memcpy(room.data(), sent.values.data(), value_bytes);
          std::memcpy(room.data() + value_bytes, sent.indices.data(), index_bytes);
        }
        return std::pair(value_bytes + index_bytes, dstorm::Tag{count, format});
      },
      graph);
}

// The elements that an update has.
template <class T>
const Entries<T>& Sparse<T>::select() {
  if (shared_.empty()) return own_;
  selected_.indices.clear();
  selected_.values.clear();
  for (std::size_t i = 0; i < own_.indices.size(); ++i) {
    if (shared_[static_cast<std::size_t>(own_.indices[i])] == 0) continue;
    selected_.indices.push_back(own_.indices[i]);
    selected_.values.push_back(own_.values[i]);
  }
  return selected_;
}

// Copies the update out of the slot, and then checks the copy: another rank's indices cannot be
// trusted.
template <class T>
Entries<T> Sparse<T>::decode(const Update& update) const {
  const auto format = static_cast<std::uint32_t>(DTypeOf<T>::value);
  const std::size_t count = update.count;
  Entries<T> entries;
  if (update.format == (format | kDenseBit)) {
    if (count != dim_ || update.payload.size() != dim_ * sizeof(T)) {
      throw_damaged(update.rank, "a wrong length");
    }
    const T* values = reinterpret_cast<const T*>(update.payload.data());
    for (std::size_t i = 0; i < dim_; ++i) {
      if (values[i] == T{0}) continue;
      entries.indices.push_back(static_cast<Index>(i));
      entries.values.push_back(values[i]);
    }
    return entries;
  }
  if (update.format != format || count > capacity_ ||
      update.payload.size() != count * (sizeof(T) + sizeof(Index))) {
    throw_damaged(update.rank, "a wrong length");
  }
  entries.values.resize(count);
  entries.indices.resize(count);
  if (count > 0) {
    std::memcpy(entries.values.data(), update.payload.data(), count * sizeof(T));
    std::memcpy(entries.indices.data(), update.payload.data() + count * sizeof(T),
                count * sizeof(Index));
  }
  Index last = -1;
  for (const Index index : entries.indices) {
    if (index <= last || static_cast<std::size_t>(index) >= dim_) {
      throw_damaged(update.rank, "an index out of order or range");
    }
    last = index;
  }
  return entries;
}

template <class T>
template <class Combine>
const Gathered& Sparse<T>::gather_with(const dstorm::GatherOptions& options, Combine&& combine) {
  const Turn turn(segment_.turns(), "gather", segment_.options().name);
  Gathered gathered;
  segment_.gather(options, [&](std::span<const Update> updates) {
    std::vector<ArrivedEntries<T>> arrived;
    std::vector<Update> accepted;
    for (std::size_t i = 0; i < updates.size(); ++i) {
      Entries<T> entries = decode(updates[i]);
      std::vector<T>& values = entries.values;
      const std::optional<double> factor = screen_.factor(values.data(), values.size());
      if (!factor) {
        segment_.reject(i);
        gathered.rejected.push_back(updates[i].rank);
        continue;
      }
      if (*factor < 1) {
        screen_.scale(values.data(), values.data(), *factor, values.size());
        gathered.clipped.push_back(updates[i].rank);
      }
      gathered.ranks.push_back(updates[i].rank);
      gathered.staleness.push_back(
          static_cast<std::int64_t>(segment_.iteration() - updates[i].iteration));
      arrived.push_back({updates[i].rank, updates[i].iteration, std::move(entries)});
      accepted.push_back(updates[i]);
    }
    if (!arrived.empty()) store(combine(arrived, accepted));
  });
  screen_.count(gathered.rejected, gathered.clipped);
  gathered.count = gathered.ranks.size();
  gathered_ = std::move(gathered);
  return gathered_;
}

template <class T>
const Gathered& Sparse<T>::gather(const UserFold& fold, const dstorm::GatherOptions& options) {
  return gather_with(
      options, [&](const std::vector<ArrivedEntries<T>>& arrived, const std::vector<Update>&) {
        const Pairs pairs = [&] {
          const dstorm::Turns::Pause pause(segment_.turns());
          return fold(own_, arrived);
        }();
        return this->sorted(pairs.first, pairs.second);
      });
}

template <class T>
const Gathered& Sparse<T>::gather(const Fold& fold, const dstorm::GatherOptions& options) {
  if (fold.kind() == Fold::Kind::kUser) {
    throw ConfigError("a fold for dense vectors cannot fold sparse ones");
  }
  return gather_with(options, [&](const std::vector<ArrivedEntries<T>>& arrived,
                                  const std::vector<Update>& updates) {
    std::vector<double> weights;
    if (fold.kind() == Fold::Kind::kWeighted) weights = mixing_weights(segment_, updates);
    return this->combine(fold, arrived, weights);
  });
}

// Gives every vector a value at each index that any of them has, so that the dense kernels can fold
// them.
template <class T>
Entries<T> Sparse<T>::combine(const Fold& fold, std::span<const ArrivedEntries<T>> updates,
                              std::span<const double> weights) const {
  if (fold.kind() == Fold::Kind::kReplace) {
    return std::max_element(updates.begin(), updates.end(),
                            [](const auto& a, const auto& b) { return a.iteration < b.iteration; })
        ->entries;
  }
  std::vector<const Entries<T>*> inputs;  // in rank order, with this rank's own in its place
  std::vector<double> ordered;
  std::size_t own = 0;
  while (own < updates.size() && updates[own].rank < segment_.group().rank()) ++own;
  for (std::size_t i = 0; i <= updates.size(); ++i) {
    const bool mine = i == own;
    const std::size_t update = i < own ? i : i - 1;
    inputs.push_back(mine ? &own_ : &updates[update].entries);
    if (!weights.empty()) ordered.push_back(weights[mine ? 0 : update + 1]);
  }

  Entries<T> result;
  for (const Entries<T>* input : inputs) {
    std::vector<Index> merged;
    std::set_union(result.indices.begin(), result.indices.end(), input->indices.begin(),
                   input->indices.end(), std::back_inserter(merged));
    result.indices.swap(merged);
  }
  const std::size_t n = result.indices.size();
  std::vector<T> columns(inputs.size() * n);
  std::vector<const void*> starts;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    T* column = columns.data() + i * n;
    std::size_t at = 0;
    for (std::size_t j = 0; j < inputs[i]->indices.size(); ++j, ++at) {
      while (result.indices[at] != inputs[i]->indices[j]) ++at;
      column[at] = inputs[i]->values[j];
    }
    starts.push_back(column);
  }
  result.values.resize(n);
  apply_fold(fold, kernels(DTypeOf<T>::value), result.values.data(), starts, ordered, n);
  return result;
}

template class Sparse<float>;
template class Sparse<double>;
template class Sparse<std::int32_t>;
template class Sparse<std::int64_t>;

}  // namespace vol
