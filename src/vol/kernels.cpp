#include "vol/kernels.hpp"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "dstorm/slot/processor.hpp"
#include "vol/kernels_level.hpp"

namespace vol {
namespace {

struct Level {
  std::string_view name;
  const LevelKernels* kernels;
  bool available;
};

struct Levels {
  Level all[3];  // best first
  const Level& best() const noexcept {
    for (const Level& level : all) {
      if (level.available) return level;
    }
    return all[2];
  }
  const Level* find(std::string_view name) const noexcept {
    for (const Level& level : all) {
      if (level.name == name) return &level;
    }
    return nullptr;
  }
};

Levels detect_levels() noexcept {
#if defined(__x86_64__)
  const dstorm::Processor& has = dstorm::processor();
  const bool avx2 = has.avx2 && has.fma;
  const bool avx512 = avx2 && has.avx512f && has.avx512dq && has.avx512bw && has.avx512vl;
  return {{{"avx512", &kAvx512Kernels, avx512},
           {"avx2", &kAvx2Kernels, avx2},
           {"baseline", &kBaselineKernels, true}}};
#else
  return {{{"avx512", nullptr, false},
           {"avx2", nullptr, false},
           {"baseline", &kBaselineKernels, true}}};
#endif
}

const Levels& levels() noexcept {
  static const Levels detected = detect_levels();
  return detected;
}

const Level& level_named(std::string_view name) {
  const Level* const found = levels().find(name);
  if (found == nullptr) {
    throw std::invalid_argument("no such instruction set level: " + std::string(name) +
                                "; there are avx512, avx2 and baseline");
  }
  return *found;
}

const Level& choose_level() {
  const char* const wish = std::getenv("MALT_SIMD");
  if (wish == nullptr || *wish == '\0') return levels().best();
  const Level* const level = levels().find(wish);
  if (level == nullptr) {
    throw std::invalid_argument("MALT_SIMD=" + std::string(wish) +
                                ": must be avx512, avx2 or baseline");
  }
  if (!level->available) {
    throw std::invalid_argument("MALT_SIMD=" + std::string(wish) + ": this processor has at most " +
                                std::string(levels().best().name));
  }
  return *level;
}

const Level& active_level() {
  static const Level& chosen = choose_level();
  return chosen;
}

const Kernels& of_dtype(const LevelKernels& level, DType dtype) noexcept {
  switch (dtype) {
    case DType::kFloat32:
      return level.float32;
    case DType::kFloat64:
      return level.float64;
    case DType::kInt32:
      return level.int32;
    case DType::kFloat16:
      return level.float16;
    case DType::kBfloat16:
      return level.bfloat16;
    case DType::kInt64:
      break;
  }
  return level.int64;
}

// Measured with another process reading the copy. Up to a third of the last cache, plain stores are
// faster for the two together, because source and destination stay there. Beyond it, streaming
// stores write at nearly twice the rate.
std::size_t streaming_threshold() noexcept {
  constexpr std::size_t kAssumedCacheBytes = std::size_t{32} << 20;
  long cache_bytes = 0;
#if defined(_SC_LEVEL3_CACHE_SIZE)
  cache_bytes = ::sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
  return (cache_bytes > 0 ? static_cast<std::size_t>(cache_bytes) : kAssumedCacheBytes) / 3;
}

}  // namespace

std::string_view dtype_name(DType dtype) noexcept {
  switch (dtype) {
    case DType::kFloat32:
      return "float32";
    case DType::kFloat64:
      return "float64";
    case DType::kInt32:
      return "int32";
    case DType::kInt64:
      return "int64";
    case DType::kFloat16:
      return "float16";
    case DType::kBfloat16:
      return "bfloat16";
  }
  return "unknown";
}

const Kernels& kernels(DType dtype) { return of_dtype(*active_level().kernels, dtype); }

const WireKernels& wire_kernels() { return active_level().kernels->wire; }

std::string_view simd_level() { return active_level().name; }

const Kernels* kernels_at(DType dtype, std::string_view level) {
  const Level& found = level_named(level);
  return found.available ? &of_dtype(*found.kernels, dtype) : nullptr;
}

const WireKernels* wire_kernels_at(std::string_view level) {
  const Level& found = level_named(level);
  return found.available ? &found.kernels->wire : nullptr;
}

void copy(void* to, const void* from, std::size_t bytes) noexcept {
  static const std::size_t threshold = streaming_threshold();
  static const auto stream = levels().best().kernels->stream_copy;
  if (bytes < threshold || stream == nullptr) {
    if (bytes != 0) std::memcpy(to, from, bytes);
    return;
  }
  stream(to, from, bytes);
}

}  // namespace vol
