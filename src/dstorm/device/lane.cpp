#include "dstorm/device/lane.hpp"

#include <algorithm>
#include <thread>

#include "dstorm/errors.hpp"

namespace dstorm::device {

Lane::Lane(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {
  const Driver& driver = Driver::get();
  const Gpu::Use use(*gpu_);
  device::check(driver.stream_create(&stream_, kStreamNonBlocking), "making a stream");
  const Result result = driver.event_create(&event_, kEventDisableTiming);
  if (result != kSuccess) driver.stream_destroy(stream_);
  device::check(result, "making an event");
}

Lane::~Lane() {
  gpu_->if_usable([this](const Driver& driver) {
    driver.event_destroy(event_);
    driver.stream_destroy(stream_);
  });
}

void Lane::follow(Stream stream, void (*finish)(void*), void* argument) {
  const Driver& driver = Driver::get();
  try {
    device::check(driver.event_record(event_, stream), "recording an event");
    device::check(driver.stream_wait(stream_, event_, 0), "waiting for an event");
    device::check(driver.launch_host(stream_, finish, argument), "following a stream");
  } catch (const Error&) {
    // The GPU may be well, and the stream none of its own. The call is then done when the GPU is.
    if (driver.context_synchronize() != kSuccess) throw;
    finish(argument);
  }
}

void Lane::check() const {
  const Gpu::Use use(*gpu_);
  const Result result = Driver::get().stream_query(stream_);
  if (result == kNotReady) return;
  device::check(result, gpu_->describe() + " has failed");
}

bool Lane::await_idle(std::chrono::nanoseconds limit) const noexcept {
  bool is_idle = true;
  gpu_->if_usable([&](const Driver& driver) {
    is_idle = await(driver, stream_, gpu_->has_hung() ? std::chrono::nanoseconds(0) : limit);
    gpu_->note_hung(!is_idle);
  });
  return is_idle;
}

bool Lane::await(Stream stream, std::chrono::nanoseconds limit) const {
  const Gpu::Use use(*gpu_);
  const Driver& driver = Driver::get();
  if (!await(driver, stream, limit)) return false;
  device::check(driver.stream_query(stream), gpu_->describe() + " has failed");
  return true;
}

bool Lane::await(const Driver& driver, Stream stream, std::chrono::nanoseconds limit) noexcept {
  constexpr std::chrono::microseconds kShortest{20};
  constexpr std::chrono::microseconds kLongest{1000};
  const auto end = std::chrono::steady_clock::now() + limit;
  for (auto nap = kShortest; driver.stream_query(stream) == kNotReady;
       nap = std::min(2 * nap, kLongest)) {
    const bool is_over = std::chrono::steady_clock::now() > end;
    std::this_thread::sleep_for(nap);
    // Once more: this process may have been stopped past the limit.
    if (is_over) return driver.stream_query(stream) != kNotReady;
  }
  return true;
}

void check_not_captured(Stream stream, const std::string& what) {
  int status = kCaptureNone;
  device::check(Driver::get().stream_capture(stream, &status), what);
  if (status == kCaptureNone) return;
  throw ConfigError(what +
                    ": the stream is being captured into a CUDA graph, which cannot contain an "
                    "exchange: capture the step without it, and exchange between replays");
}

}  // namespace dstorm::device
