// Compiled for the least processor the build supports; 16-byte vectors are SSE2, NEON or scalars.
#include "learn/factorization_kernels_impl.hpp"

namespace learn {

constinit const FactorKernels kBaselineFactorKernels = FactorRows<16>::kTable;

}  // namespace learn
