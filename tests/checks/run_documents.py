#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs what the documents tell people to type, in a throw-away copy of this system.

    run_documents.py [PAGE...]      pages of PAGES below; all of them where none is named

 - README.md, docs/install.md: every command line, in blocks and within the text
 - docs/python.md, docs/api.md: every sample, and the command lines between them
 - help: every example of every `moebius help COMMAND`

A command may carry a mark that says why it is not run. In a page, `<!-- not run: WHY -->` stands above a block, and
`<!-- not run, BEGINNING: WHY -->` anywhere; the commands of BEGINNING are left out. Examples of the help that are not run stand in UNRUN.
A mark that fits nothing is an error, and so is a command that fails.

The copy is an overlay of the root file system and one of the clone, both in memory, so that packages can be installed and files written.
It needs root, overlayfs, and build/release with libmoebius.so and the tool; exit status 77, with the reason, where it cannot be made.
Pages but for the help may reach the network (packages of Debian and of Python); the help's examples run without one.
"""
import json
import os
import random
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = ("README.md", "docs/install.md", "docs/python.md", "docs/api.md", "help")
TINY = "models/moebius-tiny-w4a8"
LIMIT_S = 900
BLOCK_MARK = re.compile(r"<!-- not run: (.+?) -->\s*\Z", re.S)
LINE_MARK = re.compile(r"<!-- not run, (.+?): (.+?) -->", re.S)
# A command within a sentence or a table has arguments.
COMMAND = re.compile(r"(\./|bench/|examples/|PREFIX/bin/|E/bin/)\S+ \S|"
                     r"(apt|apt-get|cc|c\+\+|cmake|cpack|ctest|hf|moebius|mpirun|pip|podman|python3|systemctl) \S")
SPAN = re.compile(r"`([^`]+)`")
# Beginnings of examples of the help -> why they are not run.
UNRUN = {
    "moebius bench attention --kernel arm_neon": "only on Arm",
}
# Parts of examples that take minutes -> what stands there in this test.
SHORTER = {"--depths 32,32768": "--depths 32,512", "--synthetic qwen3-30b --layers 6": "--synthetic qwen3-30b --layers 1 --prompts 32"}


class Item:
    """One thing to run: kind is sh, python, cpp, c or cmake."""

    def __init__(self, kind, text, line, why=None):
        self.kind, self.text, self.line, self.why = kind, text, line, why


def joined_lines(block):
    """Commands of a block of shell lines: without comments, continued lines joined."""
    lines = [line.rstrip() for line in block.replace("\\\n", " ").split("\n")]
    return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


def items_of(text, kinds):
    """(items, complaints): what a page says to run, and marks that fit nothing."""
    items, line_marks = [], [[found[1], found[2], False] for found in LINE_MARK.finditer(text)]
    block = re.compile(r"^```(\w*)\n(.*?)^```$|((?:^    \S[^\n]*\n?)+)", re.M | re.S)
    place, block_marks = 0, set()

    def add(kind, command, at, why=None):
        for mark in line_marks:
            if kind == "sh" and command.startswith(mark[0]):
                why, mark[2] = mark[1], True
        items.append(Item(kind, command, text.count("\n", 0, at) + 1, why))

    def add_prose(prose, begin):
        for span in SPAN.finditer(re.sub(r"<!--.*?-->", lambda found: re.sub(r"[^\n]", " ", found[0]), prose, flags=re.S)):
            command = " ".join(span[1].split()).replace("\\|", "|")
            if "sh" in kinds and COMMAND.match(command):
                add("sh", command, begin + span.start())

    for found in block.finditer(text):
        add_prose(text[place:found.start()], place)
        mark = BLOCK_MARK.search(text[place:found.start()])
        if mark:
            block_marks.add(place + mark.start())
        kind = "sh" if found[3] else found[1]
        if kind in kinds:
            body = found[3] or found[2]
            parts = joined_lines(re.sub("^    ", "", body, flags=re.M)) if kind == "sh" else [body]
            for part in parts:
                add(kind, part, found.start(), mark and mark[1])
        place = found.end()
    add_prose(text[place:], place)
    complaints = [f"the mark 'not run, {begin}' fits no command" for begin, _, used in line_marks if not used]
    for mark in re.finditer(r"<!-- not run: ", text):
        if mark.start() not in block_marks:
            complaints.append(f"line {text.count(chr(10), 0, mark.start()) + 1}: the mark stands above no block")
    return items, complaints


def help_items(tool):
    """Every example of every command's help."""
    items, waiting, seen = [], [""], set()
    while waiting:
        name = waiting.pop(0)
        text = subprocess.run([tool, "help", *name.split()], capture_output=True, text=True, check=True).stdout
        examples = re.search(r"^Examples?:\n((?:  \S.*\n)+)", text, re.M)
        for example in joined_lines(re.sub("^  ", "", examples[1], flags=re.M)) if examples else []:
            if example not in seen:
                why = next((why for begin, why in UNRUN.items() if example.startswith(begin)), None)
                items.append(Item("sh", example, f"help {name}".strip(), why))
                seen.add(example)
        listed = re.search(r"^Usage: moebius .*(?:COMMAND|WHAT) \.\.\.\n\n((?:  .*\n)+)", text, re.M)
        if listed:
            waiting += [f"{name} {word}".strip() for word in re.findall(r"^  (\w+)  ", listed[1], re.M)]
    return items


def write_base(folder):
    """A folder of bf16 weights with the tokenizer of the bundled model: a small Qwen3-MoE of random numbers."""
    shutil.copytree(ROOT / TINY, folder)
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    config |= {"num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4}  # for four ranks
    (folder / "config.json").write_text(json.dumps(config))
    hidden, vocab, inner, head = config["hidden_size"], config["vocab_size"], config["moe_intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    shapes = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    for layer in range(2):
        name = f"model.layers.{layer}."
        shapes |= {name + "input_layernorm.weight": (hidden,), name + "post_attention_layernorm.weight": (hidden,),
                   name + "self_attn.q_proj.weight": (queries, hidden), name + "self_attn.k_proj.weight": (keys, hidden),
                   name + "self_attn.v_proj.weight": (keys, hidden), name + "self_attn.o_proj.weight": (hidden, queries),
                   name + "self_attn.q_norm.weight": (head,), name + "self_attn.k_norm.weight": (head,),
                   name + "mlp.gate.weight": (config["num_experts"], hidden)}
        for expert in range(config["num_experts"]):
            shapes |= {f"{name}mlp.experts.{expert}.{part}_proj.weight": (hidden, inner) if part == "down" else (inner, hidden)
                       for part in ("gate", "up", "down")}
    numbers = random.Random(1)
    table = [struct.pack("<f", numbers.gauss(0, 0.05))[2:] for _ in range(251)]
    header, bodies, at = {}, [], 0
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) == 2 else 1)
        body = b"\x80\x3f" * count if len(shape) == 1 else b"".join(numbers.choices(table, k=count))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + len(body)]}
        bodies.append(body)
        at += len(body)
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(bodies))


def write_inputs(folder, tool):
    """The files that examples name."""
    text = (ROOT / "models/eval/val.txt").read_text()
    for name in ("text", "book.txt"):
        (folder / name).write_text(text[:12000])
    (folder / "ids.txt").write_text("12 7 99\n")
    (folder / "keys.txt").write_text("someone:0123456789abcdef\n")
    (folder / "requests.csv").write_text("0.0,20,8\n0.1,30,8\n")
    (folder / "weather.json").write_text(json.dumps([{"type": "function", "function": {
        "name": "get_weather", "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"enum": ["Oslo", "Paris"]}}, "required": ["city"]}}}]))
    (folder / "SCHEMAS").mkdir()
    (folder / "SCHEMAS/weather.json").write_text('{"type": "object", "properties": {"city": {"enum": ["Oslo", "Paris"]}}}')
    weights = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
    (folder / "mixed.json").write_text(json.dumps({"group_0": {"targets": ["Linear"], "weights": weights}}))
    rows = struct.pack("<" + "f" * 768, *[0.01 * (i % 7 - 3) for i in range(768)])
    header = json.dumps({"x": {"dtype": "F32", "shape": [2, 384], "data_offsets": [0, len(rows)]}}).encode()
    (folder / "x").write_bytes(struct.pack("<Q", len(header)) + header + rows)
    write_base(folder / "BF16")
    quantize = [tool, "quantize", folder / "BF16", folder / "BF16-W8A16", "--scheme", "W8A16", "--quiet"]
    subprocess.run(quantize, check=True, stdout=subprocess.DEVNULL)
    shutil.copytree(ROOT / TINY, folder / "TOOLS")
    shutil.copy(next(ROOT.glob("**/golden-text/tools/hermes.jinja")), folder / "TOOLS/chat_template.jinja")
    (folder / "BASE").symlink_to("BF16")
    (folder / "HOME/.zfunc").mkdir(parents=True)


def prepare(folder, command):
    """DIR is a folder that the command can use; what a command writes is not there yet."""
    wanted = ROOT / TINY
    if " quantize DIR" in command or " --tp " in command:
        wanted = folder / "BF16"
    elif " --base BASE" in command or " --kl BASE" in command:
        wanted = folder / "BF16-W8A16"
    elif " --tools " in command:
        wanted = folder / "TOOLS"
    for name in ("DIR",) if "--check" in command else ("DIR", "OUT", "packed"):
        path = folder / name
        if path.is_symlink() or path.is_file():
            path.unlink()
        elif path.is_dir():
            shutil.rmtree(path)
    (folder / "DIR").symlink_to(wanted)
    if "packed/FILE" in command:
        (folder / "packed/FILE").symlink_to(next(path for path in (folder / "packed").iterdir() if path.is_file()))


def serve(command, options):
    """Starts a server, asks whether it is well, and ends it. What went wrong, or nothing."""
    port = re.search(r"--port[ =](\d+)", command)
    address = f"http://127.0.0.1:{port[1] if port else 8000}/health"
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen(["bash", "-c", f"exec {command}"], stdout=log, stderr=subprocess.STDOUT, **options)
        try:
            well, end = False, time.monotonic() + 300
            while not well and server.poll() is None and time.monotonic() < end:
                try:
                    well = urllib.request.urlopen(address, timeout=5).status == 200
                except (urllib.error.URLError, OSError):
                    time.sleep(0.1)
            if server.poll() is None:
                server.send_signal(signal.SIGTERM)
            status = server.wait(120)
        finally:
            if server.poll() is None:
                server.kill()
        log.seek(0)
        return None if well and status == 0 else f"healthy: {well}, status {status}\n{log.read()[-2000:]}"


def run(item, folder, env):
    """What went wrong with an item, or nothing."""
    command = item.text
    for long, short in SHORTER.items():
        command = command.replace(long, short)
    options = {"cwd": folder, "env": env, "stdin": subprocess.DEVNULL}
    if item.kind == "sh":
        prepare(folder, command)
        if re.search(r"\bserve\b", command) and "&&" not in command:
            return serve(command, options)
        last = command.rsplit("&&", 1)
        if len(last) == 2 and re.search(r"\bserve\b", last[1]):
            return run(Item("sh", last[0], item.line), folder, env) or serve(last[1].strip(), options)
        words = ["bash", "-o", "pipefail", "-c", command]
    elif item.kind == "python":
        words = [sys.executable, "-c", command]
    elif item.kind == "cpp":
        (folder / "app.cpp").write_text(command)
        return None
    else:  # cmake: the lines of a project that makes the program of the page's sample
        project = folder / "cmake-sample"
        project.mkdir(exist_ok=True)
        shutil.copy(folder / "app.cpp", project)
        (project / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.25)\nproject(app CXX)\nset(CMAKE_CXX_STANDARD 20)\n"
                                                f"add_executable(app app.cpp)\n{command}")
        words = ["bash", "-c", "cd cmake-sample && cmake -B build >/dev/null && cmake --build build && cd .. && cmake-sample/build/app"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=LIMIT_S, **options)
    except subprocess.TimeoutExpired:
        return f"still runs after {LIMIT_S} s"
    return None if done.returncode == 0 else f"status {done.returncode}\n{(done.stdout + done.stderr)[-2000:]}"


def run_page(page):
    """Runs a page within the copy; the number of failures."""
    folder, tool = ROOT, ROOT / "build/release/moebius"
    if page == "help":
        items, complaints = help_items(tool), []
        complaints += [f"the mark '{begin}' fits no example" for begin in UNRUN if not any(i.text.startswith(begin) for i in items)]
    else:
        kinds = ("sh",) if page in PAGES[:2] else ("sh", "python", "cpp", "cmake")
        items, complaints = items_of((ROOT / page).read_text(), kinds)
        items.sort(key=lambda item: item.kind == "cmake" or "app.c" in item.text)  # programs come before what compiles them
    prefix = folder / "PREFIX"
    env = dict(os.environ, HOME=str(folder / "HOME"), PATH=f"{tool.parent}:{os.environ['PATH']}", DEBIAN_FRONTEND="noninteractive",
               PIP_BREAK_SYSTEM_PACKAGES="1", PIP_ROOT_USER_ACTION="ignore", PYTHONPATH=str(ROOT / "python"), NO_COLOR="1",
               MOEBIUS_LIBRARY=str(tool.parent / "libmoebius.so"), CMAKE_PREFIX_PATH=str(prefix),
               PKG_CONFIG_PATH=f"{prefix}/lib/pkgconfig:{prefix}/lib/x86_64-linux-gnu/pkgconfig:{prefix}/lib/aarch64-linux-gnu/pkgconfig")
    write_inputs(folder, tool)
    shutil.copy(ROOT / "examples/generate.c", folder / "app.c")
    counts = {"run": 0, "not run": 0, "failed": len(complaints)}
    for complaint in complaints:
        print(f"{page}: {complaint}")
    for item in items:
        where = f"{page}:{item.line}" if page != "help" else item.line
        first = " ".join(item.text.split())[:90]
        if item.why:
            counts["not run"] += 1
            print(f"not run  {where}: {first} ({' '.join(item.why.split())})", flush=True)
            continue
        start = time.monotonic()
        problem = run(item, folder, env)
        counts["failed" if problem else "run"] += 1
        print(f"{'FAILED ' if problem else 'ran    '} {where}: {first} ({time.monotonic() - start:.1f} s)" + (f"\n{problem}" if problem else ""),
              flush=True)
    print(f"{page}: {counts['run']} ran, {counts['not run']} carry a mark, {counts['failed']} failed", flush=True)
    return counts["failed"]


COPY = r"""
set -e
work=$1 clone=$2
mount -t tmpfs -o mode=755 tmpfs "$work"
mkdir -p "$work"/{root,up,tmp,clone_up,clone_tmp}
mount -t overlay overlay -o "lowerdir=/,upperdir=$work/up,workdir=$work/tmp" "$work/root"
for folder in proc sys dev; do mount --rbind "/$folder" "$work/root/$folder"; done
mount -t tmpfs -o mode=1777 tmpfs "$work/root/tmp"
mount -t tmpfs -o mode=755 tmpfs "$work/root/run"
mkdir -p "$work/root$clone" "$work/root/etc/apt/apt.conf.d"
mount -t overlay overlay -o "lowerdir=$clone,upperdir=$work/clone_up,workdir=$work/clone_tmp" "$work/root$clone"
cp -L /etc/resolv.conf "$work/resolv.conf" 2>/dev/null && cp --remove-destination "$work/resolv.conf" "$work/root/etc/resolv.conf" || true
echo 'APT::Get::Assume-Yes "true";' >"$work/root/etc/apt/apt.conf.d/99assume-yes"
"""


def in_copy(page):
    """Runs a page in a copy of this system; its exit status."""
    with tempfile.TemporaryDirectory() as work:
        network = "ip link set lo up 2>/dev/null || true; " if page == "help" else ""
        inner = f'{network}exec chroot "$1/root" "$3" -B "$2/tests/checks/run_documents.py" --inside "$4"'
        words = ["unshare", "--mount", *(["--net"] if network else []), "bash", "-c", COPY + inner, "copy", work, str(ROOT), sys.executable, page]
        return subprocess.run(words).returncode


def can_copy():
    """Whether a copy can be made here; else the reason."""
    if os.getuid() != 0 or shutil.which("unshare") is None:
        return "needs root and unshare"
    with tempfile.TemporaryDirectory() as work:
        tried = subprocess.run(["unshare", "--mount", "bash", "-c", COPY, "copy", work, str(ROOT)], capture_output=True, text=True)
    return None if tried.returncode == 0 else f"no overlay of the root file system: {tried.stderr.strip()[-200:]}"


def main():
    arguments = sys.argv[1:]
    if arguments[:1] == ["--inside"]:
        os.chdir(ROOT)
        return 1 if run_page(arguments[1]) else 0
    unknown = [page for page in arguments if page not in PAGES]
    if unknown:
        sys.exit(f"unknown page {shlex.quote(unknown[0])}; there are {', '.join(PAGES)}")
    why = can_copy()
    if why:
        print(f"skipped: {why}")
        return 77
    return 1 if sum(in_copy(page) for page in arguments or PAGES) else 0


if __name__ == "__main__":
    sys.exit(main())
