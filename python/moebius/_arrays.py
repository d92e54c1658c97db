# SPDX-License-Identifier: Apache-2.0
"""Arrays of others as rows of memory, without a copy: torch, __array_interface__ (numpy), DLPack, the buffer protocol; on a GPU
torch and __cuda_array_interface__."""
from __future__ import annotations

import ctypes
import sys
from typing import Any, Callable, Dict, Optional, Tuple

from . import _abi
from ._library import Error, argument_error

INPUT_BYTES, OUTPUT_BYTES = ctypes.sizeof(_abi.moebius_input), ctypes.sizeof(_abi.moebius_output)
TYPES = {"float32": _abi.MOEBIUS_F32, "bfloat16": _abi.MOEBIUS_BF16, "float16": _abi.MOEBIUS_F16}
TYPESTR = {"|i1": "int8", "|u1": "uint8", "<f4": "float32", "<f2": "float16", "<V2": "bfloat16", "<u2": "uint16", "<i4": "int32", "<i8": "int64"}
DLPACK = {(2, 32, 1): "float32", (2, 16, 1): "float16", (4, 16, 1): "bfloat16", (0, 8, 1): "int8", (1, 8, 1): "uint8", (0, 32, 1): "int32",
          (0, 64, 1): "int64", (10, 8, 1): "float8_e4m3fn", (14, 8, 1): "float8_e8m0fnu"}
_torch_names: Dict[Any, str] = {}  # of torch's types, filled as they come


class View:
    """Elements at an address (cuda: of a GPU); strides None: they lie at no whole number of elements; `like` makes an array of
    another shape in the same library and type."""

    __slots__ = ("owner", "address", "dtype", "shape", "strides", "writable", "like", "rows", "cuda")

    def __init__(self, owner: Any, address: int, dtype: str, shape: Tuple[int, ...], strides: Optional[Tuple[int, ...]],
                 writable: bool, like: Callable[[Tuple[int, ...]], Any], cuda: bool = False) -> None:
        self.owner, self.address, self.dtype, self.shape, self.strides = owner, address, dtype, shape, strides
        self.writable, self.like, self.cuda = writable, like, cuda
        self.rows = 1
        for d in shape[:-1]:
            self.rows *= d


def contiguous(shape: Tuple[int, ...]) -> Tuple[int, ...]:
    strides, step = [], 1
    for d in reversed(shape):
        strides.append(step)
        step *= d
    return tuple(reversed(strides))


def _torch(x: Any, name: str, cuda: bool) -> View:
    torch = sys.modules["torch"]
    if not x.is_cpu and not (cuda and x.is_cuda):
        expected = "the CPU or a CUDA device" if cuda else "the CPU"
        raise argument_error(f"{name} is on {x.device}; expected a tensor on {expected}", name)
    if x.layout is not torch.strided:
        raise argument_error(f"{name} is a tensor of layout {x.layout}; expected torch.strided", name)
    if x.is_neg() and name != "out":
        x = x.resolve_neg()
    dtype = x.dtype
    known = _torch_names.get(dtype) or _torch_names.setdefault(dtype, str(dtype).split(".")[-1])
    try:
        address = x.data_ptr()
    except RuntimeError as e:  # a tensor without memory
        raise argument_error(f"{name}: {e}", name) from None
    return View(x, address, known, tuple(x.shape), x.stride(), not x.is_neg(), lambda shape: torch.empty(shape, dtype=dtype, device=x.device), x.is_cuda)


def _interface(x: Any, name: str, bf16: bool, cuda: bool = False) -> View:
    i = x.__cuda_array_interface__ if cuda else x.__array_interface__
    try:
        typestr, shape, strides = str(i["typestr"]), tuple(int(d) for d in i["shape"]), i.get("strides")
        if not isinstance(i["data"], tuple):
            raise TypeError("data is no pair of address and read-only flag")
        (address, read_only), item = i["data"], int(typestr[2:])
    except (KeyError, TypeError, ValueError) as e:
        raise argument_error(f"{name}: its {'__cuda_array_interface__' if cuda else '__array_interface__'} cannot be read ({type(e).__name__}: {e})", name) from None
    dtype = TYPESTR.get(typestr, typestr)
    if typestr[1] == "V":  # types that numpy itself does not know are named by who made them
        dtype = getattr(getattr(x, "dtype", None), "name", typestr)
    if dtype == "uint16" and bf16:
        dtype = "bfloat16"
    steps: Optional[Tuple[int, ...]] = contiguous(shape)
    if strides is not None:  # fields of records may lie between elements
        steps = None if any(s % item for s in strides) else tuple(s // item for s in strides)
    numpy = sys.modules.get("numpy")

    def like(new: Tuple[int, ...]) -> Any:
        if numpy is None or cuda:
            raise argument_error(f"{name} is of a library that makes no arrays here; give out", "out")
        return numpy.empty(new, dtype=getattr(x, "dtype", typestr))

    return View((x, i), address or 0, dtype, shape, steps, not read_only, like, cuda)


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


class _Versioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _DLTensor)]


def _dlpack(x: Any, name: str) -> View:
    try:
        device = tuple(map(int, x.__dlpack_device__()))
        if device[0] != 1:
            raise argument_error(f"{name} is on device {device}; expected an array on the CPU", name)
        try:
            capsule = x.__dlpack__(max_version=(1, 0))
        except TypeError:
            capsule = x.__dlpack__()
    except (AttributeError, BufferError, IndexError, TypeError, ValueError, RuntimeError) as e:
        if isinstance(e, Error):
            raise
        raise argument_error(f"{name} cannot be had by DLPack: {e}", name) from None
    api = ctypes.pythonapi
    api.PyCapsule_IsValid.argtypes, api.PyCapsule_IsValid.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_int
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    read_only = False
    if api.PyCapsule_IsValid(capsule, b"dltensor_versioned"):
        held = _Versioned.from_address(api.PyCapsule_GetPointer(capsule, b"dltensor_versioned"))
        if held.major != 1:
            raise argument_error(f"{name} speaks DLPack {held.major}.{held.minor}; expected version 1", name)
        t, read_only = held.tensor, bool(held.flags & 1)
    elif api.PyCapsule_IsValid(capsule, b"dltensor"):
        t = _DLTensor.from_address(api.PyCapsule_GetPointer(capsule, b"dltensor"))
    else:
        raise argument_error(f"{name}: its __dlpack__ gives no DLPack capsule", name)
    shape = tuple(t.shape[i] for i in range(t.ndim))
    strides = tuple(t.strides[i] for i in range(t.ndim)) if t.strides else contiguous(shape)
    dtype = DLPACK.get((t.code, t.bits, t.lanes), f"DLPack type {t.code} of {t.bits} bits and {t.lanes} lanes")

    def like(new: Tuple[int, ...]) -> Any:
        raise argument_error(f"{name} is known by DLPack alone; give out", "out")

    return View((x, capsule), (t.data or 0) + t.byte_offset, dtype, shape, strides, not read_only, like)


def _buffer(x: Any, name: str, bf16: bool) -> View:
    m = memoryview(x)
    names: Dict[Any, str] = {"b": "int8", "B": "uint8", "f": "float32", "e": "float16", "i": "int32", "l": "int64", "q": "int64", "H": "bfloat16" if bf16 else "uint16"}
    dtype = names.get(m.format, f"format {m.format!r}")
    shape = tuple(m.shape or ())
    strides = tuple(s // m.itemsize for s in m.strides or ())
    if not m.c_contiguous and name == "out":
        raise argument_error("out: its elements do not lie side by side; expected rows of contiguous elements", "out")
    if m.readonly or not m.c_contiguous:
        source: Any = (ctypes.c_char * max(1, m.nbytes)).from_buffer_copy(m.tobytes() or b"\0")
        strides = contiguous(shape)
    else:
        source = (ctypes.c_char * 0).from_buffer(m)
    return View((x, m, source), ctypes.addressof(source), dtype, shape, strides, not m.readonly,
                lambda new: empty_floats(new) if dtype == "float32" else empty_halves(new, m.format))


def empty_floats(shape: Tuple[int, ...]) -> Any:
    """A float32 buffer."""
    count = 1
    for d in shape:
        count *= d
    if count == 0:
        return memoryview(b"")
    return memoryview((ctypes.c_float * count)()).cast("B").cast("f", list(shape))


def empty_halves(shape: Tuple[int, ...], form: Any) -> Any:
    """16-bit elements, as the buffer of format `form` that x was."""
    count = 1
    for d in shape:
        count *= d
    return memoryview(bytearray(2 * count)).cast(form, list(shape)) if count else memoryview(b"")


def view(x: Any, name: str, *, bf16: bool = False, cuda: bool = False) -> View:
    """cuda: memory of a GPU is welcome too."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return _torch(x, name, cuda)
    if cuda and hasattr(x, "__cuda_array_interface__"):
        return _interface(x, name, bf16, True)
    if hasattr(x, "__array_interface__"):
        return _interface(x, name, bf16)
    if hasattr(x, "__dlpack__"):
        return _dlpack(x, name)
    try:
        return _buffer(x, name, bf16)
    except (TypeError, ValueError, BufferError):
        raise argument_error(f"{name} is a {type(x).__name__}; expected an array (torch, numpy, DLPack or a buffer)", name) from None


def rows_stride(v: View) -> Optional[int]:
    """Elements between rows when the memory is rows of contiguous elements that do not overlap, else None."""
    if v.strides is None or not v.shape or (v.shape[-1] > 1 and v.strides[-1] != 1):
        return None
    cols, step, span = v.shape[-1], 0, 0
    for size, stride in zip(reversed(v.shape[:-1]), reversed(v.strides[:-1])):
        if size == 1 or v.rows == 0:
            continue
        if step == 0:
            if stride < max(1, cols):
                return None
            step, span = stride, stride * size
        elif stride == span:
            span *= size
        else:
            return None
    return step or cols


def copied(x: Any, name: str, bf16: bool = False, cuda: bool = False) -> View:
    """The same elements side by side."""
    copy = x.contiguous() if hasattr(x, "contiguous") else x.copy() if hasattr(x, "copy") else None
    if copy is None:
        raise argument_error(f"{name}: its rows are not contiguous; expected rows of contiguous elements", name)
    return view(copy, name, bf16=bf16, cuda=cuda)


def rows_in(x: Any, name: str, cols: int, *, bf16: bool = False, cuda: bool = False) -> Tuple[View, _abi.moebius_input]:
    """An input [..., cols]; copied once where its rows are not contiguous."""
    v = view(x, name, bf16=bf16, cuda=cuda)
    if v.dtype not in TYPES:
        raise argument_error(f"{name} is {v.dtype}; expected float32, bfloat16 or float16", name)
    if not v.shape or v.shape[-1] != cols:
        raise argument_error(f"{name} has shape {list(v.shape)}; expected [..., {cols}]", name)
    stride = rows_stride(v)
    if stride is None:
        v = copied(x, name, bf16, cuda)
        stride = rows_stride(v)
    return v, _abi.moebius_input(INPUT_BYTES, v.address, TYPES[v.dtype], v.rows, cols, stride or 0)


def rows_out(out: Any, like: View, shape: Tuple[int, ...], *, bf16: bool = False) -> Tuple[Any, _abi.moebius_output]:
    """The caller's array, or a new one in the library and type of `like`."""
    given = out is not None
    if not given:
        out = like.like(shape)
    v = view(out, "out", bf16=bf16 or (not given and like.dtype == "bfloat16"), cuda=like.cuda)
    if v.cuda != like.cuda:
        raise argument_error("out is on the CPU and x on a CUDA device", "out")
    if v.dtype not in TYPES and like.rows != 0:
        raise argument_error(f"out is {v.dtype}; expected float32, bfloat16 or float16", "out")
    if v.shape != shape and like.rows != 0:
        raise argument_error(f"out has shape {list(v.shape)}; expected {list(shape)}", "out")
    if not v.writable and like.rows != 0:
        raise argument_error("out is read-only", "out")
    stride = rows_stride(v)
    if stride is None:
        raise argument_error("out: its rows overlap or are not contiguous; expected rows of contiguous elements", "out")
    kind = TYPES.get(v.dtype, _abi.MOEBIUS_F32)
    made = _abi.moebius_output(OUTPUT_BYTES, v.address, kind, like.rows, shape[-1], stride)
    made.keep = v
    return out, made
