# SPDX-License-Identifier: Apache-2.0
# Sourced by ./test --full: the stages beyond the quick run. Uses stage, one, run_ctest, pass, fail, say.

# Nothing is left out under sanitizers and emulators but tests/unit/load_memory_test.cpp, which measures the memory of the process.
# Two things are thinned there: unit.tokenizer goes through a tenth of its lines, and only the first run of each command in a test looks
# for leaks (tests/unit/test_util.h says why). Label "once": answers that do not depend on the build.
# Both run the C and C++ examples too (label examples), with the search for leaks in the first.
stage dev -LE once
stage tsan -LE once
stage clang -LE once

# Every golden folder on 2, 3 and 4 ranks in every form gives the bytes of one process.
one "every folder on ranks" env MOEBIUS_FULL=1 "$root/build/release/moebius_tests" --gtest_filter='Ranks.EveryFolder*' --gtest_brief=1

# Ranks as processes: kills and stops at random moments, networks that are slow, late and lossy, a server's answers on four ranks.
for mpi in openmpi mpich; do
  if ! command -v "mpirun.$mpi" >/dev/null || [ ! -e "$root/build/release/libmoebius_comm_$mpi.so" ]; then
    skipped="$skipped
ranks by $mpi: it is not installed"
    continue
  fi
  one "every folder on ranks by $mpi, 64 tokens in every form" env MOEBIUS_FULL=1 "$root/tests/checks/check_mpi.py" "$mpi" "$root/build/release" text goldens
  one "100 kills and 20 stops of ranks by $mpi" "$root/bench/rank_faults.py" "$mpi"
  if [ "$(id -u)" = 0 ] && command -v ip >/dev/null; then
    one "ranks by $mpi in network namespaces" "$root/bench/rank_network.py" "$mpi" bytes
  else
    skipped="$skipped
ranks by $mpi in network namespaces: needs root and iproute2"
  fi
done
if command -v mpirun.openmpi >/dev/null && [ -e "$root/build/release/libmoebius_comm_openmpi.so" ]; then
  one "mixed requests and clients that leave, on four ranks" env MOEBIUS_THREADS=1 "$root/bench/serve_acceptance.py" "$root/build/release/moebius" bytes leave \
    --launch "mpirun.openmpi --oversubscribe --allow-run-as-root -n 4" --ranks "--pp 2 --tp 2"
fi

# libFuzzer: every target builds and survives a short run that starts from its corpus.
fuzz_one() {
  local target=$1 name=${1#fuzz_} work
  work=$(mktemp -d)
  "$root/build/fuzz/$target" -max_total_time=20 -timeout=10 -rss_limit_mb=2048 -artifact_prefix="$root/build/fuzz/" \
    "$work" "$root/tests/fuzz/corpus/$name" >"$root/build/fuzz/$target.log" 2>&1
  local status=$?
  rm -rf "$work"
  [ "$status" = 0 ] || tail -n 30 "$root/build/fuzz/$target.log" >&2
  return "$status"
}
if build_preset fuzz "-DMOEBIUS_TESTS=ON"; then
  for source in "$root"/tests/fuzz/fuzz_*.cpp; do
    [ -e "$source" ] || continue
    target=$(basename "$source" .cpp)
    one "fuzz 20 s: $target" fuzz_one "$target"
  done
else
  fail "fuzz: build"
fi

# The Python package: its types, and installed from a wheel into an empty environment (needs the package index).
if command -v mypy >/dev/null; then
  one "mypy --strict" mypy --strict --config-file "$root/pyproject.toml" "$root/python/moebius"
else
  skipped="$skipped
mypy --strict: mypy is not installed"
fi
# Every golden folder, and as many open, run and close as were promised.
MOEBIUS_FULL=1 run_ctest release -L python_api
# The same with torch, numpy and vLLM, where their environment was made.
with_torch() {
  local part
  for part in layers build bad_calls package; do
    env PYTHONPATH="$root/python" PYTHONDONTWRITEBYTECODE=1 MOEBIUS_LIBRARY="$root/build/release/libmoebius.so" MOEBIUS_FULL=1 \
      MOEBIUS_TOOL="$root/build/release/moebius" MOEBIUS_CC=cc "$root/build/peer/bin/python" -B "$root/tests/python_api/test_$part.py" || return 1
  done
}
if [ -e "$root/build/peer/vllm" ]; then
  one "the Python package with torch" with_torch
  one "vllm serve on our layers" "$root/bench/vllm_plugin.py" --serve
  one "vLLM on our layers, scheme by scheme" "$root/bench/vllm_plugin.py" --only-plugin
else
  skipped="$skipped
vLLM on our layers: bench/peer_env.sh build/peer was not run"
fi
if python3 -m venv --help >/dev/null 2>&1 && python3 -m pip download --quiet --no-deps --dest "$(mktemp -d)" build >/dev/null 2>&1; then
  one "a wheel in an empty environment" "$root/bench/wheels.sh"
else
  skipped="$skipped
a wheel in an empty environment: no venv, or no package index in reach"
fi

# The server's page in a real browser.
if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then
  one "the page in Chromium" "$root/tests/browser/page_test.py" "$root/build/release/moebius"
else
  skipped="$skipped
the page in Chromium: chromium and chromium-driver are not installed"
fi

# The other architecture, and CPUs smaller than the emulator's best.
case $(uname -m) in
  aarch64) here=aarch64 there=x86_64 there_debian=amd64 ;;
  x86_64) here=x86_64 there=aarch64 there_debian=arm64 ;;
  *) here="" ;;
esac
# no dotprod; dotprod without i8mm and bf16; the same, and one stream of memory instead of two
cpus_aarch64="cortex-a53 cortex-a76 neoverse-n1"
cpus_x86_64="Nehalem Haswell"        # SSE4.2 only; AVX2

# under_qemu ARCH CPU: the kernel and runtime tests of this machine's own build on an emulated smaller CPU
under_qemu() {
  "qemu-$1-static" -cpu "$2" "$root/build/release/moebius_tests" --only-tier=kernels --gtest_brief=1
}
if [ -n "$here" ]; then
  one "kernels that this CPU lacks, all shapes" "$root/tests/checks/check_emulated.sh" "$root/build/release/moebius_tests" all
  cpus=cpus_$here
  for cpu in ${!cpus}; do one "$here tests on an emulated $cpu" under_qemu "$here" "$cpu"; done
  one "$here: verify and explain on emulated CPUs" "$root/tests/checks/check_cpus.sh" "$here" "$root/build/release/moebius" \
    "$root/tests/golden"
  if "$root/scripts/make_sysroot.sh" "$there_debian"; then
    QEMU_CPU=max stage "cross-$there" -L 'unit|kernels|golden|cli|fuzz'
    cpus=cpus_$there
    for cpu in ${!cpus}; do
      say "$there tests on an emulated $cpu"
      QEMU_CPU=$cpu run_ctest "cross-$there" -L kernels
    done
    one "$there: verify and explain on emulated CPUs" "$root/tests/checks/check_cpus.sh" "$there" "$root/build/cross-$there/moebius" \
      "$root/tests/golden" -L "/usr/$there-linux-gnu" \
      -E "LD_LIBRARY_PATH=$root/build/sysroot-$there_debian/usr/lib/$there-linux-gnu"
  else
    fail "cross-$there: packages for $there_debian"
  fi
fi

# clang-tidy with the short list of .clang-tidy, over our own sources.
tidy() {
  (cd "$root" && find src -name '*.cpp' -print0 |
    xargs -0 -n 4 -P "$(job_count)" clang-tidy --quiet -p build/clang 2>/dev/null)
}
one clang-tidy tidy
