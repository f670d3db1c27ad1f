# Builds the GCC plugin of eager_templates.cpp: with it a lesson compiles in a third of the time, and what the tour builds in two thirds.
# A plugin reaches into the compiler, so it is on only for compilers that the whole of manyranks was built and tested with (below; GCC 14.2
# crashes with it). It needs GCC's plugin headers (Debian 12: gcc-12-plugin-dev, see setup.sh); without them, or with
# -DMANYRANKS_EAGER_TEMPLATES=OFF, all builds the same, slower.
#   eager_templates_flag    what the compiler is to be given, or empty
#   eager_templates_header  the last header to precompile, or empty
set(MANYRANKS_EAGER_TEMPLATES_PROVEN 12.2)   # GCC major.minor; setup.sh reads this line
set(eager_templates_default OFF)
string(REGEX MATCH "^[0-9]+\\.[0-9]+" gcc_version "${CMAKE_CXX_COMPILER_VERSION}")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND gcc_version IN_LIST MANYRANKS_EAGER_TEMPLATES_PROVEN AND NOT CMAKE_CROSSCOMPILING)
  set(eager_templates_default ON)
endif()
option(MANYRANKS_EAGER_TEMPLATES "Instantiate LibTorch's templates once, in the precompiled header" ${eager_templates_default})
set(eager_templates_flag "")
set(eager_templates_header "")

function(manyranks_build_eager_templates)
  set(source "${CMAKE_SOURCE_DIR}/common/cmake/eager_templates.cpp")
  set(plugin "${CMAKE_BINARY_DIR}/common/eager_templates.so")
  set(header "${CMAKE_BINARY_DIR}/common/eager_templates.hpp")
  execute_process(COMMAND "${CMAKE_CXX_COMPILER}" -print-file-name=plugin OUTPUT_VARIABLE folder OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT EXISTS "${folder}/include/gcc-plugin.h")
    string(REGEX MATCH "^[0-9]+" major "${CMAKE_CXX_COMPILER_VERSION}")
    message(STATUS "manyranks: no plugin headers for ${CMAKE_CXX_COMPILER}: compiling takes half as long again (Debian: apt install gcc-${major}-plugin-dev)")
    return()
  endif()
  # At every configuration, which takes a second: a plugin that was built for an older GCC would stop every compilation.
  file(MAKE_DIRECTORY "${CMAKE_BINARY_DIR}/common")
  execute_process(COMMAND "${CMAKE_CXX_COMPILER}" -O1 -fPIC -shared -fno-rtti "-I${folder}/include" "${source}" -o "${plugin}"
                  RESULT_VARIABLE failed OUTPUT_VARIABLE said ERROR_VARIABLE said)
  if(failed)
    message(STATUS "manyranks: ${source} does not compile here, so all else takes half as long again: ${said}")
    return()
  endif()
  file(CONFIGURE OUTPUT "${header}" CONTENT "#pragma manyranks instantiate\n")   # written only when it changes
  set(eager_templates_flag "-fplugin=${plugin}" PARENT_SCOPE)
  set(eager_templates_header "${header}" PARENT_SCOPE)
endfunction()

if(MANYRANKS_EAGER_TEMPLATES AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND NOT MANYRANKS_SANITIZE)   # instrumented code was not tried with it
  manyranks_build_eager_templates()
endif()
