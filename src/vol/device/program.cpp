#include "vol/device/program.hpp"

#include <algorithm>
#include <map>

#include "dstorm/errors.hpp"
#include "vol/device/compiler.hpp"
#include "vol/device/source.hpp"

namespace vol::device {

using dstorm::device::check;
using dstorm::device::Driver;
using dstorm::device::Ordinal;

std::shared_ptr<Program> Program::on(const std::shared_ptr<Gpu>& gpu, DType dtype) {
  static std::mutex of_known;
  // Kept for good: to compile takes a second.
  static auto& known = *new std::map<std::pair<Ordinal, DType>, std::shared_ptr<Program>>;
  const std::lock_guard lock(of_known);
  std::shared_ptr<Program>& program = known[{gpu->ordinal(), dtype}];
  if (program == nullptr) program = std::make_shared<Program>(gpu, dtype);
  return program;
}

Program::Program(std::shared_ptr<Gpu> gpu, DType dtype) : gpu_(std::move(gpu)), dtype_(dtype) {
  const std::string code =
      compile(kSource, "ONLY_DTYPE=" + std::to_string(static_cast<int>(dtype)), gpu_->capability());
  const Gpu::Use use(*gpu_);
  check(Driver::get().module_load(&module_, code.data()),
        "loading MALT's kernels into " + gpu_->describe());
}

Program::~Program() {
  if (const Driver* driver = Driver::find()) driver->module_unload(module_);
}

unsigned Program::blocks_for(std::size_t count) const {
  constexpr std::size_t kElementsPerThread = 4;
  constexpr std::size_t kBlocksPerMultiprocessor = 8;
  const std::size_t wanted =
      (count + kBlock * kElementsPerThread - 1) / (kBlock * kElementsPerThread);
  const std::size_t most =
      static_cast<std::size_t>(gpu_->multiprocessors()) * kBlocksPerMultiprocessor;
  return static_cast<unsigned>(std::clamp<std::size_t>(wanted, 1, most));
}

void Program::launch_with(const char* name, unsigned blocks, const void* args, Stream stream) {
  const Driver& driver = Driver::get();
  dstorm::device::Kernel kernel = nullptr;
  {
    const std::lock_guard lock(mutex_);
    dstorm::device::Kernel& known = kernels_[name];
    if (known == nullptr) {
      const std::string full = std::string(name) + "_" + std::string(dtype_name(dtype_));
      check(driver.module_kernel(&known, module_, full.c_str()), full);
    }
    kernel = known;
  }
  void* parameters[] = {const_cast<void*>(args)};
  check(driver.launch(kernel, blocks, 1, 1, kBlock, 1, 1, 0, stream, parameters, nullptr), name);
}

}  // namespace vol::device
