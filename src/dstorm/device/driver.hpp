// The CUDA driver, opened at run time, so that one build serves machines with and without a GPU.
// The types and functions are those of NVIDIA's "CUDA Driver API" reference, declared here because
// its header is not needed for anything else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace dstorm::device {

using Result = int;             // CUresult
using Ordinal = int;            // CUdevice
using Address = std::uint64_t;  // CUdeviceptr, and host memory in the unified address space
using Context = struct ContextTag*;
using Stream = struct StreamTag*;
using Event = struct EventTag*;
using Module = struct ModuleTag*;
using Kernel = struct KernelTag*;

// CUipcMemHandle: names an allocation to other processes of the host.
struct IpcHandle {
  std::byte bytes[64];
  bool operator==(const IpcHandle& other) const = default;
};

inline constexpr Result kSuccess = 0;
inline constexpr Result kNotReady = 600;

inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kHostRegisterPortable = 1;
inline constexpr unsigned kHostRegisterDeviceMap = 2;
inline constexpr unsigned kIpcLazyPeerAccess = 1;
inline constexpr int kCaptureNone = 0;

// CUdevice_attribute and CUpointer_attribute.
inline constexpr int kMultiprocessors = 16;
inline constexpr int kComputeMajor = 75;
inline constexpr int kComputeMinor = 76;
inline constexpr int kPointerMemoryType = 2;
inline constexpr int kPointerOrdinal = 9;
inline constexpr unsigned kMemoryTypeDevice = 2;

// A row: our name, the driver's symbol, the parameters.
#define DSTORM_CUDA_FUNCTIONS(X)                                                                  \
  X(init, "cuInit", unsigned)                                                                     \
  X(driver_version, "cuDriverGetVersion", int*)                                                   \
  X(error_name, "cuGetErrorName", Result, const char**)                                           \
  X(error_string, "cuGetErrorString", Result, const char**)                                       \
  X(device_count, "cuDeviceGetCount", int*)                                                       \
  X(device_name, "cuDeviceGetName", char*, int, Ordinal)                                          \
  X(device_attribute, "cuDeviceGetAttribute", int*, int, Ordinal)                                 \
  X(device_memory, "cuDeviceTotalMem_v2", std::size_t*, Ordinal)                                  \
  X(context_retain, "cuDevicePrimaryCtxRetain", Context*, Ordinal)                                \
  X(context_release, "cuDevicePrimaryCtxRelease_v2", Ordinal)                                     \
  X(context_push, "cuCtxPushCurrent_v2", Context)                                                 \
  X(context_pop, "cuCtxPopCurrent_v2", Context*)                                                  \
  X(context_synchronize, "cuCtxSynchronize")                                                      \
  X(pointer_attribute, "cuPointerGetAttribute", void*, int, Address)                              \
  X(address_range, "cuMemGetAddressRange_v2", Address*, std::size_t*, Address)                    \
  X(memory_info, "cuMemGetInfo_v2", std::size_t*, std::size_t*)                                   \
  X(allocate, "cuMemAlloc_v2", Address*, std::size_t)                                             \
  X(free, "cuMemFree_v2", Address)                                                                \
  X(host_register, "cuMemHostRegister_v2", void*, std::size_t, unsigned)                          \
  X(host_unregister, "cuMemHostUnregister", void*)                                                \
  X(host_device_pointer, "cuMemHostGetDevicePointer_v2", Address*, void*, unsigned)               \
  X(host_allocate, "cuMemHostAlloc", void**, std::size_t, unsigned)                               \
  X(host_free, "cuMemFreeHost", void*)                                                            \
  X(copy_async, "cuMemcpyAsync", Address, Address, std::size_t, Stream)                           \
  X(set_async, "cuMemsetD8Async", Address, unsigned char, std::size_t, Stream)                    \
  X(ipc_get, "cuIpcGetMemHandle", IpcHandle*, Address)                                            \
  X(ipc_open, "cuIpcOpenMemHandle_v2", Address*, IpcHandle, unsigned)                             \
  X(ipc_close, "cuIpcCloseMemHandle", Address)                                                    \
  X(stream_create, "cuStreamCreate", Stream*, unsigned)                                           \
  X(stream_destroy, "cuStreamDestroy_v2", Stream)                                                 \
  X(stream_synchronize, "cuStreamSynchronize", Stream)                                            \
  X(stream_query, "cuStreamQuery", Stream)                                                        \
  X(stream_wait, "cuStreamWaitEvent", Stream, Event, unsigned)                                    \
  X(stream_capture, "cuStreamIsCapturing", Stream, int*)                                          \
  X(event_create, "cuEventCreate", Event*, unsigned)                                              \
  X(event_destroy, "cuEventDestroy_v2", Event)                                                    \
  X(event_record, "cuEventRecord", Event, Stream)                                                 \
  X(launch_host, "cuLaunchHostFunc", Stream, void (*)(void*), void*)                              \
  X(module_load, "cuModuleLoadData", Module*, const void*)                                        \
  X(module_unload, "cuModuleUnload", Module)                                                      \
  X(module_kernel, "cuModuleGetFunction", Kernel*, Module, const char*)                           \
  X(launch, "cuLaunchKernel", Kernel, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, \
    unsigned, Stream, void**, void**)

// The driver's functions. Any thread may use it at any time.
struct Driver {
#define DSTORM_MEMBER(name, symbol, ...) Result (*name)(__VA_ARGS__) = nullptr;
  DSTORM_CUDA_FUNCTIONS(DSTORM_MEMBER)
#undef DSTORM_MEMBER

  // The driver, or null if this machine has none that works. Opens it at the first call. After a
  // fork, the child has none: CUDA does not work there.
  static const Driver* find();
  // Why find() is null: "libcuda.so.1 cannot be opened (...)", "it has no device (...)".
  static std::string why_not();
  // The driver; throws ConfigError with why_not() if there is none.
  static const Driver& get();
};

// Throws dstorm::Error, which names `what` and the driver's error, unless the result is a success.
void check(Result result, std::string_view what);
// "CUDA_ERROR_OUT_OF_MEMORY (out of memory)".
std::string describe(Result result);

}  // namespace dstorm::device
