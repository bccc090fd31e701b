# One function for a room's library and one for its tests, so that each room's list stays short.

# brigade_library(name SOURCES a.cc ... DEPS target ... [PRIVATE_DEPS target ...])
function(brigade_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  if(ARG_SOURCES)
    add_library(${name} STATIC ${ARG_SOURCES})
    target_link_libraries(${name} PUBLIC brigade_options ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS})
  else()
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE brigade_options ${ARG_DEPS})
  endif()
endfunction()

# brigade_lacks(SETTING reason consequence): what SETTING asks for is not there. An error where it is ON,
# else (AUTO) a line.
function(brigade_lacks setting reason consequence)
  if(${setting} STREQUAL "ON")
    message(FATAL_ERROR "${setting} is ON: ${reason}")
  endif()
  message(STATUS "${consequence}")
endfunction()

# brigade_compile_lightly(target [source ...]): code that runs at start, or once a call, and is costly to
# optimise: compile time matters more than its speed. All of the target, or only these sources.
function(brigade_compile_lightly target)
  if(ARGN)
    set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS "$<$<CONFIG:Release>:-O1>")
  else()
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
  endif()
endfunction()

# brigade_test(name SOURCES a.cc ... DEPS target ... LABELS a b [TIMEOUT seconds] [LONG] [PARTS part=filter ...])
# PARTS registers what the filter takes as name_part, and under the name itself what no part takes.
# The labels asan and tsan say in which sanitizer stage a test also runs (targets asan_tests, tsan_tests).
# Registers the fast form. With LONG a second registration name_long runs at full scale under the label "long".
function(brigade_test name)
  cmake_parse_arguments(ARG "LONG" "TIMEOUT" "SOURCES;DEPS;LABELS;PARTS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} brigade_test_support GTest::gmock GTest::gtest_main)
  # Tests are compiled once and run for seconds: half the compile time matters more than their speed.
  target_compile_options(${name} PRIVATE -O1 -pthread)
  # -pthread: one set of macros for all, so that all can use the headers compiled once. CUDA sources have a
  # header of their own that must come first.
  if(NOT ARG_SOURCES MATCHES "\\.cu(;|$)")
    target_precompile_headers(${name} REUSE_FROM brigade_test_headers)
  endif()
  set(rest "")
  set(tests ${name})
  foreach(part IN LISTS ARG_PARTS)
    if(NOT part MATCHES "^([a-z0-9_]+)=(.+)$")
      message(FATAL_ERROR "brigade_test(${name}): the part ${part} is not part=filter")
    endif()
    add_test(NAME ${name}_${CMAKE_MATCH_1} COMMAND ${name} --gtest_filter=${CMAKE_MATCH_2})
    list(APPEND tests ${name}_${CMAKE_MATCH_1})
    list(APPEND rest ${CMAKE_MATCH_2})
  endforeach()
  if(rest)
    list(JOIN rest ":" rest)
    add_test(NAME ${name} COMMAND ${name} --gtest_filter=-${rest})
  else()
    add_test(NAME ${name} COMMAND ${name})
  endif()
  set_tests_properties(${tests} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
  foreach(sanitizer asan tsan)
    if(sanitizer IN_LIST ARG_LABELS)
      if(NOT TARGET ${sanitizer}_tests)
        add_custom_target(${sanitizer}_tests)
      endif()
      add_dependencies(${sanitizer}_tests ${name})
    endif()
  endforeach()
  if(ARG_LONG)
    add_test(NAME ${name}_long COMMAND ${name})
    set_tests_properties(${name}_long PROPERTIES LABELS "long;${ARG_LABELS}" TIMEOUT 3600
                         ENVIRONMENT "BRIGADE_TEST_SCALE=1;BRIGADE_TEST_LONG=1")
  endif()
endfunction()
