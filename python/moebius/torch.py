# SPDX-License-Identifier: Apache-2.0
"""Layers as torch operators and modules: moebius::linear, moebius::moe, moebius::moe_logits.

On CUDA tensors they queue their work on the current stream, for layers that were loaded with device="cuda"; a CUDA graph may capture
them.

Operators know a layer by a number in an int64 tensor: such a tensor is an input of a compiled graph, so no cached graph holds
a stale handle. They have fakes (torch.compile(fullgraph=True) works) and no autograd.
"""
from __future__ import annotations

import ctypes
import itertools
import struct
import threading
from typing import Any, Dict, Optional, Union

import torch

from . import _abi
from ._library import Error, last_error, lib
from .layers import Linear, Moe

__all__ = ["LinearModule", "MoeModule", "layer_tensor", "release"]

_TYPES = {torch.float32: _abi.MOEBIUS_F32, torch.bfloat16: _abi.MOEBIUS_BF16, torch.float16: _abi.MOEBIUS_F16}
# An operator is called for every layer and token, so its cost is counted in microseconds: structs are packed as bytes, and
# functions are declared once more with plain addresses.
_MATRIX = struct.Struct("@NPiNNN")  # moebius_input and moebius_output: size, data, type, rows, cols, stride
_BYTES = ctypes.sizeof(_abi.moebius_input)
assert _MATRIX.size == _BYTES == ctypes.sizeof(_abi.moebius_output)
_plain = ctypes.CDLL(lib._name)
for _name, _count in (("moebius_linear_run", 3), ("moebius_moe_run_ids", 6), ("moebius_moe_run_logits", 6),
                      ("moebius_linear_launch", 4), ("moebius_moe_launch_ids", 7), ("moebius_moe_launch_logits", 7)):
    getattr(_plain, _name).argtypes = [ctypes.c_void_p] * _count
_launch_linear, _launch_ids, _launch_logits = _plain.moebius_linear_launch, _plain.moebius_moe_launch_ids, _plain.moebius_moe_launch_logits
_run_linear, _run_ids, _run_logits = _plain.moebius_linear_run, _plain.moebius_moe_run_ids, _plain.moebius_moe_run_logits
_layers: Dict[int, Union[Linear, Moe]] = {}
# The same by where the tensor of the number lies: asking torch for a number costs more than the rest of the lookup. The tensors
# are kept, so that no other one comes to lie there.
_by_address: Dict[int, Union[Linear, Moe]] = {}
_tensors: Dict[int, torch.Tensor] = {}
_numbers = itertools.count(1)
_mutex = threading.Lock()


def layer_tensor(layer: Union[Linear, Moe]) -> torch.Tensor:
    """The number of a layer, as operators take it; the layer lives until release()."""
    with _mutex:
        number = next(_numbers)
        tensor = torch.tensor([number], dtype=torch.int64, device="cpu")
        _layers[number], _tensors[number], _by_address[tensor.data_ptr()] = layer, tensor, layer
    return tensor


def release(tensor: torch.Tensor) -> None:
    """Lets go of a layer; its number is never used again."""
    with _mutex:
        number = int(tensor[0])
        _layers.pop(number, None)
        kept = _tensors.pop(number, None)
        if kept is not None:
            _by_address.pop(kept.data_ptr(), None)


def _layer(tensor: torch.Tensor, kind: Any) -> Any:
    found = _by_address.get(tensor.data_ptr())
    if isinstance(found, kind):
        return found
    if tensor.numel() != 1 or tensor.dtype != torch.int64:
        raise Error(f"layer is {tensor.dtype} {list(tensor.shape)}; expected a tensor of layer_tensor()", kind="argument", field="layer")
    number = tensor.item()
    found = _layers.get(int(number))
    if not isinstance(found, kind):
        what = "was released or is of another process" if found is None else f"is a {type(found).__name__}"
        raise Error(f"layer {number} {what}; expected one of this process", kind="state", field="layer")
    return found


def _rows(x: torch.Tensor, name: str, cols: int) -> torch.Tensor:
    """x as rows whose elements lie side by side."""
    shape = x.shape
    if not shape or shape[-1] != cols:
        raise Error(f"{name} has shape {list(shape)}; expected [..., {cols}]", kind="argument", field=name)
    if x.dtype not in _TYPES:
        raise Error(f"{name} is {x.dtype}; expected float32, bfloat16 or float16", kind="argument", field=name)
    if len(shape) == 2 and x.is_contiguous():
        return x
    if len(shape) != 2:
        x = x.reshape(-1, cols)
    if (cols == 1 or x.stride(1) == 1) and (len(x) <= 1 or x.stride(0) >= cols):
        return x
    return x.contiguous()  # also rows that lie in one place: a stride of 0 is none


def _narrow(ids: torch.Tensor) -> torch.Tensor:
    """Expert ids as int32 side by side; one that does not fit is no expert."""
    if ids.dtype != torch.int32:
        if ids.dtype.is_floating_point or ids.dtype.is_complex or ids.dtype == torch.bool:
            raise Error(f"ids are {ids.dtype}; expected int32", kind="argument", field="ids")
        ids = ids.clamp(-(2**31), 2**31 - 1) if ids.dtype == torch.int64 else ids
    return ids.to(torch.int32).contiguous()


def _input(x: torch.Tensor, rows: int, cols: int) -> bytes:
    return _MATRIX.pack(_BYTES, x.data_ptr(), _TYPES[x.dtype], rows, cols, x.stride(0) if rows > 1 else cols)


def _output(y: torch.Tensor, rows: int, cols: int) -> bytes:
    return _MATRIX.pack(_BYTES, y.data_ptr(), _TYPES[y.dtype], rows, cols, cols)


def _stream(x: torch.Tensor) -> int:
    return int(torch.cuda.current_stream(x.device).cuda_stream)


def _linear(x: torch.Tensor, layer: torch.Tensor, outputs: int) -> torch.Tensor:
    held = _layer(layer, Linear)
    if outputs != held._outputs:
        raise Error(f"outputs is {outputs}; expected {held._outputs}", kind="argument", field="outputs")
    rows = _rows(x, "x", held._inputs)
    count = len(rows)
    y = x.new_empty((count, outputs) if rows is x else (*x.shape[:-1], outputs))
    call = (held._handle, _input(rows, count, held._inputs), _output(y, count, outputs))
    if _launch_linear(*call, _stream(x)) if x.is_cuda else _run_linear(*call):
        raise last_error()
    return y


def _moe(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, layer: torch.Tensor) -> torch.Tensor:
    held = _layer(layer, Moe)
    hidden = held._hidden
    rows = _rows(x, "x", hidden)
    count, shape = len(rows), ids.shape
    if shape != weights.shape or len(shape) != 2 or shape[0] != count:
        raise Error(f"ids {list(shape)} and weights {list(weights.shape)}; expected [{count}, k] each", kind="argument", field="ids")
    if ids.dtype != torch.int32 or not ids.is_contiguous():
        ids = _narrow(ids)
    if weights.dtype != torch.float32 or not weights.is_contiguous():
        weights = weights.to(torch.float32).contiguous()
    if ids.device != x.device or weights.device != x.device:
        raise Error(f"x is on {x.device}, ids on {ids.device} and weights on {weights.device}; expected one device", kind="argument", field="ids")
    y = x.new_empty((count, hidden) if rows is x else x.shape)
    call = (held._handle, _input(rows, count, hidden), ids.data_ptr(), weights.data_ptr(), shape[1], _output(y, count, hidden))
    if _launch_ids(*call, _stream(x)) if x.is_cuda else _run_ids(*call):
        raise last_error()
    return y


def _moe_logits(x: torch.Tensor, logits: torch.Tensor, layer: torch.Tensor) -> torch.Tensor:
    held = _layer(layer, Moe)
    hidden, experts = held._hidden, held._experts
    rows, scores = _rows(x, "x", hidden), _rows(logits, "logits", experts)
    count = len(rows)
    if len(scores) != count:
        raise Error(f"logits have {len(scores)} rows; expected {count}", kind="argument", field="logits")
    if logits.device != x.device:
        raise Error(f"x is on {x.device} and logits on {logits.device}; expected one device", kind="argument", field="logits")
    y = x.new_empty((count, hidden) if rows is x else x.shape)
    call = (held._handle, _input(rows, count, hidden), _input(scores, count, experts), _output(y, count, hidden), None, None)
    if _launch_logits(*call, _stream(x)) if x.is_cuda else _run_logits(*call):
        raise last_error()
    return y


def _like(x: torch.Tensor, *_: Any) -> torch.Tensor:
    return x.new_empty(x.shape)


_library = torch.library.Library("moebius", "DEF")


def _register() -> None:
    fakes = {
        "linear(Tensor x, Tensor layer, int outputs) -> Tensor":
            (_linear, lambda x, layer, outputs: x.new_empty((*x.shape[:-1], outputs))),
        "moe(Tensor x, Tensor ids, Tensor weights, Tensor layer) -> Tensor": (_moe, _like),
        "moe_logits(Tensor x, Tensor logits, Tensor layer) -> Tensor": (_moe_logits, _like),
    }
    for schema, (run, fake) in fakes.items():
        name = schema[:schema.index("(")]
        _library.define(schema, tags=(torch.Tag.needs_fixed_stride_order,))
        for device in ("CPU", "CUDA"):
            _library.impl(name, run, device)
        torch.library.register_fake(f"moebius::{name}", fake, lib=_library)


_register()


class _LayerModule(torch.nn.Module):
    """A module around a layer; copies share the layer."""

    layer_number: torch.Tensor

    def __init__(self, layer: Union[Linear, Moe]) -> None:
        super().__init__()
        self.register_buffer("layer_number", layer_tensor(layer), persistent=False)

    @property
    def layer(self) -> Any:
        """The layer itself."""
        return _layer(self.layer_number, (Linear, Moe))

    def _apply(self, fn: Any, recurse: bool = True) -> "_LayerModule":
        return self  # weights lie where the layer was loaded; its number stays on the CPU

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(f"a {type(self).__name__} cannot be pickled: its weights are packed for this machine; build it again")

    def __deepcopy__(self, memo: Dict[int, Any]) -> "_LayerModule":
        copy = type(self).__new__(type(self))
        torch.nn.Module.__init__(copy)
        copy.__dict__.update({k: v for k, v in self.__dict__.items() if not k.startswith("_")})
        copy.register_buffer("layer_number", self.layer_number, persistent=False)
        return copy


class LinearModule(_LayerModule):
    """y = x w^T + bias."""

    def __init__(self, layer: Linear) -> None:
        super().__init__(layer)
        self.in_features, self.out_features = layer.inputs, layer.outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.moebius.linear(x, self.layer_number, self.out_features)
        return result

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"


class MoeModule(_LayerModule):
    """A mixture of experts on the caller's choice: ids and weights, or router logits."""

    def __init__(self, layer: Moe) -> None:
        super().__init__(layer)
        self.hidden_size = layer.hidden

    def forward(self, x: torch.Tensor, router_logits: Optional[torch.Tensor] = None, *, ids: Optional[torch.Tensor] = None,
                weights: Optional[torch.Tensor] = None) -> torch.Tensor:
        if router_logits is not None:
            result: torch.Tensor = torch.ops.moebius.moe_logits(x, router_logits, self.layer_number)
        elif ids is not None and weights is not None:
            result = torch.ops.moebius.moe(x, ids, weights, self.layer_number)
        else:
            raise Error("give router_logits, or ids and weights", kind="argument", field="router_logits")
        return result

    def extra_repr(self) -> str:
        return f"hidden_size={self.hidden_size}"
