# SPDX-License-Identifier: Apache-2.0
"""Folders as they were published: what is in them, and single layers of them."""
from __future__ import annotations

import ctypes
import json
import os
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Union

from . import _abi
from ._library import Handle, c_path, c_text, check, lib, taken, text
from .layers import Linear, Moe


@dataclass(frozen=True)
class Module:
    """One module of a folder: a matrix with its companions, or a small parameter."""

    name: str
    kind: str
    scheme: str
    rule: str
    outputs: int
    inputs: int
    bytes: int
    supported: bool
    reason: str


class Folder(Handle):
    """A compressed-tensors folder; opening reads headers and configs, nothing large."""

    def __init__(self, path: Union[str, "os.PathLike[str]"]) -> None:
        self._own(lib.moebius_folder_open(c_path(path, "path")), lib.moebius_folder_free)
        self.path = os.fspath(path)

    @property
    def architecture(self) -> str:
        """The architecture that config.json names."""
        return text(lib.moebius_folder_architecture(self._pointer))

    @property
    def warnings(self) -> List[str]:
        """What was odd and is read all the same."""
        return [text(lib.moebius_folder_warning(self._pointer, i))
                for i in range(lib.moebius_folder_warning_count(self._pointer))]

    @property
    def moe_blocks(self) -> List[str]:
        """Names of the mixture-of-experts blocks."""
        return [text(lib.moebius_folder_block_name(self._pointer, i))
                for i in range(lib.moebius_folder_block_count(self._pointer))]

    @property
    def modules(self) -> List[Module]:
        """Every module, in the order of the folder."""
        out = []
        m = _abi.moebius_module(ctypes.sizeof(_abi.moebius_module))
        for i in range(lib.moebius_folder_module_count(self._pointer)):
            check(lib.moebius_folder_module(self._pointer, i, ctypes.byref(m)))
            out.append(Module(text(m.name), text(m.kind), text(m.scheme), text(m.rule), m.outputs, m.inputs, m.bytes,
                              m.problem is None, text(m.problem)))
        return out

    def inspect(self, *, deep: bool = False) -> Dict[str, Any]:
        """What `moebius inspect --json` prints; deep reads every payload."""
        result: Dict[str, Any] = json.loads(taken(lib.moebius_folder_inspect_json(self._pointer, int(deep))))
        return result

    def explain(self, *, cpu: Optional[str] = None) -> Dict[str, Any]:
        """What `moebius explain --json` prints, for this machine or a list of CPU features."""
        name = None if cpu is None else c_text(cpu, "cpu")
        result: Dict[str, Any] = json.loads(taken(lib.moebius_folder_explain_json(self._pointer, name)))
        return result

    def linear(self, module: str, **options: Any) -> Linear:
        """One linear, packed for this CPU. Options: those of layers (docs/python.md)."""
        return Linear._load(self._pointer, module, **options)

    def moe(self, block: str, *, scope: str = "block", **options: Any) -> Moe:
        """A block with router and shared experts, or with scope="experts" its routed experts alone."""
        return Moe._load(self._pointer, block, scope, **options)
