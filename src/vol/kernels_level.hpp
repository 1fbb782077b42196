// One table of kernels per instruction set. A translation unit compiled for that set fills it in.
// Internal to the kernels.
#pragma once

#include "vol/kernels.hpp"

namespace vol {

// The kernels of codecs. n is a number of floats, in memory or as they are on the wire; nothing
// need be aligned. Every level gives the same bits, except those of a NaN.
struct WireKernels {
  static constexpr std::size_t kScaled = 256;  // elements that share a scale, in int8

  // Rounded to nearest even; values too large become infinite.
  void (*to_float16)(void* out, const void* in, std::size_t n);
  void (*from_float16)(void* out, const void* in, std::size_t n);
  void (*to_bfloat16)(void* out, const void* in, std::size_t n);
  void (*from_bfloat16)(void* out, const void* in, std::size_t n);
  // One scale for each kScaled elements or part of them.
  void (*to_int8)(void* out, void* scales, const void* in, std::size_t n);
  void (*from_int8)(void* out, const void* in, const void* scales, std::size_t n);
  // Between doubles and floats.
  void (*narrow)(void* out, const void* in, std::size_t n);
  void (*widen)(void* out, const void* in, std::size_t n);
};

// The kernels of the level that simd_level() names; and those of one level, for tests, as
// kernels_at().
const WireKernels& wire_kernels();
const WireKernels* wire_kernels_at(std::string_view level);

struct LevelKernels {
  Kernels float32;
  Kernels float64;
  Kernels int32;
  Kernels int64;
  Kernels float16;
  Kernels bfloat16;
  WireKernels wire;
  // memcpy with streaming stores and a fence; null if there are none.
  void (*stream_copy)(void* to, const void* from, std::size_t bytes);
};

extern const LevelKernels kBaselineKernels;
#if defined(__x86_64__)
extern const LevelKernels kAvx2Kernels;
extern const LevelKernels kAvx512Kernels;
#endif

}  // namespace vol
