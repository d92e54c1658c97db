#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs a build into a fresh prefix and uses it twice as a stranger would: find_package and pkg-config.
#   run.sh BUILD_DIR CXX
set -eu
build=$1 cxx=$2
here=$(cd -- "$(dirname -- "$0")" && pwd -P)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix

cmake --install "$build" --prefix "$prefix" >"$work/install.log" || { cat "$work/install.log"; exit 1; }

echo "find_package:"
cmake -S "$here" -B "$work/cmake" -G Ninja -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_PREFIX_PATH="$prefix" >"$work/configure.log" ||
  { cat "$work/configure.log"; exit 1; }
cmake --build "$work/cmake"
"$work/cmake/consumer"

echo "pkg-config:"
export PKG_CONFIG_PATH
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name moebius.pc)")
"$cxx" -std=c++20 "$here/main.cpp" $(pkg-config --cflags --libs --static moebius) -o "$work/consumer"
LD_LIBRARY_PATH=$(dirname "$PKG_CONFIG_PATH") "$work/consumer"

# The installed tool runs from its prefix and finds the installed model.
if [ -x "$prefix/bin/moebius" ]; then
  "$prefix/bin/moebius" --version
fi
test -f "$prefix/share/moebius/models/moebius-tiny-w4a8/config.json"
# Man page and completion came along; the build makes them.
for file in man/man1/moebius.1 bash-completion/completions/moebius zsh/site-functions/_moebius; do
  test -s "$prefix/share/$file" || { echo "share/$file was not installed"; exit 1; }
done
# So did the licence, the documents, and examples that build from what is installed.
doc=$prefix/share/doc/moebius
for file in LICENSE README.md docs/api.md; do
  test -s "$doc/$file" || { echo "share/doc/moebius/$file was not installed"; exit 1; }
done
"$cxx" -std=c++20 "$doc/examples/generate.cpp" $(pkg-config --cflags --libs --static moebius) -o "$work/generate"
"$work/generate" "$prefix/share/moebius/models/moebius-tiny-w4a8" "It was a dark"
