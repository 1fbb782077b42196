# One executable per tests/cpp/<name>_test.cpp.
find_package(GTest REQUIRED)
include(GoogleTest)

# The conformance tests run over each of these transports; a new transport is one more word here.
# tests/softroce runs the same tests over verbs, which needs an adapter.
set(transports shm tcp)
set(adapter_transports pipe) # tests/pipe
set(conformance_tests allreduce_test exchange_test link_test segment_test vol_test window_test)
# These run over the same transports, but not over verbs, because their ranks rejoin on one host.
# Mail and tables use mailboxes in no other way than the tests above do.
set(host_tests mail_test regroup_test table_deaths_test table_filters_test table_hot_test
               table_lies_test table_steps_test table_test)
list(JOIN conformance_tests "\n" conformance_lines)
file(WRITE ${PROJECT_BINARY_DIR}/conformance_tests "${conformance_lines}\n")

# ThreadSanitizer sees the threads of one process, most of which are TCP's. AddressSanitizer finds
# the same in mail and tables over either.
set(host_transports ${transports})
if(MALT_SANITIZE)
  set(adapter_transports)
endif()
if(MALT_SANITIZE STREQUAL "thread")
  set(transports tcp)
  set(host_transports tcp)
elseif(MALT_SANITIZE)
  set(host_transports shm)
endif()

# These take longest, so they begin first.
set(long_tests membership_test watcher_test)

# These compute for long, or test code that is in headers, so they are optimised as the preset says.
# The others test code of the libraries, and are compiled faster.
set(optimised_tests membership_hosts_test membership_test slot_test writer_killed_test)

# These also test what a compiler makes of the libraries: numbers by each instruction set, and what
# runs at the same time. `./dev test --sanitize` runs them on the libraries as they are installed,
# and all tests on those with AddressSanitizer.
set(as_installed_tests ${conformance_tests} ${optimised_tests} codec_test kernels_copy_test
                       kernels_level_test kernels_test)

# In these, a write from another process orders the engine's reads of a slot before the rank's
# writes into it: an adapter's, or that of the rank that takes in the cursors of another host.
# ThreadSanitizer does not see that order, and would report a race.
set(unseen_order_tests allreduce_hosts_test host_sums_test rdma_faults_test)
# These have one thread, in which ThreadSanitizer has nothing to find.
set(single_thread_tests accusations_test address_test array_changes_test codec_test collectors_test
                        coordinate_descent_test decimal_test digamma_test dual_ascent_test
                        dual_check_test dual_coupling_test dual_deal_test dual_step_test
                        edition_test extrapolation_test graph_test group_options_test handshake_test
                        kernels_copy_test kernels_level_test kernels_test key_lists_test linear_test
                        listener_test matrix_test membership_hosts_test membership_test pacing_test
                        partition_test placement_test settings_test sha256_test stream_test
                        topic_tokens_test transport_choice_test wait_test witness_test)
# The threads of these are those of table_test, table_deaths_test and table_moves_test, in the same
# code.
set(like_other_tables table_filters_test table_hot_test table_in_place_test table_lies_test
                      table_saving_test table_steps_test shown_rows_test)

# A transport of the tests' own.
add_library(pipe_transport OBJECT tests/pipe/transport.cpp)
target_link_libraries(pipe_transport PRIVATE dstorm malt_warnings malt_sanitizers)

set(header_owner)
foreach(source IN LISTS test_sources)
  cmake_path(GET source STEM name)
  if(MALT_SANITIZE STREQUAL "thread" AND
     (name IN_LIST single_thread_tests OR name IN_LIST unseen_order_tests OR
      name IN_LIST like_other_tables))
    continue()
  endif()
  add_executable(${name} ${source})
  target_include_directories(${name} PRIVATE tests/cpp)
  target_link_libraries(${name} PRIVATE learn vol dstorm GTest::gtest_main malt_warnings
                                        malt_sanitizers)
  if(name IN_LIST conformance_tests)
    target_compile_options(${name} PRIVATE -O1) # tests/softroce emulates the processor
    target_sources(${name} PRIVATE $<TARGET_OBJECTS:pipe_transport>)
  elseif(NOT name IN_LIST optimised_tests)
    target_compile_options(${name} PRIVATE -O0)
    # One precompiled header for all, which each includes anyway.
    if(header_owner)
      target_precompile_headers(${name} REUSE_FROM ${header_owner})
    else()
      target_precompile_headers(${name} PRIVATE <gtest/gtest.h>)
      set(header_owner ${name})
    endif()
  endif()
  set(cost 0)
  if(name IN_LIST long_tests)
    set(cost 1000)
  endif()
  # ctest finds the tests when it starts. So the build runs no test program, and needs no run-time
  # settings of a sanitizer.
  set(discover DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
      PROPERTIES TIMEOUT 300 COST ${cost})
  if(name IN_LIST as_installed_tests)
    list(APPEND discover LABELS as_installed)
  endif()
  set(own_transports)
  if(name IN_LIST conformance_tests)
    set(own_transports ${transports} ${adapter_transports})
  elseif(name IN_LIST host_tests)
    set(own_transports ${host_transports})
  endif()
  if(own_transports)
    foreach(transport IN LISTS own_transports)
      gtest_discover_tests(${name} TEST_PREFIX ${name}.${transport}. TEST_LIST ${name}_${transport}
                           ${discover} ENVIRONMENT MALT_TRANSPORT=${transport})
    endforeach()
  else()
    gtest_discover_tests(${name} TEST_PREFIX ${name}. ${discover})
  endif()
endforeach()

# A libibverbs that some tests load in place of the machine's, because it has the same name.
add_library(fake_verbs SHARED tests/fake_verbs/ibverbs.cpp)
set_target_properties(fake_verbs PROPERTIES OUTPUT_NAME ibverbs SOVERSION 1
                      LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/fake_verbs
                      LINK_DEPENDS ${PROJECT_SOURCE_DIR}/tests/fake_verbs/ibverbs.map)
target_link_options(fake_verbs PRIVATE
                    -Wl,--version-script=${PROJECT_SOURCE_DIR}/tests/fake_verbs/ibverbs.map)
target_link_libraries(fake_verbs PRIVATE malt_warnings malt_sanitizers)
target_include_directories(fake_verbs SYSTEM PRIVATE ${MALT_VERBS_INCLUDE})
foreach(name transport_choice_test rdma_faults_test rdma_order_test settings_test)
  if(NOT TARGET ${name})
    continue()
  endif()
  add_dependencies(${name} fake_verbs)
  target_compile_definitions(${name} PRIVATE FAKE_VERBS="$<TARGET_FILE:fake_verbs>")
  target_include_directories(${name} PRIVATE tests/fake_verbs)
endforeach()

# A CUDA driver and an NVRTC that tests load in place of the machine's, because they have the same
# names.
add_library(fake_cuda SHARED
            tests/fake_cuda/contexts.cpp tests/fake_cuda/devices.cpp tests/fake_cuda/host_memory.cpp
            tests/fake_cuda/ipc.cpp tests/fake_cuda/memory.cpp tests/fake_cuda/modules.cpp
            tests/fake_cuda/state.cpp tests/fake_cuda/streams.cpp tests/fake_cuda/work.cpp)
set_target_properties(fake_cuda PROPERTIES OUTPUT_NAME cuda SOVERSION 1)
add_library(fake_nvrtc SHARED tests/fake_cuda/nvrtc.cpp)
set_target_properties(fake_nvrtc PROPERTIES OUTPUT_NAME nvrtc SOVERSION 12)
foreach(name cuda nvrtc)
  set(map ${PROJECT_SOURCE_DIR}/tests/fake_cuda/${name}.map)
  set_target_properties(fake_${name} PROPERTIES LINK_DEPENDS ${map}
                        LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/fake_cuda)
  target_include_directories(fake_${name} PRIVATE src tests/fake_cuda)
  target_compile_options(fake_${name} PRIVATE -O1 -ffp-contract=off)
  target_link_options(fake_${name} PRIVATE -Wl,--version-script=${map})
  target_link_libraries(fake_${name} PRIVATE Threads::Threads malt_warnings malt_sanitizers)
endforeach()
# Its threads live until the process ends.
target_link_options(fake_cuda PRIVATE -Wl,-z,nodelete)
foreach(name fake_cuda_test device_kernels_test)
  if(NOT TARGET ${name})
    continue()
  endif()
  add_dependencies(${name} fake_cuda fake_nvrtc)
  target_compile_definitions(${name} PRIVATE FAKE_CUDA="$<TARGET_FILE:fake_cuda>")
  target_include_directories(${name} PRIVATE tests/fake_cuda)
  target_compile_options(${name} PRIVATE -ffp-contract=off)
endforeach()

# These programs need an RDMA device. They are built with the rest, but tests/softroce runs them,
# not ctest. They run without a sanitizer, for which the guest is too slow.
add_executable(verbs_test ${verbs_test_sources})
add_executable(host_death tests/verbs/host_death.cpp)
foreach(name verbs_test host_death)
  if(MALT_SANITIZE)
    set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
  target_include_directories(${name} PRIVATE tests/cpp)
  target_include_directories(${name} SYSTEM PRIVATE ${MALT_VERBS_INCLUDE})
  target_link_libraries(${name} PRIVATE dstorm malt_warnings malt_sanitizers)
  target_compile_options(${name} PRIVATE -O1)
endforeach()
target_link_libraries(verbs_test PRIVATE GTest::gtest_main)

add_custom_target(as_installed_tests DEPENDS ${as_installed_tests})

# Everything that tests/softroce runs.
add_custom_target(rdma_tests DEPENDS verbs_test host_death slot_test fake_cuda fake_nvrtc
                                     ${conformance_tests})
