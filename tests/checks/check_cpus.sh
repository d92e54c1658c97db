#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# CPUs that lack a feature never execute it:  check_cpus.sh ARCH TOOL GOLDEN_DIR [QEMU OPTION...]
#
# Runs `verify` and `explain` of TOOL, a program for ARCH, on emulated CPUs from small to large. An instruction the
# CPU does not have ends the program (SIGILL), a wrong result fails verify, and a chosen kernel that the CPU cannot
# run is named here. Each CPU must choose its best kernel somewhere, else the check would show nothing.
set -u
arch=$1 tool=$2 golden=$3
shift 3
qemu=qemu-$arch-static
command -v "$qemu" >/dev/null || { echo "$qemu is not installed"; exit 77; }

# CPU, kernels that must not be chosen (cannot run), one that must be
case $arch in
  aarch64) cpus='cortex-a53 arm_(dotprod|i8mm|bf16) arm_neon
cortex-a76 arm_(i8mm|bf16) arm_dotprod
neoverse-n1 arm_(i8mm|bf16) arm_dotprod
max none arm_i8mm' ;;
  x86_64) cpus='qemu64 x86_[a-z0-9_]+ generic
Nehalem x86_[a-z0-9_]+ generic
Haswell x86_(avx512|amx|avx2_vnni)[a-z0-9_]* (x86_avx2|generic)
max none (x86_[a-z0-9_]+|generic)' ;;
  *) echo "no list of CPUs for $arch"; exit 2 ;;
esac
folders="qwen3moe-w4a8-g32-int qwen3moe-w8a8-static-asym qwen3moe-w4a16-asym-g32 qwen3moe-w3a16-g32 qwen3moe-fp8-dynamic
  qwen3moe-fp8-block qwen3moe-nvfp4 qwen3moe-mxfp4 qwen3moe-mxfp8 qwen3-w4a8o8-g32-int qwen3moe-dense gptoss-mxfp4-native"

bad=0
while read -r cpu forbidden needed; do
  used=""
  for folder in $folders; do
    for command in "verify $golden/$folder --json" "explain $golden/$folder"; do
      # shellcheck disable=SC2086
      out=$("$qemu" -cpu "$cpu" "$@" "$tool" $command --threads 2 2>&1 </dev/null)
      status=$?
      if [ "$status" != 0 ]; then
        echo "$cpu: $command ended with $status: $(printf '%s' "$out" | tail -n 1)"
        bad=1
      fi
      case $command in verify*) used="$used $out" ;; esac
    done
  done
  if printf '%s' "$used" | grep -qE "$forbidden/"; then
    echo "$cpu: chose a kernel it must not: $(printf '%s' "$used" | grep -oE "$forbidden/[a-z0-9]+" | sort -u | tr '\n' ' ')"
    bad=1
  fi
  if ! printf '%s' "$used" | grep -qE "$needed(/|\")"; then
    echo "$cpu: never chose $needed"
    bad=1
  fi
done <<<"$cpus"
exit $bad
