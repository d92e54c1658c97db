# SPDX-License-Identifier: Apache-2.0
# Makes generated/kernels/arm/arm_i8mm_asm.h, the assembly of arm_i8mm, in the build folder: i8mm_assembly.cpp, which has its
# register maps and schedules, is built for the machine that builds and run there. Only builds for Arm include the header.
set(i8mm_assembly "")
if(MOEBIUS_ARCH STREQUAL "aarch64")
  if(CMAKE_CROSSCOMPILING)
    find_program(MOEBIUS_HOST_CXX NAMES c++ g++ clang++ REQUIRED DOC "C++ compiler for programs that run during a cross build")
  else()
    set(MOEBIUS_HOST_CXX "${CMAKE_CXX_COMPILER}")
  endif()
  set(i8mm_writer "${PROJECT_BINARY_DIR}/generated/i8mm_assembly")
  set(i8mm_assembly "${PROJECT_BINARY_DIR}/generated/kernels/arm/arm_i8mm_asm.h")
  file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/generated/kernels/arm")
  add_custom_command(OUTPUT "${i8mm_assembly}" DEPENDS "${PROJECT_SOURCE_DIR}/cmake/i8mm_assembly.cpp" VERBATIM
    COMMAND "${MOEBIUS_HOST_CXX}" -std=c++20 "${PROJECT_SOURCE_DIR}/cmake/i8mm_assembly.cpp" -o "${i8mm_writer}"
    COMMAND "${i8mm_writer}" "${i8mm_assembly}")
endif()
