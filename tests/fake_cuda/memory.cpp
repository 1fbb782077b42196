// Device memory: each allocation is a memfd, mapped into a region that is reserved for all of them.
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "memory.hpp"

namespace fake_cuda {
namespace {

constexpr std::size_t kRegionBytes = std::size_t{256} << 30;
constexpr int kFreedByte = 0xAB;

Address region() {
  static const Address only = [] {
    void* at =
        mmap(nullptr, kRegionBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at == MAP_FAILED ? 0 : reinterpret_cast<Address>(at);
  }();
  return only;
}

// The lowest place that is free, as the real driver too gives addresses out again. Zero if none is.
Address free_place(std::size_t mapped_bytes) {
  const std::size_t needed = mapped_bytes + kPageBytes;  // one page without access follows
  Address at = region();
  for (const auto& [address, allocation] : state().memory) {
    if (address - at >= needed) return at;
    at = address + allocation.mapped_bytes + kPageBytes;
  }
  return region() != 0 && region() + kRegionBytes - at >= needed ? at : 0;
}

std::size_t used_bytes(Ordinal ordinal) {
  std::size_t used = 0;
  for (const auto& [address, allocation] : state().memory) {
    if (allocation.fd >= 0 && allocation.ordinal == ordinal) used += allocation.bytes;
  }
  return used;
}

// The memory of a new allocation, which ends with a page that holds its token. -1 if there is none.
int make_memory(std::size_t mapped_bytes, std::uint64_t token) {
  const int fd = memfd_create("fake_cuda", MFD_CLOEXEC);
  if (fd < 0) return -1;
  const auto end = static_cast<off_t>(mapped_bytes);
  if (ftruncate(fd, end + static_cast<off_t>(kPageBytes)) == 0 &&
      pwrite(fd, &token, sizeof(token), end) == sizeof(token)) {
    return fd;
  }
  close(fd);
  return -1;
}

}  // namespace

std::size_t whole_pages(std::size_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

Address map_memory(int fd, const Allocation& allocation) {
  const Address at = free_place(allocation.mapped_bytes);
  if (at == 0 || mmap(reinterpret_cast<void*>(at), allocation.mapped_bytes, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
    return 0;
  }
  state().memory[at] = allocation;
  return at;
}

void unmap(std::map<Address, Allocation>::iterator at) {
  if (at->second.is_exported) {
    std::memset(reinterpret_cast<void*>(at->first), kFreedByte, at->second.bytes);
  }
  [[maybe_unused]] const void* const reserved =
      mmap(reinterpret_cast<void*>(at->first), at->second.mapped_bytes, PROT_NONE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  if (at->second.fd >= 0) close(at->second.fd);
  state().memory.erase(at);
}

Result allocate(Address* address, std::size_t bytes) {
  const Call call(symbol::allocate, Needs::kContext);
  if (call.refusal != kSuccess) return call.refusal;
  if (address == nullptr || bytes == 0) return kInvalidValue;
  const Ordinal ordinal = current_context()->ordinal;
  const std::size_t left = state().settings.memory_bytes - used_bytes(ordinal);
  if (bytes > left) return kOutOfMemory;
  Allocation made{bytes, whole_pages(bytes), ordinal, 0, -1, 0};
  if (getrandom(&made.token, sizeof(made.token), 0) != sizeof(made.token)) return kOutOfMemory;
  made.fd = make_memory(made.mapped_bytes, made.token);
  if (made.fd < 0) return kOutOfMemory;
  *address = map_memory(made.fd, made);
  if (*address == 0) close(made.fd);
  return *address == 0 ? kOutOfMemory : kSuccess;
}

Result free(Address address) {
  Call call(symbol::free, Needs::kContext);
  if (call.refusal != kSuccess) return call.refusal;
  if (address == 0) return kSuccess;
  State& all = state();
  if (const Result result = finish_device(call.lock, -1); result != kSuccess) return result;
  const auto found = all.memory.find(address);
  if (found == all.memory.end() || found->second.fd < 0) return kInvalidValue;
  unmap(found);
  return kSuccess;
}

Result memory_info(std::size_t* free_bytes, std::size_t* total_bytes) {
  const Call call(symbol::memory_info, Needs::kContext);
  if (call.refusal != kSuccess) return call.refusal;
  *total_bytes = state().settings.memory_bytes;
  *free_bytes = *total_bytes - used_bytes(current_context()->ordinal);
  return kSuccess;
}

Result address_range(Address* base, std::size_t* bytes, Address address) {
  const Call call(symbol::address_range, Needs::kContext);
  if (call.refusal != kSuccess) return call.refusal;
  const auto found = find_range(state().memory, address);
  if (found == state().memory.end()) return kInvalidValue;
  if (base != nullptr) *base = found->first;
  if (bytes != nullptr) *bytes = found->second.bytes;
  return kSuccess;
}

Result pointer_attribute(void* value, int attribute, Address address) {
  const Call call(symbol::pointer_attribute, Needs::kInit);
  if (call.refusal != kSuccess) return call.refusal;
  State& all = state();
  const auto device = find_range(all.memory, address);
  const auto host = find_range(all.host_memory, address);
  const bool is_device = device != all.memory.end();
  if (!is_device && host == all.host_memory.end()) return kInvalidValue;
  const Context context = is_device
                              ? all.contexts[static_cast<std::size_t>(device->second.ordinal)].get()
                              : host->second.context;
  switch (attribute) {
    case kPointerMemoryType:
      *static_cast<unsigned*>(value) = is_device ? kMemoryTypeDevice : 1;
      return kSuccess;
    case kPointerOrdinal:
      *static_cast<Ordinal*>(value) = context->ordinal;
      return kSuccess;
    default:
      return kInvalidValue;
  }
}

}  // namespace fake_cuda
