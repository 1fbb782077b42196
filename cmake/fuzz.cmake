# One executable per fuzz/<name>.cpp, over libFuzzer, and a test that runs it on its corpus.
find_package(GTest REQUIRED)  # the headers of tests/cpp that make ranks include it

add_library(fuzz_entry OBJECT fuzz/entry.cpp)
target_link_libraries(fuzz_entry PRIVATE malt_warnings malt_sanitizers malt_coverage)
target_include_directories(fuzz_entry PRIVATE src)

add_custom_target(fuzz_targets)
foreach(source IN LISTS fuzz_sources)
  cmake_path(GET source STEM name)
  add_executable(fuzz_${name} ${source} $<TARGET_OBJECTS:fuzz_entry>)
  target_include_directories(fuzz_${name} PRIVATE tests/cpp)
  target_include_directories(fuzz_${name} SYSTEM PRIVATE ${MALT_VERBS_INCLUDE})
  target_link_libraries(fuzz_${name} PRIVATE learn vol dstorm GTest::gtest malt_warnings
                                             malt_sanitizers malt_coverage)
  target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
  add_dependencies(fuzz_targets fuzz_${name})
  add_test(NAME fuzz_${name}
           COMMAND fuzz_${name} -runs=0 ${PROJECT_SOURCE_DIR}/fuzz/corpus/${name})
endforeach()
