#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A configuration that lacks libraries ends with one message: all of them, and the line that installs their packages.
#   check_packages.sh ROOT
set -eu
root=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if cmake -S "$root" -B "$work" -G Ninja -DMOEBIUS_TESTS=OFF -DCMAKE_DISABLE_FIND_PACKAGE_fmt=ON -DCMAKE_DISABLE_FIND_PACKAGE_PCRE2=ON \
  -DCMAKE_DISABLE_FIND_PACKAGE_Boost=ON >"$work/out" 2>&1; then
  echo "it configured without fmt, PCRE2 and Boost"
  exit 1
fi
for words in 'not found: fmt, PCRE2, Boost' 'sudo apt-get install libfmt-dev libpcre2-dev libboost1.81-dev'; do
  tr '\n' ' ' <"$work/out" | tr -s ' ' | grep -q "$words" || { echo "no '$words' in:"; cat "$work/out"; exit 1; }
done
# Every library of the list is one that a package of the list has.
for word in $(sed -n 's/^need_library([^ ]* \([^ )]*\).*/\1/p' "$root/CMakeLists.txt"); do
  grep -q "^build [^ ]*$word" "$root/scripts/packages.txt" || { echo "no package of group build has '$word' in its name"; exit 1; }
done
