# SPDX-License-Identifier: Apache-2.0
# Run by cmake --install before anything is copied: MOEBIUS_NEEDED, files of a component, must have been built. ./moebius builds the
# tool alone, with the kernels of its CPU (cmake/kernel_flags.cmake).
foreach(file IN LISTS MOEBIUS_NEEDED)
  if(NOT EXISTS "${file}")
    cmake_path(GET file FILENAME name)
    message(FATAL_ERROR "${name} is not built yet (./moebius builds the tool alone). Build everything, then install again:\n"
                        "  cmake -DMOEBIUS_KERNELS=all ${MOEBIUS_BUILD} && cmake --build ${MOEBIUS_BUILD}")
  endif()
endforeach()
if(EXISTS "${MOEBIUS_BUILD}/kernels_left_out")
  message(FATAL_ERROR "Kernels of other CPUs were left out of this build (MOEBIUS_KERNELS=native, as ./moebius builds). Build all, then "
                      "install again:\n  cmake -DMOEBIUS_KERNELS=all ${MOEBIUS_BUILD} && cmake --build ${MOEBIUS_BUILD}")
endif()
