# SPDX-License-Identifier: Apache-2.0
# Cross-build for 64-bit Arm Linux; libraries come from build/sysroot-arm64 (scripts/make_sysroot.sh).
set(cross_processor aarch64)
set(cross_triplet aarch64-linux-gnu)
set(cross_debian arm64)
set(cross_qemu qemu-aarch64-static)
include("${CMAKE_CURRENT_LIST_DIR}/toolchain-common.cmake")
