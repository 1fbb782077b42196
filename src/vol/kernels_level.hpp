// One table of kernels per instruction set, each filled in by a translation unit compiled for it.
// Internal to the kernels.
#pragma once

#include "vol/kernels.hpp"

namespace vol {

struct LevelKernels {
  Kernels float32;
  Kernels float64;
  Kernels int32;
  Kernels int64;
  // memcpy with streaming stores, fenced; null where there are none.
  void (*stream_copy)(void* to, const void* from, std::size_t bytes);
};

extern const LevelKernels kBaselineKernels;
#if defined(__x86_64__)
extern const LevelKernels kAvx2Kernels;
extern const LevelKernels kAvx512Kernels;
#endif

}  // namespace vol
