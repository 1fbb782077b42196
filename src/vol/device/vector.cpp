#include "vol/device/vector.hpp"

#include <algorithm>

#include "dstorm/errors.hpp"
#include "dstorm/segment/parts.hpp"
#include "vol/apply_fold.hpp"
#include "vol/dense_allreduce.hpp"
#include "vol/device/admission.hpp"
#include "vol/device/allreduce.hpp"
#include "vol/elements.hpp"
#include "vol/folding.hpp"

namespace vol {

using device::Address;
using device::Gpu;
using device::Stream;
using device::StreamExchange;
using device::Wire;
using dstorm::ConfigError;
using dstorm::Turn;
using dstorm::Update;
using dstorm::device::Driver;
using dstorm::device::SlotChoice;
using dstorm::device::SlotKind;
using std::chrono::nanoseconds;

namespace {

// A GPU that reads past the end of its memory, or at an odd address, loses its context.
void check_place(Address address, std::size_t bytes, std::size_t alignment,
                 const std::string& what) {
  if (address % alignment != 0) {
    throw ConfigError(what + " begins at an address that is no multiple of " +
                      std::to_string(alignment) + ", the bytes of an element");
  }
  Address base = 0;
  std::size_t size = 0;
  // Some allocators' memory has no range.
  if (Driver::get().address_range(&base, &size, address) != dstorm::device::kSuccess) return;
  if (bytes <= size - (address - base)) return;
  throw ConfigError(what + " has " + std::to_string(bytes) + " bytes, but the memory there ends " +
                    std::to_string(size - (address - base)) + " bytes from its beginning");
}

std::shared_ptr<Gpu> gpu_of(std::span<const Piece> pieces, DType dtype, bool is_all,
                            const std::string& what) {
  if (dtype == DType::kFloat16 || dtype == DType::kBfloat16) {
    throw ConfigError(what + " has dtype " + std::string(dtype_name(dtype)) +
                      "; a vector on GPUs has float32, float64, int32 or int64");
  }
  std::shared_ptr<Gpu> gpu;
  for (const Piece& piece : pieces) {
    const auto address = reinterpret_cast<Address>(piece.data);
    const auto here = Gpu::of(address, what);
    if (is_all) check_place(address, piece.count * dtype_size(dtype), dtype_size(dtype), what);
    if (gpu == nullptr) gpu = here;
    if (gpu->ordinal() == here->ordinal()) continue;
    throw ConfigError(what + " has memory on " + gpu->describe() + " and on " + here->describe() +
                      "; make a vector for each GPU");
  }
  dstorm::device::Lane(gpu).check();  // before the others wait for this rank
  return gpu;
}

dstorm::SegmentOptions segment_options(const VectorOptions& options, DType dtype,
                                       std::size_t count) {
  dstorm::SegmentOptions segment;
  segment.name = options.name;
  segment.call = "vector '" + options.name + "'";
  segment.depth = options.depth;
  segment.policy = options.policy;
  segment.graph = options.graph;
  segment.rejoins = options.rejoins;
  segment.most_updates = device::kMostInputs - 1;
  segment.kind =
      "dense " + std::string(dtype_name(dtype)) + " x " + std::to_string(count) + " on GPUs";
  if (options.codec.kind() != Codec::Kind::kNone) segment.kind += ", " + options.codec.name();
  return segment;
}

// Of allreduce(), on one host.
dstorm::SegmentOptions reduction_options(const std::string& name, DType dtype, std::size_t count) {
  VectorOptions options;
  options.name = name + ", allreduce";
  return segment_options(options, dtype, count);
}

}  // namespace

struct DeviceVector::Parts {
  Parts(const std::shared_ptr<dstorm::Group>& group, DType dtype, std::vector<Piece> pieces,
        const VectorOptions& options, SlotKind given_wish, bool sends)
      : what("vector '" + options.name + "'"),
        elements(dtype, std::move(pieces)),
        gpu(gpu_of(elements.pieces, dtype, sends, what)),
        program(device::Program::on(gpu, dtype)),
        admission(options, dtype, elements.count, gpu, program),
        wish(given_wish),
        slots(dstorm::device::choose_slots(*group, gpu, what, given_wish)),
        exchange(group, segment_options(options, dtype, elements.count), admission.coder().bytes(),
                 gpu, slots.kind, sends),
        folding(elements, program, what),
        reduction(exchange, elements, folding, gpu,
                  reduction_options(options.name, dtype, elements.count), what) {
    admission.await_by([this](Stream stream) {
      exchange.await_stream(stream, exchange.segment().group().timeout());
    });
  }

  bool is_idle() const { return exchange.is_idle() && reduction.is_idle(); }
  int rank() const { return exchange.segment().group().rank(); }
  void replace(Address at, Wire wire, Stream stream);
  std::vector<double> weights_of(std::span<const Update> updates);
  Gathered& begin_result();
  void note(std::span<const Update> updates);

  std::string what;
  device::Elements elements;
  std::shared_ptr<Gpu> gpu;
  std::shared_ptr<device::Program> program;
  device::Admission admission;
  SlotKind wish;
  SlotChoice slots;
  StreamExchange exchange;
  device::Folding folding;
  device::Allreduce reduction;
  Gathered gathered;
};

DeviceVector::DeviceVector(std::shared_ptr<dstorm::Group> group, DType dtype,
                           std::vector<Piece> pieces, VectorOptions options, SlotKind slots,
                           bool sends) {
  pieces = Elements::check_apart(std::move(pieces), dtype, "vector '" + options.name + "'");
  parts_ = std::make_unique<Parts>(group, dtype, std::move(pieces), options, slots, sends);
}

// The memory that a GPU may still use is not freed.
DeviceVector::~DeviceVector() {
  if (segment().is_used()) shut();
  if (parts_->is_idle()) return;
  [[maybe_unused]] const Parts* const kept = parts_.release();
}

DType DeviceVector::dtype() const noexcept { return parts_->elements.dtype; }
std::size_t DeviceVector::count() const noexcept { return parts_->elements.count; }
dstorm::Segment& DeviceVector::segment() noexcept { return parts_->exchange.segment(); }
const dstorm::Segment& DeviceVector::segment() const noexcept { return parts_->exchange.segment(); }
const SlotChoice& DeviceVector::slots() const noexcept { return parts_->slots; }

dstorm::Stats DeviceVector::stats() const {
  const dstorm::Turns::Look look(segment().turns());
  dstorm::Stats stats = parts_->exchange.stats();
  add_traffic(stats, parts_->reduction.stats());
  return stats;
}

Screened DeviceVector::screened() const {
  const dstorm::Turns::Look look(segment().turns());
  return parts_->admission.counts();
}

void DeviceVector::close() {
  const Turn turn(segment().turns(), "close", segment().options().name);
  shut();
}

void DeviceVector::shut() noexcept {
  parts_->exchange.shut();
  parts_->reduction.shut();
}

void DeviceVector::regroup(std::shared_ptr<dstorm::Group> group) {
  const Turn turn(segment().turns(), "regroup", segment().options().name);
  Parts& parts = *parts_;
  parts.exchange.await_device();
  const SlotChoice slots =
      dstorm::device::choose_slots(*group, parts.gpu, parts.what, parts.wish, parts.slots.kind);
  if (slots.kind != parts.slots.kind) {
    throw ConfigError(parts.what + ": in the new group its slots cannot be where they were (" +
                      slots.why + ")");
  }
  parts.reduction.reset();
  parts.exchange.regroup(std::move(group));
}

std::span<const int> DeviceVector::scatter(Stream stream, const dstorm::Graph* graph) {
  const Turn turn(segment().turns(), "scatter", segment().options().name);
  device::Coder& coder = parts_->admission.coder();
  return parts_->exchange.scatter(
      stream, [&](Address to) { coder.encode(parts_->elements.pieces, to, stream); },
      {parts_->elements.count, parts_->admission.format()}, graph);
}

const Gathered& DeviceVector::gather(Stream stream, const Fold& fold,
                                     const dstorm::GatherOptions& options) {
  Parts& parts = *parts_;
  const Turn turn(segment().turns(), "gather", segment().options().name);
  if (fold.kind() == Fold::Kind::kUser) {
    throw ConfigError(
        "gather of " + parts.what +
        ": a fold of your own is not called for a vector in the memory of a GPU; use "
        "AVG, SUM, WEIGHTED, REPLACE, MEDIAN or TRIMMED_MEAN, or make the vector over "
        "a copy in the host's memory");
  }
  Gathered& gathered = parts.begin_result();
  parts.exchange.gather(
      stream, options, [&](std::span<const Update> updates, std::span<const Address> at) {
        const auto admitted = parts.admission.admit(updates, at, segment(), gathered, stream);
        parts.note(admitted.updates);
        if (admitted.updates.empty()) return;
        if (fold.kind() == Fold::Kind::kReplace) {
          const auto newest = std::ranges::max_element(admitted.updates, {}, &Update::iteration);
          const auto place = static_cast<std::size_t>(newest - admitted.updates.begin());
          return parts.replace(admitted.at[place], admitted.wire, stream);
        }
        if (fold.kind() == Fold::Kind::kLowest) {
          if (admitted.updates[0].rank > parts.rank()) return;
          return parts.replace(admitted.at[0], admitted.wire, stream);
        }
        std::vector<double> weights;
        if (fold.kind() == Fold::Kind::kWeighted) weights = parts.weights_of(admitted.updates);
        parts.folding.fold(fold, parts.rank(), admitted.updates, admitted.at, admitted.wire,
                           weights, stream);
      });
  parts.admission.count(gathered);
  return gathered;
}

Gathered& DeviceVector::Parts::begin_result() {
  gathered.count = 0;
  gathered.ranks.clear();
  gathered.staleness.clear();
  gathered.rejected.clear();
  gathered.clipped.clear();
  return gathered;
}

void DeviceVector::Parts::note(std::span<const Update> updates) {
  const std::uint64_t iteration = exchange.segment().parts().state.iteration;
  gathered.count = updates.size();
  for (const Update& update : updates) {
    gathered.ranks.push_back(update.rank);
    gathered.staleness.push_back(static_cast<std::int64_t>(iteration - update.iteration));
  }
}

// This rank's weight in its place among those of the updates.
std::vector<double> DeviceVector::Parts::weights_of(std::span<const Update> updates) {
  std::vector<double> weights = mixing_weights(exchange.segment(), updates);
  const auto place = static_cast<std::ptrdiff_t>(Folding::place_of(updates, rank()));
  std::rotate(weights.begin(), weights.begin() + 1, weights.begin() + 1 + place);
  return weights;
}

void DeviceVector::Parts::replace(Address at, Wire wire, Stream stream) {
  if (wire != Wire::kPlain) at = admission.decode(at, wire, stream);
  device::copy_in(elements.pieces, elements.dtype, at, stream);
}

const Gathered& DeviceVector::allreduce(Stream stream, const Fold& fold,
                                        std::optional<nanoseconds> timeout, bool last) {
  Parts& parts = *parts_;
  const Turn turn(segment().turns(), "allreduce", segment().options().name);
  Gathered& gathered = parts.begin_result();
  const dstorm::Deadline deadline = timeout ? *timeout : segment().group().deadline();
  parts.reduction.run(stream, fold, deadline, last, gathered);
  return gathered;
}

void DeviceVector::move_to(void* data, std::size_t count) {
  const Turn turn(segment().turns(), "allreduce", segment().options().name);
  device::Elements& elements = parts_->elements;
  if (elements.pieces.size() != 1 || count < 1 || count > elements.count) {
    throw ConfigError(parts_->what + " cannot move to memory of " + std::to_string(count) +
                      " elements: it is over one array, of at most " +
                      std::to_string(elements.count) + " elements");
  }
  elements.pieces[0] = {data, count};
}

void DeviceVector::read(std::span<std::byte> to, Stream stream) const {
  const Turn turn(segment().turns(), "read", segment().options().name);
  const Gpu::Use use(*parts_->gpu);
  const device::Elements& elements = parts_->elements;
  device::copy_out(elements.pieces, elements.dtype, reinterpret_cast<Address>(to.data()), stream);
  parts_->exchange.await_stream(stream, segment().group().timeout());
}

void DeviceVector::write(std::span<const std::byte> from, Stream stream) {
  const Turn turn(segment().turns(), "write", segment().options().name);
  const Gpu::Use use(*parts_->gpu);
  const device::Elements& elements = parts_->elements;
  device::copy_in(elements.pieces, elements.dtype, reinterpret_cast<Address>(from.data()), stream);
  parts_->exchange.await_stream(stream, segment().group().timeout());
}

}  // namespace vol
