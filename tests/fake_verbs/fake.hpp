// What a test says to tests/fake_verbs, which it has loaded itself.
#pragma once

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <limits>

#include "fake_verbs.hpp"

namespace testing_fake {

inline constexpr std::uint64_t kForEver = std::numeric_limits<std::uint64_t>::max();

// The first call has to come before a test forks ranks, so that what they ask for by libibverbs'
// name is this library.
template <class Function>
Function* function(const char* name) {
  static void* const library = dlopen(FAKE_VERBS, RTLD_NOW | RTLD_LOCAL);
  auto* found = library == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(library, name));
  if (found == nullptr) {
    std::fprintf(stderr, "no %s in " FAKE_VERBS "\n", name);
    std::abort();
  }
  return found;
}
#define FAKE(name) testing_fake::function<decltype(name)>(#name)

}  // namespace testing_fake
