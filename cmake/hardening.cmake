# Options that turn a memory error into the end of the process: tables of addresses that are
# read-only from the start, canaries on stacks, large stack frames that are touched page by page,
# and C library calls that check sizes they know.
add_library(malt_hardening INTERFACE)
target_compile_options(malt_hardening INTERFACE -fstack-protector-strong -fstack-clash-protection)
target_link_options(malt_hardening INTERFACE LINKER:-z,relro,-z,now)
if(NOT MALT_SANITIZE AND NOT CMAKE_BUILD_TYPE STREQUAL "Debug")  # it needs -O
  target_compile_options(malt_hardening INTERFACE -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3)
endif()
