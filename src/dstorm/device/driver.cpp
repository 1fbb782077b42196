#include "dstorm/device/driver.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <iterator>

#include "dstorm/errors.hpp"
#include "dstorm/host/fork.hpp"

namespace dstorm::device {
namespace {

constexpr const char* kFile = "libcuda.so.1";

struct Opened {
  Driver driver;
  std::string why_not;  // empty if the driver works
  std::uint32_t forks = 0;
};

Opened open() {
  Opened opened;
  opened.forks = forks();
  // Never unloaded: others in this process use it, and it has threads.
  void* const library = dlopen(kFile, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* const error = dlerror();
    opened.why_not = std::string("NVIDIA's driver cannot be loaded (") +
                     (error != nullptr ? error : kFile) +
                     "); it is installed with the GPU's driver";
    return opened;
  }
  Driver& driver = opened.driver;
  const char* missing = nullptr;
#define DSTORM_FIND(name, symbol, ...)                                             \
  driver.name = reinterpret_cast<Result (*)(__VA_ARGS__)>(dlsym(library, symbol)); \
  if (driver.name == nullptr) missing = symbol;
  DSTORM_CUDA_FUNCTIONS(DSTORM_FIND)
#undef DSTORM_FIND
  if (missing != nullptr) {
    opened.why_not = std::string(kFile) + " has no " + missing +
                     "; MALT needs the driver of CUDA 11.4 or later (470): update it";
    return opened;
  }
  const Result result = driver.init(0);
  int devices = 0;
  if (result == kSuccess) driver.device_count(&devices);
  if (result != kSuccess || devices == 0) {
    const char* text = nullptr;
    driver.error_string(result, &text);
    opened.why_not = "NVIDIA's driver finds no GPU that it can use (";
    opened.why_not += result == kSuccess || text == nullptr ? "no device" : text;
    opened.why_not += "); see nvidia-smi and CUDA_VISIBLE_DEVICES";
  }
  return opened;
}

const Opened& opened() {
  static const Opened once = open();
  return once;
}

}  // namespace

const Driver* Driver::find() {
  const Opened& known = opened();
  return known.why_not.empty() && known.forks == forks() ? &known.driver : nullptr;
}

std::string Driver::why_not() {
  const Opened& known = opened();
  if (!known.why_not.empty() || known.forks == forks()) return known.why_not;
  return "CUDA does not work in a process that was forked after it had been used; start the "
         "process anew (multiprocessing: the start method 'spawn')";
}

const Driver& Driver::get() {
  const Driver* const found = find();
  if (found == nullptr) throw ConfigError(why_not());
  return *found;
}

std::string describe(Result result) {
  const Driver* const driver = Driver::find();
  const char* name = nullptr;
  const char* text = nullptr;
  if (driver != nullptr) {
    driver->error_name(result, &name);
    driver->error_string(result, &text);
  }
  return std::string(name != nullptr ? name : "CUDA error " + std::to_string(result)) +
         (text != nullptr ? " (" + std::string(text) + ")" : "");
}

void check(Result result, std::string_view what) {
  if (result == kSuccess) return;
  // After these every call of the process fails.
  constexpr Result kFatal[] = {4, 214, 700, 701, 702, 709, 710, 714, 715, 716, 717, 718, 719};
  const bool is_fatal = std::ranges::find(kFatal, result) != std::end(kFatal);
  throw Error(
      std::string(what) + ": " + describe(result) +
      (is_fatal ? "; the process has lost its GPU, and everything on it: start it again" : ""));
}

}  // namespace dstorm::device
