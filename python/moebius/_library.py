# SPDX-License-Identifier: Apache-2.0
"""The shared library: found, opened, compared with the declarations; texts, errors and handles of it."""
from __future__ import annotations

import ctypes
import functools
import operator
import os
import weakref
from typing import Any, Callable, Dict, Optional, TypeVar, Union, cast

from . import _abi


class Error(RuntimeError):
    """What went wrong, in words; kind, file, tensor, module and field where they are known, else None.

    kind: "file", "config", "unsupported", "argument", "memory" or "state".
    """

    def __init__(self, message: str, *, kind: Optional[str] = None, file: Optional[str] = None,
                 tensor: Optional[str] = None, module: Optional[str] = None, field: Optional[str] = None) -> None:
        super().__init__(message)
        self.kind, self.file, self.tensor, self.module, self.field = kind, file, tensor, module, field


def _open() -> ctypes.CDLL:
    here = os.path.dirname(os.path.realpath(__file__))
    named = os.environ.get("MOEBIUS_LIBRARY")
    candidates = [named] if named else [os.path.join(here, "libmoebius.so"), os.path.join(here, "lib", "libmoebius.so")]
    for path in candidates:
        if os.path.exists(path):
            try:
                lib = ctypes.CDLL(path)
                number = int(lib.moebius_abi_version())
            except (OSError, AttributeError) as e:
                raise ImportError(f"{path} cannot be used: {e}") from None
            if number != _abi.ABI:
                raise ImportError(f"{path} has ABI {number}, and this package was made for {_abi.ABI}; install both together")
            _abi.declare(lib)
            return lib
    raise ImportError(f"the library of moebius is missing: looked for {', '.join(candidates)}")


lib = _open()


def text(value: Optional[bytes]) -> str:
    return "" if value is None else value.decode("utf-8", "replace")


def last_error() -> Error:
    def field(name: bytes) -> Optional[str]:
        value = lib.moebius_last_error_field(name)
        return None if value is None else text(value)

    return Error(text(lib.moebius_last_error()), kind=field(b"kind"), file=field(b"file"), tensor=field(b"tensor"),
                 module=field(b"module"), field=field(b"field"))


def argument_error(message: str, field: str) -> Error:
    return Error(message, kind="argument", field=field)


# Arguments of vLLM's interface, and what to write here.
VLLM = {"max_model_len": "write context=", "max_num_seqs": "write parallel=", "kv_cache_dtype": "write kv_dtype=",
        "gpu_memory_utilization": "write gpu_gib=, a number of GiB", "speculative_config": "write speculate=",
        "tensor_parallel_size": "an LLM runs in one process; the tool shares a model between ranks: moebius serve --tp N",
        "pipeline_parallel_size": "an LLM runs in one process; the tool shares a model between ranks: moebius serve --pp N",
        "quantization": "the folder says how it is quantized; leave it out",
        "trust_remote_code": "no code of a folder is run; leave it out", "enforce_eager": "nothing is compiled; leave it out",
        "structured_outputs": "write json_schema=, regex= or choice=", "guided_decoding": "write json_schema=, regex= or choice=",
        "use_tqdm": "write progress=True", "chat_template_kwargs": "write template_args="}
Call = TypeVar("Call", bound=Callable[..., Any])


def knows_vllm(call: Call) -> Call:
    """Wraps a call: an argument of vLLM's is refused with what to write instead."""

    @functools.wraps(call)
    def wrapped(*args: Any, **named: Any) -> Any:
        for name in named:
            if name in VLLM:
                raise argument_error(f"{name} is no argument here: {VLLM[name]}", name)
        return call(*args, **named)

    return cast(Call, wrapped)


I32 = (-(2**31), 2**31 - 1)
U64 = (0, 2**64 - 1)


def number(value: Any, field: str, low: int = 0, high: int = 2**63 - 1) -> int:
    """An integer of the caller's, where ctypes would cut one that is too large without a word."""
    try:
        found = operator.index(value)
    except TypeError:
        raise argument_error(f"{field} is {value!r:.40}; expected an integer", field) from None
    if not low <= found <= high:
        raise argument_error(f"{field} is {found}; expected {low} to {high}", field)
    return found


def real(value: Any, field: str) -> float:
    """A number that is not NaN."""
    try:
        found = float("nan") if isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError, OverflowError):
        found = float("nan")
    if found != found:
        raise argument_error(f"{field} is {value!r:.40}; expected a number", field)
    return found


def _narrow_cpu() -> None:
    """The environment may take CPU features away, as for the tool."""
    features = os.environ.get("MOEBIUS_CPU")
    if features and lib.moebius_narrow_cpu(os.fsencode(features)) != 0:
        raise ImportError(f"the environment sets MOEBIUS_CPU: {last_error()}")


_narrow_cpu()


def one_of(value: str, names: Dict[str, int], field: str) -> int:
    """The number that C has for a name."""
    if not isinstance(value, str) or value not in names:
        raise argument_error(f"{field} is {value!r}; expected {', '.join(names)}", field)
    return names[value]


def c_text(value: Any, field: str) -> bytes:
    """A text as C takes it: without a zero, which would end it."""
    if not isinstance(value, str):
        raise argument_error(f"{field} is a {type(value).__name__}; expected a text", field)
    raw = value.encode("utf-8", "surrogatepass")
    if b"\0" in raw:
        raise argument_error(f"{field} has a zero character in it", field)
    return raw


def c_path(path: "Union[str, os.PathLike[str]]", field: str) -> bytes:
    """A path as C takes it."""
    try:
        raw = os.fsencode(path)
    except TypeError:
        raise argument_error(f"{field} is a {type(path).__name__}; expected a path", field) from None
    if b"\0" in raw:
        raise argument_error(f"{field} has a zero character in it", field)
    return raw


def check(status: int) -> None:
    if status != 0:
        raise last_error()


def checked(pointer: Any) -> Any:
    """A result that is not NULL."""
    if not pointer:
        raise last_error()
    return pointer


def taken(pointer: Optional[int], size: Optional[ctypes.c_size_t] = None) -> str:
    """The text of a char* that is ours to free."""
    checked(pointer)
    assert pointer is not None
    value = ctypes.string_at(pointer, size.value) if size is not None else ctypes.string_at(pointer)
    lib.moebius_string_free(ctypes.cast(pointer, ctypes.c_char_p))
    return text(value)


_forks = 0  # how many forks ago this process began


def _forked() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_forked)
Self = TypeVar("Self", bound="Handle")


class Handle:
    """Owns a handle of the library: freed with the object, by close(), or at the end of a with-statement."""

    _title: Optional[str] = None  # what messages call the object; None: its class

    def _own(self, pointer: Optional[int], free: Callable[[Any], None]) -> None:
        self._handle = int(checked(pointer))
        self._process = _forks
        self._finalizer = weakref.finalize(self, free, self._handle)
        self._finalizer.atexit = False

    @property
    def _pointer(self) -> int:
        """The handle, while it can be used."""
        if not self._finalizer.alive:
            raise Error(f"this {self._title or type(self).__name__} was closed", kind="state")
        if self._process != _forks:
            raise Error(f"this {self._title or type(self).__name__} was made before fork(), and its threads are not in this process; make it here, or "
                        "start workers by spawn", kind="state")
        return self._handle

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise Error(f"a {type(self).__name__} cannot be copied or pickled; open it again where it is needed", kind="state")

    def close(self) -> None:
        """Frees what the object holds; using it afterwards is an Error."""
        self._finalizer()
