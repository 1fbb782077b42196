#include "vol/dense_allreduce.hpp"

#include "dstorm/errors.hpp"
#include "dstorm/segment/agreement.hpp"
#include "dstorm/segment/parts.hpp"
#include "vol/boards.hpp"

namespace vol {
namespace {

using dstorm::ConfigError;

constexpr std::uint32_t kLast = 1U << 31;

}  // namespace

// The vector, in the form in which Allreduce folds it.
class DenseAllreduce::MessageOperand final : public dstorm::Operand {
 public:
  MessageOperand(const DenseAllreduce& allreduce, const Fold& fold)
      : allreduce_(allreduce), fold_(fold) {}

  void copy_out(std::byte* to, dstorm::ByteRange range) const override {
    allreduce_.elements_.copy_out(to, range);
  }
  void fold(std::byte* to, std::span<const std::byte* const> inputs,
            dstorm::ByteRange range) override {
    take(inputs, range);
    allreduce_.folding_.fold(fold_, operands_, range, to);
  }
  bool is_made_of_sums() const override {
    return !allreduce_.has_codec_ && allreduce_.folding_.is_made_of_sums(fold_);
  }
  void add_up(std::byte* to, std::span<const std::byte* const> inputs, dstorm::ByteRange range,
              std::size_t total) override {
    take(inputs, range);
    allreduce_.folding_.add_up(fold_, operands_, range, to, total);
  }
  void copy_in(const std::byte* from, dstorm::ByteRange range) override {
    allreduce_.elements_.copy_in(from, range);
  }

 private:
  void take(std::span<const std::byte* const> inputs, dstorm::ByteRange range) {
    operands_.starts.assign(inputs.begin(), inputs.end());
    operands_.origin = range.begin;
  }

  const DenseAllreduce& allreduce_;
  const Fold& fold_;
  Folding::Operands operands_;
};

DenseAllreduce::DenseAllreduce(dstorm::Segment& segment, const Elements& elements, Folding& folding,
                               bool owns_memory, bool has_codec)
    : segment_(segment),
      elements_(elements),
      folding_(folding),
      owns_memory_(owns_memory),
      has_codec_(has_codec),
      call_("allreduce of vector '" + segment.options().name + "'"),
      shared_(segment.parts().state, kAllreduceBoard),
      by_messages_(segment, call_) {}

dstorm::Stats DenseAllreduce::stats() const {
  dstorm::Stats stats = stats_;
  add_traffic(stats, by_messages_.stats());
  return stats;
}

void DenseAllreduce::shut() noexcept { by_messages_.shut(); }

void DenseAllreduce::reset() {
  by_messages_.reset();
  round_ = 0;
}

const std::vector<int>& DenseAllreduce::run(const Fold& fold, const dstorm::Deadline& deadline,
                                            bool last, std::uint32_t call) {
  if (!is_shareable(fold)) {
    throw ConfigError(std::string("allreduce takes AVG, SUM, MEDIAN and TRIMMED_MEAN, not ") +
                      fold.name() + "; use scatter and gather");
  }
  segment_.parts().state.begin_call(segment_.iteration() == 0);
  const dstorm::Group& group = segment_.group();
  static const std::vector<int> kAlone;
  if (group.size() == 1) return kAlone;
  dstorm::Operation operation{(operation_code(fold) ^ call_code(call)) | (last ? kLast : 0),
                              std::string(fold.name()) + (last ? ", the last one" : "")};
  if (call != 0) operation.name += ", call " + std::to_string(call);
  if (missed_ && missed_->met != group.met()) missed_.reset();
  if (missed_) return take_missed(operation.code);
  for (;;) {
    // An evicted rank can still write the memory that a shared fold would use.
    if (!group.is_one_host() || group.has_left_out() || has_codec_) {
      MessageOperand operand(*this, fold);
      return by_messages_.run(operand, elements_.bytes(), operation, deadline);
    }
    if (run_shared(fold, operation, deadline)) break;
    throw_if_failed(operation, deadline);
  }
  copy_result_in();
  count_shared();
  return shared_.members();
}

// One attempt in shared memory. Returns false if the round was aborted.
bool DenseAllreduce::run_shared(const Fold& fold, const dstorm::Operation& operation,
                                const dstorm::Deadline& deadline) {
  if (owns_memory_) return meet_and_fold(fold, operation.code, 0, deadline);
  dstorm::Scattering& scattering = segment_.parts().scattering;
  std::byte* const room = scattering.claim_room(deadline.left());
  bool is_committed = false;
  try {
    elements_.copy_out(room, elements_.whole());
    // The others find the copy by its offset in this rank's mailbox.
    const std::byte* const mailbox =
        segment_.parts().state.memory().mailbox(segment_.group().rank());
    is_committed =
        meet_and_fold(fold, operation.code, static_cast<std::uint64_t>(room - mailbox), deadline);
  } catch (...) {
    scattering.release_room();
    throw;
  }
  scattering.release_room();
  return is_committed;
}

bool DenseAllreduce::meet_and_fold(const Fold& fold, std::uint32_t operation, std::uint64_t place,
                                   const dstorm::Deadline& deadline) {
  // Ranks may move a vector to memory of another length (DenseVector::move_to).
  const std::uint64_t length = elements_.count() << 32;
  round_ = shared_.after(round_);
  if (!shared_.meet(round_, length | operation, place, deadline.left())) return false;
  find_inputs();
  folding_.fold(fold, inputs_,
                dstorm::part_range(elements_.bytes(), shared_.own_part(), shared_.members().size()),
                segment_.parts().state.memory().result());
  try {
    return shared_.finish(deadline.left());
  } catch (...) {
    if (shared_.is_committed()) {
      const std::byte* const result = segment_.parts().state.memory().result();
      missed_ = {operation,
                 segment_.group().met(),
                 shared_.members(),
                 {result, result + elements_.bytes()}};
    }
    throw;
  }
}

const std::vector<int>& DenseAllreduce::take_missed(std::uint32_t operation) {
  if (missed_->operation != operation || missed_->result.size() != elements_.bytes()) {
    throw ConfigError(call_ +
                      " cannot start: the last one, with another fold or length, did not end on "
                      "this rank and has ended on others; repeat that first");
  }
  elements_.copy_in(missed_->result.data(), elements_.whole());
  ranks_ = std::move(missed_->ranks);
  missed_.reset();
  return ranks_;
}

void DenseAllreduce::find_inputs() {
  const dstorm::host::SegmentMemory& memory = segment_.parts().state.memory();
  inputs_.starts.clear();
  for (const int member : shared_.members()) {
    const std::uint64_t place = shared_.input(member);  // copied, then checked
    if (!owns_memory_ && !memory.shape().mailbox.is_payload(place)) {
      throw dstorm::Error("rank " + std::to_string(member) +
                          " gave an offset at which no slot begins; its memory is damaged");
    }
    inputs_.starts.push_back(owns_memory_ ? memory.home(member) : memory.mailbox(member) + place);
  }
}

// To be called after a round was aborted. Returns if the round can be tried again without the ranks
// that died in it or were evicted; otherwise throws the error of the call.
void DenseAllreduce::throw_if_failed(const dstorm::Operation& operation,
                                     const dstorm::Deadline& deadline) const {
  const dstorm::Group& group = segment_.group();
  group.check_open();
  // First, because the rank that disagrees may be dead by now.
  if (shared_.disagreed()) throw ConfigError(dstorm::disagreement(call_, operation));
  if (!shared_.dead().empty() || group.has_left_out()) return;
  throw dstorm::lateness(call_, shared_.late(), shared_.gave_up(), shared_.interrupted(),
                         deadline.limit());
}

// Begins with the part that this rank has just folded itself, because it is still in the caches.
void DenseAllreduce::copy_result_in() const {
  const std::byte* const result = segment_.parts().state.memory().result();
  if (elements_.bytes() > Elements::kCachedBytes) {
    return elements_.copy_in(result, elements_.whole());
  }
  const Elements::Range own =
      dstorm::part_range(elements_.bytes(), shared_.own_part(), shared_.members().size());
  for (const Elements::Range range : {own, {own.end, elements_.bytes()}, {0, own.begin}}) {
    elements_.visit_backwards(
        range, [&](Elements::Range block) { elements_.copy_in(result + block.begin, block); });
  }
}

// Counts the bytes that an allreduce by messages (dstorm/collective/allreduce.hpp) would have sent
// and received. Here the other ranks have read them in place.
void DenseAllreduce::count_shared() {
  const std::size_t members = shared_.members().size();
  const std::uint64_t part =
      dstorm::part_range(elements_.bytes(), shared_.own_part(), members).size();
  const std::uint64_t rest = elements_.bytes() - part;  // this rank's values in the others' parts
  const std::uint64_t to_all = part * (members - 1);    // its part of the result, to each of them
  stats_.bytes_out += rest + to_all;
  stats_.bytes_in += rest + to_all;
}

}  // namespace vol
