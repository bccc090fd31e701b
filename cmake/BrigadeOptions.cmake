# Language level, warnings, sanitizers and the compiler cache. Everything else lives with its room.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)

option(BRIGADE_RPC "Build what needs gRPC: the servers and the command line" ON)
set(BRIGADE_UCX AUTO CACHE STRING "UCX between processes: AUTO (when found; never under sanitizers), ON or OFF")
set_property(CACHE BRIGADE_UCX PROPERTY STRINGS AUTO ON OFF)
option(BRIGADE_FUZZ "Build the libFuzzer targets (needs clang)" OFF)
set(BRIGADE_SANITIZE "" CACHE STRING "Sanitizers: empty, address,undefined or thread")

find_program(BRIGADE_CCACHE ccache)
if(BRIGADE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # CCACHE_BASEDIR lets checkouts in different folders share the cache; the sloppiness is what it asks for with
  # precompiled headers (those of the tests).
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR}
      CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros ${BRIGADE_CCACHE})
endif()

add_library(brigade_options INTERFACE)
target_include_directories(brigade_options INTERFACE ${PROJECT_SOURCE_DIR})
# -ffp-contract=off: a fused multiply-add is written out where the numerics contract wants one.
# GCC 12 sees uninitialized or out-of-bounds vectors inside its own std::variant and initializer lists.
target_compile_options(brigade_options INTERFACE -Wall -Wextra
                       $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>
                       -Wno-array-bounds -Wno-unused-parameter -Wno-missing-field-initializers
                       -ffp-contract=off -fno-math-errno)
if(BRIGADE_SANITIZE)
  target_compile_options(brigade_options INTERFACE -fsanitize=${BRIGADE_SANITIZE}
                         -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(brigade_options INTERFACE -fsanitize=${BRIGADE_SANITIZE})
endif()
