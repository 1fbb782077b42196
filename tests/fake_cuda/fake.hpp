// How a test calls tests/fake_cuda, which it has loaded itself.
#pragma once

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <type_traits>

#include "dstorm/device/driver.hpp"
#include "fake_cuda.hpp"

namespace testing_fake {

// The first call has to come before anything else opens "libcuda.so.1", which then is this library.
template <class Function>
Function* function(const char* name) {
  static void* const library = dlopen(FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
  auto* found = library == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(library, name));
  if (found == nullptr) {
    std::fprintf(stderr, "no %s in " FAKE_CUDA "\n", name);
    std::abort();
  }
  return found;
}
#define FAKE(name) testing_fake::function<decltype(name)>(#name)

// The fake's functions, without what dstorm::device::Driver::find() does beyond opening it.
inline const dstorm::device::Driver& driver() {
  static const dstorm::device::Driver all = [] {
    dstorm::device::Driver found;
#define FAKE_MEMBER(name, symbol, ...) \
  found.name = function<std::remove_pointer_t<decltype(found.name)>>(symbol);
    DSTORM_CUDA_FUNCTIONS(FAKE_MEMBER)
#undef FAKE_MEMBER
    return found;
  }();
  return all;
}

}  // namespace testing_fake
