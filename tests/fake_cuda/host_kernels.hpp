// The kernels of src/vol/device/kernels.cu by name, run on the host: what cuModuleGetFunction and
// cuLaunchKernel do in the fake driver.
#pragma once

#include <cstddef>
#include <string_view>

#include "vol/device/kernels.cu"  // NOLINT(bugprone-suspicious-include): the device's source

namespace vol::device {

// A kernel: false if there is none of that name. Several threads may run kernels at the same time.
struct HostKernel {
  void (*run)(const void* args, unsigned blocks) = nullptr;
  std::size_t args_bytes = 0;  // of the kernel's struct

  explicit operator bool() const { return run != nullptr; }
  // Runs all blocks on the calling thread. `args` points to the kernel's struct.
  void operator()(const void* args, unsigned blocks) const { run(args, blocks); }
};

template <class Args, void (*Kernel)(Args)>
inline constexpr HostKernel kRunKernel{[](const void* args, unsigned blocks) {
                                         run_on_host<Args>(Kernel, *static_cast<const Args*>(args),
                                                           blocks);
                                       },
                                       sizeof(Args)};

inline HostKernel host_kernel(std::string_view name) {
  struct Entry {
    std::string_view name;
    HostKernel kernel;
  };
  static constexpr Entry kKernels[] = {
      {"fold_float32", kRunKernel<FoldArgs, fold_float32>},
      {"fold_float64", kRunKernel<FoldArgs, fold_float64>},
      {"fold_int32", kRunKernel<FoldArgs, fold_int32>},
      {"fold_int64", kRunKernel<FoldArgs, fold_int64>},
      {"encode_float32", kRunKernel<EncodeArgs, encode_float32>},
      {"encode_float64", kRunKernel<EncodeArgs, encode_float64>},
      {"decode_float32", kRunKernel<DecodeArgs, decode_float32>},
      {"decode_float64", kRunKernel<DecodeArgs, decode_float64>},
      {"screen_float32", kRunKernel<ScreenArgs, screen_float32>},
      {"screen_float64", kRunKernel<ScreenArgs, screen_float64>},
      {"largest_begin_float32", kRunKernel<LargestArgs, largest_begin_float32>},
      {"largest_begin_float64", kRunKernel<LargestArgs, largest_begin_float64>},
      {"largest_count_float32", kRunKernel<LargestArgs, largest_count_float32>},
      {"largest_count_float64", kRunKernel<LargestArgs, largest_count_float64>},
      {"largest_choose_float32", kRunKernel<LargestArgs, largest_choose_float32>},
      {"largest_choose_float64", kRunKernel<LargestArgs, largest_choose_float64>},
      {"largest_tally_float32", kRunKernel<LargestArgs, largest_tally_float32>},
      {"largest_tally_float64", kRunKernel<LargestArgs, largest_tally_float64>},
      {"largest_place_float32", kRunKernel<LargestArgs, largest_place_float32>},
      {"largest_place_float64", kRunKernel<LargestArgs, largest_place_float64>},
      {"largest_write_float32", kRunKernel<LargestArgs, largest_write_float32>},
      {"largest_write_float64", kRunKernel<LargestArgs, largest_write_float64>},
      {"place_float32", kRunKernel<PlaceArgs, place_float32>},
      {"place_float64", kRunKernel<PlaceArgs, place_float64>},
  };
  for (const Entry& entry : kKernels) {
    if (entry.name == name) return entry.kernel;
  }
  return {};
}

}  // namespace vol::device
