#include "vol/dense.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

namespace vol {
namespace {

using dstorm::Clock;
using dstorm::ConfigError;
using dstorm::Turn;
using dstorm::Update;
using std::chrono::nanoseconds;

constexpr int kAllreduceBoard = 0;
constexpr int kGatherBoard = 1;
// Sharing a gather out takes two more meetings of the ranks and saves passes over memory: worth it
// from this many ranks and bytes on (docs/performance.md).
constexpr std::size_t kShareRanks = 3;
constexpr std::size_t kShareBytes = 32 * 1024;
// Copying out of a shared fold goes by blocks that stay in the first-level cache.
constexpr std::size_t kBlockBytes = 8 * 1024;
// A vector up to this long lies in the caches partly: it is folded, and copied out of a shared fold,
// by blocks from its end on (backwards()).
constexpr std::size_t kCachedBytes = 4 * 1024 * 1024;
constexpr std::size_t kBackBytes = 256 * 1024;

std::size_t total_count(std::span<const Piece> pieces, std::size_t own) {
  std::size_t count = own;
  for (const Piece& piece : pieces) count += piece.count;
  return count;
}

// Memory that two pieces share would be folded twice.
std::vector<Piece> check_apart(std::vector<Piece> pieces, DType dtype, const std::string& name) {
  std::vector<std::size_t> order(pieces.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto begin = [&](std::size_t i) {
    return reinterpret_cast<std::uintptr_t>(pieces[i].data);
  };
  const auto end = [&](std::size_t i) { return begin(i) + pieces[i].count * dtype_size(dtype); };
  std::ranges::sort(order, {}, begin);
  std::size_t last = 0;  // of those before, the one that ends last
  for (std::size_t i = 1; i < order.size(); ++i) {
    if (end(order[last]) > begin(order[i])) {
      const auto [first, second] = std::minmax(order[last], order[i]);
      throw ConfigError("vector '" + name + "': its arrays " + std::to_string(first) + " and " +
                        std::to_string(second) +
                        " (counted from 0) share memory, which would be folded twice; give each "
                        "array once, and of overlapping ones the array that has both");
    }
    if (end(order[i]) > end(order[last])) last = i;
  }
  return pieces;
}

bool is_elementwise(const Fold& fold) {
  return fold.kind() == Fold::Kind::kAvg || fold.kind() == Fold::Kind::kSum ||
         fold.kind() == Fold::Kind::kMedian || fold.kind() == Fold::Kind::kTrimmedMean;
}

// A number by which ranks see that they fold alike.
constexpr std::uint32_t kLast = 1U << 31;
std::uint32_t operation_code(const Fold& fold) {
  constexpr double kMost = (1U << 24) - 1;
  return static_cast<std::uint32_t>(fold.kind()) << 24 |
         static_cast<std::uint32_t>(fold.fraction() * kMost);
}

// Likewise that they fold the same ranks' updates, added up in any order.
std::uint64_t contributor_code(int rank) {
  return (static_cast<std::uint64_t>(rank) + 1) * 0x9E3779B97F4A7C15U >> 16 << 40;
}

void add_traffic(dstorm::Stats& stats, const dstorm::Stats& more) {
  stats.bytes_out += more.bytes_out;
  stats.bytes_in += more.bytes_in;
  stats.wait_seconds += more.wait_seconds;
}

// `coded` are the bytes of an update.
dstorm::SegmentOptions segment_options(const VectorOptions& options, DType dtype, std::size_t count,
                                       std::size_t coded, bool owns, bool shares) {
  const std::size_t bytes = count * dtype_size(dtype);
  if (count > std::numeric_limits<std::size_t>::max() / 64) {
    throw ConfigError("vector '" + options.name + "' of " + std::to_string(count) +
                      " elements is larger than any memory");
  }
  dstorm::SegmentOptions segment;
  segment.name = options.name;
  segment.slot_bytes = coded;
  segment.depth = options.depth;
  segment.policy = options.policy;
  segment.graph = options.graph;
  segment.home_bytes = owns ? bytes : 0;
  segment.result_bytes = shares ? bytes : 0;
  segment.rejoins = options.rejoins;
  segment.kind = "dense " + std::string(dtype_name(dtype)) + " x " + std::to_string(count);
  if (options.codec.kind() != Codec::Kind::kNone) segment.kind += ", " + options.codec.name();
  return segment;
}

}  // namespace

DenseVector::DenseVector(std::shared_ptr<dstorm::Group> group, DType dtype,
                         std::vector<Piece> pieces, VectorOptions options)
    : DenseVector{std::move(group), dtype, check_apart(std::move(pieces), dtype, options.name), 0,
                  std::move(options)} {}

DenseVector::DenseVector(std::shared_ptr<dstorm::Group> group, DType dtype, std::size_t count,
                         VectorOptions options)
    : DenseVector(std::move(group), dtype, {}, count, std::move(options)) {}

DenseVector::DenseVector(std::shared_ptr<dstorm::Group> group, DType dtype,
                         std::vector<Piece> pieces, std::size_t own_count, VectorOptions options)
    : dtype_(dtype),
      element_(dtype_size(dtype)),
      count_(total_count(pieces, own_count)),
      owns_(pieces.empty()),
      screen_(options.reject_nonfinite, options.max_norm, dtype, "vector '" + options.name + "'"),
      coder_(options.codec, dtype, count_, "vector '" + options.name + "'"),
      segment_(group, segment_options(options, dtype, count_, coder_.bytes(), owns_,
                                      group->size() > 1 && group->is_one_host())),
      pieces_(std::move(pieces)),
      allreduces_(segment_, kAllreduceBoard),
      shared_gathers_(segment_, kGatherBoard) {
  if (owns_) pieces_.push_back({segment_.channel().memory().home(group->rank()), count_});
}

dstorm::Stats DenseVector::stats() const {
  const dstorm::Turns::Look look(segment_.turns());
  dstorm::Stats stats = segment_.stats();
  add_traffic(stats, allreduced_);
  if (apart_ != nullptr) add_traffic(stats, apart_->stats());
  return stats;
}

Screened DenseVector::screened() const {
  const dstorm::Turns::Look look(segment_.turns());
  return screen_.counts();
}

void DenseVector::close() {
  const Turn turn(segment_.turns(), "close", segment_.options().name);
  shut();
}

void DenseVector::shut() noexcept {
  const dstorm::Turns::Look look(segment_.turns());
  segment_.shut();
  if (apart_ != nullptr) apart_->shut();
}

void DenseVector::regroup(std::shared_ptr<dstorm::Group> group) {
  const Turn turn(segment_.turns(), "regroup", segment_.options().name);
  std::shared_ptr<const dstorm::host::SegmentMemory> before = segment_.channel().share_memory();
  segment_.regroup(std::move(group));
  if (owns_) {
    const dstorm::host::SegmentMemory& memory = segment_.channel().memory();
    const int rank = segment_.group().rank();
    auto* const place = static_cast<std::byte*>(pieces_[0].data);
    std::memcpy(memory.home(rank), place, count_ * element_);
    memory.show_home_at(place, rank);
    if (first_home_ == nullptr) first_home_ = std::move(before);
  }
  // As with those who come back, who know nothing of earlier rounds.
  allreduce_ = 0;
  if (apart_ != nullptr) add_traffic(allreduced_, apart_->stats());
  apart_.reset();
  have_met_ = false;
  gathers_alone_ = 0;
  gathers_alone_next_ = 1;
}

std::span<const int> DenseVector::scatter(const dstorm::Graph* graph, bool may_lag) {
  return segment_.scatter(
      [this](std::span<std::byte> room) {
        if (coder_.is_on()) {
          coder_.encode(room.data(), [this](std::byte* to, std::size_t begin, std::size_t end) {
            copy_out(to, begin, end);
          });
        } else {
          copy_out(room.data(), 0, count_);
        }
        return std::pair(coder_.bytes(), dstorm::Tag{count_, format()});
      },
      graph, may_lag);
}

std::uint32_t DenseVector::format() const noexcept {
  return static_cast<std::uint32_t>(dtype_) | static_cast<std::uint32_t>(coder_.kind()) << 8;
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

// Calls visit(begin, end) for blocks of [begin, end) from its end on: what was touched last is
// still in the caches. A vector far larger than they are is visited in one go.
template <class Visit>
void DenseVector::backwards(std::size_t begin, std::size_t end, Visit&& visit) const {
  const bool is_large = count_ * element_ > kCachedBytes;
  for (std::size_t block = 0; end > begin; end -= block) {
    block = is_large ? end - begin : std::min(kBackBytes / element_, end - begin);
    visit(end - block, end);
  }
}

// Elements [begin, end) to flat memory for these alone.
void DenseVector::copy_out(std::byte* to, std::size_t begin, std::size_t end) const {
  visit(begin, end, [&](std::byte* data, std::size_t bytes, std::size_t offset) {
    vol::copy(to + (offset - begin * element_), data, bytes);
  });
}

// Likewise from flat memory that holds the whole vector.
void DenseVector::copy_in(const std::byte* from, std::size_t begin, std::size_t end) {
  visit(begin, end, [from](std::byte* data, std::size_t bytes, std::size_t offset) {
    vol::copy(data, from + offset, bytes);
  });
}

void DenseVector::check_update(const Update& update) const {
  if (update.payload.size() != coder_.bytes() || update.count != count_ ||
      update.format != format()) {
    throw dstorm::Error("rank " + std::to_string(update.rank) + " sent " +
                        std::to_string(update.payload.size()) + " bytes where " +
                        std::to_string(coder_.bytes()) + " were due; its memory is damaged");
  }
}

const Gathered& DenseVector::gather(const Fold& fold, const dstorm::GatherOptions& options) {
  const Turn turn(segment_.turns(), "gather", segment_.options().name);
  gathered_.rejected.clear();
  gathered_.clipped.clear();
  accepted_.clear();
  segment_.gather(options, [&](std::span<const Update> updates) {
    let_in(updates);
    if (accepted_.empty()) return;
    if (may_share(fold, options, accepted_) &&
        share_fold(fold, options.timeout.value_or(segment_.group().timeout()), accepted_))
      return;
    fold_updates(fold, accepted_);
  });
  screen_.count(gathered_.rejected, gathered_.clipped);
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

// Puts what may be folded into accepted_, in place of a coded or clipped update its copy.
void DenseVector::let_in(std::span<const Update> updates) {
  std::size_t copied = 0;
  const auto next_copy = [&]() -> std::span<std::byte> {
    if (copied == copies_.size()) copies_.emplace_back(count_ * element_);
    return copies_[copied++];
  };
  for (std::size_t i = 0; i < updates.size(); ++i) {
    Update update = updates[i];
    check_update(update);
    if (coder_.is_on()) {
      const std::span<std::byte> decoded = next_copy();
      if (!coder_.decode(decoded.data(), update.payload.data())) {
        throw dstorm::Error("rank " + std::to_string(update.rank) +
                            " sent an update with indices out of order; its memory is damaged");
      }
      update.payload = decoded;
    }
    const std::optional<double> factor = screen_.factor(update.payload.data(), count_);
    if (!factor) {
      segment_.reject(i);
      gathered_.rejected.push_back(update.rank);
      continue;
    }
    if (*factor < 1) {
      const std::span<std::byte> scaled = next_copy();
      screen_.scale(scaled.data(), update.payload.data(), *factor, count_);
      update.payload = scaled;
      gathered_.clipped.push_back(update.rank);
    }
    accepted_.push_back(update);
  }
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
  const auto fold_piece = [&](std::byte* data, std::size_t bytes, std::size_t offset) {
    for (std::size_t i = 0; i < k; ++i) {
      inputs_[i] = i == own ? data : updates[i < own ? i : i - 1].payload.data() + offset;
    }
    apply_fold(fold, kernels(dtype_), data, inputs_, weights, bytes / element_);
  };
  // The end of the vector is what scatter has read last.
  backwards(0, count_, [&](std::size_t begin, std::size_t end) { visit(begin, end, fold_piece); });
}

// Several arrays are one to the user's fold.
void DenseVector::run_user_fold(const Fold& fold, std::span<const Update> updates) {
  const dstorm::Turns::Pause pause(segment_.turns());
  if (pieces_.size() == 1) {
    fold.function()({static_cast<std::byte*>(pieces_[0].data), count_ * element_}, updates);
    return;
  }
  std::vector<std::byte> flat(count_ * element_);
  copy_out(flat.data(), 0, count_);
  fold.function()(flat, updates);
  copy_in(flat.data(), 0, count_);
}

// Whether every rank has everybody's update and will, if it runs the same program, fold it alike.
bool DenseVector::may_share(const Fold& fold, const dstorm::GatherOptions& options,
                            std::span<const Update> updates) {
  const std::size_t ranks = updates.size() + 1;
  if (options.staleness != 0 || ranks < kShareRanks || count_ * element_ < kShareBytes ||
      !is_elementwise(fold) || screen_.is_on() || coder_.is_on() ||
      segment_.last_sent() == nullptr || !segment_.group().is_one_host() ||
      segment_.options().policy != dstorm::Policy::kLatest ||
      segment_.in_neighbours().size() + 1 != segment_.members().size()) {
    return false;
  }
  if (gathers_alone_ > 0) {
    --gathers_alone_;
    return false;
  }
  return true;
}

// Folds by parts, with the others. False, and nothing changed, if they did not all join in: it then
// costs nobody more than some patience, and less often the more often it happens.
bool DenseVector::share_fold(const Fold& fold, nanoseconds timeout,
                             std::span<const Update> updates) {
  const int rank = segment_.group().rank();
  std::size_t own = 0;
  while (own < updates.size() && updates[own].rank < rank) ++own;
  // Everyone must fold the same updates in the same way.
  std::uint64_t operation = operation_code(fold);
  operation += contributor_code(rank);
  for (const Update& update : updates) operation += contributor_code(update.rank);
  const std::size_t k = updates.size() + 1;
  const nanoseconds patience = std::min<nanoseconds>(
      timeout, std::chrono::milliseconds(50) + nanoseconds(k * count_ * element_));
  const auto inputs_at = [&](const void* mine, std::size_t offset) {
    inputs_.resize(k);
    for (std::size_t i = 0; i < k; ++i) {
      inputs_[i] = i == own ? mine : updates[i < own ? i : i - 1].payload.data() + offset;
    }
  };
  std::byte* result = segment_.channel().memory().result();
  bool committed = shared_gathers_.meet(segment_.iteration(), operation, 0, patience);
  if (committed) {
    const auto [begin, end] = part_of(shared_gathers_.own_part(), shared_gathers_.members().size());
    const std::size_t offset = begin * element_;
    inputs_at(segment_.last_sent() + offset, offset);
    apply_fold(fold, kernels(dtype_), result + offset, inputs_, {}, end - begin);
    committed = shared_gathers_.finish(patience);
  }
  if (!committed) {
    gathers_alone_ = gathers_alone_next_;
    gathers_alone_next_ = std::min<std::uint64_t>(gathers_alone_next_ * 2, 1024);
    return false;
  }
  gathers_alone_next_ = 1;
  // The others have folded what this rank sent. Where its vector has changed since, the fold is of
  // the vector as it is now, as ever.
  visit(0, count_, [&](std::byte* data, std::size_t bytes, std::size_t offset) {
    for (std::size_t at = 0; at < bytes; at += kBlockBytes) {
      const std::size_t block = std::min(kBlockBytes, bytes - at);
      if (std::memcmp(data + at, segment_.last_sent() + offset + at, block) == 0) {
        std::memcpy(data + at, result + offset + at, block);
      } else {
        inputs_at(data + at, offset + at);
        apply_fold(fold, kernels(dtype_), data + at, inputs_, {}, block / element_);
      }
    }
  });
  return true;
}

const Gathered& DenseVector::allreduce(const Fold& fold, std::optional<nanoseconds> timeout,
                                       bool last) {
  const Turn turn(segment_.turns(), "allreduce", segment_.options().name);
  const nanoseconds limit = timeout.value_or(segment_.group().timeout());
  const auto start = Clock::now();
  gathered_.count = 0;
  gathered_.ranks.clear();
  gathered_.staleness.clear();
  gathered_.rejected.clear();
  gathered_.clipped.clear();
  if (!is_elementwise(fold)) {
    throw ConfigError(std::string("allreduce takes AVG, SUM, MEDIAN and TRIMMED_MEAN, not ") +
                      fold.name() + "; use scatter and gather");
  }
  segment_.begin_call(segment_.iteration() == 0);
  if (segment_.group().size() == 1) return gathered_;
  const dstorm::Group& group = segment_.group();
  const dstorm::Operation operation{operation_code(fold) | (last ? kLast : 0),
                                    std::string(fold.name()) + (last ? ", the last one" : "")};
  std::byte* input = nullptr;
  const std::byte* base = segment_.channel().memory().mailbox(segment_.group().rank());
  for (bool committed = false; !committed;) {
    if (!group.is_one_host() || group.has_left_out() || coder_.is_on()) {
      return allreduce_apart(fold, operation, start, limit);
    }
    if (!owns_) {
      input = segment_.claim_room(limit);
      copy_out(input, 0, count_);
    }
    // Where the others find it in this rank's mailbox.
    const auto place = owns_ ? std::uint64_t{0} : static_cast<std::uint64_t>(input - base);
    try {
      const bool met = allreduces_.meet(++allreduce_, operation.code, place, limit);
      if (met) {
        const auto [begin, end] = part_of(allreduces_.own_part(), allreduces_.members().size());
        fold_part(fold, begin, end);
        committed = allreduces_.finish(limit);
      }
    } catch (...) {
      if (!owns_) segment_.release_room();
      throw;
    }
    if (!owns_) segment_.release_room();
    if (!committed) segment_.group().check_open();
    // Also if who disagrees has ended since.
    if (!committed && allreduces_.disagreed()) {
      throw ConfigError(
          dstorm::disagreement("allreduce of vector '" + segment_.options().name + "'", operation));
    }
    // Done, or once more without them.
    if (committed || !allreduces_.dead().empty() || group.has_left_out()) continue;
    const std::vector<int> late = allreduces_.late();
    throw dstorm::TimeoutError("allreduce of vector '" + segment_.options().name + "': " +
                                   (late.empty() ? "another rank gave up waiting"
                                                 : dstorm::describe_ranks(late) + " did not come") +
                                   " within the time limit; the vector is unchanged",
                               late);
  }
  copy_result_in();
  count_shared_allreduce();
  set_contributors(allreduces_.members());
  return gathered_;
}

// What it would have sent and received by messages (allreduce.hpp), which others read in place.
void DenseVector::count_shared_allreduce() {
  const std::size_t members = allreduces_.members().size();
  const auto [begin, end] = part_of(allreduces_.own_part(), members);
  const std::uint64_t part = (end - begin) * element_;
  const std::uint64_t rest = count_ * element_ - part;  // its values in the others' parts
  const std::uint64_t to_all = part * (members - 1);    // its part of the result, to each other
  allreduced_.bytes_out += rest + to_all;
  allreduced_.bytes_in += rest + to_all;
}

// Its vector as the ranks fold it by messages.
class DenseVector::MessageOperand final : public dstorm::Operand {
 public:
  MessageOperand(DenseVector& vector, const Fold& fold) : vector_(vector), fold_(fold) {}

  void copy_out(std::byte* to, dstorm::ByteRange range) const override {
    vector_.copy_out(to, range.begin / vector_.element_, range.end / vector_.element_);
  }
  void fold(std::byte* to, std::span<const std::byte* const> inputs,
            dstorm::ByteRange range) override {
    std::vector<const void*>& in = vector_.inputs_;
    in.resize(inputs.size());
    const auto fold_piece = [&](std::byte* data, std::size_t bytes, std::size_t offset) {
      const std::size_t at = offset - range.begin;
      for (std::size_t i = 0; i < in.size(); ++i) {
        in[i] = inputs[i] == nullptr ? data : inputs[i] + at;
      }
      apply_fold(fold_, kernels(vector_.dtype_), to == nullptr ? data : to + at, in, {},
                 bytes / vector_.element_);
    };
    vector_.visit(range.begin / vector_.element_, range.end / vector_.element_, fold_piece);
  }
  void copy_in(const std::byte* from, dstorm::ByteRange range) override {
    vector_.visit(range.begin / vector_.element_, range.end / vector_.element_,
                  [&](std::byte* data, std::size_t bytes, std::size_t offset) {
                    vol::copy(data, from + (offset - range.begin), bytes);
                  });
  }

 private:
  DenseVector& vector_;
  const Fold& fold_;
};

// Between hosts, where a rank that has been left out can write what a shared fold would use, or where
// no slot holds the elements as they are.
const Gathered& DenseVector::allreduce_apart(const Fold& fold, const dstorm::Operation& operation,
                                             Clock::time_point start, nanoseconds limit) {
  const std::string what = "allreduce of vector '" + segment_.options().name + "'";
  if (apart_ == nullptr) {
    // Whoever is late is named with this limit. Once: who has met the others here goes on to the segment
    // with them, and if that fails begins there again.
    if (!have_met_) segment_.group().exchange(what, {}, limit - (Clock::now() - start));
    have_met_ = true;
    apart_ = std::make_unique<dstorm::Allreduce>(segment_.group().shared_from_this(), what,
                                                 segment_.options().kind, count_ * element_);
  }
  MessageOperand operand(*this, fold);
  set_contributors(apart_->run(operand, operation, limit - (Clock::now() - start)));
  return gathered_;
}

void DenseVector::set_contributors(std::span<const int> members) {
  for (int r : members) {
    if (r == segment_.group().rank()) continue;
    gathered_.ranks.push_back(r);
    gathered_.staleness.push_back(0);
  }
  gathered_.count = gathered_.ranks.size();
}

// First what this rank has folded itself, just now.
void DenseVector::copy_result_in() {
  const std::byte* result = segment_.channel().memory().result();
  if (count_ * element_ > kCachedBytes) return copy_in(result, 0, count_);
  const auto copy = [&](std::size_t begin, std::size_t end) { copy_in(result, begin, end); };
  const auto [begin, end] = part_of(allreduces_.own_part(), allreduces_.members().size());
  backwards(begin, end, copy);
  backwards(end, count_, copy);
  backwards(0, begin, copy);
}

// The elements [first, second) of one of `parts` parts.
std::pair<std::size_t, std::size_t> DenseVector::part_of(std::size_t part,
                                                         std::size_t parts) const {
  const dstorm::ByteRange range = dstorm::part_of(count_ * element_, part, parts);
  return {range.begin / element_, range.end / element_};
}

// Elements [begin, end) of all members' vectors into the result.
void DenseVector::fold_part(const Fold& fold, std::size_t begin, std::size_t end) {
  const std::vector<int>& members = allreduces_.members();
  const dstorm::host::SegmentMemory& memory = segment_.channel().memory();
  inputs_.resize(members.size());
  for (std::size_t i = 0; i < members.size(); ++i) {
    const std::uint64_t place = allreduces_.input(members[i]);  // copied, then checked
    if (!owns_ && !memory.shape().mailbox.is_payload(place)) {
      throw dstorm::Error("rank " + std::to_string(members[i]) +
                          " offered a place that is no slot's; its memory is damaged");
    }
    const std::byte* start = owns_ ? memory.home(members[i]) : memory.mailbox(members[i]) + place;
    inputs_[i] = start + begin * element_;
  }
  apply_fold(fold, kernels(dtype_), memory.result() + begin * element_, inputs_, {}, end - begin);
}

}  // namespace vol
