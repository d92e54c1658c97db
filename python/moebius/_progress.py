# SPDX-License-Identifier: Apache-2.0
"""Progress of loading: a bar on a terminal, or a class of the caller's that is called as tqdm is."""
from __future__ import annotations

import sys
from typing import Any, Callable, Optional

from . import _abi
from ._library import argument_error, last_error


class Bar:
    """A bar on a terminal's stderr."""

    def __init__(self, total: int, desc: str, **_: Any) -> None:
        self.total, self.desc, self.done = total, desc, 0

    def update(self, n: int) -> None:
        self.done += n
        if sys.stderr.isatty():
            share = self.done / self.total if self.total else 1.0
            sys.stderr.write(f"\r{self.desc} {'#' * int(30 * share):<30} {100 * share:3.0f} %")
            sys.stderr.flush()

    def close(self) -> None:
        if sys.stderr.isatty():
            sys.stderr.write("\n")


def bar_of(progress: Any) -> Any:
    """The class that a progress argument names, None for none."""
    if progress is None or progress is False:
        return None
    if progress is not True and not callable(progress):
        raise argument_error(f"progress is {progress!r:.40}; expected True, False or a class like tqdm", "progress")
    return Bar if progress is True else progress


class Told:
    """Progress of a load as a callback; what the user's class raises waits until the library has returned."""

    def __init__(self, bar: Any) -> None:
        self._class, self._bar, self._done = bar, None, 0  # type: Any, Any, int
        self._error: Optional[BaseException] = None
        self.callback = _abi.moebius_progress(self._tell) if bar is not None else _abi.moebius_progress(0)

    def _tell(self, _user: Any, done: int, total: int) -> int:
        if self._error is not None:
            return 1
        try:
            if self._bar is None:
                self._bar = self._class(total=total, desc="loading", unit="B", unit_scale=True)
            self._bar.update(done - self._done)
            self._done = done
            return 0
        except BaseException as e:  # noqa: B902: also KeyboardInterrupt
            self._error = e
            return 1

    def finished(self, pointer: Optional[int], free: Callable[[Any], None]) -> int:
        """The handle that was made, once the bar is closed; raises what the bar raised, or what the library says."""
        failure = None if pointer else last_error()
        if self._bar is not None and self._error is None:
            try:
                self._bar.close()
            except BaseException as e:  # noqa: B902
                self._error = e
        if self._error is not None:
            if pointer:
                free(pointer)
            raise self._error
        if failure is not None:
            raise failure
        assert pointer is not None
        return pointer
