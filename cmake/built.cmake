# SPDX-License-Identifier: Apache-2.0
# Run by cmake --install before anything is copied: MOEBIUS_NEEDED, files of a component, must have been built. ./moebius builds the
# tool alone.
foreach(file IN LISTS MOEBIUS_NEEDED)
  if(NOT EXISTS "${file}")
    cmake_path(GET file FILENAME name)
    message(FATAL_ERROR "${name} is not built yet (./moebius builds the tool alone). Build everything, then install again:\n"
                        "  cmake --build ${MOEBIUS_BUILD}")
  endif()
endforeach()
