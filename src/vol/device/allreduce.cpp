#include "vol/device/allreduce.hpp"

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "dstorm/collective/allreduce.hpp"
#include "dstorm/errors.hpp"
#include "dstorm/host/turn.hpp"
#include "dstorm/host/wait.hpp"
#include "dstorm/segment/parts.hpp"
#include "vol/dense_allreduce.hpp"
#include "vol/device/coder.hpp"
#include "vol/folding.hpp"

namespace vol::device {

using dstorm::ConfigError;
using dstorm::Update;

namespace {

// In the format of an update: the call after the loop.
constexpr std::uint32_t kLastCall = 1U << 31;

constexpr std::chrono::minutes kLongestCopy{1};

// The ranks whose updates a rank has found, as a byte a rank. The fold of all ranks' is those that
// every one has found.
class FoundByAll final : public dstorm::Operand {
 public:
  explicit FoundByAll(int ranks) : marks_(static_cast<std::size_t>(ranks)) {}
  void add(int rank) { marks_[static_cast<std::size_t>(rank)] = std::byte{1}; }
  bool has(int rank) const { return marks_[static_cast<std::size_t>(rank)] != std::byte{0}; }

  void copy_out(std::byte* to, dstorm::ByteRange range) const override {
    std::copy(marks_.begin() + offset(range.begin), marks_.begin() + offset(range.end), to);
  }
  void fold(std::byte* to, std::span<const std::byte* const> inputs,
            dstorm::ByteRange range) override {
    for (std::size_t at = range.begin; at < range.end; ++at) {
      std::byte all = marks_[at];
      for (const std::byte* const input : inputs) {
        if (input != nullptr) all &= input[at - range.begin];
      }
      (to == nullptr ? marks_[at] : to[at - range.begin]) = all;
    }
  }
  void copy_in(const std::byte* from, dstorm::ByteRange range) override {
    std::copy_n(from, range.end - range.begin, marks_.begin() + offset(range.begin));
  }

 private:
  static std::ptrdiff_t offset(std::size_t at) { return static_cast<std::ptrdiff_t>(at); }

  std::vector<std::byte> marks_;
};

}  // namespace

void Allreduce::run(Stream stream, const Fold& fold, const dstorm::Deadline& deadline, bool last,
                    Gathered& gathered) {
  const dstorm::Group::Within within(exchange_.segment().group(), deadline);
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
  meet(deadline);
  if (on_device_ != nullptr) {
    run_on_device(stream, fold, deadline, last, gathered);
  } else {
    run_on_host(stream, fold, deadline, last, gathered);
  }
}

// If ranks are late, this fails within the limit and names them; the next call begins here again.
void Allreduce::meet(const dstorm::Deadline& deadline) {
  if (on_device_ != nullptr || on_host_ != nullptr) return;
  dstorm::Group& group = exchange_.segment().group();
  if (!have_met_) group.exchange(options_.name, {}, deadline);
  have_met_ = true;
  if (group.is_one_host()) {
    auto made = std::make_shared<StreamExchange>(group.shared_from_this(), options_,
                                                 elements_.bytes(), gpu_, exchange_.kind());
    auto agreement = std::make_shared<dstorm::Allreduce>(group.shared_from_this(),
                                                         options_.name + ", whose updates", "",
                                                         static_cast<std::size_t>(group.size()));
    const std::lock_guard lock(mutex_);
    on_device_ = std::move(made);
    agreement_ = std::move(agreement);
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
void Allreduce::run_on_device(Stream stream, const Fold& fold, const dstorm::Deadline& deadline,
                              bool last, Gathered& gathered) {
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
  options.timeout = deadline.left();
  bool differs = false;
  on_device_->gather(stream, options,
                     [&](std::span<const Update> updates, std::span<const Address> at) {
                       const std::vector<int> ranks = found_by_all(updates, deadline);
                       std::vector<Update> agreed;
                       std::vector<Address> agreed_at;
                       for (std::size_t i = 0; i < updates.size(); ++i) {
                         if (!std::ranges::binary_search(ranks, updates[i].rank)) continue;
                         const Update& update = updates[i];
                         if (update.format != format || update.count != present) differs = true;
                         agreed.push_back(update);
                         agreed_at.push_back(at[i]);
                       }
                       if (differs) return;
                       if (is_repeated) {
                         copy_in(elements_.pieces, elements_.dtype, sent_at_, stream);
                       }
                       gathered.count = agreed.size();
                       if (agreed.empty()) return;
                       folding_.fold(fold, exchange_.segment().group().rank(), agreed, agreed_at,
                                     Wire::kPlain, {}, stream);
                       for (const Update& update : agreed) gathered.ranks.push_back(update.rank);
                     });
  gathered.staleness.assign(gathered.count, 0);
  if (differs) {
    throw ConfigError(
        dstorm::disagreement("allreduce of " + what_,
                             {format, std::string(fold.name()) + (last ? ", the last one" : "")}));
  }
}

// Returns the other ranks whose updates all ranks have found, sorted. In a call that is repeated
// the ranks go by what this one had found before (A8 of dstorm/collective/allreduce.hpp).
std::vector<int> Allreduce::found_by_all(std::span<const Update> updates,
                                         const dstorm::Deadline& deadline) {
  const dstorm::Group& group = exchange_.segment().group();
  FoundByAll found(group.size());
  found.add(group.rank());
  for (const Update& update : updates) found.add(update.rank);
  // The gather holds these updates until the ranks agree.
  const dstorm::Turns::Inside inside(exchange_.segment().turns(), dstorm::Turns::Code::kOwn);
  agreement_->run(found, {0, "a fold"}, deadline.left());
  std::vector<int> ranks;
  for (int rank = 0; rank < group.size(); ++rank) {
    if (rank == group.rank() || !found.has(rank)) continue;
    if (std::ranges::find(updates, rank, &Update::rank) == updates.end()) {
      shut();  // the others have ended this call, and this rank's next one would not be theirs
      exchange_.shut();
      throw dstorm::PeerError("allreduce of " + what_ + ": rank " + std::to_string(rank) +
                                  " was evicted when the others had folded its values",
                              {rank});
    }
    ranks.push_back(rank);
  }
  return ranks;
}

void Allreduce::run_on_host(Stream stream, const Fold& fold, const dstorm::Deadline& deadline,
                            bool last, Gathered& gathered) {
  const Gpu::Use use(*gpu_);
  const auto values = reinterpret_cast<Address>(on_host_->pieces()[0].data);
  copy_out(elements_.pieces, elements_.dtype, values, stream);
  exchange_.await_stream(stream, deadline.left());
  gathered = on_host_->allreduce(fold, deadline.left(), last);
  copy_in(elements_.pieces, elements_.dtype, values, stream);
  // The next call writes the memory that is read here. The others have ended this call, so only a
  // GPU that hangs may fail it.
  exchange_.await_stream(stream, kLongestCopy);
}

dstorm::Stats Allreduce::stats() const {
  dstorm::Stats stats = stats_;
  if (on_device_ != nullptr) add_traffic(stats, on_device_->stats());
  if (on_host_ != nullptr) add_traffic(stats, on_host_->stats());
  return stats;
}

void Allreduce::shut() noexcept {
  const auto [on_device, agreement, on_host] = [this] {
    const std::lock_guard lock(mutex_);
    return std::tuple(on_device_, agreement_, on_host_);
  }();
  if (on_device != nullptr) on_device->shut();
  if (agreement != nullptr) agreement->shut();
  if (on_host != nullptr) on_host->shut();
}

void Allreduce::reset() {
  stats_ = stats();
  const std::lock_guard lock(mutex_);
  on_device_.reset();
  agreement_.reset();
  on_host_.reset();
  have_met_ = false;
}

}  // namespace vol::device
