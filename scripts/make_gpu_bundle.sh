#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a bare x86-64 machine with a GPU lacks to build the tool beside the plugin:  scripts/make_gpu_bundle.sh [OUT]
#
# Writes OUT (build/gpu_bundle) with libraries.tar.xz: headers and shared libraries of the packages the tool links, unpacked for amd64 by
# scripts/make_sysroot.sh, without Boost, whose headers such machines have. A few MiB. The folder travels beside the tracked sources;
# tests/gpu/run.sh finds it. Nothing else is needed there but nvcc, g++, CMake, ninja and python3.
set -eu
root=$(cd -- "$(dirname -- "$(readlink -f -- "$0")")/.." && pwd -P)
out=${1:-$root/build/gpu_bundle}
"$root/scripts/make_sysroot.sh" amd64
mkdir -p "$out"
cd "$root/build/sysroot-amd64"
list=$out/files.txt
find usr lib \( -path 'usr/include/fmt/*' -o -path 'usr/include/nlohmann/*' -o -path 'usr/include/pcre2*' -o -path 'usr/include/onig*' \
  -o -path 'usr/include/utf8proc*' -o -path 'usr/include/histedit*' -o -path 'usr/include/editline/*' -o -path '*/cmake/fmt/*' \
  -o -path '*/cmake/nlohmann_json/*' -o -path '*/cmake/pcre2/*' -o -name 'libfmt.so*' -o -name 'libpcre2-8.so*' -o -name 'libonig.so*' \
  -o -name 'libutf8proc.so*' -o -name 'libedit.so*' -o -name 'libbsd.so*' -o -name 'libmd.so*' -o -name 'libtinfo.so*' \) \
  -not -type d -print 2>/dev/null | sort >"$list"
tar -cJf "$out/libraries.tar.xz" -T "$list"
rm -f "$list"
git -C "$root" rev-parse --short HEAD >"$out/commit.txt" 2>/dev/null || echo unknown >"$out/commit.txt"
size=$(du -sk "$out" | cut -f1)
[ "$size" -le 20480 ] || { echo "make_gpu_bundle: $size KiB; at most 20 MiB travel" >&2; exit 1; }
echo "$out: $size KiB"
