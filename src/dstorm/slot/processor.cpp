#include "dstorm/slot/processor.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace dstorm {
namespace {

#if defined(__x86_64__)
// The registers that the system saves when it switches between programs: XCR0.
unsigned saved_registers() noexcept {
  unsigned low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

Processor detect() noexcept {
  constexpr unsigned kYmm = 0x6, kZmm = 0xe6;
  unsigned a = 0, b = 0, basic = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &basic, &d) == 0) return {};
  const unsigned saved = (basic & bit_OSXSAVE) != 0 ? saved_registers() : 0;
  const bool ymm = (saved & kYmm) == kYmm;
  const bool zmm = (saved & kZmm) == kZmm;
  unsigned extended = 0, more = 0;
  __get_cpuid_count(7, 0, &a, &extended, &more, &d);  // leaves zeros if there is no leaf 7
  return {.pclmul = (basic & bit_PCLMUL) != 0,
          .vpclmulqdq = ymm && (more & bit_VPCLMULQDQ) != 0,
          .avx2 = ymm && (extended & bit_AVX2) != 0,
          .fma = ymm && (basic & bit_FMA) != 0,
          .avx512f = zmm && (extended & bit_AVX512F) != 0,
          .avx512dq = zmm && (extended & bit_AVX512DQ) != 0,
          .avx512bw = zmm && (extended & bit_AVX512BW) != 0,
          .avx512vl = zmm && (extended & bit_AVX512VL) != 0};
}
#else
Processor detect() noexcept { return {}; }
#endif

}  // namespace

const Processor& processor() noexcept {
  static const Processor detected = detect();
  return detected;
}

}  // namespace dstorm
