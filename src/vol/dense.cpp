// A dense vector is made of parts: its elements, the admission of updates, and the three ways in
// which they are folded (alone, shared out in a gather, allreduce), all through folding.hpp.
#include "vol/dense.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

#include "dstorm/errors.hpp"
#include "dstorm/segment/parts.hpp"
#include "vol/admission.hpp"
#include "vol/dense_allreduce.hpp"
#include "vol/elements.hpp"
#include "vol/folding.hpp"
#include "vol/shared_gather.hpp"

namespace vol {
namespace {

using dstorm::ConfigError;
using dstorm::Turn;
using dstorm::Update;
using std::chrono::nanoseconds;

// `coded` is the length of an update in bytes, after the codec.
dstorm::SegmentOptions segment_options(const VectorOptions& options, DType dtype, std::size_t count,
                                       std::size_t coded, bool owns, bool shares) {
  const std::size_t bytes = count * dtype_size(dtype);
  if (count > std::numeric_limits<std::size_t>::max() / 64) {
    throw ConfigError("vector '" + options.name + "' of " + std::to_string(count) +
                      " elements is larger than any memory");
  }
  dstorm::SegmentOptions segment;
  segment.name = options.name;
  segment.call = "vector '" + options.name + "'";
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

std::vector<Piece> own_piece(dstorm::Segment& segment, std::size_t count) {
  const int rank = segment.group().rank();
  return {{segment.parts().state.memory().home(rank), count}};
}

}  // namespace

struct DenseVector::Parts {
  // Over `pieces`; if there are none, over `count` elements of the segment's memory.
  Parts(const std::shared_ptr<dstorm::Group>& group, DType dtype, std::vector<Piece> pieces,
        std::size_t count, const VectorOptions& options)
      : owns_memory(pieces.empty()),
        admission(options, dtype, count),
        segment(group, segment_options(options, dtype, count, admission.coder().bytes(),
                                       owns_memory, group->size() > 1 && group->is_one_host())),
        elements(dtype, owns_memory ? own_piece(segment, count) : std::move(pieces)),
        allreduce(segment, elements, folding, owns_memory, admission.coder().is_on()) {}

  void fold(const Fold& fold, std::span<const Update> updates);
  void run_user_fold(const Fold& fold, std::span<const Update> updates);

  bool owns_memory;
  Admission admission;
  dstorm::Segment segment;
  Elements elements;
  Folding folding{elements};
  DenseAllreduce allreduce;
  SharedGather shared_gather{segment, elements, folding};
  // Memory of the vector's own keeps its address, which lies in the memory that the segment had in
  // its first group.
  std::shared_ptr<const dstorm::host::SegmentMemory> first_memory;
  Gathered gathered;
};

DenseVector::DenseVector(std::shared_ptr<dstorm::Group> group, DType dtype,
                         std::vector<Piece> pieces, VectorOptions options) {
  pieces = Elements::check_apart(std::move(pieces), dtype, "vector '" + options.name + "'");
  const std::size_t count = total_count(pieces);
  parts_ = std::make_unique<Parts>(group, dtype, std::move(pieces), count, options);
}

DenseVector::DenseVector(std::shared_ptr<dstorm::Group> group, DType dtype, std::size_t count,
                         VectorOptions options)
    : parts_(std::make_unique<Parts>(group, dtype, std::vector<Piece>{}, count, options)) {}

DenseVector::~DenseVector() = default;

DType DenseVector::dtype() const noexcept { return parts_->elements.dtype(); }
std::size_t DenseVector::count() const noexcept { return parts_->elements.count(); }
std::span<const Piece> DenseVector::pieces() const noexcept { return parts_->elements.pieces(); }
bool DenseVector::owns_memory() const noexcept { return parts_->owns_memory; }
dstorm::Segment& DenseVector::segment() noexcept { return parts_->segment; }
const dstorm::Segment& DenseVector::segment() const noexcept { return parts_->segment; }

dstorm::Stats DenseVector::stats() const {
  const dstorm::Turns::Look look(segment().turns());
  dstorm::Stats stats = segment().stats();
  add_traffic(stats, parts_->allreduce.stats());
  return stats;
}

Screened DenseVector::screened() const {
  const dstorm::Turns::Look look(segment().turns());
  return parts_->admission.counts();
}

void DenseVector::close() {
  const Turn turn(segment().turns(), "close", segment().options().name);
  shut();
}

void DenseVector::shut() noexcept {
  const dstorm::Turns::Look look(segment().turns());
  segment().shut();
  parts_->allreduce.shut();
}

void DenseVector::drop() noexcept {
  const dstorm::Turns::Look look(segment().turns());
  segment().drop();
  if (segment().is_used()) parts_->allreduce.shut();
}

void DenseVector::regroup(std::shared_ptr<dstorm::Group> group) {
  const Turn turn(segment().turns(), "regroup", segment().options().name);
  std::shared_ptr<const dstorm::host::SegmentMemory> before =
      segment().parts().state.share_memory();
  segment().regroup(std::move(group));
  if (parts_->owns_memory) {
    const dstorm::host::SegmentMemory& memory = segment().parts().state.memory();
    const int rank = segment().group().rank();
    std::byte* const place = parts_->elements.start();
    std::memcpy(memory.home(rank), place, parts_->elements.bytes());
    memory.show_home_at(place, rank);
    if (parts_->first_memory == nullptr) parts_->first_memory = std::move(before);
  }
  parts_->allreduce.reset();
  parts_->shared_gather.reset();
}

std::span<const int> DenseVector::scatter(const dstorm::Graph* graph, bool may_lag) {
  const Elements& elements = parts_->elements;
  Coder& coder = parts_->admission.coder();
  return segment().scatter(
      [&](std::span<std::byte> room) {
        if (coder.is_on()) {
          const std::size_t element = dtype_size(elements.dtype());
          coder.encode(room.data(), [&](std::byte* to, std::size_t first, std::size_t last) {
            elements.copy_out(to, {first * element, last * element});
          });
        } else {
          elements.copy_out(room.data(), elements.whole());
        }
        return std::pair(coder.bytes(), dstorm::Tag{elements.count(), parts_->admission.format()});
      },
      graph, may_lag);
}

const Gathered& DenseVector::gather(const Fold& fold, const dstorm::GatherOptions& options) {
  const dstorm::SegmentState& state = segment().parts().state;
  const Turn turn(state.turns(), "gather", state.options().name);
  Gathered& gathered = parts_->gathered;
  gathered.rejected.clear();
  gathered.clipped.clear();
  std::span<const Update> admitted;
  segment().gather(options, [&](std::span<const Update> updates) {
    admitted = parts_->admission.admit(updates, segment(), gathered);
    if (admitted.empty()) return;
    const bool is_shared =
        !parts_->admission.is_on() && parts_->shared_gather.fold(fold, options, admitted);
    if (!is_shared) parts_->fold(fold, admitted);
  });
  parts_->admission.count(gathered);
  gathered.count = admitted.size();
  gathered.ranks.clear();
  gathered.staleness.clear();
  for (const Update& update : admitted) {
    gathered.ranks.push_back(update.rank);
    gathered.staleness.push_back(static_cast<std::int64_t>(state.iteration - update.iteration));
  }
  return gathered;
}

// Folds on this rank alone.
void DenseVector::Parts::fold(const Fold& fold, std::span<const Update> updates) {
  if (fold.kind() == Fold::Kind::kUser) return run_user_fold(fold, updates);
  if (fold.kind() == Fold::Kind::kReplace) {
    const auto newest = std::ranges::max_element(updates, {}, &Update::iteration);
    return elements.copy_in(newest->payload.data(), elements.whole());
  }
  const int rank = segment.group().rank();
  if (fold.kind() == Fold::Kind::kLowest) {
    if (updates[0].rank < rank) elements.copy_in(updates[0].payload.data(), elements.whole());
    return;
  }
  Folding::Operands& operands = folding.operands_of(updates, rank);
  if (fold.kind() == Fold::Kind::kWeighted) {
    operands.weights = mixing_weights(segment, updates);  // this rank's is the first
    const auto place = static_cast<std::ptrdiff_t>(Folding::place_of(updates, rank));
    std::rotate(operands.weights.begin(), operands.weights.begin() + 1,
                operands.weights.begin() + 1 + place);
  }
  // Begins at the end of the vector, which scatter has read last and the caches still hold.
  elements.visit_backwards(elements.whole(), [&](Elements::Range block) {
    folding.fold(fold, operands, block, nullptr);
  });
}

// A user's fold gets several arrays as one.
void DenseVector::Parts::run_user_fold(const Fold& fold, std::span<const Update> updates) {
  const dstorm::Turns::Pause pause(segment.turns());
  if (elements.pieces().size() == 1) {
    return fold.function()({elements.start(), elements.bytes()}, updates);
  }
  std::vector<std::byte> flat(elements.bytes());
  elements.copy_out(flat.data(), elements.whole());
  fold.function()(flat, updates);
  elements.copy_in(flat.data(), elements.whole());
}

void DenseVector::move_to(void* data, std::size_t count) {
  const Turn turn(segment().turns(), "allreduce", segment().options().name);
  const std::size_t most = segment().options().slot_bytes / dtype_size(dtype());
  if (owns_memory() || pieces().size() != 1 || count < 1 || count > most) {
    throw ConfigError("vector '" + segment().options().name + "' cannot move to memory of " +
                      std::to_string(count) +
                      " elements: it is over one array of the caller's, of "
                      "at most " +
                      std::to_string(most) + " elements");
  }
  parts_->elements.move_to({data, count});
}

const Gathered& DenseVector::allreduce(const Fold& fold, std::optional<nanoseconds> timeout,
                                       bool last, std::uint32_t call) {
  const Turn turn(segment().turns(), "allreduce", segment().options().name);
  Gathered& gathered = parts_->gathered;
  gathered.count = 0;
  gathered.ranks.clear();
  gathered.staleness.clear();
  gathered.rejected.clear();
  gathered.clipped.clear();
  const dstorm::Deadline deadline = timeout ? *timeout : segment().group().deadline();
  dstorm::Recorder* const recorder = segment().parts().state.recorder();
  const dstorm::Recorder::Time began = recorder != nullptr ? dstorm::Recorder::now() : 0;
  const std::uint64_t sent = recorder != nullptr ? parts_->allreduce.stats().bytes_out : 0;
  for (int r : parts_->allreduce.run(fold, deadline, last, call)) {
    if (r == segment().group().rank()) continue;
    gathered.ranks.push_back(r);
    gathered.staleness.push_back(0);
  }
  gathered.count = gathered.ranks.size();
  if (recorder != nullptr) {
    recorder->allreduced(began, parts_->allreduce.stats().bytes_out - sent, gathered.ranks);
  }
  return gathered;
}

}  // namespace vol
