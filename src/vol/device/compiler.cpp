#include "vol/device/compiler.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <mutex>

#include "dstorm/errors.hpp"

namespace vol::device {
namespace {

using dstorm::ConfigError;
using dstorm::Error;

using Result = int;                        // nvrtcResult
using ProgramHandle = struct ProgramTag*;  // nvrtcProgram

// The functions of NVIDIA's "NVRTC" reference that are used here.
struct Nvrtc {
  const char* (*error_string)(Result);
  Result (*supported_count)(int*);
  Result (*supported)(int*);
  Result (*create)(ProgramHandle*, const char*, const char*, int, const char* const*,
                   const char* const*);
  Result (*compile)(ProgramHandle, int, const char* const*);
  Result (*destroy)(ProgramHandle*);
  Result (*log_size)(ProgramHandle, std::size_t*);
  Result (*log)(ProgramHandle, char*);
  Result (*cubin_size)(ProgramHandle, std::size_t*);
  Result (*cubin)(ProgramHandle, char*);
  Result (*ptx_size)(ProgramHandle, std::size_t*);
  Result (*ptx)(ProgramHandle, char*);
  std::string library;
};

std::mutex mutex;
std::vector<std::string>& folders() {
  static std::vector<std::string> kept;
  return kept;
}

template <class Function>
void find(void* library, Function& function, const char* name) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) {
    throw ConfigError(std::string("NVRTC has no ") + name +
                      "; version 11.2 or later is needed: pip install nvidia-cuda-nvrtc-cu12");
  }
}

Nvrtc open() {
  constexpr const char* kNames[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2"};
  std::vector<std::string> tried(std::begin(kNames), std::end(kNames));
  for (const std::string& folder : folders()) {
    for (const char* name : kNames) tried.push_back(folder + "/" + name);
  }
  for (const std::string& file : tried) {
    // Never unloaded: others in this process may use it.
    void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == nullptr) continue;
    Nvrtc found{};
    found.library = file;
    find(library, found.error_string, "nvrtcGetErrorString");
    find(library, found.supported_count, "nvrtcGetNumSupportedArchs");
    find(library, found.supported, "nvrtcGetSupportedArchs");
    find(library, found.create, "nvrtcCreateProgram");
    find(library, found.compile, "nvrtcCompileProgram");
    find(library, found.destroy, "nvrtcDestroyProgram");
    find(library, found.log_size, "nvrtcGetProgramLogSize");
    find(library, found.log, "nvrtcGetProgramLog");
    find(library, found.cubin_size, "nvrtcGetCUBINSize");
    find(library, found.cubin, "nvrtcGetCUBIN");
    find(library, found.ptx_size, "nvrtcGetPTXSize");
    find(library, found.ptx, "nvrtcGetPTX");
    return found;
  }
  throw ConfigError(
      "vectors in the memory of a GPU need NVRTC (libnvrtc.so.13 or .12), which PyTorch and CuPy "
      "bring with them; it is not found: pip install nvidia-cuda-nvrtc-cu12, or install CUDA's "
      "run-time compiler and add its folder to LD_LIBRARY_PATH");
}

const Nvrtc& nvrtc() {
  const std::lock_guard lock(mutex);
  static const Nvrtc once = open();
  return once;
}

void check(const Nvrtc& library, Result result, const std::string& what) {
  if (result != 0) throw Error(what + ": " + library.error_string(result));
}

std::string log_of(const Nvrtc& library, ProgramHandle program) {
  std::size_t size = 0;
  if (library.log_size(program, &size) != 0 || size < 2) return "";
  std::string text(size, '\0');
  library.log(program, text.data());
  text.resize(text.find('\0'));
  return text;
}

}  // namespace

void look_for_nvrtc_in(std::vector<std::string> given) {
  const std::lock_guard lock(mutex);
  folders() = std::move(given);
}

std::string nvrtc_library() { return nvrtc().library; }

std::string compile(const char* source, const std::string& definition, int capability) {
  const Nvrtc& library = nvrtc();
  int count = 0;
  check(library, library.supported_count(&count), "NVRTC");
  std::vector<int> supported(static_cast<std::size_t>(count));
  check(library, library.supported(supported.data()), "NVRTC");
  // The newest that the GPU runs. For a GPU that this NVRTC does not know, the driver translates.
  int best = 0;
  for (const int one : supported) {
    if (one <= capability) best = std::max(best, one);
  }
  if (best == 0) {
    throw ConfigError("the GPU has compute capability " + std::to_string(capability / 10) + "." +
                      std::to_string(capability % 10) + ", for which " + library.library +
                      " cannot compile; install an older one");
  }
  const bool is_exact = best == capability;
  const std::string target =
      std::string("--gpu-architecture=") + (is_exact ? "sm_" : "compute_") + std::to_string(best);
  // Without fused multiply and add, a fold has the same bits as on the processor.
  const std::string define = "--define-macro=" + definition;
  const char* const options[] = {target.c_str(), define.c_str(), "--std=c++17", "--fmad=false"};
  ProgramHandle program = nullptr;
  check(library, library.create(&program, source, "malt_kernels.cu", 0, nullptr, nullptr), "NVRTC");
  const Result result = library.compile(program, static_cast<int>(std::size(options)), options);
  if (result != 0) {
    const std::string log = log_of(library, program);
    library.destroy(&program);
    throw Error("NVRTC (" + library.library +
                ") cannot compile MALT's kernels: " + library.error_string(result) + "\n" + log);
  }
  std::size_t size = 0;
  std::string code;
  Result read = is_exact ? library.cubin_size(program, &size) : library.ptx_size(program, &size);
  if (read == 0) {
    code.resize(size);
    read = is_exact ? library.cubin(program, code.data()) : library.ptx(program, code.data());
  }
  library.destroy(&program);
  check(library, read, "NVRTC");
  return code;
}

}  // namespace vol::device
