# SPDX-License-Identifier: Apache-2.0
"""A control group with a limit of memory, for scripts that run a tool in little memory."""
import os
from pathlib import Path


class Group:
    """Of this machine's version; `path` is None where none can be made."""

    def __init__(self, limit):
        self.path = None
        for root, name in ((Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"), (Path("/sys/fs/cgroup"), "memory.max")):
            path = root / f"moebius-{os.getpid()}"
            try:
                path.mkdir()
                (path / name).write_text(str(limit))
                self.path = path
                return
            except OSError:
                if path.exists():
                    path.rmdir()

    def enter(self):
        if self.path:
            (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def close(self):
        if self.path:
            self.path.rmdir()
