#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests that run where there is no compiler and none of our libraries:  scripts/make_test_bundle.sh FILE.tar.xz [PRESET]
#
# Packs the test program and the tool of a built preset (default release; cross-x86_64 from another machine), the libraries they need
# down to the loader, the test data and the bundled model. On the other machine:
#
#   tar xf FILE.tar.xz && moebius-tests/run                  kernel tier, row functions, layers, golden folders, whole models
#   moebius-tests/run --gtest_filter='*EveryKernel*'         some tests
#   moebius-tests/tool bench roof                            the tool itself
#
# The last line is "N passed, N failed"; the exit status is 0 only when nothing failed.
set -euo pipefail
root=$(cd -- "$(dirname -- "$(readlink -f -- "$0")")/.." && pwd -P)
file=${1:?usage: make_test_bundle.sh FILE.tar.xz [PRESET]}
build=$root/build/${2:-release}
[ -x "$build/moebius_tests" ] || { echo "$build/moebius_tests is not built" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bundle=$work/moebius-tests
mkdir -p "$bundle/lib" "$bundle/tests"
cp "$build/moebius_tests" "$build/moebius" "$build/moebius-bench" "$bundle/"
strip=strip
case $(basename "$build") in cross-*) triplet=$(basename "$build" | sed 's/cross-//')-linux-gnu strip=$triplet-strip ;; *) triplet=$(gcc -dumpmachine) ;; esac
"$strip" "$bundle/moebius_tests" "$bundle/moebius" "$bundle/moebius-bench"

# needs PROGRAM: the sonames it was linked with
needs() { objdump -p "$1" 2>/dev/null | sed -n 's/^ *NEEDED *//p'; }
# find_library NAME: in the sysroot of a cross build, the cross compiler's folders, then this machine's
find_library() {
  local folder
  for folder in "$root"/build/sysroot-*/usr/lib/"$triplet" "$root"/build/sysroot-*/lib/"$triplet" /usr/"$triplet"/lib /lib/"$triplet" /usr/lib/"$triplet" /lib64; do
    if [ -e "$folder/$1" ] && objdump -f "$folder/$1" 2>/dev/null | grep -q "$(objdump -f "$bundle/moebius" | sed -n 's/^architecture: \([^,]*\),.*/\1/p')"; then
      readlink -f "$folder/$1"
      return
    fi
  done
  echo "no library $1 for $triplet" >&2
  return 1
}
queue=$(needs "$bundle/moebius_tests"; needs "$bundle/moebius")
loader=$(basename "$(readelf -l "$bundle/moebius" | sed -n 's/.*interpreter: \(.*\)]/\1/p')")
queue="$queue $loader"
while [ -n "${queue// /}" ]; do
  next=""
  for name in $queue; do
    [ ! -e "$bundle/lib/$name" ] || continue
    cp "$(find_library "$name")" "$bundle/lib/$name"
    next="$next $(needs "$bundle/lib/$name" | tr '\n' ' ')"
  done
  queue=$next
done

python3 -B "$root/tests/data.py" unpack
mkdir -p "$bundle/build/data"
cp -r "$root"/build/data/golden{,-mtp,-embed,-vllm} "$root/build/data/negative" "$bundle/build/data/"
cp -r "$root/models" "$root/docs" "$root/README.md" "$bundle/"
git -C "$root" rev-parse HEAD >"$bundle/commit" 2>/dev/null || echo unknown >"$bundle/commit"
cat >"$bundle/tool" <<TOOL
#!/bin/sh
here=\$(cd "\$(dirname "\$0")" && pwd)
program=moebius # which would look for its second program beside the loader
if [ "\${1-}" = bench ]; then program=moebius-bench; shift; fi
exec "\$here/lib/$loader" --library-path "\$here/lib" "\$here/\$program" "\$@"
TOOL
cat >"$bundle/run" <<RUN
#!/bin/sh
# The tests of this bundle: what does not need the source tree, compilers or other programs.
here=\$(cd "\$(dirname "\$0")" && pwd)
export MOEBIUS_TEST_ROOT="\$here" MOEBIUS_TEST_TOOL="\$here/tool" MOEBIUS_TEST_EMULATOR=""
echo "built from \$(cat "\$here/commit")"
[ \$# -gt 0 ] || set -- --gtest_filter='*EveryKernel*:Kernel*:LongK*:RowFunctions*:*EveryTable*:Moe*:Linear*:Attention*:Greedy*:GoldenLogits*:GoldenApply*:VllmGolden*:PreparedRows*:Norm*:Rope*:TensorParallel*:ExpertParallel*:Runtime*:Oracle*'
log=\$(mktemp)
"\$here/lib/$loader" --library-path "\$here/lib" "\$here/moebius_tests" --gtest_brief=1 "\$@" >"\$log" 2>&1
status=\$?
grep -v -e '^needs ' -e ': Skipped\$' "\$log" | tail -n 200
passed=\$(sed -n 's/^\[  PASSED  \] \([0-9]*\) tests*\.\$/\1/p' "\$log")
failed=\$(sed -n 's/^\[  FAILED  \] \([0-9]*\) tests*, listed below:\$/\1/p' "\$log")
rm -f "\$log"
[ "\$status" = 0 ] || [ -n "\$failed" ] || failed=1
echo "\${passed:-0} passed, \${failed:-0} failed"
[ "\$status" = 0 ] && [ "\${passed:-0}" -gt 0 ]
RUN
chmod +x "$bundle/run" "$bundle/tool"
tar -C "$work" -cf - moebius-tests | xz -T0 -3 >"$file"
ls -l "$file" >&2
