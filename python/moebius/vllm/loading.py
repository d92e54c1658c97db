# SPDX-License-Identifier: Apache-2.0
"""What both kinds of layers share: empty parameters that vLLM loads into, and the log."""
from __future__ import annotations

import logging
from typing import Any, Callable, Dict, Iterable, List, Set

import torch

from .. import Scheme
from ..layers import Linear, Moe
from ..torch import layer_tensor

log = logging.getLogger("vllm.moebius")
DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
# Tensors that say nothing new where they are not required: a matrix is packed without waiting for them.
SILENT = {"weight_shape", "weight_zero_point", "input_zero_point", "output_zero_point", "input_scale", "output_scale", "bias"}


def awaited(scheme: Scheme) -> Set[str]:
    """The suffixes without which a matrix is not packed."""
    return {n.name for n in scheme.tensors if n.required or n.name not in SILENT}


def suffixes(schemes: Iterable[Scheme]) -> List[str]:
    """Of all tensors that a file may hold, bias aside."""
    return sorted({n.name for s in schemes for n in s.tensors if n.name != "bias"})


def register_empty(layer: torch.nn.Module, names: Iterable[str], loader: Callable[..., Any]) -> None:
    """Parameters without elements: what vLLM loads goes to `loader`."""
    for name in names:
        parameter = torch.nn.Parameter(torch.empty(0), requires_grad=False)
        parameter.weight_loader = loader  # type: ignore[attr-defined]
        layer.register_parameter(name, parameter)


def take_over(layer: torch.nn.Module, made: "Linear | Moe", names: Iterable[str]) -> None:
    """The packed layer in place of the empty parameters; `weight` stays, as vLLM asks some layers for it."""
    for name in names:
        if name != "weight" and hasattr(layer, name):
            delattr(layer, name)
    layer.register_buffer("moebius_layer", layer_tensor(made), persistent=False)


class Tally:
    """One line in the log per scheme when the last layer is packed."""

    def __init__(self) -> None:
        self.open = 0
        self.done: Dict[str, List[Any]] = {}

    def begin(self) -> None:
        self.open += 1

    def end(self, what: str, made: "Linear | Moe") -> None:
        entry = self.done.setdefault(f"{what} ({made.kernel})", [0, 0])
        entry[0] += 1
        entry[1] += made.packed_bytes
        self.open -= 1
        if self.open == 0:
            for text, (layers, size) in self.done.items():
                log.info("moebius: %d layers of %s, %.1f MB packed", layers, text, size / 1e6)
            self.done.clear()


tally = Tally()
