#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the native wheel, repairs it with auditwheel where that is installed, installs it into an empty environment and uses it:
#   bench/wheels.sh [OUTPUT]     default: build/wheels
# Other Pythons need nothing of their own (the wheel is py3-none). For wheels that older systems take, run it inside
# quay.io/pypa/manylinux_2_28 with the packages of scripts/packages.txt.
set -eu
root=$(cd -- "$(dirname -- "$0")/.." && pwd -P)
out=${1:-$root/build/wheels}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/build"
"$work/build/bin/pip" install --quiet build
rm -rf "$out"
mkdir -p "$out"
"$work/build/bin/python" -m build --wheel --outdir "$work/dist" "$root" >"$work/log" 2>&1 || { tail -n 40 "$work/log"; exit 1; }
if command -v auditwheel >/dev/null; then
  auditwheel repair "$work"/dist/*.whl -w "$out"
else
  echo "auditwheel is not installed: the wheel runs where this machine's libraries are"
  cp "$work"/dist/*.whl "$out"
fi
python3 -m venv "$work/clean"
"$work/clean/bin/pip" install --quiet --no-index "$out"/*.whl
cd "$root"
# Only the functions of moebius.h leave the library.
library=$("$work/clean/bin/python" -c 'import moebius, pathlib; print(pathlib.Path(moebius.__file__).parent / "libmoebius.so")')
others=$(nm -D --defined-only "$library" | awk '{print $NF}' | grep -v -e '^moebius_' -e '^MOEBIUS_1' || true)
[ -z "$others" ] || { echo "these leave the library too: $others"; exit 1; }
"$work/clean/bin/python" -c '
import moebius
llm = moebius.LLM("models/moebius-tiny-w4a8")
print(moebius.__version__, llm.generate("It was a dark", moebius.SamplingParams(max_tokens=8))[0].outputs[0].text)'
"$work/clean/bin/moebius" --version
ls -l "$out"
