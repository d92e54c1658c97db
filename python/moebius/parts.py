# SPDX-License-Identifier: Apache-2.0
"""What layers in memory are made from: tensors as a checkpoint has them, and how they are stored."""
from __future__ import annotations

import ctypes
import json
from dataclasses import dataclass
from typing import Any, List, Mapping, Optional, Sequence, Tuple, Union

from . import _abi
from ._arrays import View, contiguous, copied, view
from ._library import U64, Handle, argument_error, c_text, lib, number, one_of, taken, text

TENSOR_TYPES = {"float32": _abi.MOEBIUS_TENSOR_F32, "bfloat16": _abi.MOEBIUS_TENSOR_BF16, "float16": _abi.MOEBIUS_TENSOR_F16,
                "int8": _abi.MOEBIUS_TENSOR_I8, "uint8": _abi.MOEBIUS_TENSOR_U8, "int32": _abi.MOEBIUS_TENSOR_I32,
                "int64": _abi.MOEBIUS_TENSOR_I64, "float8_e4m3fn": _abi.MOEBIUS_TENSOR_F8E4M3,
                "float8_e8m0fnu": _abi.MOEBIUS_TENSOR_U8, "uint32": _abi.MOEBIUS_TENSOR_U32}
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "uint8": 1, "int32": 4, "int64": 8, "float8_e4m3fn": 1,
              "float8_e8m0fnu": 1, "uint32": 4}
SPLITS = {"none": _abi.MOEBIUS_SPLIT_NONE, "outputs": _abi.MOEBIUS_SPLIT_OUTPUTS, "inputs": _abi.MOEBIUS_SPLIT_INPUTS}


@dataclass(frozen=True)
class RawTensor:
    """Bytes with their type (torch's name) and shape, where there is no array library that knows the type."""

    data: Any
    dtype: str
    shape: Sequence[int]


@dataclass(frozen=True)
class TensorNeed:
    """A tensor that a matrix has: required, or taken when there."""

    name: str
    required: bool


class Scheme(Handle):
    """How matrices are stored: one group of a quantization_config, or the whole section of another method (gptq, awq, fp8, modelopt, ...)
    for the module of that name, whose tensors then have the method's names and decide. None: dense."""

    def __init__(self, group: Union[None, str, Mapping[str, Any]] = None, *, format: Optional[str] = None,
                 version: Optional[str] = None, module: Optional[str] = None) -> None:
        if isinstance(group, str):
            try:
                group = json.loads(group)
            except ValueError as e:
                raise argument_error(f"group is no JSON: {e}", "group") from None
        if group is not None and not isinstance(group, Mapping):
            raise argument_error(f"group is a {type(group).__name__}; expected a mapping", "group")
        whole = dict(group or {})
        for name, value in (("format", format), ("version", version), ("module", module)):
            if value is not None and whole.get(name) is None:
                whole[name] = value
        try:
            written = json.dumps(whole, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as e:
            raise argument_error(f"group cannot be written as JSON: {e}", "group") from None
        self._own(lib.moebius_scheme_parse(c_text(written, "group")), lib.moebius_scheme_free)

    @property
    def family(self) -> str:
        """w4a8, fp8, nvfp4, ..."""
        return taken(lib.moebius_scheme_family(self._pointer))

    @property
    def description(self) -> str:
        """One line for people."""
        return taken(lib.moebius_scheme_describe(self._pointer))

    def problem(self, *, expert: bool = False) -> Optional[str]:
        """Why it cannot run as a linear or as a routed expert; None when it can."""
        return taken(lib.moebius_scheme_problem(self._pointer, int(expert))) or None

    @property
    def tensors(self) -> List[TensorNeed]:
        """The suffixes of a matrix's tensors."""
        out, required = [], ctypes.c_int()
        for i in range(lib.moebius_scheme_tensor_count(self._pointer)):
            name = text(lib.moebius_scheme_tensor(self._pointer, i, ctypes.byref(required)))
            out.append(TensorNeed(name, bool(required.value)))
        return out


@dataclass
class Part:
    """One matrix of a linear layer, whole; tensors by suffix (weight_packed, weight_scale, bias, ...)."""

    name: str
    scheme: Optional[Scheme]
    outputs: int
    inputs: int
    tensors: Mapping[str, Any]
    split: str = "none"
    tp: int = 0
    tp_rank: int = 0


def _raw(x: RawTensor, name: str) -> View:
    try:
        m = memoryview(x.data).cast("B")
    except (TypeError, ValueError) as e:
        raise argument_error(f"{name}: its data are no bytes that lie side by side ({e})", name) from None
    count, shape = 1, tuple(number(d, name) for d in x.shape)
    for d in shape:
        count *= d
    if m.nbytes != count * ITEM_BYTES.get(x.dtype, 0):
        raise argument_error(f"{name} has {m.nbytes} bytes; expected those of {x.dtype} {list(x.shape)}", name)
    source = (ctypes.c_char * max(1, m.nbytes)).from_buffer_copy(m.tobytes() or b"\0") if m.readonly else \
        (ctypes.c_char * 0).from_buffer(m)
    return View((x, m, source), ctypes.addressof(source), x.dtype, shape, contiguous(shape), False, lambda s: None)


def tensor_array(given: Mapping[str, Any]) -> Tuple[Any, Any]:
    """(what must live, array of structs)."""
    if not isinstance(given, Mapping):
        raise argument_error(f"tensors are a {type(given).__name__}; expected a mapping from names to arrays", "tensors")
    array, keep = (_abi.moebius_tensor * max(1, len(given)))(), []
    for i, (name, x) in enumerate(given.items()):
        raw = c_text(name, "tensors")
        v = _raw(x, name) if isinstance(x, RawTensor) else view(x, name)
        if v.strides is None:
            v = copied(x, name)
        if v.dtype not in TENSOR_TYPES:
            raise argument_error(f"{name} is {v.dtype}; expected {', '.join(TENSOR_TYPES)}", name)
        rank = len(v.shape)
        shape = (ctypes.c_uint64 * max(1, rank))(*v.shape)
        stride = (ctypes.c_int64 * max(1, rank))(*(v.strides or ()))
        keep.append((v, shape, stride, raw))
        array[i] = _abi.moebius_tensor(ctypes.sizeof(_abi.moebius_tensor), keep[-1][3], v.address, TENSOR_TYPES[v.dtype], rank,
                                       shape, stride)
    return keep, array


def scheme_pointer(scheme: Optional[Scheme]) -> Optional[int]:
    if scheme is not None and not isinstance(scheme, Scheme):
        raise argument_error(f"a scheme is a {type(scheme).__name__}; expected a Scheme or None", "scheme")
    return None if scheme is None else scheme._pointer


def part_array(parts: Sequence[Part]) -> Tuple[Any, Any]:
    """(what must live, array of structs)."""
    for p in parts:
        if not isinstance(p, Part):
            raise argument_error(f"a part is a {type(p).__name__}; expected a Part", "parts")
    array, keep = (_abi.moebius_part * max(1, len(parts)))(), []
    for i, p in enumerate(parts):
        held, tensors = tensor_array(p.tensors)
        keep.append((held, tensors, c_text(p.name, "name")))
        sizes = [number(getattr(p, name), name, *U64) for name in ("outputs", "inputs", "tp", "tp_rank")]
        array[i] = _abi.moebius_part(ctypes.sizeof(_abi.moebius_part), keep[-1][2], scheme_pointer(p.scheme), sizes[0], sizes[1],
                                     one_of(p.split, SPLITS, "split"), sizes[2], sizes[3], tensors, len(p.tensors))
    return keep, array
