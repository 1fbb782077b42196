# Toolchain file of ./dev wheel: Zig's Clang for Linux with glibc 2.28 or later (manylinux_2_28),
# whatever the machine's own glibc is. libc++ is linked statically, so a wheel needs only the C
# library. ZIG in the environment is the program zig.
set(CMAKE_CXX_COMPILER $ENV{ZIG} c++ -target ${MALT_ZIG_TARGET})
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES MALT_ZIG_TARGET)
