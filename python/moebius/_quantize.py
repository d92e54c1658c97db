# SPDX-License-Identifier: Apache-2.0
"""Making quantized folders, and measuring what they lost: what the commands `quantize` and `eval` do."""
from __future__ import annotations

import json
import os
from typing import Any, Callable, Dict, List, Optional, Sequence, Union

from . import _abi
from ._library import argument_error, c_text, last_error, lib, taken

Path = Union[str, "os.PathLike[str]"]
OnProgress = Callable[[int, int], Optional[bool]]


def _call(function: Any, options: Dict[str, Any], progress: Optional[OnProgress]) -> Dict[str, Any]:
    """The library's answer; what the progress function raises waits until the library has returned."""
    if progress is not None and not callable(progress):
        raise argument_error(f"progress is {progress!r:.40}; expected a function of (done, total)", "progress")
    raised: List[BaseException] = []

    def tell(_user: Any, done: int, total: int) -> int:
        try:
            return 1 if raised or (progress is not None and progress(done, total) is False) else 0
        except BaseException as e:  # noqa: B902: also KeyboardInterrupt
            raised.append(e)
            return 1

    callback = _abi.moebius_progress(tell) if progress is not None else _abi.moebius_progress(0)
    try:
        given = json.dumps({name: value for name, value in options.items() if value is not None})
    except (TypeError, ValueError) as e:
        raise argument_error(f"an option cannot be written as JSON: {e}", "options") from None
    answer = function(c_text(given, "options"), callback, None)
    if not answer:
        failure = last_error()
        raise raised[0] if raised else failure
    made: Dict[str, Any] = json.loads(taken(answer))
    return made


def _path(value: Union[Path, bytes], field: str) -> str:
    try:
        return os.fsdecode(value)
    except TypeError:
        raise argument_error(f"{field} is a {type(value).__name__}; expected a path", field) from None


def _list(value: Any) -> Any:
    """One text, or several."""
    if value is None:
        return None
    if isinstance(value, (str, bytes, os.PathLike)):
        return [_path(value, "list")]
    return [_path(v, "list") for v in value]


def quantize(source: Path, target: Path, scheme: Optional[str] = None, *, method: Optional[str] = None,
             calib: Union[Path, Sequence[Path], None] = None, config_groups: Optional[Path] = None,
             targets: Union[str, Sequence[str], None] = None, ignore: Union[str, Sequence[str], None] = None,
             progress: Optional[OnProgress] = None, **options: Any) -> Dict[str, Any]:
    """A folder of plain weights becomes a compressed-tensors folder, as `moebius quantize` makes it.

    Further options have the names of the command's, with underscores: group, symmetric, format, ignore_only, match, calib_tokens,
    calib_ctx, calib_experts, seed, damp, order, min_rows, shard_size and memory (bytes), scratch, resume, overwrite, dry_run,
    threads. `progress(done, total)` is told bytes of the source; where it returns False or raises, the run stops, and another
    one with resume=True goes on with it. The result is what the command prints with --json.
    """
    return _call(lib.moebius_quantize_json,
                 {"source": _path(source, "source"), "target": _path(target, "target"), "scheme": scheme, "method": method,
                  "calib": _list(calib), "config_groups": None if config_groups is None else _path(config_groups, "config_groups"),
                  "targets": _list(targets), "ignore": _list(ignore), **options}, progress)


def evaluate(folder: Path, base: Path, text: Optional[str] = None, *, tokens: Optional[Sequence[int]] = None,
             file: Optional[Path] = None, chat: Optional[Path] = None, ctx: int = 512, windows: int = 0, top: int = 10,
             layers: bool = False, threads: int = 0, dtype: str = "auto",
             progress: Optional[OnProgress] = None) -> Dict[str, Any]:
    """What a folder lost against its base on a text, tokens, a text file or a file of chats, as `moebius eval` measures it.

    `layers=True` also compares hidden states and modules layer by layer. `progress(done, total)` is told positions; where it
    returns False or raises, the work stops. The result is what the command prints with --json.
    """
    return _call(lib.moebius_evaluate_json,
                 {"folder": _path(folder, "folder"), "base": _path(base, "base"), "text": text,
                  "tokens": None if tokens is None else [int(t) for t in tokens],
                  "file": None if file is None else _path(file, "file"), "chat": None if chat is None else _path(chat, "chat"),
                  "ctx": ctx, "windows": windows, "top": top, "layers": layers, "threads": threads, "dtype": dtype}, progress)
