# SPDX-License-Identifier: Apache-2.0
# Sourced by ./test: its stages, in the order of a full run. Each can be run alone (./test --stages=NAME); those that only need the
# optimised build make it. Uses built, one, beside, wait_beside, run_ctest, skip, fail and say of ./test.
all_stages="release whole cuda narrow clang fuzz asan tsan tidy ranks malloc mpi stops python page cpus cross packages hostile documents"

# The optimised build, every test of it, and the narrow tier (ctest's narrow.CLASS).
stage_release() {
  touch "$root/build/.test_began"
  built release || return
  run_ctest release release
  if [ -x "$root/build/release/moebius" ] && [ "$failed" = 0 ]; then
    cp -p "$root/build/.test_began" "$root/build/release/.built.bench" # ./moebius need not build again
    mv -f "$root/build/.test_began" "$root/build/release/.built"
  fi
}

# Stages on the optimised build: quick where it is there already.
have_release() { build_preset release "-DMOEBIUS_TESTS=ON" "$@" || { fail "release: build"; return 1; }; }

# What tests take a part of elsewhere (test::full_run): every allocation, every folder in every view, the largest shapes of the slow kernels.
stage_whole() {
  have_release || return
  MOEBIUS_FULL=1 run_ctest "whole matrices" release -R '^(cli.views|kernels.kernel|unit.allocation_failure|unit.packed_store|unit.tokenizer)$'
}

# The CUDA plugin, where nvcc is: cmake/nvcc.cmake refuses kernels whose tensor-core instructions wait for each other. On a GPU its kernels
# are judged too (tests/gpu/run.sh has more parts). ./test runs it when its sources are not those of the last green run.
has_nvcc() { command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; }
cuda_sources() { (cd "$root" && find plugins/cuda src/device/cuda src/quant cmake/cuda.cmake cmake/nvcc.cmake cmake/wgmma.cmake -type f | sort | xargs cat | sha256sum); }
stage_cuda() {
  local sources before=$failed
  has_nvcc || { skip "CUDA plugin: nvcc is not installed"; return; }
  sources=$(cuda_sources)
  built release moebius_cuda || return
  one "CUDA plugin: it shows moebius_device alone" [ "$(nm -D --defined-only "$root/build/release/libmoebius_cuda.so" | awk '{print $3}')" = moebius_device ]
  if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then
    one "CUDA plugin: judged on this GPU" "$root/tests/gpu/run.sh" "$root/build/gpu/report" linear experts faults rows
  else
    skip "CUDA plugin: no GPU judges its kernels here"
  fi
  [ "$failed" != "$before" ] || echo "$sources" >"$root/build/.cuda_green"
}

# Every test on every smaller class of CPU that this machine can play.
stage_narrow() {
  local name features any=0
  have_release || return
  while read -r name features; do
    any=1
    MOEBIUS_CPU=$features MOEBIUS_TEST_CLASS=$name run_ctest "narrowed to $name" release -L 'unit|kernels|golden|cli|mpi' -LE narrow </dev/null
  done < <("$root/build/release/moebius_tests" --list-classes)
  [ "$any" = 1 ] || skip "narrowed: this CPU is of the smallest class"
}

# Folders that a stranger may have made, through inspect, explain and run.
stage_hostile() {
  have_release moebius_cli || return
  one "1,200 hostile folders" "$root/tests/checks/check_hostile.py" "$root/build/release/moebius" --cases 1200
  one "hostile GGUF files" "$root/tests/checks/check_hostile_gguf.py" "$root/build/release/moebius"
}

# Label "once": answers that do not depend on the build. "narrow": tests that run anyway. Kernels under sanitizers are not instrumented
# (cmake/kernel_flags.cmake), and clang has judged all their shapes: few are enough there. Each stage builds the tests that it runs
# (MOEBIUS_TEST_LABEL in CMakePresets.json).
stage_clang() { # the build without bundles: every file by itself; tests whose numbers a compiler could change
  built clang moebius_tests moebius_cli && run_ctest clang clang -L 'unit|kernels|golden' -LE 'once|narrow'
}
# On the library of stage fuzz, whose sanitizers are these two (preset dev: the same by g++, for people). tests/unit/model/load_memory_test.cpp
# measures the memory of the process and is left out; the other thinning is in test_util.h. The corpora are run by stage fuzz.
stage_asan() {
  built fuzz moebius_tests examples || return
  MOEBIUS_TEST_SHAPES=few run_ctest "asan and ubsan" fuzz -LE 'once|narrow|repeated'
  one "1,000 starts and stops of the server" env MOEBIUS_FULL=1 "$root/build/fuzz/moebius_tests" --gtest_filter=ServeFaults.StartsAndStops --gtest_brief=1
}
stage_tsan() {
  built tsan moebius_tests examples && run_ctest tsan tsan -L threaded
}

# clang-tidy with the short list of .clang-tidy, over our own sources as the fuzz preset compiles them: several files in a unit.
run_tidy() {
  local units
  units=$(sed -n 's/^ *"file": "\(.*\)",*$/\1/p' "$root/build/fuzz/compile_commands.json" | grep -E "^$root/(src|build/fuzz/bundles)/" | grep -v /bundles/tests_ | sort -u)
  [ "$(grep -c bundles <<<"$units")" -ge 10 ] || { echo "no units in build/fuzz/compile_commands.json"; return 1; }
  xargs -d '\n' -n 2 -P "$(job_count)" clang-tidy --quiet -p "$root/build/fuzz" 2>/dev/null <<<"$units"
}
stage_tidy() {
  built fuzz moebius_commit && one clang-tidy run_tidy
}

# libFuzzer: every target survives a short run that starts from its corpus.
fuzz_seconds=15
fuzz_one() {
  local target=$1 work status
  work=$(mktemp -d)
  "$root/build/fuzz/$target" -max_total_time=$fuzz_seconds -timeout=10 -rss_limit_mb=2048 -artifact_prefix="$root/build/fuzz/" \
    "$work" "$root/build/data/fuzz/corpus/${target#fuzz_}"
  status=$?
  rm -rf "$work"
  return "$status"
}
stage_fuzz() {
  local target targets
  targets=$(cd "$root/tests/fuzz" && for target in fuzz_*.cpp; do echo "${target%.cpp}"; done)
  # shellcheck disable=SC2086 # words
  built fuzz $targets || return
  for target in $targets; do beside "$target, $fuzz_seconds s" fuzz_one "$target"; done
  wait_beside
}

# Every golden folder on 2, 3, 4 and 8 ranks in every form gives the bytes of one process.
stage_ranks() {
  have_release || return
  one "every folder on ranks" env MOEBIUS_FULL=1 "$root/build/release/moebius_tests" --gtest_filter='Ranks.EveryFolder*' --gtest_brief=1
  one "20 kills of quantize, and a full disk at every write" env MOEBIUS_FULL=1 "$root/build/release/moebius_tests" \
    --gtest_filter='Quantize.Killed*:Quantize.AFullDisk*' --gtest_brief=1
}

# A malloc that fails at random: in the server, the tool and the Python package.
stage_malloc() {
  have_release && one "500 seeds of a malloc that fails" "$root/tests/checks/check_malloc.py" "$root/build/release" --seeds 500
}

# Ranks as processes: kills and stops at random moments, networks that are slow, late and lossy, a server's answers on four ranks. No result
# depends on how busy the machine is: limits of time are wide here (bench/rank_faults.py alone demands 5 s).
stage_mpi() {
  local mpi
  have_release || return
  for mpi in openmpi mpich; do
    if ! command -v "mpirun.$mpi" >/dev/null || [ ! -e "$root/build/release/libmoebius_comm_$mpi.so" ]; then
      skip "ranks by $mpi: it is not installed"
      continue
    fi
    one "every folder on ranks by $mpi, 64 tokens in every form" env MOEBIUS_FULL=1 "$root/tests/checks/check_mpi.py" "$mpi" "$root/build/release" text goldens
    one "100 kills and 20 stops of ranks by $mpi" "$root/bench/rank_faults.py" "$mpi" --within 60
    if [ "$(id -u)" = 0 ] && command -v ip >/dev/null; then
      one "ranks by $mpi in network namespaces" "$root/bench/rank_network.py" "$mpi" bytes
    else
      skip "ranks by $mpi in network namespaces: needs root and iproute2"
    fi
  done
  if command -v mpirun.openmpi >/dev/null && [ -e "$root/build/release/libmoebius_comm_openmpi.so" ]; then
    one "mixed requests and clients that leave, on four ranks" env MOEBIUS_THREADS=1 "$root/bench/serve_acceptance.py" "$root/build/release/moebius" bytes leave \
      --launch "mpirun.openmpi --oversubscribe --allow-run-as-root -n 4" --ranks "--pp 2 --tp 2 --rank-timeout 600"
  fi
}

# Ranks that stop, exit or sleep in every phase of run and serve.
stage_stops() {
  local mpi
  have_release || return
  for mpi in openmpi mpich; do
    if command -v "mpirun.$mpi" >/dev/null && [ -e "$root/build/release/libmoebius_comm_$mpi.so" ]; then
      one "stopped, exiting and sleeping ranks by $mpi" "$root/bench/rank_stops.py" "$mpi" --within 60
    else
      skip "stopped, exiting and sleeping ranks by $mpi: it is not installed"
    fi
  done
}

# The Python package: its types, every golden folder, with torch and vLLM where their environment was made, and installed from a wheel
# into an empty environment (needs the package index).
with_torch() {
  local part
  for part in layers build bad_calls package; do
    env PYTHONPATH="$root/python" PYTHONDONTWRITEBYTECODE=1 MOEBIUS_LIBRARY="$root/build/release/libmoebius.so" MOEBIUS_FULL=1 \
      MOEBIUS_TOOL="$root/build/release/moebius" MOEBIUS_CC=cc "$root/build/peer/bin/python" -B "$root/tests/python_api/test_$part.py" || return 1
  done
}
stage_python() {
  local work
  have_release || return
  if command -v mypy >/dev/null; then
    one "mypy --strict" mypy --strict --config-file "$root/pyproject.toml" "$root/python/moebius"
  else
    skip "mypy --strict: mypy is not installed"
  fi
  MOEBIUS_FULL=1 run_ctest "Python package, every folder" release -L python_api
  if [ -e "$root/build/peer/vllm" ]; then
    one "the Python package with torch" with_torch
    one "vllm serve on our layers" "$root/bench/vllm_plugin.py" --serve
    one "vLLM on our layers, scheme by scheme" "$root/bench/vllm_plugin.py" --only-plugin
  else
    skip "vLLM on our layers: bench/peer_env.sh build/peer was not run"
  fi
  work=$(mktemp -d)
  if python3 -m venv --help >/dev/null 2>&1 && python3 -m pip download --quiet --no-deps --dest "$work" build >/dev/null 2>&1; then
    one "a wheel in an empty environment" "$root/bench/wheels.sh"
  else
    skip "a wheel in an empty environment: no venv, or no package index in reach"
  fi
  rm -rf "$work"
}

# The server's page in a real browser.
stage_page() {
  have_release moebius_cli || return
  if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then
    one "the page in Chromium" "$root/tests/browser/page_test.py" "$root/build/release/moebius"
  else
    skip "the page in Chromium: chromium and chromium-driver are not installed"
  fi
}

case $(uname -m) in
  aarch64) here=aarch64 there=x86_64 there_debian=amd64 ;;
  x86_64) here=x86_64 there=aarch64 there_debian=arm64 ;;
  *) here="" there="" ;;
esac
# no dotprod; dotprod without i8mm and bf16; the same, and one stream of memory instead of two
cpus_aarch64="cortex-a53 cortex-a76 neoverse-n1"
cpus_x86_64="Nehalem Haswell"        # SSE4.2 only; AVX2

# under_qemu ARCH CPU: the kernel tests of this machine's own build on an emulated smaller CPU, which ends what it cannot execute
under_qemu() {
  MOEBIUS_TEST_SHAPES=few "qemu-$1-static" -cpu "$2" "$root/build/release/moebius_tests" --only-tier=kernels --gtest_brief=1
}
# CPUs of this architecture under the emulator: those smaller than its best, and kernels that this one lacks.
stage_cpus() {
  local cpus=cpus_$here cpu
  [ -n "$here" ] || { skip "emulated CPUs: no list for $(uname -m)"; return; }
  have_release || return
  one "kernels that this CPU lacks, all shapes" "$root/tests/checks/check_emulated.sh" "$root/build/release/moebius_tests" all
  for cpu in ${!cpus}; do beside "$here tests on an emulated $cpu" under_qemu "$here" "$cpu"; done
  wait_beside
  one "$here: verify and explain on emulated CPUs" "$root/tests/checks/check_cpus.sh" "$here" "$root/build/release/moebius" \
    "$root/build/data/golden"
}

# The other architecture under the emulator: the list of tests that narrowed CPUs get, on its largest CPU; kernels on smaller ones.
there_list() {
  MOEBIUS_TEST_SHAPES=few "qemu-$there-static" -cpu "$1" -L "/usr/$there-linux-gnu" -E "LD_LIBRARY_PATH=$there_libraries" \
    "$root/build/cross-$there/moebius_tests" "$2" --gtest_brief=1
}
stage_cross() {
  local cpus=cpus_$there cpu
  [ -n "$here" ] || { skip "the other architecture: no cross-compiler is known for $(uname -m)"; return; }
  "$root/scripts/make_sysroot.sh" "$there_debian" || { fail "cross-$there: packages for $there_debian"; return; }
  there_libraries="$root/build/sysroot-$there_debian/usr/lib/$there-linux-gnu:$root/build/sysroot-$there_debian/lib/$there-linux-gnu"
  built "cross-$there" moebius_tests moebius_cli || return
  beside "$there: the list of smaller CPUs, on the emulator's largest" there_list max "--only-list=$root/tests/narrow_tests.txt"
  for cpu in ${!cpus}; do beside "$there tests on an emulated $cpu" there_list "$cpu" --only-tier=kernels; done
  wait_beside
  one "$there: verify and explain on emulated CPUs" "$root/tests/checks/check_cpus.sh" "$there" "$root/build/cross-$there/moebius" \
    "$root/build/data/golden" -L "/usr/$there-linux-gnu" -E "LD_LIBRARY_PATH=$there_libraries"
}

# Packages in bare systems that debootstrap makes: Debian 12, Ubuntu 24.04, the steps of the Containerfile (which compile once more).
stage_packages() {
  local part log status
  have_release moebius_cli moebius_bench moebius_lib moebius_shared moebius_shell_files || return
  log=$(mktemp)
  for part in debian ubuntu container; do
    say "packages: $part"
    "$root/bench/packages.py" "$part" 2>&1 | tee "$log"
    status=${PIPESTATUS[0]}
    if [ "$status" = 77 ]; then
      skip "packages, $part: $(sed -n 's/^skipped: //p' "$log")"
    else
      one "packages, $part" [ "$status" = 0 ]
    fi
  done
  rm -f "$log"
}

# What README, the documents and the help tell people to type, in a throw-away copy of this system.
stage_documents() {
  local page status
  have_release || return
  "$root/tests/checks/run_documents.py" README.md && status=0 || status=$?
  if [ "$status" = 77 ]; then
    skip "documents: no throw-away copy of this system can be made (needs root and overlayfs)"
    return
  fi
  one "README.md, as it is typed" [ "$status" = 0 ]
  for page in docs/install.md docs/python.md docs/api.md help; do
    one "$page, as it is typed" "$root/tests/checks/run_documents.py" "$page"
  done
}
