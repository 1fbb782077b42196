# One executable per benchmarks/<name>_benchmark.cpp.
find_package(benchmark REQUIRED)
foreach(source IN LISTS benchmark_sources)
  cmake_path(GET source STEM name)
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE vol dstorm benchmark::benchmark malt_warnings
                                        malt_sanitizers)
endforeach()
