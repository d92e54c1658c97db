# SPDX-License-Identifier: Apache-2.0
"""Threads of one's own."""
from __future__ import annotations

from typing import Optional, Tuple, Union

from ._library import Handle, lib


class Threads(Handle):
    """A pool of threads for the layers and models that name it; count 0: one per core."""

    def __init__(self, count: int = 0) -> None:
        self._own(lib.moebius_runtime_new(count), lib.moebius_runtime_free)

    @property
    def count(self) -> int:
        """How many threads compute, the caller's own included."""
        return int(lib.moebius_runtime_threads(self._pointer))


def threads_of(threads: Union[None, int, Threads]) -> Tuple[int, Optional[int]]:
    """(number, handle) for options: the shared pool of that many, or the one that was given."""
    if isinstance(threads, Threads):
        return 0, threads._pointer
    return threads or 0, None
