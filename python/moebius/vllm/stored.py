# SPDX-License-Identifier: Apache-2.0
"""What a folder of another method than compressed-tensors stores, module by module: vLLM makes layers before their tensors come."""
from __future__ import annotations

import json
import os
import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Dict, FrozenSet, List, Mapping, Optional, Sequence

from .. import Folder, Scheme
from .._library import Error

# What quant_method may say, beside compressed-tensors and GPT-OSS's mxfp4, which have configurations of their own.
METHODS = ("fp8", "modelopt", "modelopt_fp4", "modelopt_fp8", "modelopt_mixed", "modelopt_mxfp8", "gptq", "gptq_v2", "awq", "auto-round",
           "auto_round", "intel/auto-round", "quark", "fbgemm_fp8")
PACKED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


@dataclass(frozen=True)
class Matrix:
    """One module: how it is stored (None: dense) and the suffixes of its tensors."""

    name: str
    scheme: Optional[Scheme]
    suffixes: FrozenSet[str]

    @property
    def awaited(self) -> FrozenSet[str]:
        """The suffixes without which it is not packed."""
        return self.suffixes - {"bias"}


def _tensor_names(path: str) -> List[str]:
    """Of all safetensors files that count."""
    index = os.path.join(path, "model.safetensors.index.json")
    if os.path.isfile(index):
        with open(index, encoding="utf-8") as f:
            return list(json.load(f)["weight_map"])
    with open(os.path.join(path, "model.safetensors"), "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        return [name for name in json.loads(f.read(size)) if name != "__metadata__"]


class StoredFolder:
    """A folder on this machine, as Moebius reads it. Throws Error where it cannot be read."""

    def __init__(self, path: str, section: Mapping[str, Any]) -> None:
        if os.path.isfile(path) or not any(name.endswith(".safetensors") for name in os.listdir(path)):
            raise Error(f"{path}: the plugin runs folders of safetensors files; vLLM has a reader of its own for GGUF, and moebius.LLM runs it",
                        kind="unsupported")
        self.section = dict(section)
        self.modules = {m.name: m for m in Folder(path).modules}
        self.suffixes: Dict[str, List[str]] = {}
        for name in _tensor_names(path):
            module, _, suffix = name.rpartition(".")
            self.suffixes.setdefault(module, []).append(suffix)

    def matrix(self, name: str, expert: bool = False) -> Matrix:
        """Throws Error naming the module that is not there or cannot run."""
        module, suffixes = self.modules.get(name), self.suffixes.get(name)
        if module is None or suffixes is None:
            raise Error(f"{name}: the folder has no module of that name", kind="unsupported", module=name)
        if not module.supported:
            raise Error(f"{name}: {module.reason}", kind="unsupported", module=name)
        if module.scheme == "dense":
            return Matrix(name, None, frozenset(suffixes))
        scheme = Scheme(self.section, module=name)
        problem = scheme.problem(expert=expert)
        if problem:
            raise Error(f"{name}: {problem}", kind="unsupported", module=name)
        return Matrix(name, scheme, frozenset(suffixes))

    def parts(self, prefix: str, packed: Mapping[str, Sequence[str]]) -> List[Matrix]:
        """The matrices that vLLM holds as one layer: qkv_proj is q_proj, k_proj and v_proj. Its models do not list all of them."""
        parent, _, last = prefix.rpartition(".")
        own = (last,) if prefix in self.suffixes else PACKED.get(last, (last,))
        parts: Sequence[str] = packed.get(last, ()) or own
        return [self.matrix(f"{parent}.{part}" if parent else part) for part in parts]

    def expert(self, prefix: str, number: int, names: Sequence[str]) -> List[Matrix]:
        """The matrices of one expert, by the folder's names of gate, up and down."""
        if prefix in self.suffixes:
            raise Error(f"{prefix}: tensors of all its experts are stored in stacks", kind="unsupported", module=prefix)
        return [self.matrix(f"{prefix}.{number}.{name}", expert=True) for name in names]


@lru_cache(maxsize=4)
def opened(path: str, section: str) -> StoredFolder:
    """One per process: configurations are pickled, folders are not. section: JSON."""
    return StoredFolder(path, json.loads(section))
