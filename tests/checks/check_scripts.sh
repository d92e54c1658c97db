#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The shell scripts themselves:  check_scripts.sh ROOT
# Syntax of all; the package list; and ./moebius in a small stand-in tree with a stand-in tool: arguments, exit status,
# symbolic links, and that a fresh build is not touched while a changed source is noticed.
set -u
root=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bad=0
expect() { # WHAT WANTED GOT
  if [ "$2" != "$3" ]; then
    printf '%s\n  wanted: %s\n  got:    %s\n' "$1" "$2" "$3"
    bad=1
  fi
}

for script in moebius test .ci/run scripts/*.sh bench/*.sh tests/checks/*.sh tests/consumer/run.sh; do
  for file in "$root"/$script; do bash -n "$file" || bad=1; done
done
for command in moebius test .ci/run; do [ -x "$root/$command" ] || expect "$command is executable" yes no; done

# ./test refuses what it does not know before it touches anything, and has a function for every stage it names.
for arguments in --stages= --stages=nosuch --stages=release,nosuch --fast; do
  "$root/test" "$arguments" >/dev/null 2>&1
  expect "./test $arguments" 2 $?
done
stages=$("$root/test" --stages=list)
[ "$(wc -w <<<"$stages")" -ge 10 ] || expect "number of stages" "10 or more" "$(wc -w <<<"$stages")"
for stage in $stages; do grep -q "^stage_$stage() {" "$root/scripts/test_full.sh" || expect "a function for stage $stage" yes no; done

. "$root/scripts/setup.sh"
dpkg() { echo amd64; }
mkdir -p "$work/list/scripts"
printf '# note\nbuild a\ntest b optional\nfull c arch=arm64\nfull d arch=amd64\n' >"$work/list/scripts/packages.txt"
root=$work/list
expect "build group" "a required" "$(listed_packages build)"
expect "all groups" "a required b optional d required" "$(listed_packages build test full | paste -sd' ')"
unset -f dpkg
root=$1
(
  installed() { [ "$1" = old ]; }
  apt-cache() { [ "$2" = new ]; }
  [ "$(chosen_package plain) $(chosen_package 'new|old') $(chosen_package 'gone|old') $(chosen_package 'gone|lost')" = "plain new old lost" ]
) || expect "alternatives of a package" right wrong

tree="$work/a tree"
mkdir -p "$tree/build/release" "$tree/src/base" "$tree/scripts" "$work/elsewhere"
cp "$root/moebius" "$tree/"
printf 'say() { echo "$@" >&2; }\nensure_packages() { :; }\nannounce_first_build() { say announced; }\nbuild_preset() { say "asked to build $*"; return "${BUILD_STATUS:-0}"; }\n' >"$tree/scripts/setup.sh"
printf '#!/bin/sh\necho "tool:$#:$1"\nexit 7\n' >"$tree/build/release/moebius"
chmod +x "$tree/build/release/moebius"
touch "$tree/src/base/a.cpp"
ln -s "../a tree/moebius" "$work/elsewhere/link"
ln -s link "$work/elsewhere/link2"

cd "$work/elsewhere" || exit 1
out=$(./link2 "x y" z 2>"$work/err")
expect "exit status is the tool's" 7 $?
expect "first call: arguments" "tool:2:x y" "$out"
expect "first call: builds" "announced asked to build release -DMOEBIUS_TESTS=OFF -DMOEBIUS_KERNELS=native moebius_cli" \
  "$(paste -sd' ' "$work/err")"
"$tree/moebius" >/dev/null 2>"$work/err"
expect "second call: builds nothing" "" "$(cat "$work/err")"
touch -d '+1 minute' "$tree/src/base/a.cpp"
"$tree/moebius" >/dev/null 2>"$work/err"
expect "a changed source: builds" 1 "$(grep -c 'asked to build' "$work/err")"
touch -d '-1 minute' "$tree/src/base/a.cpp"
"$tree/moebius" >/dev/null 2>&1
printf '#!/bin/sh\n' >"$tree/build/release/moebius-bench"
chmod +x "$tree/build/release/moebius-bench"
for arguments in "bench --help" "run bench"; do
  "$tree/moebius" $arguments >/dev/null 2>"$work/err"
  expect "$arguments: builds nothing" "" "$(cat "$work/err")"
done
"$tree/moebius" -q bench roof >/dev/null 2>"$work/err"
expect "bench: builds its program" "moebius_cli moebius_bench" "$(sed -n 's/^asked to build.* \(moebius_cli.*\)/\1/p' "$work/err")"
"$tree/moebius" bench roof >/dev/null 2>"$work/err"
expect "bench again: builds nothing" "" "$(cat "$work/err")"
rm "$tree/build/release/moebius-bench"
"$tree/moebius" bench roof >/dev/null 2>"$work/err"
expect "bench without its program: says so, and builds" "1 1" "$(grep -c 'is built now' "$work/err") $(grep -c 'moebius_bench$' "$work/err")"
out=$(BUILD_STATUS=1 bash -c 'touch -d "+1 minute" "$0/src/base/a.cpp"; "$0/moebius"' "$tree" 2>/dev/null)
expect "a failed build: status 1" 1 $?
expect "a failed build: nothing on stdout" "" "$out"

# Kernels were left out: they are built for MOEBIUS_CPU, and where a word of this CPU is not as the build found it.
flag=$(sed -n 's/^\(flags\|Features\)[[:space:]]*: *\([^ ]*\).*/\2/p' /proc/cpuinfo | head -n 1)
touch "$tree/build/release/CMakeCache.txt"
asked() { # WORDS [VARIABLE]
  echo "$1" >"$tree/build/release/kernels_left_out"
  touch -d '+1 minute' "$tree/build/release/.built"
  env ${2:-x=} "$tree/moebius" 2>&1 >/dev/null | sed -n 's/^asked to build release *//p'
}
expect "kernels left out, the same CPU" "" "$(asked "!no_such_word ${flag:-!other}")"
expect "kernels left out, MOEBIUS_CPU" "-DMOEBIUS_KERNELS=all moebius_cli" "$(asked "!no_such_word" MOEBIUS_CPU=reference)"
expect "kernels left out, a CPU that has less" "-DMOEBIUS_KERNELS=all moebius_cli" "$(asked no_such_word)"
[ -z "$flag" ] || expect "kernels left out, a CPU that has more" "-DMOEBIUS_KERNELS=all moebius_cli" "$(asked "!$flag")"
rm "$tree/build/release/kernels_left_out"

# A build folder that came from elsewhere (the clone was renamed) is configured afresh; one of its own is only built.
mkdir -p "$work/bin" "$tree/build/x"
printf '#!/bin/sh\necho "$*" >>"%s"\n' "$work/cmake.log" >"$work/bin/cmake"
chmod +x "$work/bin/cmake"
touch "$tree/build/x/build.ninja"
for home in "$tree" "$work/old name"; do
  echo "CMAKE_HOME_DIRECTORY:INTERNAL=$home" >"$tree/build/x/CMakeCache.txt"
  : >"$work/cmake.log"
  (root=$tree PATH="$work/bin:$PATH" build_preset x "" tool) 2>/dev/null
  expect "calls of cmake, built for ${home##*/}" "$([ "$home" = "$tree" ] || echo "--fresh --preset x ")--build" \
    "$(sed 's/^--build.*/--build/' "$work/cmake.log" | paste -sd' ')"
done
[ "$bad" = 0 ] && echo "scripts in order"
exit "$bad"
