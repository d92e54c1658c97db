# SPDX-License-Identifier: Apache-2.0
# Plugins that carry messages between processes: plugins/comm_mpi.c, compiled once for each MPI whose headers are here. The
# program opens one when a launcher has started it, and is not linked with any.
#
# moebius_comm_plugin(NAME HEADER_SUFFIXES LIBRARY_NAME LIBRARY_SUFFIXES)
option(MOEBIUS_MPI "Build a plugin for each MPI (Open MPI, MPICH) whose headers are found" ON)

function(moebius_comm_plugin name header_suffixes library library_suffixes)
  set(places "/usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}" "/usr/lib64" "/usr/lib" "/usr/include/${CMAKE_LIBRARY_ARCHITECTURE}" "/usr/include")
  find_path(MOEBIUS_${name}_INCLUDE mpi.h PATHS ${places} PATH_SUFFIXES ${header_suffixes} NO_DEFAULT_PATH)
  find_library(MOEBIUS_${name}_LIBRARY ${library} PATHS ${places} PATH_SUFFIXES ${library_suffixes} NO_DEFAULT_PATH)
  mark_as_advanced(MOEBIUS_${name}_INCLUDE MOEBIUS_${name}_LIBRARY)
  if(NOT MOEBIUS_${name}_INCLUDE OR NOT MOEBIUS_${name}_LIBRARY)
    return()
  endif()
  set(target moebius_comm_${name})
  add_library(${target} MODULE "${PROJECT_SOURCE_DIR}/plugins/comm_mpi.c")
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/src")
  target_include_directories(${target} SYSTEM PRIVATE "${MOEBIUS_${name}_INCLUDE}")
  target_link_libraries(${target} PRIVATE "${MOEBIUS_${name}_LIBRARY}")
  target_compile_options(${target} PRIVATE -std=c99 -O2 -Wall -Wextra -fvisibility=hidden)
  set_target_properties(${target} PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}" EXCLUDE_FROM_ALL ${MOEBIUS_FUZZ})
  install(TARGETS ${target} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/moebius COMPONENT ${name})
  add_dependencies(moebius_cli ${target})
  message(STATUS "Ranks by ${name}: ${MOEBIUS_${name}_LIBRARY}")
endfunction()

if(MOEBIUS_MPI AND NOT CMAKE_CROSSCOMPILING AND NOT MOEBIUS_FUZZ AND TARGET moebius_cli)
  enable_language(C)
  moebius_comm_plugin(openmpi "openmpi/include;openmpi-${CMAKE_SYSTEM_PROCESSOR};openmpi" mpi "openmpi/lib;openmpi")
  moebius_comm_plugin(mpich "mpich/include;mpich-${CMAKE_SYSTEM_PROCESSOR};mpich" mpich "mpich/lib;mpich;.")
endif()
