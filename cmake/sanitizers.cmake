# MALT_SANITIZE=address,undefined or thread (the asan and tsan presets).
add_library(malt_sanitizers INTERFACE)
if(MALT_SANITIZE)
  target_compile_options(malt_sanitizers INTERFACE -fsanitize=${MALT_SANITIZE}
                         -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(malt_sanitizers INTERFACE -fsanitize=${MALT_SANITIZE})
endif()
if(MALT_SANITIZE MATCHES "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC warns of every atomic_thread_fence, because its TSan does not model fences: it reports
  # accesses that only a fence orders as a race.
  target_compile_options(malt_sanitizers INTERFACE -Wno-tsan)
endif()

# Coverage of the libraries: libFuzzer is guided by the branches that an input takes.
add_library(malt_coverage INTERFACE)
if(MALT_FUZZ)
  target_compile_options(malt_coverage INTERFACE -fsanitize=fuzzer-no-link)
endif()
