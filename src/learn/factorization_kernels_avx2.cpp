// Compiled with -mavx2 -mfma -ffp-contract=off, and only on x86-64.
#include "learn/factorization_kernels_impl.hpp"

#if !defined(__AVX2__)
#error "factorization_kernels_avx2.cpp needs -mavx2"
#endif

namespace learn {

constinit const FactorKernels kAvx2FactorKernels = FactorRows<32>::kTable;

}  // namespace learn
