# MALT_SANITIZE=address,undefined or thread (the asan and tsan presets).
add_library(malt_sanitizers INTERFACE)
if(MALT_SANITIZE)
  target_compile_options(malt_sanitizers INTERFACE -fsanitize=${MALT_SANITIZE}
                         -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(malt_sanitizers INTERFACE -fsanitize=${MALT_SANITIZE})
endif()
if(MALT_SANITIZE MATCHES "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC warns of every atomic_thread_fence, which its TSan does not model: what is ordered by a
  # fence alone is reported as a race.
  target_compile_options(malt_sanitizers INTERFACE -Wno-tsan)
endif()

# What a fuzz target has libFuzzer steer by: which branches of the libraries an input took.
add_library(malt_coverage INTERFACE)
if(MALT_FUZZ)
  target_compile_options(malt_coverage INTERFACE -fsanitize=fuzzer-no-link)
endif()
