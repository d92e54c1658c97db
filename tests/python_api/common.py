# SPDX-License-Identifier: Apache-2.0
"""Where things are: MOEBIUS_TOOL names the tool, MOEBIUS_LIBRARY the shared library (ctest sets both)."""
import json
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
BUNDLED = str(ROOT / "models/moebius-tiny-w4a8")
GOLDEN = ROOT / "build/data/golden"
TOOL = os.environ["MOEBIUS_TOOL"]


def golden_folders():
    return sorted(p for p in GOLDEN.iterdir() if (p / "config.json").is_file())


def tool(*arguments, check=True):
    run = subprocess.run([TOOL, *map(str, arguments)], capture_output=True, text=True, check=False)
    if check and run.returncode != 0:
        raise AssertionError(f"{arguments}: {run.stderr}")
    return run


def tool_json(*arguments):
    return json.loads(tool(*arguments, "--json").stdout)


def module(name):
    """A module that is used when it is there, else None."""
    try:
        return __import__(name)
    except ImportError:
        return None
