# SPDX-License-Identifier: Apache-2.0
"""The experts of a folder's first block from tensors that this program reads itself:  experts_from_memory.py FOLDER"""
import json
import struct
import sys
from pathlib import Path

import moebius

TYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "I8": "int8", "U8": "uint8", "I32": "int32", "I64": "int64", "F8_E4M3": "float8_e4m3fn"}


def tensors_of(folder):
    """Name and tensor of everything in a folder's safetensors files."""
    for file in sorted(Path(folder).glob("*.safetensors")):
        data = file.read_bytes()
        start = 8 + struct.unpack("<Q", data[:8])[0]
        for name, t in json.loads(data[8:start]).items():
            if name != "__metadata__":
                begin, end = t["data_offsets"]
                yield name, moebius.RawTensor(data[start + begin:start + end], TYPES[t["dtype"]], t["shape"])


folder = moebius.Folder(sys.argv[1])
block = folder.moe_blocks[0]
whole = folder.moe(block, scope="experts")
config = json.loads((Path(sys.argv[1]) / "config.json").read_text())["quantization_config"]
scheme = moebius.Scheme(next(iter(config["config_groups"].values())), format=config.get("format"), version=config.get("version"))
up = next(m for m in folder.modules if m.name == f"{block}.experts.0.up_proj")
builder = moebius.MoeBuilder(moebius.MoeSpec(up.inputs, up.outputs, whole.experts, whole.slots), gate=scheme, up=scheme, down=scheme)
experts = {}
for name, tensor in tensors_of(sys.argv[1]):
    if name.startswith(f"{block}.experts."):
        number, _, rest = name[len(f"{block}.experts."):].partition(".")
        experts.setdefault(int(number), {})[rest.replace("_proj.", ".")] = tensor
for number, tensors in experts.items():
    builder.set_expert(number, tensors)
built = builder.finish()
print(f"{block}: {built.experts} experts of {scheme.family}, {built.packed_bytes} bytes by {built.kernel}; the folder's own has {whole.packed_bytes}")
