# One executable per tests/cpp/<name>_test.cpp.
find_package(GTest REQUIRED)
include(GoogleTest)

# What holds over every transport is run over each of them: a new one is a word here. Over verbs,
# which needs an adapter, tests/softroce runs the same list.
set(transports shm tcp)
set(conformance_tests segment_test vol_test)
list(JOIN conformance_tests "\n" conformance_lines)
file(WRITE ${PROJECT_BINARY_DIR}/conformance_tests "${conformance_lines}\n")

# Measure time or processor use, so nothing else may run beside them.
set(serial_tests)

# Begin first, or the rest would be done long before them.
set(long_tests membership_test)

foreach(source IN LISTS test_sources)
  cmake_path(GET source STEM name)
  add_executable(${name} ${source})
  target_include_directories(${name} PRIVATE tests/cpp)
  target_link_libraries(${name} PRIVATE vol dstorm GTest::gtest_main malt_warnings malt_sanitizers)
  set(serial OFF)
  if(name IN_LIST serial_tests)
    set(serial ON)
  endif()
  set(cost 0)
  if(name IN_LIST long_tests)
    set(cost 1000)
  endif()
  # Found when ctest starts, not while building: the build runs nothing, and so needs no
  # sanitizer's run-time settings.
  set(discover DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
      PROPERTIES TIMEOUT 300 RUN_SERIAL ${serial} COST ${cost})
  if(name IN_LIST conformance_tests)
    foreach(transport IN LISTS transports)
      gtest_discover_tests(${name} TEST_PREFIX ${name}.${transport}. TEST_LIST ${name}_${transport}
                           ${discover} ENVIRONMENT MALT_TRANSPORT=${transport})
    endforeach()
  else()
    gtest_discover_tests(${name} TEST_PREFIX ${name}. ${discover})
  endif()
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

# All that tests/softroce runs.
add_custom_target(rdma_tests DEPENDS verbs_test host_death slot_test ${conformance_tests})
