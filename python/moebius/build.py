# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts from tensors in memory, expert by expert."""
from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, List, Mapping, Optional, Sequence

from . import _abi
from ._library import I32, U64, Handle, argument_error, c_text, check, lib, number, real
from .layers import LayerOptions, Moe
from .parts import Scheme, TensorNeed, scheme_pointer, tensor_array


@dataclass
class MoeSpec:
    """What a mixture of experts computes; sizes are whole, before any cut. The last line is for run_logits."""

    hidden: int
    intermediate: int
    experts: int
    slots: int
    name: str = "experts"
    activation: str = "silu"
    limit: Optional[float] = None
    alpha: float = 1.702
    beta: float = 1.0
    expert_map: Optional[Sequence[int]] = None
    gate_up_step: int = 1
    scoring: str = "softmax"
    renormalize: bool = False
    groups: int = 0
    group_slots: int = 0
    scaling: float = 1.0
    correction_bias: Optional[Sequence[float]] = None


class MoeBuilder(Handle):
    """Experts one by one, in any order and from any thread."""

    def __init__(self, spec: MoeSpec, *, gate: Optional[Scheme], up: Optional[Scheme], down: Optional[Scheme],
                 **options: Any) -> None:
        if not isinstance(spec, MoeSpec):
            raise argument_error(f"spec is a {type(spec).__name__}; expected a MoeSpec", "spec")
        self.spec = spec
        self._schemes = {"gate": gate, "up": up, "down": down}
        sizes = {name: number(getattr(spec, name), name, *U64) for name in ("hidden", "intermediate", "experts", "slots", "gate_up_step", "groups", "group_slots")}
        for name, values in (("expert_map", spec.expert_map), ("correction_bias", spec.correction_bias)):
            if values is not None and len(values) != sizes["experts"]:
                raise argument_error(f"{name} has {len(values)} values; expected {spec.experts}", name)
        expert_map = bias = None
        if spec.expert_map is not None:
            expert_map = (ctypes.c_int32 * spec.experts)(*[number(e, "expert_map", *I32) for e in spec.expert_map])
        if spec.correction_bias is not None:
            bias = (ctypes.c_float * spec.experts)(*[real(v, "correction_bias") for v in spec.correction_bias])
        floats = [real(getattr(spec, name) or 0.0, name) for name in ("limit", "alpha", "beta", "scaling")]
        made = _abi.moebius_moe_spec(ctypes.sizeof(_abi.moebius_moe_spec), c_text(spec.name, "name"), sizes["hidden"], sizes["intermediate"],
                                     sizes["experts"], sizes["slots"], c_text(spec.activation, "activation"), *floats[:3], expert_map,
                                     sizes["gate_up_step"], c_text(spec.scoring, "scoring"), int(bool(spec.renormalize)), sizes["groups"],
                                     sizes["group_slots"], floats[3], bias)
        o = LayerOptions(**options)
        self._own(o.load(lambda given: lib.moebius_moe_begin(ctypes.byref(made), scheme_pointer(gate), scheme_pointer(up), scheme_pointer(down), given),
                         lib.moebius_moe_builder_free), lib.moebius_moe_builder_free)

    @property
    def needs(self) -> List[TensorNeed]:
        """The tensors of an expert, projection by projection. gate_up.* may stand for gate.* and up.*."""
        dense = [TensorNeed("weight", True), TensorNeed("bias", False)]
        return [TensorNeed(f"{name}.{n.name}", n.required) for name, scheme in self._schemes.items()
                for n in (dense if scheme is None else scheme.tensors)]

    def set_expert(self, id: int, tensors: Mapping[str, Any]) -> None:
        """Packs one expert (a number of the whole layer); the tensors may go afterwards."""
        keep, array = tensor_array(tensors)
        check(lib.moebius_moe_set_expert(self._pointer, number(id, "id", *U64), array, len(tensors)))
        del keep

    def finish(self) -> Moe:
        """The layer; an Error names what is missing."""
        return Moe._of(lib.moebius_moe_finish(self._pointer), self.spec.name)
