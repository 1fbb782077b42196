// A GPU as this process uses it, and memory on it.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>

#include "dstorm/device/driver.hpp"

namespace dstorm::device {

// Holds the GPU's primary context, which PyTorch, CuPy and JAX use too. Any thread.
class Gpu {
 public:
  // The GPU with this number, which counts the devices that this process sees. Throws ConfigError
  // if there is none, and Error if its context cannot be made.
  static std::shared_ptr<Gpu> at(Ordinal ordinal);
  // The GPU that has the memory at `address`. Throws ConfigError, which begins with `what`, if the
  // address is not in the memory of a GPU.
  static std::shared_ptr<Gpu> of(Address address, const std::string& what);

  explicit Gpu(Ordinal ordinal);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  Ordinal ordinal() const noexcept { return ordinal_; }
  int multiprocessors() const noexcept { return multiprocessors_; }
  int capability() const noexcept { return capability_; }  // 90 for 9.0
  std::string describe() const;                            // "GPU 0 (NVIDIA H100 80GB HBM3)"

  // Whether the last wait for it was given up (Lane::await_idle): then the next ones end at once.
  bool has_hung() const noexcept { return has_hung_.load(std::memory_order_relaxed); }
  void note_hung(bool has_hung) noexcept { has_hung_.store(has_hung, std::memory_order_relaxed); }

  // While this object lives, the calls of this thread are made in the GPU's context.
  class [[nodiscard]] Use {
   public:
    explicit Use(const Gpu& gpu);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
  };

  // For what may not throw: calls function(driver) in the GPU's context, unless the process has
  // lost it, and all memory there with it.
  template <class Function>
  void if_usable(Function&& function) const noexcept {
    const Driver* const driver = Driver::find();
    if (driver == nullptr || driver->context_push(context_) != kSuccess) return;
    function(*driver);
    Context popped = nullptr;
    driver->context_pop(&popped);
  }

 private:
  const Driver& driver_;
  Ordinal ordinal_;
  Context context_ = nullptr;
  std::string name_;
  int multiprocessors_ = 0;
  int capability_ = 0;
  std::atomic<bool> has_hung_{false};
};

// Memory on a GPU. Movable.
class Memory {
 public:
  Memory() = default;
  // Throws Error, which names `what`, the bytes and how many are free.
  Memory(std::shared_ptr<Gpu> gpu, std::size_t bytes, const std::string& what);
  ~Memory();
  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&& other) noexcept;

  Address at() const noexcept { return address_; }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  std::shared_ptr<Gpu> gpu_;
  Address address_ = 0;
  std::size_t bytes_ = 0;
};

// Memory of the host that the GPU writes while the processor goes on. Not movable.
class PinnedMemory {
 public:
  PinnedMemory(std::shared_ptr<Gpu> gpu, std::size_t bytes);
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  std::byte* data() const noexcept { return static_cast<std::byte*>(data_); }

 private:
  std::shared_ptr<Gpu> gpu_;
  void* data_ = nullptr;
};

}  // namespace dstorm::device
