// The vector instructions that this processor has and the system lets programs use. The compilers'
// own __builtin_cpu_supports needs a run-time library that not every compiler has: with Zig's it
// says that there are none.
#pragma once

namespace dstorm {

struct Processor {
  bool pclmul, vpclmulqdq, avx2, fma, avx512f, avx512dq, avx512bw, avx512vl;
};

// All false where the processor is not an x86-64.
const Processor& processor() noexcept;

}  // namespace dstorm
