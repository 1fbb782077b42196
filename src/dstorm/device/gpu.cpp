#include "dstorm/device/gpu.hpp"

#include <map>
#include <mutex>
#include <utility>

#include "dstorm/errors.hpp"

namespace dstorm::device {

std::shared_ptr<Gpu> Gpu::at(Ordinal ordinal) {
  static std::mutex mutex;
  static std::map<Ordinal, std::weak_ptr<Gpu>> known;
  const std::lock_guard lock(mutex);
  std::shared_ptr<Gpu> gpu = known[ordinal].lock();
  if (gpu == nullptr) known[ordinal] = gpu = std::make_shared<Gpu>(ordinal);
  return gpu;
}

std::shared_ptr<Gpu> Gpu::of(Address address, const std::string& what) {
  const Driver& driver = Driver::get();
  unsigned type = 0;
  int ordinal = 0;
  const bool is_known = driver.pointer_attribute(&type, kPointerMemoryType, address) == kSuccess &&
                        driver.pointer_attribute(&ordinal, kPointerOrdinal, address) == kSuccess;
  if (!is_known || type != kMemoryTypeDevice) {
    throw ConfigError(what + " is not in the memory of a GPU of this process");
  }
  return at(ordinal);
}

Gpu::Gpu(Ordinal ordinal) : driver_(Driver::get()), ordinal_(ordinal) {
  int devices = 0;
  check(driver_.device_count(&devices), "counting the GPUs");
  if (ordinal < 0 || ordinal >= devices) {
    throw ConfigError("there is no GPU " + std::to_string(ordinal) + "; this process sees " +
                      std::to_string(devices));
  }
  const std::string what = "GPU " + std::to_string(ordinal);
  char name[256] = {};
  check(driver_.device_name(name, sizeof(name) - 1, ordinal), what);
  name_ = name;
  int major = 0;
  int minor = 0;
  check(driver_.device_attribute(&major, kComputeMajor, ordinal), what);
  check(driver_.device_attribute(&minor, kComputeMinor, ordinal), what);
  capability_ = major * 10 + minor;
  check(driver_.device_attribute(&multiprocessors_, kMultiprocessors, ordinal), what);
  check(driver_.context_retain(&context_, ordinal), describe() + " cannot be used");
}

Gpu::~Gpu() {
  if (Driver::find() != nullptr && context_ != nullptr) driver_.context_release(ordinal_);
}

std::string Gpu::describe() const { return "GPU " + std::to_string(ordinal_) + " (" + name_ + ")"; }

Gpu::Use::Use(const Gpu& gpu) {
  check(Driver::get().context_push(gpu.context_), gpu.describe() + " cannot be used");
}

Gpu::Use::~Use() {
  Context context = nullptr;
  if (const Driver* driver = Driver::find()) driver->context_pop(&context);
}

Memory::Memory(std::shared_ptr<Gpu> gpu, std::size_t bytes, const std::string& what)
    : gpu_(std::move(gpu)), bytes_(bytes) {
  const Driver& driver = Driver::get();
  const Gpu::Use use(*gpu_);
  const Result result = driver.allocate(&address_, bytes);
  if (result == kSuccess) return;
  std::size_t free = 0;
  std::size_t total = 0;
  driver.memory_info(&free, &total);
  throw Error(what + " needs " + std::to_string(bytes >> 20) + " MB on " + gpu_->describe() +
              ", which has " + std::to_string(free >> 20) + " of " + std::to_string(total >> 20) +
              " MB free: " + device::describe(result) +
              "; free some (PyTorch: torch.cuda.empty_cache()), give the vector a codec or fewer "
              "slots (depth=), or set MALT_DEVICE_SLOTS=host to have the slots in the host's "
              "memory");
}

Memory::~Memory() {
  if (address_ == 0) return;
  gpu_->if_usable([this](const Driver& driver) { driver.free(address_); });
}

Memory::Memory(Memory&& other) noexcept
    : gpu_(std::move(other.gpu_)),
      address_(std::exchange(other.address_, 0)),
      bytes_(std::exchange(other.bytes_, 0)) {}

Memory& Memory::operator=(Memory&& other) noexcept {
  std::swap(gpu_, other.gpu_);
  std::swap(address_, other.address_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

PinnedMemory::PinnedMemory(std::shared_ptr<Gpu> gpu, std::size_t bytes) : gpu_(std::move(gpu)) {
  const Gpu::Use use(*gpu_);
  check(Driver::get().host_allocate(&data_, bytes, kHostRegisterPortable | kHostRegisterDeviceMap),
        "page-locked memory of " + std::to_string(bytes) + " bytes");
}

PinnedMemory::~PinnedMemory() {
  gpu_->if_usable([this](const Driver& driver) { driver.host_free(data_); });
}

}  // namespace dstorm::device
