// The source of the kernels (kernel_args.hpp and kernels.cu), which is compiled at run time. CMake
// makes the file that defines it.
#pragma once

namespace vol::device {

extern const char* const kSource;

}  // namespace vol::device
