# SPDX-License-Identifier: Apache-2.0
"""Single layers: linears and mixtures of experts."""
from __future__ import annotations

import ctypes
import sys
from typing import Any, List, Optional, Sequence, Tuple, Union

from . import _abi
from ._arrays import View, copied, rows_in, rows_out, rows_stride, view
from ._library import U64, Handle, argument_error, c_text, check, lib, number, one_of, taken, text
from ._progress import Told, bar_of
from ._threads import Threads, threads_of
from .parts import Part, part_array

ARITHMETIC = {"declared": _abi.MOEBIUS_DECLARED, "exact": _abi.MOEBIUS_EXACT, "approximate": _abi.MOEBIUS_APPROXIMATE}
INT8 = {"declared": _abi.MOEBIUS_INT8_DECLARED, "ct": _abi.MOEBIUS_INT8_COMPRESSED_TENSORS, "vllm": _abi.MOEBIUS_INT8_VLLM}
ROWS = {"declared": _abi.MOEBIUS_ROWS_DECLARED, "int8": _abi.MOEBIUS_ROWS_INT8}
DTYPES = {"f32": _abi.MOEBIUS_F32, "float32": _abi.MOEBIUS_F32, "bf16": _abi.MOEBIUS_BF16, "bfloat16": _abi.MOEBIUS_BF16,
          "f16": _abi.MOEBIUS_F16, "float16": _abi.MOEBIUS_F16}


class LayerOptions:
    """Options of a layer as C takes them, and what must live and be said while it is loaded."""

    def __init__(self, threads: Union[None, int, Threads] = None, kernel: Optional[str] = None, arithmetic: str = "declared",
                 int8: str = "declared", activations: str = "declared", dtype: str = "bf16", tp: int = 1, tp_rank: int = 0,
                 ep: int = 1, ep_rank: int = 0, placement: str = "linear", progress: Any = None, device: str = "cpu") -> None:
        ranks = [number(value, name, *U64) for name, value in (("tp", tp), ("tp_rank", tp_rank), ("ep", ep), ("ep_rank", ep_rank))]
        for name, size, rank in (("tp_rank", ranks[0], ranks[1]), ("ep_rank", ranks[2], ranks[3])):
            if not 0 <= rank < size:
                raise argument_error(f"{name} is {rank} of {size}; expected a rank below the size", name)
        count, runtime = threads_of(threads)
        self.told = Told(bar_of(progress))
        self.made = _abi.moebius_options(ctypes.sizeof(_abi.moebius_options), count, None if kernel is None else c_text(kernel, "kernel"),
                                         one_of(arithmetic, ARITHMETIC, "arithmetic"), one_of(dtype, DTYPES, "dtype"), runtime,
                                         one_of(int8, INT8, "int8"), *ranks, one_of(placement, {"linear": 0, "round_robin": 1}, "placement"),
                                         one_of(activations, ROWS, "activations"), self.told.callback, None, c_text(device, "device"))

    def load(self, call: Any, free: Any) -> Any:
        """The handle that `call` makes with these options; what a progress class raised is raised here."""
        return self.told.finished(call(ctypes.byref(self.made)), free)


def _stream(v: View, given: Optional[int]) -> Optional[int]:
    """The CUDA stream of a call: the caller's, else torch's current one for its tensors, else the default one."""
    torch = sys.modules.get("torch")
    if given is None and torch is not None and isinstance(v.owner, torch.Tensor):
        return int(torch.cuda.current_stream(v.owner.device).cuda_stream)
    return given


class Linear(Handle):
    """y = x w^T + bias with the weights of one module; may be called from several threads."""

    name: str
    device: str
    _inputs: int
    _outputs: int

    @classmethod
    def _load(cls, folder: int, module: str, **options: Any) -> "Linear":
        name, o = c_text(module, "module"), LayerOptions(**options)
        return cls._of(o.load(lambda given: lib.moebius_linear_load(folder, name, given), lib.moebius_linear_free), module)

    @classmethod
    def build(cls, parts: Sequence[Part], **options: Any) -> "Linear":
        """From tensors in memory; the parts' outputs lie side by side."""
        keep, array = part_array(parts)
        made = LayerOptions(**options).load(lambda given: lib.moebius_linear_build(array, len(parts), given), lib.moebius_linear_free)
        del keep
        return cls._of(made, ", ".join(p.name for p in parts))

    @classmethod
    def _of(cls, pointer: Optional[int], name: str) -> "Linear":
        self = cls.__new__(cls)
        self.name = name
        self._own(pointer, lib.moebius_linear_free)
        self.device = text(lib.moebius_linear_device(self._pointer))
        self._inputs = int(lib.moebius_linear_inputs(self._pointer))
        self._outputs = int(lib.moebius_linear_outputs(self._pointer))
        return self

    @property
    def inputs(self) -> int:
        """Columns of x."""
        return self._inputs

    @property
    def outputs(self) -> int:
        """Columns of y."""
        return self._outputs

    @property
    def kernel(self) -> str:
        """The kernel that runs it."""
        return taken(lib.moebius_linear_kernel(self._pointer))

    @property
    def packed_bytes(self) -> int:
        """Bytes of the packed weights."""
        return int(lib.moebius_linear_packed_bytes(self._pointer))

    def __call__(self, x: Any, out: Any = None, *, bf16: bool = False, stream: Optional[int] = None) -> Any:
        """x [..., inputs] to [..., outputs], in the library and type of x. bf16: uint16 arrays hold the bits. With arrays on a GPU
        the work is queued on `stream` (a number; None: the current one) and nothing waits."""
        v, a = rows_in(x, "x", self._inputs, bf16=bf16, cuda=self.device == "cuda")
        y, b = rows_out(out, v, (*v.shape[:-1], self._outputs), bf16=bf16)
        if v.cuda:
            check(lib.moebius_linear_launch(self._pointer, ctypes.byref(a), ctypes.byref(b), _stream(v, stream)))
        else:
            check(lib.moebius_linear_run(self._pointer, ctypes.byref(a), ctypes.byref(b)))
        return y


def _integers(x: Any, name: str, shape: Tuple[int, ...], rows: int) -> Any:
    """ids as an int32 array of ctypes, narrowed from int64 where needed."""
    v = view(x, name)
    if v.dtype not in ("int32", "int64") or not v.shape or v.shape[:-1] != shape:
        raise argument_error(f"{name} is {v.dtype} {list(v.shape)}; expected int32 {list(shape) + ['k']}", name)
    k, stride = v.shape[-1], rows_stride(v)
    if stride is None:
        v, stride = copied(x, name), k
    if v.dtype == "int32" and (stride == k or rows <= 1):
        return v, k, ctypes.cast(v.address, ctypes.POINTER(ctypes.c_int32))
    kind: Any = ctypes.c_int32 if v.dtype == "int32" else ctypes.c_int64
    values = [e for r in range(rows) for e in (kind * k).from_address(v.address + r * stride * ctypes.sizeof(kind))]
    for i, e in enumerate(values):
        if not -(2**31) <= e < 2**31:
            raise argument_error(f"{name}: row {i // k}, slot {i % k} is {e}; expected an expert", name)
    out = (ctypes.c_int32 * max(1, rows * k))(*values)
    return (v, out), k, ctypes.cast(out, ctypes.POINTER(ctypes.c_int32))


def _on_gpu(x: Any, name: str, dtype: str, shape: Tuple[int, ...]) -> Tuple[View, int, int]:
    """ids or weights [..., k] that lie on a GPU: what holds them, k, where they are."""
    v = view(x, name, cuda=True)
    if not v.cuda or v.dtype != dtype or not v.shape or v.shape[:-1] != shape or (rows_stride(v) != v.shape[-1] and v.rows > 1):
        where = "a CUDA device" if v.cuda else "the CPU"
        raise argument_error(f"{name} is {v.dtype} {list(v.shape)} on {where}; expected {dtype} {list(shape) + ['k']} side by side on x's device", name)
    return v, v.shape[-1], v.address


class Moe(Handle):
    """A mixture of experts; may be called from several threads. On a GPU (device "cuda") calls take arrays there, as Linear does."""

    name: str
    device: str
    _hidden: int
    _experts: int

    @classmethod
    def _load(cls, folder: int, block: str, scope: str, **options: Any) -> "Moe":
        if scope not in ("block", "experts"):
            raise argument_error(f"scope is {scope!r}; expected block or experts", "scope")
        name, o = c_text(block, "block"), LayerOptions(**options)
        return cls._of(o.load(lambda given: lib.moebius_moe_load(folder, name, int(scope == "experts"), given), lib.moebius_moe_free), block)

    @classmethod
    def _of(cls, pointer: Optional[int], name: str) -> "Moe":
        self = cls.__new__(cls)
        self.name = name
        self._own(pointer, lib.moebius_moe_free)
        self.device = text(lib.moebius_moe_device(self._pointer))
        self._hidden = int(lib.moebius_moe_hidden(self._pointer))
        self._experts = int(lib.moebius_moe_experts(self._pointer))
        return self

    @property
    def hidden(self) -> int:
        """Columns of x and y."""
        return self._hidden

    @property
    def experts(self) -> int:
        """Routed experts of the whole block."""
        return self._experts

    @property
    def slots(self) -> int:
        """Experts per token."""
        return int(lib.moebius_moe_slots(self._pointer))

    @property
    def kernel(self) -> str:
        """The kernel that runs the experts' up projection."""
        return taken(lib.moebius_moe_kernel(self._pointer))

    @property
    def packed_bytes(self) -> int:
        """Bytes of the packed experts."""
        return int(lib.moebius_moe_packed_bytes(self._pointer))

    def _routed(self, v: View, wanted: bool) -> Tuple[Any, Any]:
        n = max(1, v.rows * self.slots)
        if not wanted:
            return None, None
        if v.cuda:
            torch = sys.modules.get("torch")
            if torch is None or not isinstance(v.owner, torch.Tensor):
                raise argument_error("routing on a CUDA device is given as tensors of torch; x is none", "routing")
            shape = (v.rows, self.slots)
            return torch.empty(shape, dtype=torch.int32, device=v.owner.device), torch.empty(shape, dtype=torch.float32, device=v.owner.device)
        return (ctypes.c_int32 * n)(), (ctypes.c_float * n)()

    def _answer(self, y: Any, v: View, ids: Any, weights: Any) -> Any:
        if ids is None:
            return y
        shape = [v.rows, self.slots]
        if v.cuda or not v.rows:
            return y, ids, weights
        return y, memoryview(ids).cast("B").cast("i", shape), memoryview(weights).cast("B").cast("f", shape)

    def __call__(self, x: Any, out: Any = None, *, routing: bool = False, bf16: bool = False, stream: Optional[int] = None) -> Any:
        """The whole block on x [..., hidden]; with routing also ids and weights [rows, slots] of the router."""
        return self._run(x, None, out, routing, bf16, stream)

    def run_logits(self, x: Any, logits: Any, out: Any = None, *, routing: bool = False, bf16: bool = False, stream: Optional[int] = None) -> Any:
        """The block's routing rules on the caller's router logits [..., experts]."""
        if logits is None:
            raise argument_error("logits is None; expected numbers of [rows, experts]", "logits")
        return self._run(x, logits, out, routing, bf16, stream)

    def _run(self, x: Any, logits: Any, out: Any, routing: bool, bf16: bool, stream: Optional[int]) -> Any:
        cuda = self.device == "cuda"
        v, a = rows_in(x, "x", self._hidden, bf16=bf16, cuda=cuda)
        given = []
        if logits is not None:
            held, l = rows_in(logits, "logits", self.experts, cuda=cuda)
            if held.rows != v.rows:
                raise argument_error(f"logits have {held.rows} rows; expected {v.rows}", "logits")
            if held.cuda != v.cuda:
                raise argument_error("logits and x are on different devices", "logits")
            given = [ctypes.byref(l)]
        y, b = rows_out(out, v, v.shape, bf16=bf16)
        ids, weights = self._routed(v, routing)
        if v.cuda:
            launch = lib.moebius_moe_launch if logits is None else lib.moebius_moe_launch_logits
            where: List[Any] = [None, None]
            if ids is not None:
                where = [ctypes.cast(ids.data_ptr(), ctypes.POINTER(ctypes.c_int32)),
                         ctypes.cast(weights.data_ptr(), ctypes.POINTER(ctypes.c_float))]
            check(launch(self._pointer, ctypes.byref(a), *given, ctypes.byref(b), *where, _stream(v, stream)))
        else:
            run = lib.moebius_moe_run if logits is None else lib.moebius_moe_run_logits
            check(run(self._pointer, ctypes.byref(a), *given, ctypes.byref(b), ids, weights))
        return self._answer(y, v, ids, weights)

    def run_ids(self, x: Any, ids: Any, weights: Any, out: Any = None, *, bf16: bool = False, stream: Optional[int] = None) -> Any:
        """The caller's experts and weights [..., k]; -1 skips a slot."""
        v, a = rows_in(x, "x", self._hidden, bf16=bf16, cuda=self.device == "cuda")
        if v.cuda:
            kept, k, at = _on_gpu(ids, "ids", "int32", v.shape[:-1])
            also, columns, where = _on_gpu(weights, "weights", "float32", v.shape[:-1])
            if columns != k:
                raise argument_error(f"weights have {columns} columns; expected {k}, as ids", "weights")
            y, b = rows_out(out, v, v.shape, bf16=bf16)
            check(lib.moebius_moe_launch_ids(self._pointer, ctypes.byref(a), ctypes.cast(at, ctypes.POINTER(ctypes.c_int32)),
                                             ctypes.cast(where, ctypes.POINTER(ctypes.c_float)), k, ctypes.byref(b), _stream(v, stream)))
            del kept, also
            return y
        keep, k, pointer = _integers(ids, "ids", v.shape[:-1], v.rows)
        w, rows = rows_in(weights, "weights", k)
        if w.dtype != "float32" or w.shape[:-1] != v.shape[:-1]:
            raise argument_error(f"weights are {w.dtype} {list(w.shape)}; expected float32 {list(v.shape[:-1]) + [k]}", "weights")
        if rows.stride != k and w.rows > 1:
            w = copied(weights, "weights")
        y, b = rows_out(out, v, v.shape, bf16=bf16)
        check(lib.moebius_moe_run_ids(self._pointer, ctypes.byref(a), pointer,
                                      ctypes.cast(w.address, ctypes.POINTER(ctypes.c_float)), k, ctypes.byref(b)))
        del keep
        return y
