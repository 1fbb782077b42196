// The driver's functions, each declared under our name and linked under the driver's symbol. So the
// compiler checks their parameters against src/dstorm/device/driver.hpp.
#pragma once

#include "dstorm/device/driver.hpp"

namespace fake_cuda {

using namespace dstorm::device;  // NOLINT(google-build-using-namespace): it stands in for it

#define FAKE_DECLARE(name, symbol, ...) Result name(__VA_ARGS__) __asm__(symbol);
DSTORM_CUDA_FUNCTIONS(FAKE_DECLARE)
#undef FAKE_DECLARE

// NOLINTBEGIN(readability-identifier-naming): the names of the functions
namespace symbol {
#define FAKE_SYMBOL(name, symbol, ...) inline constexpr const char* name = symbol;
DSTORM_CUDA_FUNCTIONS(FAKE_SYMBOL)
#undef FAKE_SYMBOL
}  // namespace symbol
// NOLINTEND(readability-identifier-naming)

// CUresults that are not in driver.hpp.
inline constexpr Result kInvalidValue = 1;
inline constexpr Result kOutOfMemory = 2;
inline constexpr Result kNotInitialised = 3;
inline constexpr Result kDeinitialised = 4;
inline constexpr Result kNoDevice = 100;
inline constexpr Result kInvalidDevice = 101;
inline constexpr Result kInvalidImage = 200;
inline constexpr Result kInvalidContext = 201;
inline constexpr Result kMapFailed = 205;
inline constexpr Result kInvalidHandle = 400;
inline constexpr Result kNotFound = 500;
inline constexpr Result kIllegalAddress = 700;
inline constexpr Result kContextIsDestroyed = 709;
inline constexpr Result kHostMemoryAlreadyRegistered = 712;
inline constexpr Result kHostMemoryNotRegistered = 713;
inline constexpr Result kNotPermitted = 800;
inline constexpr Result kNotSupported = 801;

}  // namespace fake_cuda
