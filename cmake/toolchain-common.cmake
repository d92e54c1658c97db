# SPDX-License-Identifier: Apache-2.0
# Shared by the two toolchain files. The compiler brings its own C and C++ libraries
# (/usr/<triplet>); third-party packages are unpacked, not installed, under build/sysroot-<arch>.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR ${cross_processor})
set(CMAKE_C_COMPILER ${cross_triplet}-gcc)
set(CMAKE_CXX_COMPILER ${cross_triplet}-g++)
set(CMAKE_LIBRARY_ARCHITECTURE ${cross_triplet})

set(cross_sysroot "${CMAKE_CURRENT_LIST_DIR}/../build/sysroot-${cross_debian}")
cmake_path(NORMAL_PATH cross_sysroot)
list(APPEND CMAKE_FIND_ROOT_PATH "${cross_sysroot}" "/usr/${cross_triplet}")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_EXE_LINKER_FLAGS_INIT
  "-Wl,-rpath-link,${cross_sysroot}/usr/lib/${cross_triplet}:${cross_sysroot}/lib/${cross_triplet}")
set(CMAKE_CROSSCOMPILING_EMULATOR
  "${cross_qemu};-L;/usr/${cross_triplet};-E;LD_LIBRARY_PATH=${cross_sysroot}/usr/lib/${cross_triplet}:${cross_sysroot}/lib/${cross_triplet}")
