# SPDX-License-Identifier: Apache-2.0
# Cross-build for x86_64 Linux; libraries come from build/sysroot-amd64 (scripts/make_sysroot.sh).
set(cross_processor x86_64)
set(cross_triplet x86_64-linux-gnu)
set(cross_debian amd64)
set(cross_qemu qemu-x86_64-static)
include("${CMAKE_CURRENT_LIST_DIR}/toolchain-common.cmake")
