#include "vol/device/exchange.hpp"

#include <algorithm>
#include <chrono>

#include "dstorm/errors.hpp"
#include "dstorm/segment/parts.hpp"

namespace vol::device {

using dstorm::Segment;
using dstorm::device::Lane;
using dstorm::device::SlotKind;
using dstorm::device::Slots;
using std::chrono::nanoseconds;
using Clock = std::chrono::steady_clock;

namespace {

constexpr std::chrono::milliseconds kLook{100};  // a GPU that fails wakes nobody
constexpr std::chrono::seconds kLongestEnd{60};

}  // namespace

Exchange::Exchange(std::shared_ptr<dstorm::Group> group, dstorm::SegmentOptions options,
                   std::size_t bytes, std::shared_ptr<Gpu> gpu, SlotKind kind, bool sends)
    : bytes_(bytes),
      kind_(kind),
      sends_(sends),
      slots_(Slots::make(kind, gpu, bytes, options.depth, "vector '" + options.name + "'")),
      lane_(std::make_unique<Lane>(gpu)) {
  options.slot_bytes = slots_->slot_bytes();
  options.copy_out = [slots = slots_.get()](int rank, std::span<const std::byte> payload) {
    return slots->copy_out(rank, payload);
  };
  segment_ = std::make_unique<Segment>(std::move(group), std::move(options));
  if (sends_) slots_->attach(*segment_);
}

Exchange::~Exchange() {
  shut();
  if (segment_->group().is_forked() || lane_->await_idle(nanoseconds(0))) {
    slots_.reset();  // before the segment's memory goes
    return;
  }
  [[maybe_unused]] const Segment* const segment = segment_.release();
  [[maybe_unused]] const Slots* const slots = slots_.release();
  [[maybe_unused]] const Lane* const lane = lane_.release();
}

std::span<const int> Exchange::scatter(Stream stream, const std::function<void(Address to)>& write,
                                       dstorm::Tag tag, const dstorm::Graph* graph) {
  await(true);
  const Gpu::Use use(gpu());
  dstorm::device::check_not_captured(stream, "scatter of " + segment_->options().name);
  const auto to = segment_->begin_scatter(
      [&](std::span<std::byte> room) {
        write(slots_->place(room));
        return std::pair(slots_->slot_bytes(), tag);
      },
      graph);
  if (!to) return {};
  follow(stream, [](void* segment) { static_cast<Segment*>(segment)->finish_scatter(); });
  return *to;
}

std::size_t Exchange::gather(Stream stream, const dstorm::GatherOptions& options,
                             const Fold& fold) {
  await(false);
  const Gpu::Use use(gpu());
  dstorm::device::check_not_captured(stream, "gather of " + segment_->options().name);
  slots_->begin_gather();
  const std::size_t count =
      segment_->begin_gather(options, [&](std::span<const dstorm::Update> updates) {
        try {
          addresses_.clear();
          for (const dstorm::Update& update : updates) {
            addresses_.push_back(slots_->find(update, stream));
          }
          fold(updates, addresses_);
        } catch (...) {  // a part of the work may have begun, and the slots are about to be let go
          dstorm::device::Driver::get().stream_synchronize(stream);
          throw;
        }
      });
  if (count == 0) return 0;
  follow(stream, [](void* segment) { static_cast<Segment*>(segment)->finish_gather(); });
  return count;
}

// If this throws, the device has failed: no finish comes, and later calls throw in await().
void Exchange::follow(Stream stream, void (*finish)(void*)) {
  try {
    lane_->follow(stream, finish, segment_.get());
  } catch (const dstorm::Error&) {
    lane_->check();  // says more
    throw;
  }
}

void Exchange::await_device() { await(true); }

void Exchange::shut() noexcept {
  if (segment_->group().is_forked()) return;
  lane_->await_idle(std::min<nanoseconds>(kLongestEnd, segment_->group().timeout()));
  segment_->shut();
}

void Exchange::await(bool with_scatter) {
  const auto is_done = [&] {
    return !segment_->is_gather_begun() && !(with_scatter && segment_->is_scatter_begun());
  };
  if (is_done()) return lane_->check();
  const nanoseconds timeout = segment_->group().timeout();
  const auto end = Clock::now() + timeout;
  for (;;) {
    const nanoseconds left = end - Clock::now();
    if (segment_->wait(is_done, std::clamp<nanoseconds>(left, nanoseconds(0), kLook))) return;
    lane_->check();
    if (left > nanoseconds(0)) continue;
    throw dstorm::TimeoutError(
        "vector '" + segment_->options().name + "': " + gpu().describe() +
            " has not finished within " + dstorm::format_seconds(timeout) +
            " what the stream had at the last scatter or gather; the kernels before it may hang",
        {segment_->group().rank()});
  }
}

void Exchange::regroup(std::shared_ptr<dstorm::Group> group) {
  await_device();
  lane_->await_idle(kLongestEnd);
  slots_->detach();
  segment_->regroup(std::move(group));
  if (sends_) slots_->attach(*segment_);
}

dstorm::Stats Exchange::stats() const {
  dstorm::Stats stats = segment_->stats();
  stats.bytes_out = stats.bytes_out / slots_->slot_bytes() * bytes_;
  stats.bytes_in = stats.bytes_in / slots_->slot_bytes() * bytes_;
  return stats;
}

}  // namespace vol::device
