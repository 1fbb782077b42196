#include "vol/device/stream_exchange.hpp"

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

StreamExchange::StreamExchange(std::shared_ptr<dstorm::Group> group, dstorm::SegmentOptions options,
                               std::size_t bytes, std::shared_ptr<Gpu> gpu, SlotKind kind,
                               bool sends)
    : bytes_(bytes),
      kind_(kind),
      sends_(sends),
      slots_(Slots::make(kind, gpu, bytes, options.depth, "vector '" + options.name + "'")),
      lane_(std::make_unique<Lane>(gpu)) {
  options.slot_bytes = sends ? slots_->slot_bytes() : 1;
  options.copy_out = [slots = slots_.get()](int rank, std::span<const std::byte> payload) {
    return slots->copy_out(rank, payload);
  };
  segment_ = std::make_unique<Segment>(std::move(group), std::move(options));
  if (sends_) slots_->attach(*segment_);
}

StreamExchange::~StreamExchange() {
  if (segment_->is_used()) shut();
  if (segment_->group().is_forked() || lane_->await_idle(nanoseconds(0))) {
    slots_.reset();  // before the segment's memory goes
    return;
  }
  [[maybe_unused]] const Segment* const segment = segment_.release();
  [[maybe_unused]] const Slots* const slots = slots_.release();
  [[maybe_unused]] const Lane* const lane = lane_.release();
}

std::span<const int> StreamExchange::scatter(Stream stream,
                                             const std::function<void(Address to)>& write,
                                             dstorm::Tag tag, const dstorm::Graph* graph) {
  const Gpu::Use use(gpu());
  dstorm::device::check_not_captured(stream, "scatter of " + segment_->options().name);
  await(true);
  bool has_begun = false;
  const auto to = [&] {
    try {
      return segment_->begin_scatter(
          [&](std::span<std::byte> room) {
            has_begun = true;
            write(slots_->place(room));
            return std::pair(slots_->slot_bytes(), tag);
          },
          graph);
    } catch (...) {  // a part of the work may have begun, and the slot is free again
      if (has_begun) lane_->await(stream, kLongestEnd);
      throw;
    }
  }();
  if (!to) return {};
  lane_->follow(
      stream, [](void* segment) { static_cast<Segment*>(segment)->finish_scatter(); },
      segment_.get());
  return *to;
}

std::size_t StreamExchange::gather(Stream stream, const dstorm::GatherOptions& options,
                                   const Fold& fold) {
  const Gpu::Use use(gpu());
  dstorm::device::check_not_captured(stream, "gather of " + segment_->options().name);
  await(false);
  slots_->begin_gather();
  bool has_begun = false;
  // If something throws: a part of the work may have begun, and slots are let go.
  const auto settle = [&] {
    if (has_begun) lane_->await(stream, kLongestEnd);
  };
  const auto read = [&](std::span<const dstorm::Update> updates) {
    has_begun = true;
    try {
      addresses_.clear();
      for (const dstorm::Update& update : updates) {
        addresses_.push_back(slots_->find(update, stream));
      }
      fold(updates, addresses_);
    } catch (...) {
      settle();
      throw;
    }
  };
  const std::size_t count = [&] {
    try {
      return segment_->begin_gather(options, read);
    } catch (...) {
      settle();
      throw;
    }
  }();
  if (count == 0) return 0;
  lane_->follow(
      stream, [](void* segment) { static_cast<Segment*>(segment)->finish_gather(); },
      segment_.get());
  return count;
}

void StreamExchange::await_device() { await(true); }

void StreamExchange::shut() noexcept {
  if (segment_->group().is_forked()) return;
  lane_->await_idle(std::min<nanoseconds>(kLongestEnd, segment_->group().timeout()));
  segment_->shut();
}

void StreamExchange::await(bool with_scatter) {
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
    throw_timeout(timeout);
  }
}

void StreamExchange::await_stream(Stream stream, nanoseconds limit) {
  const dstorm::Turns::Pause pause(segment_->turns());
  if (!lane_->await(stream, limit)) throw_timeout(limit);
}

void StreamExchange::throw_timeout(nanoseconds limit) const {
  throw dstorm::TimeoutError("vector '" + segment_->options().name + "': " + gpu().describe() +
                                 " has not finished within " + dstorm::format_seconds(limit) +
                                 " what the stream has; its kernels may hang",
                             {segment_->group().rank()});
}

void StreamExchange::regroup(std::shared_ptr<dstorm::Group> group) {
  await_device();
  if (!lane_->await_idle(kLongestEnd)) throw_timeout(kLongestEnd);
  slots_->detach();
  segment_->regroup(std::move(group));
  if (sends_) slots_->attach(*segment_);
}

dstorm::Stats StreamExchange::stats() const {
  dstorm::Stats stats = segment_->stats();
  const std::size_t slot_bytes = segment_->options().slot_bytes;
  stats.bytes_out = stats.bytes_out / slot_bytes * bytes_;
  stats.bytes_in = stats.bytes_in / slot_bytes * bytes_;
  return stats;
}

}  // namespace vol::device
