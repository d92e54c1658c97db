#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/make_qwen3_30b.py writes a folder that verifies and answers, and bench/whole_model.py makes a row of it.

    check_whole_model.py TOOL     two small layers, a second or two
"""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SHAPE = ("--layers 2 --experts 8 --top-k 2 --hidden 128 --intermediate 64 --heads 4 --kv-heads 2 --head-dim 32 --vocab 600").split()


def main():
    tool = Path(sys.argv[1]).resolve()
    os.environ["MOEBIUS_TOOL"] = str(tool)

    def say(*command):
        return subprocess.run([*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True).stdout

    with tempfile.TemporaryDirectory() as work:
        folder = Path(work) / "model"
        table = say(sys.executable, "-B", ROOT / "bench/whole_model.py", folder, "--header", "--seconds", "0", "--threads", "1", *SHAPE)
        head, _, row = ([cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines())
        assert len(head) == len(row) and row[0].endswith(", 2 layers") and all(row), table
        say(tool, "verify", folder)
        for scheme in ("w4a8", "w4a16"):
            say(sys.executable, "-B", ROOT / "bench/make_qwen3_30b.py", folder, "--scheme", scheme, *SHAPE)
            assert f"{scheme} " in say(tool, "inspect", folder)
        text = "five!"
        answer = json.loads(say(tool, "run", folder, "-p", text, "-n", "8", "--temp", "1", "--seed", "1", "--json"))
        assert answer["prompt_tokens"] == len(text) and answer["text"], answer
    print("a small folder of the maker verifies, runs and gives a row")


if __name__ == "__main__":
    main()
