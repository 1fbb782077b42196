// Host memory that the devices can use.
#include <sys/mman.h>

#include "memory.hpp"

namespace fake_cuda {
namespace {

bool overlaps(Address address, std::size_t bytes) {
  const auto& ranges = state().host_memory;
  const auto next = ranges.lower_bound(address);
  return find_range(ranges, address) != ranges.end() ||
         (next != ranges.end() && next->first - address < bytes);
}

bool is_mapped(Address address, std::size_t bytes) {
  const Address first = address / kPageBytes * kPageBytes;
  // With MS_ASYNC it does nothing but look.
  return msync(reinterpret_cast<void*>(first), address - first + bytes, MS_ASYNC) == 0;
}

}  // namespace

Result host_register(void* memory, std::size_t bytes, unsigned) {
  const Call call(symbol::host_register, Needs::kContext);
  if (call.refusal != kSuccess) return call.refusal;
  const auto address = reinterpret_cast<Address>(memory);
  if (memory == nullptr || bytes == 0 || !is_mapped(address, bytes)) return kInvalidValue;
  if (overlaps(address, bytes)) return kHostMemoryAlreadyRegistered;
  state().host_memory[address] = {bytes, false, current_context()};
  return kSuccess;
}

Result host_unregister(void* memory) {
  Call call(symbol::host_unregister, Needs::kContext);
  if (call.refusal != kSuccess) return call.refusal;
  State& all = state();
  if (const Result result = finish_device(call.lock, -1); result != kSuccess) return result;
  const auto found = all.host_memory.find(reinterpret_cast<Address>(memory));
  if (found == all.host_memory.end() || found->second.is_allocated) return kHostMemoryNotRegistered;
  if (!is_mapped(found->first, found->second.bytes)) return kInvalidValue;
  all.host_memory.erase(found);
  return kSuccess;
}

Result host_device_pointer(Address* address, void* memory, unsigned flags) {
  const Call call(symbol::host_device_pointer, Needs::kContext);
  if (call.refusal != kSuccess) return call.refusal;
  const auto same = reinterpret_cast<Address>(memory);
  const auto& ranges = state().host_memory;
  if (flags != 0 || find_range(ranges, same) == ranges.end()) return kInvalidValue;
  *address = same;
  return kSuccess;
}

Result host_allocate(void** memory, std::size_t bytes, unsigned) {
  const Call call(symbol::host_allocate, Needs::kContext);
  if (call.refusal != kSuccess) return call.refusal;
  if (memory == nullptr || bytes == 0) return kInvalidValue;
  void* made = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (made == MAP_FAILED) return kOutOfMemory;
  state().host_memory[reinterpret_cast<Address>(made)] = {bytes, true, current_context()};
  *memory = made;
  return kSuccess;
}

Result host_free(void* memory) {
  Call call(symbol::host_free, Needs::kContext);
  if (call.refusal != kSuccess) return call.refusal;
  State& all = state();
  if (const Result result = finish_device(call.lock, -1); result != kSuccess) return result;
  const auto found = all.host_memory.find(reinterpret_cast<Address>(memory));
  if (found == all.host_memory.end() || !found->second.is_allocated) return kInvalidValue;
  munmap(memory, found->second.bytes);
  all.host_memory.erase(found);
  return kSuccess;
}

}  // namespace fake_cuda
