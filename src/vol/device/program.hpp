// The kernels of one dtype, compiled for one GPU.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "dstorm/device/gpu.hpp"
#include "vol/device/kernel_args.hpp"
#include "vol/dtype.hpp"

namespace vol::device {

using dstorm::device::Address;
using dstorm::device::Gpu;
using dstorm::device::Stream;

// Any thread.
class Program {
 public:
  // Compiles at the first call for a GPU and dtype. Throws ConfigError and Error as compile() does.
  static std::shared_ptr<Program> on(const std::shared_ptr<Gpu>& gpu, DType dtype);
  Program(std::shared_ptr<Gpu> gpu, DType dtype);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // Launches the kernel `name`_<dtype>, with kBlock threads a block. The GPU is in use (Gpu::Use).
  template <class Args>
  void launch(const char* name, unsigned blocks, const Args& args, Stream stream) {
    launch_with(name, blocks, &args, stream);
  }
  // Enough blocks to have all multiprocessors at work on `count` elements, and no more.
  unsigned blocks_for(std::size_t count) const;

 private:
  void launch_with(const char* name, unsigned blocks, const void* args, Stream stream);

  std::shared_ptr<Gpu> gpu_;
  DType dtype_;
  dstorm::device::Module module_ = nullptr;
  std::mutex mutex_;
  std::unordered_map<std::string, dstorm::device::Kernel> kernels_;
};

}  // namespace vol::device
