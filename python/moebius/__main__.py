# SPDX-License-Identifier: Apache-2.0
"""python -m moebius ARGS: the tool, where it was installed with the package."""
from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path


def main() -> None:
    """Replaces this process by the tool."""
    beside = Path(sys.executable).parent / "moebius"
    tool = str(beside) if beside.exists() else shutil.which("moebius")
    if tool is None:
        sys.exit("moebius: the tool is not installed beside this Python, nor on PATH")
    os.execv(tool, ["moebius", *sys.argv[1:]])


if __name__ == "__main__":
    main()
