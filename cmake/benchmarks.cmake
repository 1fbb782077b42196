# One executable per benchmarks/<name>_benchmark.cpp.
find_package(benchmark REQUIRED)
foreach(source IN LISTS benchmark_sources)
  cmake_path(GET source STEM name)
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE vol dstorm benchmark::benchmark malt_warnings
                                        malt_sanitizers)
endforeach()

# The C++ twin of exchange.py is a plain program.
add_executable(exchange benchmarks/exchange.cpp)
target_link_libraries(exchange PRIVATE vol dstorm malt_warnings malt_sanitizers)
