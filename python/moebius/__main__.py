# SPDX-License-Identifier: Apache-2.0
"""moebius ARGS, python -m moebius ARGS: the tool, which is part of the installed package."""
from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path


def main() -> None:
    """Replaces this process by the tool."""
    inside = Path(__file__).resolve().parent / "bin" / "moebius"
    tool = str(inside) if inside.exists() else shutil.which("moebius")
    if tool is None:
        sys.exit("moebius: the tool is neither in this package nor on PATH")
    os.execv(tool, ["moebius", *sys.argv[1:]])


if __name__ == "__main__":
    main()
