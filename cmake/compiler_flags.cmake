# SPDX-License-Identifier: Apache-2.0
# Two interface targets with the flags of every file of ours:
#   moebius_flags        warnings, one floating-point arithmetic, sanitizers
#   moebius_flags_build  the same, but not carried into the installed package
add_library(moebius_flags INTERFACE)

# One arithmetic on every compiler and machine: no contraction of a*b+c unless the code says std::fma.
target_compile_options(moebius_flags INTERFACE
  -Wall -Wextra -Wconversion -Wshadow -ffp-contract=off
  $<$<BOOL:${MOEBIUS_WERROR}>:-Werror>)

if(MOEBIUS_SANITIZE)
  target_compile_options(moebius_flags INTERFACE
    -fsanitize=${MOEBIUS_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_compile_definitions(moebius_flags INTERFACE _GLIBCXX_ASSERTIONS)
  target_link_options(moebius_flags INTERFACE -fsanitize=${MOEBIUS_SANITIZE})
endif()
if(MOEBIUS_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "MOEBIUS_FUZZ needs clang (preset 'fuzz'); this compiler is ${CMAKE_CXX_COMPILER_ID}")
  endif()
  target_compile_options(moebius_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

add_library(moebius_flags_build INTERFACE)
target_link_libraries(moebius_flags_build INTERFACE $<BUILD_INTERFACE:moebius_flags>)

# moebius_precompile(TARGET [FROM OTHER | HEADER...]): parses the usual headers once, with HEADER... for this target alone, or takes
# the precompiled header of OTHER. A third of the build's time with g++. Not with clang, so that one of the builds notices a missing
# include, and not under a compiler cache, which would stop caching.
function(moebius_precompile target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "FROM" "")
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    # Inside a precompiled header g++ 12 forgets which lines are the standard library's own and reports its false alarms there. Which ones
    # changes with the version and the architecture, so they are shown but end no build; units known to have one say so where they are listed.
    target_compile_options(${target} PRIVATE
      -Wno-error=array-bounds -Wno-error=stringop-overflow -Wno-error=stringop-overread -Wno-error=restrict)
    if(arg_FROM)
      target_precompile_headers(${target} REUSE_FROM ${arg_FROM})
    else()
      target_precompile_headers(${target} PRIVATE
        <algorithm> <array> <atomic> <chrono> <cmath> <condition_variable> <cstring> <deque> <filesystem> <functional> <map> <memory>
        <mutex> <numeric> <optional> <ostream> <set> <span> <string> <string_view> <thread> <unordered_map> <utility> <vector>
        <fmt/format.h> ${arg_UNPARSED_ARGUMENTS})
    endif()
  endif()
endfunction()
