#include "vol/dense.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

namespace vol {
namespace {

using dstorm::ConfigError;
using dstorm::Update;
using std::chrono::nanoseconds;

constexpr int kAllreduceBoard = 0;
constexpr std::size_t kPartUnit = 64;  // bytes that parts of a shared fold are cut at

std::size_t total_count(std::span<const Piece> pieces, std::size_t own) {
  std::size_t count = own;
  for (const Piece& piece : pieces) count += piece.count;
  return count;
}

void check_elementwise(const Fold& fold) {
  switch (fold.kind()) {
    case Fold::Kind::kAvg:
    case Fold::Kind::kSum:
    case Fold::Kind::kMedian:
    case Fold::Kind::kTrimmedMean:
      return;
    default:
      throw ConfigError(std::string("allreduce takes AVG, SUM, MEDIAN and TRIMMED_MEAN, not ") +
                        fold.name() + "; use scatter and gather");
  }
}

dstorm::SegmentOptions segment_options(const VectorOptions& options, DType dtype, std::size_t count,
                                       bool owns, bool alone) {
  const std::size_t bytes = count * dtype_size(dtype);
  if (count > std::numeric_limits<std::size_t>::max() / 64) {
    throw ConfigError("vector '" + options.name + "' of " + std::to_string(count) +
                      " elements is larger than any memory");
  }
  dstorm::SegmentOptions segment;
  segment.name = options.name;
  segment.slot_bytes = bytes;
  segment.depth = options.depth;
  segment.policy = options.policy;
  segment.graph = options.graph;
  segment.home_bytes = owns ? bytes : 0;
  segment.result_bytes = alone ? 0 : bytes;
  segment.kind = "dense " + std::string(dtype_name(dtype)) + " x " + std::to_string(count);
  return segment;
}

}  // namespace

DenseVector::DenseVector(std::shared_ptr<dstorm::Group> group, DType dtype, std::vector<Piece> pieces,
                         VectorOptions options)
    : DenseVector(std::move(group), dtype, std::move(pieces), 0, std::move(options)) {}

DenseVector::DenseVector(std::shared_ptr<dstorm::Group> group, DType dtype, std::size_t count,
                         VectorOptions options)
    : DenseVector(std::move(group), dtype, {}, count, std::move(options)) {}

DenseVector::DenseVector(std::shared_ptr<dstorm::Group> group, DType dtype, std::vector<Piece> pieces,
                         std::size_t own_count, VectorOptions options)
    : dtype_(dtype),
      element_(dtype_size(dtype)),
      count_(total_count(pieces, own_count)),
      owns_(pieces.empty()),
      reject_nonfinite_(options.reject_nonfinite),
      segment_(group, segment_options(options, dtype, count_, owns_, group->size() == 1)),
      pieces_(std::move(pieces)),
      shared_(segment_, kAllreduceBoard) {
  if (owns_) pieces_.push_back({segment_.channel().home(group->rank()), count_});
}

std::span<const int> DenseVector::scatter(const dstorm::Graph* graph) {
  return segment_.scatter(
      [this](std::span<std::byte> room) {
        copy_out(room.data(), 0, count_);
        return std::pair(count_ * element_,
                         dstorm::Tag{count_, static_cast<std::uint32_t>(dtype_)});
      },
      graph);
}

// Calls visit(piece data, bytes, offset in bytes from the start) for what lies in [begin, end).
template <class Visit>
void DenseVector::visit(std::size_t begin, std::size_t end, Visit&& visit) const {
  std::size_t start = 0;
  for (const Piece& piece : pieces_) {
    const std::size_t from = std::max(begin, start);
    const std::size_t to = std::min(end, start + piece.count);
    if (from < to) {
      visit(static_cast<std::byte*>(piece.data) + (from - start) * element_, (to - from) * element_,
            from * element_);
    }
    start += piece.count;
  }
}

// To and from flat memory that holds the whole vector.
void DenseVector::copy_out(std::byte* to, std::size_t begin, std::size_t end) const {
  visit(begin, end,
        [to](std::byte* data, std::size_t bytes, std::size_t offset) { vol::copy(to + offset, data, bytes); });
}

void DenseVector::copy_in(const std::byte* from, std::size_t begin, std::size_t end) {
  visit(begin, end, [from](std::byte* data, std::size_t bytes, std::size_t offset) {
    vol::copy(data, from + offset, bytes);
  });
}

void DenseVector::check_update(const Update& update) const {
  if (update.payload.size() != count_ * element_ || update.count != count_ ||
      update.format != static_cast<std::uint32_t>(dtype_)) {
    throw dstorm::Error("rank " + std::to_string(update.rank) + " sent " +
                        std::to_string(update.payload.size()) + " bytes where " +
                        std::to_string(count_ * element_) + " were due; its memory is damaged");
  }
}

const Gathered& DenseVector::gather(const Fold& fold, const dstorm::GatherOptions& options) {
  gathered_.rejected.clear();
  accepted_.clear();
  segment_.gather(options, [&](std::span<const Update> updates) {
    for (std::size_t i = 0; i < updates.size(); ++i) {
      check_update(updates[i]);
      if (reject_nonfinite_ && !kernels(dtype_).all_finite(updates[i].payload.data(), count_)) {
        segment_.reject(i);
        gathered_.rejected.push_back(updates[i].rank);
      } else {
        accepted_.push_back(updates[i]);
      }
    }
    if (!accepted_.empty()) fold_updates(fold, accepted_);
  });
  gathered_.count = accepted_.size();
  gathered_.ranks.clear();
  gathered_.staleness.clear();
  for (const Update& update : accepted_) {
    gathered_.ranks.push_back(update.rank);
    gathered_.staleness.push_back(
        static_cast<std::int64_t>(segment_.iteration() - update.iteration));
  }
  return gathered_;
}

void DenseVector::fold_updates(const Fold& fold, std::span<const Update> updates) {
  if (fold.kind() == Fold::Kind::kUser) {
    run_user_fold(fold, updates);
    return;
  }
  if (fold.kind() == Fold::Kind::kReplace) {
    const auto newest = std::max_element(
        updates.begin(), updates.end(),
        [](const Update& a, const Update& b) { return a.iteration < b.iteration; });
    copy_in(newest->payload.data(), 0, count_);
    return;
  }
  // This rank's place among the senders.
  std::size_t own = 0;
  while (own < updates.size() && updates[own].rank < segment_.group().rank()) ++own;
  std::vector<double> weights;
  if (fold.kind() == Fold::Kind::kWeighted) {
    weights = mixing_weights(segment_, updates);
    std::rotate(weights.begin(), weights.begin() + 1,
                weights.begin() + 1 + static_cast<std::ptrdiff_t>(own));
  }
  const std::size_t k = updates.size() + 1;
  inputs_.resize(k);
  visit(0, count_, [&](std::byte* data, std::size_t bytes, std::size_t offset) {
    for (std::size_t i = 0; i < k; ++i) {
      inputs_[i] = i == own ? data : updates[i < own ? i : i - 1].payload.data() + offset;
    }
    apply_fold(fold, kernels(dtype_), data, inputs_, weights, bytes / element_);
  });
}

// Several arrays are one to the user's fold.
void DenseVector::run_user_fold(const Fold& fold, std::span<const Update> updates) {
  if (pieces_.size() == 1) {
    fold.function()({static_cast<std::byte*>(pieces_[0].data), count_ * element_}, updates);
    return;
  }
  std::vector<std::byte> flat(count_ * element_);
  copy_out(flat.data(), 0, count_);
  fold.function()(flat, updates);
  copy_in(flat.data(), 0, count_);
}

const Gathered& DenseVector::allreduce(const Fold& fold, std::optional<nanoseconds> timeout) {
  const nanoseconds limit = timeout.value_or(segment_.group().timeout());
  gathered_ = {};
  check_elementwise(fold);
  if (segment_.group().size() == 1) return gathered_;
  std::byte* input = nullptr;
  const std::byte* base = segment_.channel().mailbox(segment_.group().rank());
  for (bool committed = false; !committed;) {
    if (!owns_) {
      input = segment_.claim_room(limit);
      copy_out(input, 0, count_);
    }
    // Where the others find it in this rank's mailbox.
    const auto place = owns_ ? std::uint64_t{0} : static_cast<std::uint64_t>(input - base);
    const std::uint64_t operation =
        static_cast<std::uint64_t>(fold.kind()) << 32 |
        static_cast<std::uint32_t>(fold.fraction() * std::numeric_limits<std::uint32_t>::max());
    bool met = false;
    try {
      met = shared_.meet(operation, place, limit);
      if (met) {
        const std::size_t parts = shared_.members().size();
        const std::size_t unit = kPartUnit / element_;
        const std::size_t units = (count_ + unit - 1) / unit;
        const auto cut = [&](std::size_t part) { return std::min(units * part / parts * unit, count_); };
        fold_part(fold, cut(shared_.own_part()), cut(shared_.own_part() + 1));
        committed = shared_.finish(limit);
      }
    } catch (...) {
      if (!owns_) segment_.release_room();
      throw;
    }
    if (!owns_) segment_.release_room();
    if (committed || (met && !shared_.dead().empty())) continue;  // done, or once more without them
    if (shared_.disagreed()) {
      throw ConfigError("allreduce of vector '" + segment_.options().name +
                        "': the ranks ask for different folds (this one for " + fold.name() + ")");
    }
    const std::vector<int> late = shared_.late();
    throw dstorm::TimeoutError("allreduce of vector '" + segment_.options().name + "': " +
                                   (late.empty() ? "another rank gave up waiting"
                                                 : dstorm::describe_ranks(late) + " did not come") +
                                   " within the time limit; the vector is unchanged",
                               late);
  }
  copy_in(segment_.channel().result(), 0, count_);
  for (int r : shared_.members()) {
    if (r == segment_.group().rank()) continue;
    gathered_.ranks.push_back(r);
    gathered_.staleness.push_back(0);
  }
  gathered_.count = gathered_.ranks.size();
  return gathered_;
}

// Elements [begin, end) of all members' vectors into the result.
void DenseVector::fold_part(const Fold& fold, std::size_t begin, std::size_t end) {
  const std::vector<int>& members = shared_.members();
  const std::size_t most = segment_.mailbox_bytes() - count_ * element_;
  inputs_.resize(members.size());
  for (std::size_t i = 0; i < members.size(); ++i) {
    const std::uint64_t place = shared_.input(members[i]);  // copied, then checked
    if (place > most) {
      throw dstorm::Error("rank " + std::to_string(members[i]) +
                          " offered a place outside its mailbox; its memory is damaged");
    }
    const std::byte* start = owns_ ? segment_.channel().home(members[i])
                                   : segment_.channel().mailbox(members[i]) + place;
    inputs_[i] = start + begin * element_;
  }
  apply_fold(fold, kernels(dtype_), segment_.channel().result() + begin * element_, inputs_, {},
             end - begin);
}

}  // namespace vol
