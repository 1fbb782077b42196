// NVRTC, NVIDIA's run-time compiler, opened at run time. PyTorch and CuPy bring it with them.
#pragma once

#include <string>
#include <vector>

namespace vol::device {

// The folders in which libnvrtc is looked for, after those of the system's loader. To be called
// before the first compile().
void look_for_nvrtc_in(std::vector<std::string> folders);
// The name of the library that is used; throws ConfigError, which says how to install it, if there
// is none.
std::string nvrtc_library();

// Compiles the source of kernels, with the macro `definition` ("NAME=1"), for GPUs of this
// capability (90 for 9.0), and returns what cuModuleLoadData takes. Throws Error, with the
// compiler's messages, if it cannot.
std::string compile(const char* source, const std::string& definition, int capability);

}  // namespace vol::device
