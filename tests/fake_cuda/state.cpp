#include "state.hpp"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>

#include "fake_cuda.hpp"

namespace fake_cuda {
namespace {

std::atomic<pid_t> owner{0};  // the process that has called cuInit

// Registered with atexit. A child of the owner runs it too, and must not take the lock, which
// another thread of the parent may have held.
void end_process() {
  if (is_forked()) return;
  State& all = state();
  const std::lock_guard lock(all.mutex);
  all.is_over = true;
  all.changed.notify_all();
}

}  // namespace

State& state() {
  static State& only = *new State;
  return only;
}

bool is_forked() {
  const pid_t pid = owner;
  return pid != 0 && pid != getpid();
}

void begin_process() {
  owner = getpid();
  std::atexit(end_process);
}

// Not thread_local: glibc frees the thread_local variables of a library that was opened at run time
// in an order that ThreadSanitizer does not see, and would report as a race.
Thread& this_thread() {
  static const pthread_key_t key = [] {
    pthread_key_t made;
    pthread_key_create(&made, [](void* thread) { delete static_cast<Thread*>(thread); });
    return made;
  }();
  auto* thread = static_cast<Thread*>(pthread_getspecific(key));
  if (thread == nullptr) {
    thread = new Thread;
    pthread_setspecific(key, thread);
  }
  return *thread;
}

Call::Call(const char* symbol, Needs needs) {
  if (is_forked()) {
    if (needs != Needs::kNothing) refusal = kNotInitialised;
    return;
  }
  State& all = state();
  lock = Lock(all.mutex);
  Faults& faults = all.faults[symbol];
  ++faults.calls;
  const auto fault = faults.results.find(faults.calls);
  if (this_thread().is_in_host_function) {
    refusal = kNotPermitted;
  } else if (fault != faults.results.end()) {
    refusal = fault->second;
  } else if (needs == Needs::kNothing) {
    refusal = kSuccess;
  } else if (owner == 0) {
    refusal = kNotInitialised;
  } else if (all.is_over) {
    refusal = kDeinitialised;
  } else if (needs == Needs::kContext) {
    const Context current = current_context();
    if (all.is_lost) {
      refusal = kIllegalAddress;
    } else if (current == nullptr) {
      refusal = kInvalidContext;
    } else if (current->retained == 0) {
      refusal = kContextIsDestroyed;
    }
  }
}

}  // namespace fake_cuda

extern "C" {

void fake_cuda_fail(const char* symbol, int nth, int result) {
  auto& all = fake_cuda::state();
  const std::lock_guard lock(all.mutex);
  fake_cuda::Faults& faults = all.faults[symbol];
  faults.results[faults.calls + static_cast<std::uint64_t>(nth)] = result;
}

std::uint64_t fake_cuda_calls(const char* symbol) {
  auto& all = fake_cuda::state();
  const std::lock_guard lock(all.mutex);
  return all.faults[symbol].calls;
}

std::uint64_t fake_cuda_registered() {
  auto& all = fake_cuda::state();
  const std::lock_guard lock(all.mutex);
  std::uint64_t bytes = 0;
  for (const auto& [address, range] : all.host_memory) {
    if (!range.is_allocated) bytes += range.bytes;
  }
  return bytes;
}

void fake_cuda_lose_context() {
  auto& all = fake_cuda::state();
  const std::lock_guard lock(all.mutex);
  all.is_lost = true;
  fake_cuda::drop_all();
}

void fake_cuda_stall(int on) {
  auto& all = fake_cuda::state();
  const std::lock_guard lock(all.mutex);
  all.is_stalled = on != 0;
  all.changed.notify_all();
}
}
