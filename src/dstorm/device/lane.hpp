// When a device has finished, the processor publishes an update, or frees the slots that have been
// folded.
//
// Invariants, with those of slot/layout.hpp (S8):
//  D1 follow() makes the lane's own stream wait for an event behind all that the caller's stream
//     has at that moment. The finish runs behind the wait, as a host function. So it runs after the
//     device has written the payload, or has read the updates. The driver makes what the device has
//     written visible to the whole system before it calls a host function.
//  D2 The caller's stream never waits for the lane.
//  D3 A receiver launches the kernel that reads a slot after it has loaded the slot's ticket with
//     acquire. All that the sender's device wrote before the ticket was stored is then in the
//     memory that the kernel reads, for a kernel begins with empty caches of its own.
//  D4 A sender enqueues the copy into a slot after it has loaded `consumed`, or has seen that no
//     hold covers the slot (S4). The receiver stored these in a finish, so its kernel had ended.
//  D5 When the process is killed, or its context is lost, the driver calls no further host function
//     of it. An event of a process that has ended says nothing about its copies, so no rank waits
//     for an event of another: it waits for tickets, and these are not there.
#pragma once

#include <chrono>
#include <memory>

#include "dstorm/device/gpu.hpp"

namespace dstorm::device {

// For one thread, except for the finishes.
class Lane {
 public:
  explicit Lane(std::shared_ptr<Gpu> gpu);
  // The lane must be idle (await_idle) or never have been used.
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  const Gpu& gpu() const noexcept { return *gpu_; }
  // Calls finish(argument) once, in a thread of the driver's, when the device has done all that
  // `stream` has now. `finish` may store, and wake threads; it may not wait, and not call CUDA. If
  // the driver cannot, it waits for the device and calls finish itself. Throws Error if the device
  // has failed; finish is then not called.
  void follow(Stream stream, void (*finish)(void*), void* argument);
  // Throws Error if the device has failed, so that finishes may never come.
  void check() const;
  // Whether the device has done all that `stream` has; waits for at most `limit`. Throws Error if
  // it has failed.
  bool await(Stream stream, std::chrono::nanoseconds limit) const;
  // Whether all finishes have returned, or never will; waits for at most `limit`. Any thread.
  bool await_idle(std::chrono::nanoseconds limit) const noexcept;

 private:
  static bool await(const Driver& driver, Stream stream, std::chrono::nanoseconds limit) noexcept;

  std::shared_ptr<Gpu> gpu_;
  Stream stream_ = nullptr;
  Event event_ = nullptr;
};

// Throws ConfigError if the stream is being captured into a graph: what a call decides on the host
// cannot be replayed.
void check_not_captured(Stream stream, const std::string& what);

}  // namespace dstorm::device
