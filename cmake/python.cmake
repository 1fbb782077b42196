# The extension module malt._core: the bindings and the libraries in one file.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
if(NOT pybind11_ROOT AND NOT DEFINED SKBUILD)
  execute_process(COMMAND ${Python_EXECUTABLE} -m pybind11 --cmakedir
                  OUTPUT_VARIABLE pybind11_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()
find_package(pybind11 3.1 CONFIG REQUIRED)

pybind11_add_module(_core MODULE ${binding_sources} $<TARGET_OBJECTS:dstorm_objects>
                    $<TARGET_OBJECTS:vol_objects> $<TARGET_OBJECTS:learn_objects>)
target_include_directories(_core PRIVATE src)
target_include_directories(_core SYSTEM PRIVATE ${MALT_VERBS_INCLUDE})
target_compile_definitions(_core PRIVATE MALT_VERSION="${PROJECT_VERSION}")
target_link_libraries(_core PRIVATE Threads::Threads malt_warnings malt_hardening malt_sanitizers
                                    ${CMAKE_DL_LIBS})
# Each of the bindings includes it. Without it they take half as long again to compile.
target_precompile_headers(_core PRIVATE "${PROJECT_SOURCE_DIR}/python/bindings/bindings.hpp")
# Only the module's entry point is visible, so that a libdstorm in the same process (a C++ program
# that embeds Python) and the copy in here never mix.
target_link_options(_core PRIVATE
                    "LINKER:--version-script=${PROJECT_SOURCE_DIR}/cmake/python_exports.map")
set_property(TARGET _core APPEND PROPERTY LINK_DEPENDS
             "${PROJECT_SOURCE_DIR}/cmake/python_exports.map")
install(TARGETS _core LIBRARY DESTINATION malt COMPONENT python)
install(FILES "${PROJECT_SOURCE_DIR}/python/malt_torch_backend.py" DESTINATION . COMPONENT python)
# The extension finds the witness beside itself.
install(TARGETS malt_witness RUNTIME DESTINATION malt COMPONENT python)
