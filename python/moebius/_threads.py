# SPDX-License-Identifier: Apache-2.0
"""Threads of one's own."""
from __future__ import annotations

import ctypes
from typing import Optional, Sequence, Tuple, Union

from . import _abi
from ._library import I32, Handle, argument_error, lib, number


class Threads(Handle):
    """A pool of threads for the layers and models that name it; count 0: one per core, or per CPU of `cpus`.

    cpus: where each thread is held, the caller's first. backend "openmp": the team of the OpenMP runtime that the process
    has loaded (torch's), so that two pools do not wait for each other's cores; "own" and "auto": threads of the library.
    """

    def __init__(self, count: int = 0, *, cpus: Optional[Sequence[int]] = None, backend: str = "auto") -> None:
        if backend not in ("auto", "own", "openmp"):
            raise argument_error(f"backend is {backend!r}; expected auto, own or openmp", "backend")
        self.backend = "openmp" if backend == "openmp" else "own"
        held = [number(cpu, "cpus", *I32) for cpu in cpus or ()]
        places = (ctypes.c_int32 * len(held))(*held) if held else None
        options = _abi.moebius_runtime_options(ctypes.sizeof(_abi.moebius_runtime_options), number(count, "count", *I32), places, len(held),
                                               int(backend == "openmp"))
        self._own(lib.moebius_runtime_new_with(ctypes.byref(options)), lib.moebius_runtime_free)

    @property
    def count(self) -> int:
        """How many threads compute, the caller's own included."""
        return int(lib.moebius_runtime_threads(self._pointer))


def threads_of(threads: Union[None, int, Threads]) -> Tuple[int, Optional[int]]:
    """(number, handle) for options: the shared pool of that many, or the one that was given."""
    if isinstance(threads, Threads):
        return 0, threads._pointer
    return 0 if threads is None else number(threads, "threads", *I32), None
