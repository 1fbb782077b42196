// Compiled with -mavx2 -mfma -ffp-contract=off, and only on x86-64.
#include "vol/kernels_impl.hpp"

#if !defined(__AVX2__)
#error "kernels_avx2.cpp needs -mavx2"
#endif

namespace vol {

constinit const LevelKernels kAvx2Kernels = kLevelKernels<32>;

}  // namespace vol
