# One executable per fuzz/<name>.cpp, and a test that runs it on its corpus. With MALT_FUZZ it is
# linked with libFuzzer, which makes more inputs; that needs Clang. Without MALT_FUZZ any compiler
# will do.
find_package(GTest REQUIRED)  # the headers of tests/cpp that make ranks include it

add_library(fuzz_entry OBJECT fuzz/entry.cpp)
target_link_libraries(fuzz_entry PRIVATE malt_warnings malt_sanitizers malt_coverage)
target_include_directories(fuzz_entry PRIVATE src)
if(MALT_FUZZ)
  set(once -runs=0)
else()
  target_sources(fuzz_entry PRIVATE fuzz/replay.cpp)
  set(once)
endif()

add_custom_target(fuzz_targets)
foreach(source IN LISTS fuzz_sources)
  cmake_path(GET source STEM name)
  add_executable(fuzz_${name} ${source} $<TARGET_OBJECTS:fuzz_entry>)
  target_include_directories(fuzz_${name} PRIVATE tests/cpp)
  target_include_directories(fuzz_${name} SYSTEM PRIVATE ${MALT_VERBS_INCLUDE})
  target_link_libraries(fuzz_${name} PRIVATE learn vol dstorm GTest::gtest malt_warnings
                                             malt_sanitizers malt_coverage)
  if(MALT_FUZZ)
    target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
  endif()
  add_dependencies(fuzz_targets fuzz_${name})
  add_test(NAME fuzz_${name} COMMAND fuzz_${name} ${once} ${PROJECT_SOURCE_DIR}/fuzz/corpus/${name})
endforeach()
