# cmake --install: headers, libdstorm, libvol, liblearn, the ranks' witness, find_package(dstorm),
# pkg-config.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/dstorm)

install(TARGETS dstorm vol learn EXPORT dstorm-targets)
install(TARGETS malt_witness DESTINATION ${CMAKE_INSTALL_LIBDIR}/dstorm)
# The public headers, and nothing that only the library includes: those of src/dstorm itself (not of
# its folders), and what vol.hpp and learn.hpp include (tests/python/project/test_layers.py).
file(GLOB dstorm_headers CONFIGURE_DEPENDS src/dstorm/*.hpp)
install(FILES ${dstorm_headers} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/dstorm)
foreach(name codec dense dtype fold screen sparse vol)
  install(FILES src/vol/${name}.hpp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/vol)
endforeach()
foreach(name coordinate_descent dual_ascent factorization growing_array learn linear linear_clock matrix
             order partition svmlight)
  install(FILES src/learn/${name}.hpp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/learn)
endforeach()
foreach(name topic_inference topic_tokens)
  install(FILES src/learn/${name}.hpp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/learn)
endforeach()
install(EXPORT dstorm-targets NAMESPACE dstorm:: DESTINATION ${package_dir})
configure_package_config_file(cmake/dstorm-config.cmake.in dstorm-config.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(dstorm-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/dstorm-config.cmake
              ${PROJECT_BINARY_DIR}/dstorm-config-version.cmake DESTINATION ${package_dir})

# These files find the tree relative to their own path, so an installed tree can be moved.
cmake_path(RELATIVE_PATH CMAKE_INSTALL_FULL_INCLUDEDIR BASE_DIRECTORY ${CMAKE_INSTALL_PREFIX}
           OUTPUT_VARIABLE pc_includedir)
cmake_path(RELATIVE_PATH CMAKE_INSTALL_FULL_LIBDIR BASE_DIRECTORY ${CMAKE_INSTALL_PREFIX}
           OUTPUT_VARIABLE pc_libdir)
cmake_path(RELATIVE_PATH CMAKE_INSTALL_PREFIX
           BASE_DIRECTORY ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig OUTPUT_VARIABLE pc_prefix)
foreach(name dstorm vol learn)
  configure_file(cmake/${name}.pc.in ${name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()
