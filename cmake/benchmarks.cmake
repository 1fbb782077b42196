# One executable per benchmarks/<name>_benchmark.cpp.
find_package(benchmark REQUIRED)
foreach(source IN LISTS benchmark_sources)
  cmake_path(GET source STEM name)
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE vol dstorm benchmark::benchmark malt_warnings
                                        malt_sanitizers)
endforeach()

# The C++ sides of exchange.py and transport.py are plain programs.
foreach(name IN ITEMS exchange transport)
  add_executable(${name} benchmarks/${name}.cpp)
  target_link_libraries(${name} PRIVATE vol dstorm malt_warnings malt_sanitizers)
endforeach()
