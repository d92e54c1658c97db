#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# On a machine with a GPU, nvcc and g++:  tests/gpu/run.sh OUT [linear] [experts] [replays] [faults] [rows] [attention] [limits] [like] [sanitize] [bench] [explore] [bounds] [golden] [models] [sizes] [speed] [streams] [serve] [lost] [ranks] [tool]
#
# Builds the CUDA plugin and its judge under build/gpu, runs what is asked for (the default: linear experts bench golden tool) and writes
# OUT/gpu.txt.  linear, experts: the kernels against quant/reference.  replays: 10^5 of a graph.  faults: without memory.  sanitize: a few shapes
# under compute-sanitizer, where that is.  rows: usual lists of row operations, bytes and times.  attention: forms of attention, bytes and times.  limits: forms and
# whole models with the shared memory of smaller devices (101,376 and 166,912 bytes of a block: RTX cards, A100), golden folders with the first.
# like: with the shared memory, multiprocessors and launches of an RTX 3090, layers and golden folders, and once by translation of PTX.
# bench: whole layers; mma: by the kernels for every card; explore: in every
# launch form; bounds: most of them by kernels that leave out the expansion of codes, the products, the weights, the rows, the ends, ...
# golden: tests/gpu/golden_blocks.py and faces.py, models: whole models (tests/gpu/models.py), sizes: layers of real sizes (tests/gpu/sizes.py),
# speed: `bench model` and `bench engine` of 2 and 6 random layers in the sizes of Qwen3-30B-A3B (tests/gpu/random_model.py), streams: the same
# layers with experts of the CPU that prompts stream through the GPU: bytes (tests/gpu/streams.py), forecast and times, serve: bench/serve_acceptance.py
# with all on the device and with experts on the CPU, lost: a server whose GPU is lost (tests/gpu/lost_device.py), ranks: ranks that share the GPU and spread experts (tests/gpu/ranks.py), tool: `moebius bench` on the device; all build the tool, with the libraries of
# build/gpu_bundle (scripts/make_gpu_bundle.sh) where the machine lacks them.  77: no device.
set -u
root=$(cd -- "$(dirname -- "$(readlink -f -- "$0")")/../.." && pwd -P)
out=${1:?"usage: run.sh OUT [linear] [experts] [replays] [faults] [rows] [attention] [limits] [like] [sanitize] [bench] [mma] [explore] [bounds] [golden] [models] [sizes] [speed] [streams] [serve] [lost] [ranks] [tool]"}
shift
[ $# -gt 0 ] || set -- linear experts replays faults bench golden tool
mkdir -p "$out" "$root/build/gpu" || exit 1
out=$(cd -- "$out" && pwd -P)
cd -- "$root" || exit 1
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
report=$out/gpu.txt
{
  echo "machine: $(nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,power.limit --format=csv,noheader 2>&1 | head -1)"
  echo "compilers: $("$nvcc" --version | grep release | sed 's/.*release //'), $(c++ --version | head -1)"
  echo "commit: $(cat build/gpu_bundle/commit.txt 2>/dev/null || git rev-parse --short HEAD 2>/dev/null || echo unknown)"
} | tee "$report"

# --- build ---
start=$SECONDS
targets="moebius_cuda gpu_judge"
case " $* " in *" attention "* | *" limits "*) targets="$targets attention" ;; esac
case " $* " in *" lost "*) targets="$targets lose_device" ;; esac
case " $* " in *" bounds "*) targets="$targets variants" ;; esac
# shellcheck disable=SC2086 # words
if ! cmake -S tests/gpu -B build/gpu -G Ninja -DCMAKE_BUILD_TYPE=Release "-DMOEBIUS_NVCC=$nvcc" >build/gpu/build.log 2>&1 ||
  ! cmake --build build/gpu --target $targets -j "$(nproc)" >>build/gpu/build.log 2>&1; then
  grep -v "ptxas info" build/gpu/build.log | tail -60 | tee -a "$report"
  exit 1
fi
echo "built in $((SECONDS - start)) s; largest spill: $(cat build/gpu/cuda/*.log | grep -o '[0-9]* bytes spill stores' | sort -n | tail -1)" | tee -a "$report"

# Each part is a process: one that fails or hangs takes no other with it, and is judged again kind by kind.
status=0
for part in linear experts replays faults rows bench; do
  case " $* " in *" $part "*) ;; *) continue ;; esac
  words=$part
  case "$part $* " in "bench "*" explore "*) words="bench explore" ;; esac
  # shellcheck disable=SC2086 # words
  timeout 240 build/gpu/gpu_judge build/gpu/libmoebius_cuda.so $words >build/gpu/part.txt 2>&1
  code=$?
  tee -a "$report" <build/gpu/part.txt
  [ $code = 0 ] || status=$code
  if [ $code -gt 1 ] || grep -q "^FAILED" build/gpu/part.txt; then
    echo "$part ended with status $code: kind by kind" | tee -a "$report"
    case $part in
      linear | experts)
        build/gpu/gpu_judge - kinds | xargs -P 6 -I KIND sh -c "timeout 60 build/gpu/gpu_judge build/gpu/libmoebius_cuda.so $part only=KIND 2>&1 |
          grep -E 'FAILED|WRONG|judge:' | head -8 | sed 's/^/KIND: /'" | tee -a "$report"
        ;;
    esac
  fi
done
echo "judged after $((SECONDS - start)) s, status $status" | tee -a "$report"

case " $* " in
  *" mma "*)
    timeout 240 build/gpu/gpu_judge build/gpu/libmoebius_cuda.so bench bounds mma 2>&1 | tee -a "$report"
    [ "${PIPESTATUS[0]}" = 0 ] || status=1
    ;;
esac
case " $* " in
  *" like "*)
    for words in linear experts "bench bounds mma" "translated small only=w4a8_g128 linear experts"; do
      jit=0
      case $words in translated*) jit=1 ;; esac
      echo "like an RTX 3090: $words" | tee -a "$report"
      # shellcheck disable=SC2086 # words
      MOEBIUS_CUDA_LIKE=rtx3090 CUDA_FORCE_PTX_JIT=$jit timeout 240 build/gpu/gpu_judge build/gpu/libmoebius_cuda.so $words 2>&1 |
        grep -E "WRONG|FAILED|judge:|T=" | tee -a "$report"
      [ "${PIPESTATUS[0]}" = 0 ] || status=1
    done
    echo "like another card after $((SECONDS - start)) s" | tee -a "$report"
    ;;
esac

limits="101376 166912"
case " $* " in
  *" limits "*)
    for limit in $limits; do
      echo "attention with $limit bytes of shared memory" | tee -a "$report"
      MOEBIUS_CUDA_SHARED_LIMIT=$limit timeout 120 build/gpu/bench_attention small 2>&1 | tee -a "$report"
      [ "${PIPESTATUS[0]}" = 0 ] || status=1
    done
    ;;
esac
case " $* " in
  *" attention "*)
    timeout 120 build/gpu/bench_attention 2>&1 | tee -a "$report"
    [ "${PIPESTATUS[0]}" = 0 ] || status=1
    echo "attention after $((SECONDS - start)) s" | tee -a "$report"
    ;;
esac

case " $* " in
  *" sanitize "*)
    sanitizer=$(command -v compute-sanitizer || ls "$(dirname -- "$(readlink -f -- "$nvcc")")"/compute-sanitizer 2>/dev/null)
    if [ -n "$sanitizer" ]; then
      for check in memcheck racecheck; do
        timeout 120 "$sanitizer" --tool $check --error-exitcode 9 build/gpu/gpu_judge build/gpu/libmoebius_cuda.so linear experts rows small >build/gpu/$check.log 2>&1
        code=$?
        [ $code = 0 ] || [ $code = 124 ] || status=1
        echo "compute-sanitizer $check: status $code (124: out of time); $(tail -1 build/gpu/$check.log)" | tee -a "$report"
        grep -m 12 -E "=========|WRONG" build/gpu/$check.log | head -12 | tee -a "$report"
      done
    else
      echo "compute-sanitizer: skipped, not on this machine" | tee -a "$report"
    fi
    ;;
esac

# --- the tool itself ---
case " $* " in *" golden "* | *" models "* | *" limits "* | *" like "* | *" sizes "* | *" speed "* | *" streams "* | *" serve "* | *" lost "* | *" ranks "* | *" tool "*) wants_tool=1 ;; *) wants_tool= ;; esac
if [ -n "$wants_tool" ]; then
  python3 -B tests/data.py unpack
  prefix=$root/build/gpu/prefix
  mkdir -p "$prefix"
  [ ! -e build/gpu_bundle/libraries.tar.xz ] || tar -xJf build/gpu_bundle/libraries.tar.xz -C "$prefix"
  export LD_LIBRARY_PATH=$prefix/usr/lib/x86_64-linux-gnu:$prefix/lib/x86_64-linux-gnu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  tool=$root/build/gpu/tool/moebius
  mpi=OFF
  if command -v mpirun >/dev/null; then mpi=ON; fi
  if cmake -S . -B build/gpu/tool -G Ninja -DCMAKE_BUILD_TYPE=Release -DMOEBIUS_TESTS=OFF -DMOEBIUS_MPI=$mpi -DMOEBIUS_CUDA=off \
    "-DCMAKE_PREFIX_PATH=$prefix/usr" "-DCMAKE_EXE_LINKER_FLAGS=-Wl,-rpath-link,$prefix/usr/lib/x86_64-linux-gnu:$prefix/lib/x86_64-linux-gnu" \
    >build/gpu/tool.log 2>&1 && cmake --build build/gpu/tool --target moebius_cli moebius_bench moebius_shared -j "$(nproc)" >>build/gpu/tool.log 2>&1; then
    cp build/gpu/libmoebius_cuda.so build/gpu/tool/
    echo "tool built after $((SECONDS - start)) s" | tee -a "$report"
  else
    grep -E "error|Error|not found" build/gpu/tool.log | head -20 | tee -a "$report"
    tail -5 build/gpu/tool.log | tee -a "$report"
    status=1
    wants_tool=
  fi
fi
case " $* " in
  *" golden "*)
    if [ -n "$wants_tool" ]; then
      python3 -B tests/gpu/golden_blocks.py "$tool" build/data/golden "$(nproc)" 2>&1 | tee -a "$report"
      [ "${PIPESTATUS[0]}" = 0 ] || status=1
      echo "golden folders after $((SECONDS - start)) s" | tee -a "$report"
      MOEBIUS_CUDA_MODULE=$root/build/gpu/libmoebius_cuda.so MOEBIUS_LIBRARY=$root/build/gpu/tool/libmoebius.so PYTHONPATH=$root/python \
        python3 -B tests/gpu/faces.py build/data/golden 2>&1 | tee -a "$report"
      [ "${PIPESTATUS[0]}" = 0 ] || status=1
      echo "faces after $((SECONDS - start)) s" | tee -a "$report"
    fi
    ;;
esac
case " $* " in
  *" like "*)
    if [ -n "$wants_tool" ]; then
      echo "golden folders like an RTX 3090" | tee -a "$report"
      for part in golden_blocks models; do
        MOEBIUS_CUDA_LIKE=rtx3090 timeout 360 python3 -B tests/gpu/$part.py "$tool" build/data/golden "$(nproc)" 2>&1 | tee -a "$report"
        [ "${PIPESTATUS[0]}" = 0 ] || status=1
      done
      echo "like another card, golden, after $((SECONDS - start)) s" | tee -a "$report"
    fi
    ;;
esac
case " $* " in
  *" limits "*)
    if [ -n "$wants_tool" ]; then
      # Heads of 128, a prompt of few tokens and one of many, and rows for long tiles: the same bytes on each device.
      [ -d build/gpu/model-2 ] || python3 -B tests/gpu/random_model.py build/gpu/model-2 2 || status=1
      for count in 5 1500; do
        tokens=$(seq -s , 1 $count)
        for limit in 232448 $limits; do
          MOEBIUS_CUDA_SHARED_LIMIT=$limit timeout 120 "$tool" logits build/gpu/model-2 --tokens "$tokens" --out build/gpu/logits-$limit.safetensors --device cuda >build/gpu/logits.log 2>&1 ||
            tail -3 build/gpu/logits.log | tee -a "$report"
          words=WRONG
          if cmp build/gpu/logits-232448.safetensors build/gpu/logits-$limit.safetensors; then words="equal bytes"; else status=1; fi
          echo "logits of $count tokens, heads of 128, $limit bytes of shared memory: $words" | tee -a "$report"
        done
        rm -f build/gpu/logits-*.safetensors
      done
      echo "golden folders with 101376 bytes of shared memory" | tee -a "$report"
      for part in golden_blocks models; do
        MOEBIUS_CUDA_SHARED_LIMIT=101376 timeout 360 python3 -B tests/gpu/$part.py "$tool" build/data/golden "$(nproc)" 2>&1 | tee -a "$report"
        [ "${PIPESTATUS[0]}" = 0 ] || status=1
      done
      echo "limits after $((SECONDS - start)) s" | tee -a "$report"
    fi
    ;;
esac
case " $* " in
  *" sizes "*)
    if [ -n "$wants_tool" ]; then
      python3 -B tests/gpu/random_model.py build/gpu/model-sizes 2 4096 || status=1
      timeout 150 python3 -B tests/gpu/sizes.py "$tool" build/gpu/model-sizes 2>&1 | tee -a "$report"
      [ "${PIPESTATUS[0]}" = 0 ] || status=1
      echo "sizes after $((SECONDS - start)) s" | tee -a "$report"
    fi
    ;;
esac
case " $* " in
  *" speed "*)
    if [ -n "$wants_tool" ]; then
      for layers in 2 6; do
        python3 -B tests/gpu/random_model.py "build/gpu/model-$layers" $layers || status=1
        # What is forecast, beside what is measured below.
        echo "moebius explain build/gpu/model-$layers --device cuda" | tee -a "$report"
        timeout 60 "$tool" explain "build/gpu/model-$layers" --device cuda 2>&1 | grep -A 12 "tokens/s of sequences" | tee -a "$report"
        for device in "cuda --prompts 512,4096 --depths 32,4096" "cuda --experts cpu --prompts 512 --depths 32" "cpu --prompts 512 --depths 32"; do
          case $layers$device in 2cpu*) continue ;; esac
          words="bench model build/gpu/model-$layers --batches 1,8,32 --steps 32 --seconds 0.5 --device $device"
          echo "moebius $words" | tee -a "$report"
          # shellcheck disable=SC2086 # words
          timeout 60 "$tool" $words 2>&1 | grep -v "^loading" | tee -a "$report"
          [ "${PIPESTATUS[0]}" = 0 ] || status=1
        done
      done
      # Half of the experts on the device: layer by layer, by load, and the same again by what was counted.
      half=$("$tool" explain build/gpu/model-6 --device cuda --json | python3 -c 'import json, sys
f = {x["options"]: x["bytes"] for x in json.load(sys.stdin)["forecast"]}
print((f["--device cuda"] + f["--device cuda --experts cpu"]) / 2**31)')
      for loads in "" "--expert-loads build/gpu/loads.json" "--expert-loads build/gpu/loads.json"; do
        words="explain build/gpu/model-6 --device cuda --gpu-memory $half $loads"
        echo "moebius $words" | tee -a "$report"
        # shellcheck disable=SC2086 # words
        timeout 60 "$tool" $words 2>&1 | grep -A 12 "tokens/s of sequences" | tee -a "$report"
        words="bench model build/gpu/model-6 --batches 1,8,32 --steps 128 --seconds 2 --prompts 512 --depths 32 --device cuda --experts auto --gpu-memory $half $loads"
        echo "moebius $words" | tee -a "$report"
        # shellcheck disable=SC2086 # words
        timeout 60 "$tool" $words 2>&1 | grep -v "^loading" | tee -a "$report"
        [ "${PIPESTATUS[0]}" = 0 ] || status=1
      done
      # Two batches in flight where the experts are on the CPU.
      for device in "cuda" "cuda --experts cpu" "cpu"; do
        words="bench engine build/gpu/model-6 --requests 32 --rate 1000 --prompt-tokens 32 --new-tokens 64 --parallel 16 --device $device"
        echo "moebius $words" | tee -a "$report"
        # shellcheck disable=SC2086 # words
        timeout 60 "$tool" $words 2>&1 | grep -v "^loading" | tee -a "$report"
        [ "${PIPESTATUS[0]}" = 0 ] || status=1
      done
      echo "speed after $((SECONDS - start)) s" | tee -a "$report"
    fi
    ;;
esac
case " $* " in
  *" streams "*)
    if [ -n "$wants_tool" ]; then
      [ -d build/gpu/model-6 ] || python3 -B tests/gpu/random_model.py build/gpu/model-6 6 || status=1
      timeout 200 python3 -B tests/gpu/streams.py "$tool" build/gpu/model-6 2>&1 | tee -a "$report"
      [ "${PIPESTATUS[0]}" = 0 ] || status=1
      # What is forecast, then prompts and steps with experts on the CPU: never streamed, streamed when that is faster, always.
      echo "moebius explain build/gpu/model-6 --device cuda" | tee -a "$report"
      timeout 60 "$tool" explain build/gpu/model-6 --device cuda 2>&1 | grep -A 16 "tokens/s of sequences" | tee -a "$report"
      for when in off auto 1; do
        words="bench model build/gpu/model-6 --batches 1,8,32 --steps 32 --seconds 1 --prompts 128,256,512,1024,4096 --depths 32 --device cuda --experts cpu --stream-experts $when"
        echo "moebius $words" | tee -a "$report"
        # shellcheck disable=SC2086 # words
        timeout 90 "$tool" $words 2>&1 | grep -v "^loading" | tee -a "$report"
        [ "${PIPESTATUS[0]}" = 0 ] || status=1
      done
      # Two batches of prompts in flight.
      for when in off auto; do
        words="bench engine build/gpu/model-6 --requests 16 --rate 1000 --prompt-tokens 2048 --new-tokens 16 --parallel 16 --device cuda --experts cpu --stream-experts $when"
        echo "moebius $words" | tee -a "$report"
        # shellcheck disable=SC2086 # words
        timeout 60 "$tool" $words 2>&1 | grep -v "^loading" | tee -a "$report"
        [ "${PIPESTATUS[0]}" = 0 ] || status=1
      done
      echo "streams after $((SECONDS - start)) s" | tee -a "$report"
    fi
    ;;
esac
case " $* " in
  *" models "*)
    if [ -n "$wants_tool" ]; then
      timeout 300 python3 -B tests/gpu/models.py "$tool" build/data/golden "$(nproc)" 2>&1 | tee -a "$report"
      [ "${PIPESTATUS[0]}" = 0 ] || status=1
      echo "models after $((SECONDS - start)) s" | tee -a "$report"
    fi
    ;;
esac
case " $* " in
  *" serve "*)
    if [ -n "$wants_tool" ]; then
      for words in "--device cuda" "--device cuda --experts cpu"; do
        # A tool whose server has these words: the script starts servers of its own.
        # shellcheck disable=SC2016 # for the other shell
        printf '#!/bin/sh\nc=$1\nshift\n[ "$c" != serve ] || set -- "$@" %s\nexec "%s" "$c" "$@"\n' "$words" "$tool" >build/gpu/with_device
        chmod +x build/gpu/with_device
        echo "serve $words" | tee -a "$report"
        requests=500
        case $words in *experts*) requests=150 ;; esac
        timeout 240 python3 -B bench/serve_acceptance.py "$root/build/gpu/with_device" bytes drain --requests $requests 2>&1 | tee -a "$report"
        [ "${PIPESTATUS[0]}" = 0 ] || status=1
      done
    fi
    ;;
esac
case " $* " in
  *" lost "*)
    if [ -n "$wants_tool" ]; then
      timeout 240 python3 -B tests/gpu/lost_device.py "$tool" "$root/build/gpu/liblose_device.so" 2>&1 | tee -a "$report"
      [ "${PIPESTATUS[0]}" = 0 ] || status=1
      echo "lost device after $((SECONDS - start)) s" | tee -a "$report"
    fi
    ;;
esac
case " $* " in
  *" ranks "*)
    if [ -n "$wants_tool" ]; then
      python3 -B tests/gpu/random_model.py build/gpu/model-sizes 2 4096 || status=1
      timeout 300 python3 -B tests/gpu/ranks.py "$tool" build/data/golden build/gpu/model-sizes 2>&1 | tee -a "$report"
      [ "${PIPESTATUS[0]}" = 0 ] || status=1
      # What two ranks that share a GPU and hand rows over by the host cost, beside one process.
      for ranks in "" "--ep 2"; do
        words="bench model build/gpu/model-sizes --batches 1,8,32 --steps 32 --seconds 0.5 --prompts 512 --depths 32 --device cuda $ranks"
        echo "moebius $words" | tee -a "$report"
        # shellcheck disable=SC2086 # words
        timeout 60 "$tool" $words 2>&1 | grep -v "^loading" | tee -a "$report"
        [ "${PIPESTATUS[0]}" = 0 ] || status=1
      done
      echo "ranks after $((SECONDS - start)) s" | tee -a "$report"
    fi
    ;;
esac
case " $* " in
  *" tool "*)
    if [ -n "$wants_tool" ]; then
      for arguments in "bench roof" "bench moe --scheme w4a8,fp8,w4a16,nvfp4a16,w8a8,bf16 --group 128 --tokens 1,64,1024" \
        "bench linear --scheme w4a8,fp8,w4a16,nvfp4a16,w8a8,bf16 --n 4096 --k 4096 --tokens 1,64,1024"; do
        echo "moebius $arguments --device cuda" | tee -a "$report"
        # shellcheck disable=SC2086 # words
        "$tool" $arguments --device cuda 2>&1 | grep -v "^making" | tee -a "$report"
        [ "${PIPESTATUS[0]}" = 0 ] || status=1
      done
    fi
    ;;
esac
# --- what bounds kernels: the same with parts left out (left_out.h) ---
case " $* " in
  *" bounds "*)
    for left in 0 1 2 4 8 15 16 32 288 416 480; do
      library=build/gpu/libmoebius_cuda.so
      [ $left = 0 ] || library=build/gpu/without-$left.so
      case $left in 0) words=nothing ;; 1) words="the expansion of codes" ;; 2) words=products ;; 4) words=weights ;; 8) words=rows ;; 15) words="all four" ;;
        16) words="ends of products" ;; 32) words="all of products" ;; 288) words="products and sums" ;; 416) words="products, sums and rows of h" ;;
        *) words="everything but launches" ;;
      esac
      echo "left out: $words" | tee -a "$report"
      few=
      [ $left -lt 32 ] || few=few
      # shellcheck disable=SC2086 # words
      timeout 60 build/gpu/gpu_judge $library bench bounds $few 2>&1 | grep "T=" | tee -a "$report"
    done
    echo "bounds after $((SECONDS - start)) s" | tee -a "$report"
    ;;
esac

echo "$((SECONDS - start)) s, status $status" | tee -a "$report"
nvidia-smi --query-gpu=clocks.sm,clocks.mem,temperature.gpu,power.draw --format=csv,noheader 2>&1 | tee -a "$report"
exit "$status"
