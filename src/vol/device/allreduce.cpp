#include "vol/device/allreduce.hpp"

#include <algorithm>
#include <utility>

#include "dstorm/collective/allreduce.hpp"
#include "dstorm/errors.hpp"
#include "dstorm/host/wait.hpp"
#include "dstorm/segment/parts.hpp"
#include "vol/dense_allreduce.hpp"
#include "vol/device/coder.hpp"
#include "vol/folding.hpp"

namespace vol::device {

using dstorm::ConfigError;
using dstorm::Update;
using std::chrono::nanoseconds;

namespace {

// In the format of an update: the call after the loop.
constexpr std::uint32_t kLastCall = 1U << 31;

}  // namespace

void Allreduce::run(Stream stream, const Fold& fold, nanoseconds limit, bool last,
                    Gathered& gathered) {
  const dstorm::Deadline deadline(limit);
  if (!is_shareable(fold)) {
    throw ConfigError(std::string("allreduce takes AVG, SUM, MEDIAN and TRIMMED_MEAN, not ") +
                      fold.name() + "; use scatter and gather");
  }
  dstorm::Segment& segment = exchange_.segment();
  segment.parts().state.begin_call(segment.iteration() == 0);
  if (segment.group().size() == 1) return;
  {
    const Gpu::Use use(*gpu_);
    dstorm::device::check_not_captured(stream, "allreduce of " + segment.options().name);
  }
  exchange_.await_device();
  exchange_.check_device();  // before the others wait for this rank
  meet(limit);
  const nanoseconds left = std::max(deadline.left(), nanoseconds(0));
  if (on_device_ != nullptr) {
    run_on_device(stream, fold, left, last, gathered);
  } else {
    run_on_host(stream, fold, left, last, gathered);
  }
}

// If ranks are late, this fails within the limit and names them; the next call begins here again.
void Allreduce::meet(nanoseconds limit) {
  if (on_device_ != nullptr || on_host_ != nullptr) return;
  dstorm::Group& group = exchange_.segment().group();
  if (!have_met_) group.exchange(options_.name, {}, limit);
  have_met_ = true;
  if (group.is_one_host()) {
    auto made = std::make_shared<StreamExchange>(group.shared_from_this(), options_,
                                                 elements_.bytes(), gpu_, exchange_.kind());
    const std::lock_guard lock(mutex_);
    on_device_ = std::move(made);
  } else {
    VectorOptions options;
    options.name = options_.name;
    auto made = std::make_shared<DenseVector>(group.shared_from_this(), elements_.dtype,
                                              elements_.count, options);
    const std::lock_guard lock(mutex_);
    on_host_ = std::move(made);
  }
}

// A rank whose call has timed out has sent its values already. When it calls again, it goes on
// with these values, whatever it has in the vector by now: no call is ever paired with another one
// of the other ranks.
void Allreduce::run_on_device(Stream stream, const Fold& fold, nanoseconds limit, bool last,
                              Gathered& gathered) {
  const std::uint32_t format = operation_code(fold) | (last ? kLastCall : 0);
  const std::size_t present = total_count(elements_.pieces);  // see DeviceVector::move_to()
  const bool is_repeated = on_device_->segment().parts().state.is_in_round;
  if (is_repeated) {
    on_device_->await_device();  // the values may have been sent on another stream
  } else {
    on_device_->scatter(stream,
                        [&](Address to) {
                          copy_out(elements_.pieces, elements_.dtype, to, stream);
                          sent_at_ = to;
                        },
                        {present, format});
  }
  dstorm::GatherOptions options;
  options.staleness = 0;
  options.timeout = limit;
  bool differs = false;
  on_device_->gather(stream, options,
                     [&](std::span<const Update> updates, std::span<const Address> at) {
                       for (const Update& update : updates) {
                         if (update.format != format || update.count != present) differs = true;
                       }
                       if (differs) return;
                       if (is_repeated) {
                         copy_in(elements_.pieces, elements_.dtype, sent_at_, stream);
                       }
                       folding_.fold(fold, exchange_.segment().group().rank(), updates, at,
                                     Wire::kPlain, {}, stream);
                       gathered.count = updates.size();
                       for (const Update& update : updates) gathered.ranks.push_back(update.rank);
                     });
  gathered.staleness.assign(gathered.count, 0);
  if (differs) {
    throw ConfigError(
        dstorm::disagreement("allreduce of " + what_,
                             {format, std::string(fold.name()) + (last ? ", the last one" : "")}));
  }
}

void Allreduce::run_on_host(Stream stream, const Fold& fold, nanoseconds limit, bool last,
                            Gathered& gathered) {
  const Gpu::Use use(*gpu_);
  const auto values = reinterpret_cast<Address>(on_host_->pieces()[0].data);
  copy_out(elements_.pieces, elements_.dtype, values, stream);
  exchange_.await_stream(stream, limit);
  gathered = on_host_->allreduce(fold, limit, last);
  copy_in(elements_.pieces, elements_.dtype, values, stream);
  // The next call writes the memory that is read here.
  exchange_.await_stream(stream, exchange_.segment().group().timeout());
}

dstorm::Stats Allreduce::stats() const {
  dstorm::Stats stats = stats_;
  if (on_device_ != nullptr) add_traffic(stats, on_device_->stats());
  if (on_host_ != nullptr) add_traffic(stats, on_host_->stats());
  return stats;
}

void Allreduce::shut() noexcept {
  const auto [on_device, on_host] = [this] {
    const std::lock_guard lock(mutex_);
    return std::pair(on_device_, on_host_);
  }();
  if (on_device != nullptr) on_device->shut();
  if (on_host != nullptr) on_host->shut();
}

void Allreduce::reset() {
  stats_ = stats();
  const std::lock_guard lock(mutex_);
  on_device_.reset();
  on_host_.reset();
  have_met_ = false;
}

}  // namespace vol::device
