# One executable per tests/cpp/<name>_test.cpp.
find_package(GTest REQUIRED)
include(GoogleTest)

# Measure time or processor use, so nothing else may run beside them.
set(serial_tests)

foreach(source IN LISTS test_sources)
  cmake_path(GET source STEM name)
  add_executable(${name} ${source})
  target_include_directories(${name} PRIVATE tests/cpp)
  target_link_libraries(${name} PRIVATE vol dstorm GTest::gtest_main malt_warnings malt_sanitizers)
  set(serial OFF)
  if(name IN_LIST serial_tests)
    set(serial ON)
  endif()
  # Found when ctest starts, not while building: the build runs nothing, and so needs no
  # sanitizer's run-time settings.
  gtest_discover_tests(${name} TEST_PREFIX ${name}. DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
                       PROPERTIES TIMEOUT 300 RUN_SERIAL ${serial})
endforeach()

# What needs an RDMA device is built with the rest, but run by tests/softroce: no part of ctest.
add_executable(verbs_test ${verbs_test_sources})
add_executable(host_death tests/verbs/host_death.cpp)
foreach(name verbs_test host_death)
  target_include_directories(${name} PRIVATE tests/cpp)
  target_include_directories(${name} SYSTEM PRIVATE ${MALT_VERBS_INCLUDE})
  target_link_libraries(${name} PRIVATE dstorm malt_warnings malt_sanitizers)
endforeach()
target_link_libraries(verbs_test PRIVATE GTest::gtest_main)
