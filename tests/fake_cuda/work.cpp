// What streams do: copies, memsets, kernels and host functions.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "state.hpp"

namespace fake_cuda {
namespace {

constexpr std::size_t kChunkBytes = 64 << 10;

template <class Ranges>
bool covers(const Ranges& ranges, Address address, std::size_t bytes) {
  const auto found = find_range(ranges, address);
  return found != ranges.end() && bytes <= found->second.bytes - (address - found->first);
}

// Whether the driver knows a range that begins with `address`, but not all `bytes` of it.
bool runs_over(Address address, std::size_t bytes) {
  const State& all = state();
  if (find_range(all.memory, address) != all.memory.end())
    return !covers(all.memory, address, bytes);
  return find_range(all.host_memory, address) != all.host_memory.end() &&
         !covers(all.host_memory, address, bytes);
}

bool is_pageable(Address address, std::size_t bytes) {
  return !covers(state().memory, address, bytes) && !covers(state().host_memory, address, bytes);
}

bool is_lost() {
  const std::lock_guard lock(state().mutex);
  return state().is_lost;
}

// In a stream's thread. A copy of which some chunks are done can be found by a test that stops or
// kills the process.
void copy(Address to, Address from, std::size_t bytes) {
  const auto delay = state().settings.copy_delay;
  for (std::size_t done = 0; done < bytes && !is_lost(); done += kChunkBytes) {
    std::memmove(reinterpret_cast<void*>(to + done), reinterpret_cast<const void*>(from + done),
                 std::min(kChunkBytes, bytes - done));
    if (delay.count() != 0) std::this_thread::sleep_for(delay);
  }
}

Result copy_on(Call& call, Stream stream, Address to, Address from, std::size_t bytes,
               bool is_synchronous) {
  if (call.refusal != kSuccess) return call.refusal;
  const auto found = find_stream(stream);
  if (found == nullptr) return kInvalidHandle;
  if (bytes == 0) return kSuccess;
  if (to == 0 || from == 0 || runs_over(to, bytes) || runs_over(from, bytes)) return kInvalidValue;
  queue(*found, {nullptr, [=] { copy(to, from, bytes); }, nullptr});
  const bool must_finish = is_synchronous || is_pageable(to, bytes) || is_pageable(from, bytes);
  return must_finish ? finish(call.lock, found) : kSuccess;
}

KernelTag* find_kernel(Kernel kernel) {
  for (const auto& [handle, module] : state().modules) {
    for (auto& [name, one] : module->kernels) {
      if (&one == kernel) return &one;
    }
  }
  return nullptr;
}

}  // namespace

Result copy_async(Address to, Address from, std::size_t bytes, Stream stream) {
  Call call(symbol::copy_async, Needs::kContext);
  return copy_on(call, stream, to, from, bytes, false);
}

Result set_async(Address address, unsigned char value, std::size_t bytes, Stream stream) {
  const Call call(symbol::set_async, Needs::kContext);
  if (call.refusal != kSuccess) return call.refusal;
  const auto found = find_stream(stream);
  if (found == nullptr) return kInvalidHandle;
  if (bytes == 0) return kSuccess;
  if (is_pageable(address, bytes)) return kInvalidValue;
  queue(*found,
        {nullptr, [=] { std::memset(reinterpret_cast<void*>(address), value, bytes); }, nullptr});
  return kSuccess;
}

Result launch_host(Stream stream, void (*function)(void*), void* data) {
  const Call call(symbol::launch_host, Needs::kContext);
  if (call.refusal != kSuccess) return call.refusal;
  const auto found = find_stream(stream);
  if (found == nullptr) return kInvalidHandle;
  if (function == nullptr) return kInvalidValue;
  const auto work = [=] {
    if (is_lost()) return;
    this_thread().is_in_host_function = true;
    function(data);
    this_thread().is_in_host_function = false;
  };
  queue(*found, {nullptr, work, nullptr});
  return kSuccess;
}

// Kernels take one argument, a structure, which has to be copied before this returns.
Result launch(Kernel kernel, unsigned blocks, unsigned blocks_y, unsigned blocks_z,
              unsigned threads, unsigned threads_y, unsigned threads_z, unsigned, Stream stream,
              void** arguments, void** extra) {
  const Call call(symbol::launch, Needs::kContext);
  if (call.refusal != kSuccess) return call.refusal;
  const auto found = find_stream(stream);
  const KernelTag* const one = find_kernel(kernel);
  if (found == nullptr || one == nullptr || found->ordinal != one->ordinal) return kInvalidHandle;
  if (blocks == 0 || blocks_y != 1 || blocks_z != 1 || threads == 0 || threads > 1024 ||
      threads_y != 1 || threads_z != 1 || arguments == nullptr || extra != nullptr) {
    return kInvalidValue;
  }
  const auto* const first = static_cast<const std::byte*>(arguments[0]);
  const std::vector<std::byte> copied(first, first + one->args_bytes);
  const auto work = [run = one->run, copied, blocks] { run(copied.data(), blocks); };
  queue(*found, {nullptr, work, nullptr});
  return kSuccess;
}

// Not in driver.hpp: device_array.py calls them.
// NOLINTNEXTLINE(readability-identifier-naming): the driver's name
extern "C" Result cuMemcpyHtoD_v2(Address to, const void* from, std::size_t bytes) {
  Call call("cuMemcpyHtoD_v2", Needs::kContext);
  return copy_on(call, nullptr, to, reinterpret_cast<Address>(from), bytes, true);
}
// NOLINTNEXTLINE(readability-identifier-naming): the driver's name
extern "C" Result cuMemcpyDtoH_v2(void* to, Address from, std::size_t bytes) {
  Call call("cuMemcpyDtoH_v2", Needs::kContext);
  return copy_on(call, nullptr, reinterpret_cast<Address>(to), from, bytes, true);
}

}  // namespace fake_cuda
