# What makes a fault of memory an end, or of no use to who caused it: tables of addresses that are read-only from
# the start on, canaries on stacks, and checks in the C library's calls where the size is known.
add_library(malt_hardening INTERFACE)
target_compile_options(malt_hardening INTERFACE -fstack-protector-strong)
target_link_options(malt_hardening INTERFACE LINKER:-z,relro,-z,now)
if(NOT MALT_SANITIZE AND NOT CMAKE_BUILD_TYPE STREQUAL "Debug")  # it wants optimised code
  target_compile_options(malt_hardening INTERFACE -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3)
endif()
