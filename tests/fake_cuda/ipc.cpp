// Device memory of other processes, which this one opens by /proc/<pid>/fd.
#include <fcntl.h>
#include <unistd.h>

#include <cstring>

#include "memory.hpp"

namespace fake_cuda {
namespace {

// What an IpcHandle holds.
struct Exported {
  pid_t pid;
  int fd;
  Ordinal ordinal;
  std::uint64_t bytes;
  std::uint64_t token;
};
static_assert(sizeof(Exported) <= sizeof(IpcHandle));

// The memory, or -1 if its process has ended or has freed it.
int open_memory(const Exported& exported) {
  const std::string path =
      "/proc/" + std::to_string(exported.pid) + "/fd/" + std::to_string(exported.fd);
  // Whatever has that number by now must not block.
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return -1;
  std::uint64_t token = 0;
  const auto end = static_cast<off_t>(whole_pages(exported.bytes));
  if (pread(fd, &token, sizeof(token), end) == sizeof(token) && token == exported.token) return fd;
  close(fd);
  return -1;
}

}  // namespace

// The handle names the whole allocation in which `address` lies.
Result ipc_get(IpcHandle* handle, Address address) {
  const Call call(symbol::ipc_get, Needs::kContext);
  if (call.refusal != kSuccess) return call.refusal;
  State& all = state();
  if (!all.settings.has_ipc) return kNotSupported;
  const auto found = find_range(all.memory, address);
  // Memory of another process cannot be passed on.
  if (found == all.memory.end() || found->second.fd < 0) return kInvalidValue;
  Allocation& own = found->second;
  own.is_exported = true;
  const Exported exported{getpid(), own.fd, own.ordinal, own.bytes, own.token};
  *handle = IpcHandle{};
  std::memcpy(handle->bytes, &exported, sizeof(exported));
  return kSuccess;
}

// Memory that is open already is not mapped again: its openings are counted.
Result ipc_open(Address* address, IpcHandle handle, unsigned flags) {
  const Call call(symbol::ipc_open, Needs::kContext);
  if (call.refusal != kSuccess) return call.refusal;
  if (flags != kIpcLazyPeerAccess) return kInvalidValue;
  State& all = state();
  Exported exported;
  std::memcpy(&exported, handle.bytes, sizeof(exported));
  if (exported.pid == getpid()) return kInvalidContext;
  if (exported.ordinal < 0 || exported.ordinal >= all.settings.devices) return kInvalidValue;
  if (exported.ordinal != current_context()->ordinal && !all.settings.has_peers) return kMapFailed;
  for (auto& [base, one] : all.memory) {
    if (one.fd >= 0 || one.token != exported.token) continue;
    ++one.openings;
    *address = base;
    return kSuccess;
  }
  const int fd = open_memory(exported);
  if (fd < 0) return kInvalidValue;
  *address = map_memory(
      fd, {exported.bytes, whole_pages(exported.bytes), exported.ordinal, exported.token, -1, 1});
  close(fd);
  return *address == 0 ? kMapFailed : kSuccess;
}

Result ipc_close(Address address) {
  Call call(symbol::ipc_close, Needs::kContext);
  if (call.refusal != kSuccess) return call.refusal;
  State& all = state();
  if (const Result result = finish_device(call.lock, -1); result != kSuccess) return result;
  const auto found = all.memory.find(address);
  if (found == all.memory.end() || found->second.fd >= 0) return kInvalidValue;
  if (--found->second.openings == 0) unmap(found);
  return kSuccess;
}

}  // namespace fake_cuda
