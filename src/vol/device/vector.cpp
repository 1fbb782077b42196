// A device vector has an exchange for scatter and gather. allreduce() is a round of another one,
// over all ranks at staleness 0; between hosts it is that of a vector in the host's memory.
#include "vol/device/vector.hpp"

#include <algorithm>
#include <mutex>

#include "dstorm/collective/allreduce.hpp"
#include "dstorm/errors.hpp"
#include "dstorm/segment/parts.hpp"
#include "vol/apply_fold.hpp"
#include "vol/dense_allreduce.hpp"
#include "vol/device/admission.hpp"
#include "vol/device/stream_exchange.hpp"
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
using Clock = std::chrono::steady_clock;

namespace {

constexpr std::uint32_t kLastCall =
    1U << 31;  // in the format of an allreduce: the call after the loop

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

device::FoldKind kind_of(const Fold& fold) {
  switch (fold.kind()) {
    case Fold::Kind::kSum:
      return device::FoldKind::kSum;
    case Fold::Kind::kWeighted:
      return device::FoldKind::kWeighted;
    case Fold::Kind::kMedian:
      return device::FoldKind::kMedian;
    case Fold::Kind::kTrimmedMean:
      return device::FoldKind::kTrimmedMean;
    default:
      return device::FoldKind::kMean;
  }
}

}  // namespace

struct DeviceVector::Parts {
  Parts(const std::shared_ptr<dstorm::Group>& group, DType given_dtype, std::vector<Piece> given,
        const VectorOptions& options, SlotKind given_wish, bool sends)
      : what("vector '" + options.name + "'"),
        dtype(given_dtype),
        pieces(std::move(given)),
        count(total_count(pieces)),
        gpu(gpu_of(pieces, dtype, sends, what)),
        program(device::Program::on(gpu, dtype)),
        admission(options, dtype, count, gpu, program),
        wish(given_wish),
        slots(dstorm::device::choose_slots(*group, gpu, what, given_wish)),
        exchange(group, segment_options(options, dtype, count), admission.coder().bytes(), gpu,
                 slots.kind, sends) {
    admission.await_by([this](Stream stream) {
      exchange.await_stream(stream, exchange.segment().group().timeout());
    });
  }

  std::size_t bytes() const { return count * dtype_size(dtype); }
  bool is_idle() const {
    return exchange.is_idle() && (reducing == nullptr || reducing->is_idle());
  }
  dstorm::SegmentState& state() { return exchange.segment().parts().state; }
  void fold(const Fold& fold, std::span<const Update> updates, std::span<const Address> at,
            Wire wire, std::span<const double> weights, Stream stream);
  void replace(Address at, Wire wire, Stream stream);
  std::vector<double> weights_of(std::span<const Update> updates);
  Gathered& begin_result();
  void note(std::span<const Update> updates);
  void meet(nanoseconds limit);
  void reduce_on_device(Stream stream, const Fold& fold, nanoseconds limit, bool last);
  void reduce_on_host(Stream stream, const Fold& fold, nanoseconds limit, bool last);

  std::string what;
  DType dtype;
  std::vector<Piece> pieces;
  std::size_t count;
  std::shared_ptr<Gpu> gpu;
  std::shared_ptr<device::Program> program;
  device::Admission admission;
  SlotKind wish;
  SlotChoice slots;
  StreamExchange exchange;
  // Of allreduce(): made by its first call, and again in each group.
  bool have_met = false;
  std::mutex mutex;  // of the next two, for shut()
  std::shared_ptr<StreamExchange> reducing;
  Address sent_at = 0;  // the slot of its last scatter
  std::shared_ptr<DenseVector> on_host;
  dstorm::Stats reduced;  // of the ones of earlier groups
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
  shut();
  if (parts_->is_idle()) return;
  [[maybe_unused]] const Parts* const kept = parts_.release();
}

DType DeviceVector::dtype() const noexcept { return parts_->dtype; }
std::size_t DeviceVector::count() const noexcept { return parts_->count; }
dstorm::Segment& DeviceVector::segment() noexcept { return parts_->exchange.segment(); }
const dstorm::Segment& DeviceVector::segment() const noexcept { return parts_->exchange.segment(); }
const SlotChoice& DeviceVector::slots() const noexcept { return parts_->slots; }

dstorm::Stats DeviceVector::stats() const {
  const dstorm::Turns::Look look(segment().turns());
  dstorm::Stats stats = parts_->exchange.stats();
  add_traffic(stats, parts_->reduced);
  if (parts_->reducing != nullptr) add_traffic(stats, parts_->reducing->stats());
  if (parts_->on_host != nullptr) add_traffic(stats, parts_->on_host->stats());
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
  const auto [reducing, on_host] = [this] {
    const std::lock_guard lock(parts_->mutex);
    return std::pair(parts_->reducing, parts_->on_host);
  }();
  if (reducing != nullptr) reducing->shut();
  if (on_host != nullptr) on_host->shut();
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
  parts.reduced = dstorm::Stats{};
  if (parts.reducing != nullptr) add_traffic(parts.reduced, parts.reducing->stats());
  if (parts.on_host != nullptr) add_traffic(parts.reduced, parts.on_host->stats());
  {
    const std::lock_guard lock(parts.mutex);
    parts.reducing.reset();
    parts.on_host.reset();
  }
  parts.have_met = false;
  parts.exchange.regroup(std::move(group));
}

std::span<const int> DeviceVector::scatter(Stream stream, const dstorm::Graph* graph) {
  const Turn turn(segment().turns(), "scatter", segment().options().name);
  device::Coder& coder = parts_->admission.coder();
  return parts_->exchange.scatter(
      stream, [&](Address to) { coder.encode(parts_->pieces, to, stream); },
      {parts_->count, parts_->admission.format()}, graph);
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
          if (admitted.updates[0].rank > segment().group().rank()) return;
          return parts.replace(admitted.at[0], admitted.wire, stream);
        }
        std::vector<double> weights;
        if (fold.kind() == Fold::Kind::kWeighted) weights = parts.weights_of(admitted.updates);
        parts.fold(fold, admitted.updates, admitted.at, admitted.wire, weights, stream);
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
  gathered.count = updates.size();
  for (const Update& update : updates) {
    gathered.ranks.push_back(update.rank);
    gathered.staleness.push_back(static_cast<std::int64_t>(state().iteration - update.iteration));
  }
}

// This rank's weight in its place among those of the updates.
std::vector<double> DeviceVector::Parts::weights_of(std::span<const Update> updates) {
  std::vector<double> weights = mixing_weights(exchange.segment(), updates);
  const auto place =
      static_cast<std::ptrdiff_t>(Folding::place_of(updates, exchange.segment().group().rank()));
  std::rotate(weights.begin(), weights.begin() + 1, weights.begin() + 1 + place);
  return weights;
}

void DeviceVector::Parts::fold(const Fold& fold, std::span<const Update> updates,
                               std::span<const Address> at, Wire wire,
                               std::span<const double> weights, Stream stream) {
  const std::size_t inputs = updates.size() + 1;
  if (inputs > device::kMostInputs) {
    throw ConfigError("gather of " + what + " has " + std::to_string(updates.size()) +
                      " updates to fold at once; on a GPU it is at most " +
                      std::to_string(device::kMostInputs - 1) +
                      ": use a graph with fewer neighbours, such as malt.HALTON");
  }
  device::FoldArgs args{};
  args.kind = kind_of(fold);
  args.wire = wire;
  args.total = count;
  args.inputs = static_cast<int>(inputs);
  args.own = static_cast<int>(Folding::place_of(updates, exchange.segment().group().rank()));
  args.trim = static_cast<int>(fold.fraction() * static_cast<double>(inputs));
  for (int j = 0, next = 0; j < args.inputs; ++j) {
    if (j != args.own)
      args.in[j] = reinterpret_cast<const void*>(at[static_cast<std::size_t>(next++)]);
  }
  std::ranges::copy(weights, args.weight);
  for (const Piece& piece : pieces) {
    args.out = piece.data;
    args.count = piece.count;
    program->launch("fold", program->blocks_for(piece.count), args, stream);
    args.begin += piece.count;
  }
}

void DeviceVector::Parts::replace(Address at, Wire wire, Stream stream) {
  if (wire != Wire::kPlain) at = admission.decode(at, wire, stream);
  device::copy_in(pieces, dtype, at, stream);
}

const Gathered& DeviceVector::allreduce(Stream stream, const Fold& fold,
                                        std::optional<nanoseconds> timeout, bool last) {
  Parts& parts = *parts_;
  const Turn turn(segment().turns(), "allreduce", segment().options().name);
  const auto start = Clock::now();
  const nanoseconds limit = timeout.value_or(segment().group().timeout());
  if (!is_shareable(fold)) {
    throw ConfigError(std::string("allreduce takes AVG, SUM, MEDIAN and TRIMMED_MEAN, not ") +
                      fold.name() + "; use scatter and gather");
  }
  parts.begin_result();
  parts.state().begin_call(segment().iteration() == 0);
  if (segment().group().size() == 1) return parts.gathered;
  {
    const Gpu::Use use(*parts.gpu);
    dstorm::device::check_not_captured(stream, "allreduce of " + segment().options().name);
  }
  parts.exchange.await_device();
  parts.exchange.check_device();  // before the others wait for this rank
  parts.meet(limit);
  const nanoseconds left = std::max(limit - nanoseconds(Clock::now() - start), nanoseconds(0));
  if (parts.reducing != nullptr) {
    parts.reduce_on_device(stream, fold, left, last);
  } else {
    parts.reduce_on_host(stream, fold, left, last);
  }
  return parts.gathered;
}

void DeviceVector::move_to(void* data, std::size_t count) {
  const Turn turn(segment().turns(), "allreduce", segment().options().name);
  if (parts_->pieces.size() != 1 || count < 1 || count > parts_->count) {
    throw ConfigError(parts_->what + " cannot move to memory of " + std::to_string(count) +
                      " elements: it is over one array, of at most " +
                      std::to_string(parts_->count) + " elements");
  }
  parts_->pieces[0] = {data, count};
}

// If ranks are late, this fails within the limit and names them; the next call begins here again.
void DeviceVector::Parts::meet(nanoseconds limit) {
  if (reducing != nullptr || on_host != nullptr) return;
  dstorm::Group& group = exchange.segment().group();
  const std::string name = exchange.segment().options().name + ", allreduce";
  if (!have_met) group.exchange(name, {}, limit);
  have_met = true;
  VectorOptions options;
  options.name = name;
  if (group.is_one_host()) {
    auto made = std::make_shared<StreamExchange>(
        group.shared_from_this(), segment_options(options, dtype, count), bytes(), gpu, slots.kind);
    const std::lock_guard lock(mutex);
    reducing = std::move(made);
  } else {
    auto made = std::make_shared<DenseVector>(group.shared_from_this(), dtype, count, options);
    const std::lock_guard lock(mutex);
    on_host = std::move(made);
  }
}

// A rank whose call has timed out has sent its values already. When it calls again, it goes on
// with these values, whatever it has in the vector by now: no call is ever paired with another one
// of the other ranks.
void DeviceVector::Parts::reduce_on_device(Stream stream, const Fold& fold, nanoseconds limit,
                                           bool last) {
  const std::uint32_t format = operation_code(fold) | (last ? kLastCall : 0);
  const std::size_t present = total_count(pieces);  // see move_to()
  const bool is_repeated = reducing->segment().parts().state.is_in_round;
  if (is_repeated) {
    reducing->await_device();  // the values may have been sent on another stream
  } else {
    reducing->scatter(stream,
                      [&](Address to) {
                        device::copy_out(pieces, dtype, to, stream);
                        sent_at = to;
                      },
                      {present, format});
  }
  dstorm::GatherOptions options;
  options.staleness = 0;
  options.timeout = limit;
  bool differs = false;
  reducing->gather(stream, options,
                   [&](std::span<const Update> updates, std::span<const Address> at) {
                     for (const Update& update : updates) {
                       if (update.format != format || update.count != present) differs = true;
                     }
                     if (differs) return;
                     if (is_repeated) device::copy_in(pieces, dtype, sent_at, stream);
                     this->fold(fold, updates, at, Wire::kPlain, {}, stream);
                     gathered.count = updates.size();
                     for (const Update& update : updates) gathered.ranks.push_back(update.rank);
                   });
  gathered.staleness.assign(gathered.count, 0);
  if (differs) {
    throw ConfigError(
        dstorm::disagreement("allreduce of " + what,
                             {format, std::string(fold.name()) + (last ? ", the last one" : "")}));
  }
}

void DeviceVector::Parts::reduce_on_host(Stream stream, const Fold& fold, nanoseconds limit,
                                         bool last) {
  const Gpu::Use use(*gpu);
  const auto values = reinterpret_cast<Address>(on_host->pieces()[0].data);
  device::copy_out(pieces, dtype, values, stream);
  exchange.await_stream(stream, limit);
  gathered = on_host->allreduce(fold, limit, last);
  device::copy_in(pieces, dtype, values, stream);
  // The next call writes the memory that is read here.
  exchange.await_stream(stream, exchange.segment().group().timeout());
}

void DeviceVector::read(std::span<std::byte> to, Stream stream) const {
  const Turn turn(segment().turns(), "read", segment().options().name);
  const Gpu::Use use(*parts_->gpu);
  device::copy_out(parts_->pieces, parts_->dtype, reinterpret_cast<Address>(to.data()), stream);
  parts_->exchange.await_stream(stream, segment().group().timeout());
}

void DeviceVector::write(std::span<const std::byte> from, Stream stream) {
  const Turn turn(segment().turns(), "write", segment().options().name);
  const Gpu::Use use(*parts_->gpu);
  device::copy_in(parts_->pieces, parts_->dtype, reinterpret_cast<Address>(from.data()), stream);
  parts_->exchange.await_stream(stream, segment().group().timeout());
}

}  // namespace vol
