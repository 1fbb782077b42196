// Compiled for the least processor the build supports; 16-byte vectors are SSE2, NEON or scalars.
#include "vol/kernels_impl.hpp"

namespace vol {

constinit const LevelKernels kBaselineKernels = kLevelKernels<16>;

}  // namespace vol
