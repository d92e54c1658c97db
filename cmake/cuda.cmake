# SPDX-License-Identifier: Apache-2.0
# The CUDA plugin (plugins/cuda): target moebius_cuda. nvcc is called directly, so that a build without it, or one that never asks for
# the plugin, tests no compiler. It belongs to `all` with MOEBIUS_CUDA=on; ./moebius builds it on the first --device cuda, ./test in a
# stage of its own, tests/gpu with flags of its own (MOEBIUS_CUDA_FLAGS).
set(MOEBIUS_CUDA auto CACHE STRING "The CUDA plugin: auto (where nvcc 12.4 or newer is found), on, off")
set_property(CACHE MOEBIUS_CUDA PROPERTY STRINGS auto on off)
if(MOEBIUS_TESTS)
  set(cuda_tiles_default few)
else()
  set(cuda_tiles_default all)
endif()
# few: two of the five sizes of token tiles. Results are the same; the plugin compiles in less than half the time.
set(MOEBIUS_CUDA_TILES ${cuda_tiles_default} CACHE STRING "Tensor-core kernels of the CUDA plugin: all or few sizes of tiles")

string(TOLOWER "${MOEBIUS_CUDA}" cuda_wanted)
if(cuda_wanted STREQUAL "off" OR CMAKE_CROSSCOMPILING OR MOEBIUS_FUZZ OR MOEBIUS_SANITIZE)
  return()
endif()
find_program(MOEBIUS_NVCC nvcc HINTS ENV CUDACXX ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda/bin PATH_SUFFIXES bin)
mark_as_advanced(MOEBIUS_NVCC)
set(cuda_version 0)
if(MOEBIUS_NVCC)
  execute_process(COMMAND "${MOEBIUS_NVCC}" --version OUTPUT_VARIABLE cuda_text ERROR_QUIET)
  if(cuda_text MATCHES "release ([0-9]+\\.[0-9]+)")
    set(cuda_version "${CMAKE_MATCH_1}")
  endif()
endif()
if(cuda_version VERSION_LESS 12.4)
  if(cuda_wanted STREQUAL "on")
    message(FATAL_ERROR "MOEBIUS_CUDA=on needs nvcc 12.4 or newer (found: ${MOEBIUS_NVCC} ${cuda_version}); install NVIDIA's CUDA toolkit, "
            "or name its compiler with -DMOEBIUS_NVCC=PATH")
  endif()
  message(STATUS "CUDA plugin: no (nvcc 12.4 or newer was not found)")
  add_custom_target(moebius_cuda VERBATIM COMMAND "${CMAKE_COMMAND}" -E echo "moebius_cuda needs nvcc 12.4 or newer" COMMAND "${CMAKE_COMMAND}" -E false)
  return()
endif()
message(STATUS "CUDA plugin: target moebius_cuda, nvcc ${cuda_version}")

cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH cuda_root)
set(cuda_folder "${cuda_root}/plugins/cuda")
set(cuda_objects "${PROJECT_BINARY_DIR}/cuda")
file(MAKE_DIRECTORY "${cuda_objects}")
# Wrappers of tensor-core instructions.
set(cuda_wgmma "${PROJECT_BINARY_DIR}/generated/cuda/wgmma.h")
add_custom_command(OUTPUT "${cuda_wgmma}" DEPENDS "${cuda_root}/cmake/wgmma.cmake" VERBATIM
  COMMAND "${CMAKE_COMMAND}" "-DOUTPUT=${cuda_wgmma}" -P "${cuda_root}/cmake/wgmma.cmake")
set(cuda_flags -std=c++20 -O3 --fmad=false --expt-relaxed-constexpr "-I${cuda_root}/src" "-I${cuda_folder}"
    "-I${PROJECT_BINARY_DIR}/generated/cuda"
    -Xcompiler "-fPIC,-fvisibility=hidden,-ffp-contract=off" ${MOEBIUS_CUDA_FLAGS})
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND cuda_flags -ccbin "${CMAKE_CXX_COMPILER}")
endif()
# Every device from 8.0 on runs plain kernels and those by mma.sync, newer ones by translation at load; hopper.cuh needs 9.0's own instructions.
set(cuda_plain_arch -gencode "arch=compute_80,code=[sm_80,compute_80]" -gencode "arch=compute_90,code=sm_90")
set(cuda_hopper_arch -gencode "arch=compute_90a,code=sm_90a")
if(MOEBIUS_CUDA_TILES STREQUAL "few")
  list(APPEND cuda_flags -DMOEBIUS_CUDA_FEW_TILES)
endif()

# One object. cmake/nvcc.cmake fails where the compiler says that it serialized tensor-core instructions.
function(moebius_cuda_object name source)
  set(object "${cuda_objects}/${name}.o")
  list(JOIN ARGN "|" flags)
  add_custom_command(OUTPUT "${object}" DEPFILE "${object}.d" DEPENDS "${source}" "${cuda_wgmma}" "${cuda_root}/cmake/nvcc.cmake" VERBATIM
    COMMENT "CUDA ${name}"
    COMMAND "${CMAKE_COMMAND}" "-DNVCC=${MOEBIUS_NVCC}" "-DLAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER}" "-DSOURCE=${source}" "-DOBJECT=${object}"
            "-DFLAGS=${flags}" -P "${cuda_root}/cmake/nvcc.cmake")
  set(cuda_made ${cuda_made} "${object}" PARENT_SCOPE)
endfunction()

set(cuda_made "")
foreach(name plain hopper operands linear layers module router scratch model attention usual_rows candidates few)
  moebius_cuda_object(${name} "${cuda_folder}/${name}.cu" ${cuda_flags} ${cuda_plain_arch})
endforeach()
# The schemes: MOEBIUS_CUDA_SCHEMES in this header.
set(cuda_schemes_header "${cuda_root}/src/device/cuda/hopper_scheme.h")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${cuda_schemes_header}")
file(READ "${cuda_schemes_header}" cuda_schemes)
string(REGEX MATCHALL "X\\(k[A-Za-z0-9]+" cuda_schemes "${cuda_schemes}")
list(TRANSFORM cuda_schemes REPLACE "X.k" "")
foreach(scheme IN LISTS cuda_schemes)
  moebius_cuda_object(mma_${scheme} "${cuda_folder}/mma_scheme.cu" ${cuda_flags} ${cuda_plain_arch} -DMOEBIUS_CUDA_SCHEME=k${scheme})
  moebius_cuda_object(hopper_${scheme} "${cuda_folder}/hopper_scheme.cu" ${cuda_flags} ${cuda_hopper_arch} -DMOEBIUS_CUDA_SCHEME=k${scheme})
endforeach()
function(moebius_cuda_library library)
  add_custom_command(OUTPUT "${library}" DEPENDS ${ARGN} "${cuda_folder}/cuda.map" VERBATIM COMMENT "CUDA plugin"
    WORKING_DIRECTORY "${cuda_folder}" # nvcc splits the linker's options at spaces of a path
    COMMAND "${MOEBIUS_NVCC}" -shared -cudart static -Xlinker --version-script=cuda.map -o "${library}" ${ARGN})
endfunction()
set(cuda_library "${PROJECT_BINARY_DIR}/libmoebius_cuda.so")
moebius_cuda_library("${cuda_library}" ${cuda_made})
set(cuda_all "")
if(cuda_wanted STREQUAL "on")
  set(cuda_all ALL)
endif()
add_custom_target(moebius_cuda ${cuda_all} DEPENDS "${cuda_library}")
install(FILES "${cuda_library}" DESTINATION ${CMAKE_INSTALL_LIBDIR}/moebius COMPONENT cuda OPTIONAL)
