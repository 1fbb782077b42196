// A libnvrtc.so.12 that compiles nothing: its programs' code is a word that the fake libcuda.so.1
// accepts as a module. With FAKE_NVRTC_FAIL=1 in the environment nothing compiles.
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>

namespace {

using Result = int;  // nvrtcResult
constexpr Result kSuccess = 0;
constexpr Result kInvalidInput = 3;
constexpr Result kInvalidProgram = 4;
constexpr Result kInvalidOption = 5;
constexpr Result kCompilation = 6;

constexpr int kArchitectures[] = {75, 80, 86, 89, 90, 100, 120};

struct Program {
  std::string cubin;
  std::string ptx;
  std::string log;
};

bool has_architecture(int wanted) {
  for (const int one : kArchitectures) {
    if (one == wanted) return true;
  }
  return false;
}

// As with the real one, sizes count the zero that ends the text.
Result size_of(const Program* program, std::string Program::* text, std::size_t* bytes) {
  if (program == nullptr) return kInvalidProgram;
  if (bytes == nullptr) return kInvalidInput;
  const std::string& found = program->*text;
  const bool is_missing = found.empty() && text != &Program::log;
  *bytes = is_missing ? 0 : found.size() + 1;
  return kSuccess;
}

Result copy_of(const Program* program, std::string Program::* text, char* to) {
  if (program == nullptr) return kInvalidProgram;
  if (to == nullptr) return kInvalidInput;
  const std::string& found = program->*text;
  if (found.empty() && text != &Program::log) return kInvalidInput;
  std::memcpy(to, found.c_str(), found.size() + 1);
  return kSuccess;
}

}  // namespace

// NOLINTBEGIN(readability-identifier-naming): the names of NVRTC
extern "C" {

Result nvrtcVersion(int* major, int* minor) {
  *major = 12;
  *minor = 8;
  return kSuccess;
}

Result nvrtcGetNumSupportedArchs(int* count) {
  *count = static_cast<int>(std::size(kArchitectures));
  return kSuccess;
}

Result nvrtcGetSupportedArchs(int* architectures) {
  std::memcpy(architectures, kArchitectures, sizeof(kArchitectures));
  return kSuccess;
}

const char* nvrtcGetErrorString(Result result) {
  switch (result) {
    case kSuccess:
      return "NVRTC_SUCCESS";
    case kInvalidInput:
      return "NVRTC_ERROR_INVALID_INPUT";
    case kInvalidProgram:
      return "NVRTC_ERROR_INVALID_PROGRAM";
    case kInvalidOption:
      return "NVRTC_ERROR_INVALID_OPTION";
    case kCompilation:
      return "NVRTC_ERROR_COMPILATION";
    default:
      return "NVRTC_ERROR unknown";
  }
}

Result nvrtcCreateProgram(Program** program, const char* source, const char*, int headers,
                          const char* const* header_sources, const char* const* header_names) {
  const bool needs_headers = header_sources == nullptr || header_names == nullptr;
  if (program == nullptr || source == nullptr || headers < 0 || (headers > 0 && needs_headers)) {
    return kInvalidInput;
  }
  *program = new Program;
  return kSuccess;
}

Result nvrtcDestroyProgram(Program** program) {
  if (program == nullptr || *program == nullptr) return kInvalidProgram;
  delete *program;
  *program = nullptr;
  return kSuccess;
}

// There is a cubin only if a real architecture is named (sm_90). For a virtual one (compute_90) and
// for none there is PTX only.
Result nvrtcCompileProgram(Program* program, int options, const char* const* option) {
  if (program == nullptr) return kInvalidProgram;
  *program = {};
  for (int i = 0; i < options; ++i) {
    const std::string text = option[i];
    const std::size_t real = text.find("sm_");
    const std::size_t virtual_one = text.find("compute_");
    if (real == std::string::npos && virtual_one == std::string::npos) continue;
    const std::size_t number = real != std::string::npos ? real + 3 : virtual_one + 8;
    if (!has_architecture(std::atoi(text.c_str() + number))) {
      program->log = "nvrtc: error: invalid value for --gpu-architecture (-arch)\n";
      return kInvalidOption;
    }
    if (real != std::string::npos) program->cubin = "FAKE CUBIN";
  }
  const char* const fails = std::getenv("FAKE_NVRTC_FAIL");
  if (fails != nullptr && std::strcmp(fails, "0") != 0) {
    *program = {"", "", "error: FAKE_NVRTC_FAIL is set\n"};
    return kCompilation;
  }
  program->ptx = "FAKE PTX";
  return kSuccess;
}

Result nvrtcGetCUBINSize(Program* program, std::size_t* bytes) {
  return size_of(program, &Program::cubin, bytes);
}
Result nvrtcGetCUBIN(Program* program, char* to) { return copy_of(program, &Program::cubin, to); }
Result nvrtcGetPTXSize(Program* program, std::size_t* bytes) {
  return size_of(program, &Program::ptx, bytes);
}
Result nvrtcGetPTX(Program* program, char* to) { return copy_of(program, &Program::ptx, to); }
Result nvrtcGetProgramLogSize(Program* program, std::size_t* bytes) {
  return size_of(program, &Program::log, bytes);
}
Result nvrtcGetProgramLog(Program* program, char* to) {
  return copy_of(program, &Program::log, to);
}
}
// NOLINTEND(readability-identifier-naming)
