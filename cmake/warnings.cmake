# MALT's own targets link this; the installed targets do not.
add_library(malt_warnings INTERFACE)
target_compile_options(malt_warnings INTERFACE -Wall -Wextra -Wpedantic -Wconversion -Wshadow)
