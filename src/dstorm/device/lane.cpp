#include "dstorm/device/lane.hpp"

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
  device::check(driver.event_record(event_, stream), "recording an event");
  device::check(driver.stream_wait(stream_, event_, 0), "waiting for an event");
  device::check(driver.launch_host(stream_, finish, argument), "following a stream");
}

void Lane::check() const {
  const Gpu::Use use(*gpu_);
  const Result result = Driver::get().stream_query(stream_);
  if (result == kNotReady) return;
  device::check(result, gpu_->describe() + " has failed");
}

bool Lane::await_idle(std::chrono::nanoseconds limit) const noexcept {
  const auto end = std::chrono::steady_clock::now() + limit;
  bool is_idle = true;
  gpu_->if_usable([&](const Driver& driver) {
    while (!(is_idle = driver.stream_query(stream_) != kNotReady)) {
      if (gpu_->has_hung()) return;
      if (std::chrono::steady_clock::now() > end) return gpu_->note_hung();
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  });
  return is_idle;
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
