# SPDX-License-Identifier: Apache-2.0
"""The shared library: found, opened, compared with the declarations; texts, errors and handles of it."""
from __future__ import annotations

import ctypes
import os
import weakref
from pathlib import Path
from typing import Any, Callable, Optional

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
    here = Path(__file__).resolve().parent
    named = os.environ.get("MOEBIUS_LIBRARY")
    candidates = [Path(named)] if named else [here / "libmoebius.so", here / "lib" / "libmoebius.so"]
    for path in candidates:
        if path.exists():
            try:
                lib = ctypes.CDLL(str(path))
                number = int(lib.moebius_abi_version())
            except (OSError, AttributeError) as e:
                raise ImportError(f"{path} cannot be used: {e}") from None
            if number != _abi.ABI:
                raise ImportError(f"{path} has ABI {number}, and this package was made for {_abi.ABI}; install both together")
            _abi.declare(lib)
            return lib
    raise ImportError(f"the library of moebius is missing: looked for {', '.join(map(str, candidates))}")


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


class Handle:
    """Owns a handle of the library: freed with the object, by close(), or at the end of a with-statement."""

    def _own(self, pointer: Optional[int], free: Callable[[Any], None]) -> None:
        self._pointer = int(checked(pointer))
        self._finalizer = weakref.finalize(self, free, self._pointer)
        self._finalizer.atexit = False

    def close(self) -> None:
        """Frees what the object holds; using it afterwards is an Error."""
        self._finalizer()
