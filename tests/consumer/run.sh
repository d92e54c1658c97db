#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs a build, moves what was installed, and uses it there as a stranger would: the tool, find_package, pkg-config, examples.
# As root the clone is out of reach meanwhile (a mount namespace); in any case nothing that was installed may name it.
#   run.sh BUILD_DIR CXX
set -eu
build=$1 cxx=$2
here=$(cd -- "$(dirname -- "$0")" && pwd -P)
root=$(cd -- "$here/../.." && pwd -P)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "$*"; exit 1; }

cmake --install "$build" --prefix "$work/first" >"$work/install.log" || { cat "$work/install.log"; exit 1; }
mv "$work/first" "$work/moved"
prefix=$work/moved
bundled=$prefix/share/moebius/models/moebius-tiny-w4a8
named=$(grep -rlF -e "$root" -e "$build" -e "$work/first" "$prefix" || true)
[ -z "$named" ] || fail "these name the clone or the prefix: $named"

# The tool, where the clone is gone.
cat >"$work/tool.sh" <<'SCRIPT'
set -eu
case $2 in gone) mount -t tmpfs none "$1"; [ ! -e "$1/models" ] ;; esac
said=$("$3" run -p "It was a dark" -n 4 --quiet </dev/null)
[ -n "$said" ]
"$3" inspect --json >/dev/null
"$3" bench sampler --vocab 1000 --batches 1 --threads 1 --seconds 0 --json >/dev/null
echo "the tool says: $said"
if command -v mpirun.openmpi >/dev/null && [ -e "$(dirname "$3")/../lib/moebius/libmoebius_comm_openmpi.so" ]; then
  ranks=$(mpirun.openmpi --oversubscribe --allow-run-as-root -n 2 "$3" run -p "It was a dark" -n 4 --quiet </dev/null)
  [ "$ranks" = "$said" ]
  echo "two ranks by the installed plugin say the same"
fi
SCRIPT
if unshare -m true 2>/dev/null; then
  unshare -m bash "$work/tool.sh" "$root" gone "$prefix/bin/moebius"
else
  bash "$work/tool.sh" "$root" there "$prefix/bin/moebius"
fi
# A staged installation, and a clone that was renamed after its build.
DESTDIR=$work/stage cmake --install "$build" --prefix /opt/m >"$work/install.log" || { cat "$work/install.log"; exit 1; }
bash "$work/tool.sh" "$root" there "$work/stage/opt/m/bin/moebius"
mkdir -p "$work/new name/build/release"
cp "$build/moebius" "$build/moebius-bench" "$build/CMakeCache.txt" "$work/new name/build/release"
ln -s "$bundled/.." "$work/new name/models"
bash "$work/tool.sh" "$root" there "$work/new name/build/release/moebius"
rm -rf "$work/stage" "$work/new name/models"
if said=$("$work/new name/build/release/moebius" inspect 2>&1); then fail "a clone without models/ has a model: $said"; fi
case $said in *"the bundled model is not in $work/new name/models"*) ;; *) fail "what is missing is not named: $said" ;; esac

echo "find_package:"
cmake -S "$here" -B "$work/cmake" -G Ninja -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_PREFIX_PATH="$prefix" >"$work/configure.log" ||
  { cat "$work/configure.log"; exit 1; }
cmake --build "$work/cmake"
"$work/cmake/consumer"
"$work/cmake/consumer_c" "$bundled"

echo "pkg-config:"
export PKG_CONFIG_PATH
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name moebius.pc)")
"$cxx" -std=c++20 "$here/main.cpp" $(pkg-config --cflags --libs moebius) -o "$work/consumer"
"$work/consumer"
cc "$here/main.c" $(pkg-config --cflags --libs moebius-c) -o "$work/consumer_c"
libraries=$(dirname "$PKG_CONFIG_PATH")
LD_LIBRARY_PATH=$libraries "$work/consumer_c" "$bundled"
# api.md names what a program needs that finds its library in this prefix by itself.
linked=$(sed -n 's/^cc app\.c //p' "$prefix/share/doc/moebius/docs/api.md")
[ -n "$linked" ] || fail "docs/api.md does not say how to link a C program in a prefix"
eval "cc '$here/main.c' $linked -o '$work/linked_c'"
"$work/linked_c" "$bundled"

# The unit starts the tool of its own tree: %Y is the unit's folder.
unit=$prefix/lib/systemd/system/moebius.service
started=$(sed -n 's/^ExecStart=\([^ ]*\) .*/\1/p' "$unit")
[ "${started/\%Y/$(dirname "$unit")}" -ef "$prefix/bin/moebius" ] || fail "$unit starts $started"
# Man page and completion came along; the build makes them.
for file in man/man1/moebius.1 bash-completion/completions/moebius zsh/site-functions/_moebius; do
  test -s "$prefix/share/$file" || fail "share/$file was not installed"
done
# So did the licence, the documents, and examples that build from what is installed.
doc=$prefix/share/doc/moebius
for file in LICENSE README.md docs/api.md; do
  test -s "$doc/$file" || fail "share/doc/moebius/$file was not installed"
done
"$cxx" -std=c++20 "$doc/examples/generate.cpp" $(pkg-config --cflags --libs --static moebius) -o "$work/generate"
"$work/generate" "$bundled" "It was a dark"

# Packages of Debian: each with its terms, and a maintainer whom mail reaches.
if command -v dpkg-deb >/dev/null && command -v dpkg-shlibdeps >/dev/null; then
  (cd "$build" && DEBFULLNAME="A Person" DEBEMAIL=person@example.org cpack -G DEB -B "$work/packages" -D "CPACK_MOEBIUS_COMPONENTS=tool;dev") \
    >"$work/cpack.log" 2>&1 || { cat "$work/cpack.log"; exit 1; }
  for name in moebius libmoebius-dev; do
    deb=$(echo "$work/packages/${name}"_*.deb)
    dpkg-deb --fsys-tarfile "$deb" | tar -tf - >"$work/files"
    grep -qx "./usr/share/doc/$name/copyright" "$work/files" || fail "$name has no copyright file"
    who=$(dpkg-deb -f "$deb" Maintainer)
    [ "$who" = "A Person <person@example.org>" ] || fail "$name is maintained by '$who'"
  done
  if grep -n '@localhost' "$build/CPackConfig.cmake"; then fail "a maintainer without an address"; fi
fi
