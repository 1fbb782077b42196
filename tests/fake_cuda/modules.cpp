// Modules, all of which have the kernels of host_kernels.hpp.
#include <cstring>
#include <string_view>

#include "host_kernels.hpp"
#include "state.hpp"

namespace fake_cuda {

// Accepts what libnvrtc compiles, the fake one or a real one.
Result module_load(Module* module, const void* image) {
  const Call call(symbol::module_load, Needs::kContext);
  if (call.refusal != kSuccess) return call.refusal;
  if (module == nullptr || image == nullptr) return kInvalidValue;
  const auto* const text = static_cast<const char*>(image);
  bool is_code = false;
  for (const std::string_view begin : {"FAKE CUBIN", "FAKE PTX",
                                       "\x7f"
                                       "ELF"}) {
    is_code = is_code || std::strncmp(text, begin.data(), begin.size()) == 0;
  }
  if (!is_code) return kInvalidImage;
  auto made = std::make_unique<ModuleTag>(ModuleTag{current_context()->ordinal, {}});
  *module = made.get();
  state().modules[made.get()] = std::move(made);
  return kSuccess;
}

Result module_unload(Module module) {
  const Call call(symbol::module_unload, Needs::kContext);
  if (call.refusal != kSuccess) return call.refusal;
  return state().modules.erase(module) == 0 ? kInvalidHandle : kSuccess;
}

Result module_kernel(Kernel* kernel, Module module, const char* name) {
  const Call call(symbol::module_kernel, Needs::kContext);
  if (call.refusal != kSuccess) return call.refusal;
  const auto found = state().modules.find(module);
  if (found == state().modules.end()) return kInvalidHandle;
  if (kernel == nullptr || name == nullptr) return kInvalidValue;
  const vol::device::HostKernel host_kernel = vol::device::host_kernel(name);
  if (!host_kernel) return kNotFound;
  const KernelTag made{found->second->ordinal, host_kernel.run, host_kernel.args_bytes};
  *kernel = &found->second->kernels.try_emplace(name, made).first->second;
  return kSuccess;
}

}  // namespace fake_cuda
