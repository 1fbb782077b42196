# Our own targets link this; what we install does not carry it.
add_library(malt_warnings INTERFACE)
target_compile_options(malt_warnings INTERFACE -Wall -Wextra -Wpedantic -Wconversion -Wshadow)
