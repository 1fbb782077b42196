# One executable per fuzz/<name>.cpp: over libFuzzer in the fuzz preset, and beside the tests, with any
# compiler, one that runs it on its corpus.
find_package(GTest REQUIRED)  # what stands up ranks in tests/cpp includes it

add_library(fuzz_entry OBJECT fuzz/entry.cpp)
target_link_libraries(fuzz_entry PRIVATE malt_warnings malt_sanitizers)
target_include_directories(fuzz_entry PRIVATE src)
if(NOT MALT_FUZZ)
  target_sources(fuzz_entry PRIVATE fuzz/replay.cpp)
endif()

foreach(source IN LISTS fuzz_sources)
  cmake_path(GET source STEM name)
  add_executable(fuzz_${name} ${source} $<TARGET_OBJECTS:fuzz_entry>)
  target_include_directories(fuzz_${name} PRIVATE tests/cpp)
  target_include_directories(fuzz_${name} SYSTEM PRIVATE ${MALT_VERBS_INCLUDE})
  target_link_libraries(fuzz_${name} PRIVATE learn vol dstorm GTest::gtest malt_warnings malt_sanitizers)
  if(MALT_FUZZ)
    target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
  else()
    add_test(NAME fuzz_${name} COMMAND fuzz_${name} ${PROJECT_SOURCE_DIR}/fuzz/corpus/${name})
  endif()
endforeach()
