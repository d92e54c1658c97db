#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Kernels that this CPU lacks, judged on an emulated one:  check_emulated.sh TESTS [SHAPES]
#
# Asks the test program TESTS which kernels of its architecture it cannot run here, and runs just their tests under qemu-user's
# largest CPU, on SHAPES ("few", the default, or "all"). What the emulator lacks too (AVX-512, AMX) is printed as skipped.
# Exit status 77 (skipped) where qemu-user is not installed and a kernel needs it.
set -u
tests=$1 shapes=${2:-few}
lacking=$("$tests" --list-lacking) || exit 1
if [ -z "$lacking" ]; then
  echo "this CPU runs every kernel of its architecture"
  exit 0
fi
qemu=qemu-$(uname -m)-static
if ! command -v "$qemu" >/dev/null; then
  while read -r kernel; do echo "skipped kernel $kernel: this CPU lacks it and $qemu is not installed"; done <<<"$lacking"
  exit 77
fi
filter=""
for kernel in $lacking; do filter="$filter:*EveryKernel*/${kernel/\//_}"; done
echo "under $qemu -cpu max, shapes: $shapes, kernels: $(tr '\n' ' ' <<<"$lacking")"
start=$SECONDS
MOEBIUS_CPU='' MOEBIUS_TEST_SHAPES=$shapes "$qemu" -cpu max "$tests" --gtest_filter="${filter#:}" --gtest_brief=1
status=$?
echo "$((SECONDS - start)) s"
exit $status
