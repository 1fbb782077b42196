// The driver itself, its errors and its devices.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "state.hpp"

namespace fake_cuda {
namespace {

struct Error {
  Result result;
  const char* name;
  const char* description;
};
constexpr Error kErrors[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {205, "CUDA_ERROR_MAP_FAILED", "mapping of buffer object failed"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "pointer does not correspond to a registered memory region"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

const Error* find_error(Result result) {
  for (const Error& error : kErrors) {
    if (error.result == result) return &error;
  }
  return nullptr;
}

// CUdevice_attributes beyond those of driver.hpp; all others are 0.
constexpr int kMaxThreadsPerBlock = 1;
constexpr int kWarpSize = 10;
constexpr int kCanMapHostMemory = 19;
constexpr int kUnifiedAddressing = 41;
constexpr int kHostRegisterSupported = 99;

int attribute_value(int attribute) {
  switch (attribute) {
    case kMultiprocessors:
      return 4;
    case kComputeMajor:
      return 9;
    case kMaxThreadsPerBlock:
      return 1024;
    case kWarpSize:
      return 32;
    case kCanMapHostMemory:
    case kUnifiedAddressing:
    case kHostRegisterSupported:
      return 1;
    default:
      return 0;
  }
}

std::uint64_t number_in(const char* variable, std::uint64_t otherwise) {
  const char* value = std::getenv(variable);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

Settings read_settings() {
  Settings read;
  read.devices = static_cast<int>(number_in("FAKE_CUDA_DEVICES", 1));
  read.memory_bytes = number_in("FAKE_CUDA_MEMORY", read.memory_bytes);
  read.has_peers = number_in("FAKE_CUDA_NO_PEER", 0) == 0;
  read.has_ipc = number_in("FAKE_CUDA_NO_IPC", 0) == 0;
  read.is_capturing = number_in("FAKE_CUDA_CAPTURING", 0) != 0;
  read.copy_delay = std::chrono::microseconds(number_in("FAKE_CUDA_COPY_DELAY_US", 0));
  return read;
}

void read_faults(State& all) {
  const char* value = std::getenv("FAKE_CUDA_FAIL");
  std::istringstream faults(value == nullptr ? "" : value);
  for (std::string fault; std::getline(faults, fault, ',');) {
    char symbol[64];
    unsigned nth = 0;
    Result result = 0;
    if (std::sscanf(fault.c_str(), "%63[^:]:%u:%d", symbol, &nth, &result) != 3) {
      std::fprintf(stderr, "FAKE_CUDA_FAIL: \"%s\" is not symbol:nth:result\n", fault.c_str());
      std::abort();
    }
    Faults& those = all.faults[symbol];
    those.results[those.calls + nth] = result;
  }
}

bool has_device(Ordinal ordinal) { return ordinal >= 0 && ordinal < state().settings.devices; }

}  // namespace

Result init(unsigned flags) {
  if (is_forked()) return kNotInitialised;
  State& all = state();
  {
    // Before the call is counted, as the variable may name cuInit.
    const std::lock_guard lock(all.mutex);
    static bool is_read = false;
    if (!is_read) read_faults(all);
    is_read = true;
  }
  const Call call(symbol::init, Needs::kNothing);
  if (call.refusal != kSuccess) return call.refusal;
  if (flags != 0) return kInvalidValue;
  if (all.is_over) return kDeinitialised;
  if (!all.contexts.empty()) return kSuccess;
  all.settings = read_settings();
  if (all.settings.devices == 0) return kNoDevice;
  for (Ordinal i = 0; i < all.settings.devices; ++i) {
    all.contexts.push_back(std::make_unique<ContextTag>(ContextTag{i, 0, nullptr}));
  }
  begin_process();
  return kSuccess;
}

Result driver_version(int* version) {
  const Call call(symbol::driver_version, Needs::kNothing);
  if (call.refusal != kSuccess) return call.refusal;
  if (version == nullptr) return kInvalidValue;
  *version = 12080;
  return kSuccess;
}

Result error_name(Result result, const char** name) {
  const Error* error = find_error(result);
  *name = error == nullptr ? nullptr : error->name;
  return error == nullptr ? kInvalidValue : kSuccess;
}

Result error_string(Result result, const char** description) {
  const Error* error = find_error(result);
  *description = error == nullptr ? nullptr : error->description;
  return error == nullptr ? kInvalidValue : kSuccess;
}

Result device_count(int* count) {
  const Call call(symbol::device_count, Needs::kInit);
  if (call.refusal != kSuccess) return call.refusal;
  *count = state().settings.devices;
  return kSuccess;
}

Result device_name(char* name, int bytes, Ordinal device) {
  const Call call(symbol::device_name, Needs::kInit);
  if (call.refusal != kSuccess) return call.refusal;
  if (!has_device(device)) return kInvalidDevice;
  if (bytes <= 0) return kInvalidValue;
  std::snprintf(name, static_cast<std::size_t>(bytes), "Fake GPU %d", device);
  return kSuccess;
}

Result device_attribute(int* value, int attribute, Ordinal device) {
  const Call call(symbol::device_attribute, Needs::kInit);
  if (call.refusal != kSuccess) return call.refusal;
  if (!has_device(device)) return kInvalidDevice;
  if (attribute <= 0) return kInvalidValue;
  *value = attribute_value(attribute);
  return kSuccess;
}

Result device_memory(std::size_t* bytes, Ordinal device) {
  const Call call(symbol::device_memory, Needs::kInit);
  if (call.refusal != kSuccess) return call.refusal;
  if (!has_device(device)) return kInvalidDevice;
  *bytes = state().settings.memory_bytes;
  return kSuccess;
}

}  // namespace fake_cuda
