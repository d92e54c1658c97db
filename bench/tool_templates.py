#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Calls of tools through chat templates that nobody here wrote: what a template prints for past calls is read back.

    PYTHONPATH=python MOEBIUS_LIBRARY=build/release/libmoebius.so tool_templates.py FOLDER...     FOLDER: of .jinja files

Two packages have many of them in their source archives: llama-cpp-python 0.3.36 and vllm 0.32.0 (158 files: 81 equal, among them
Hy3's; 0 failed; 30 have no format, 47 print no calls or refuse these).

For each template: the format that was recognised, and whether every set of calls comes back equal, names and arguments. The text between the
prompt and the calls is content. Templates that print no calls, or whose family has another form, are said so; so are pythonic ones that print
texts without quotes or escapes, whose calls Python itself cannot read. Exit status 1 when a call of a recognised format comes back otherwise.
"""
import ast
import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

from moebius import Error, Tokenizer

BUNDLED = Path(__file__).resolve().parent.parent / "models/moebius-tiny-w4a8"
PROPERTIES = {"city": {"type": "string"}, "days": {"type": "integer"}, "hourly": {"type": "boolean"}, "limits": {"type": "object"},
              "tags": {"type": "array", "items": {"type": "string"}}, "share": {"type": "number"}}
TOOLS = [{"type": "function", "function": {"name": n, "description": n, "parameters": {"type": "object", "properties": PROPERTIES}}}
         for n in ("get_weather", "get_time")]
CALLS = [  # sets of calls; those of several are tried where the template takes them
    [("get_weather", {"city": "Oslo", "days": 2})],
    [("get_time", {})],
    [("get_weather", {"city": "two\nlines, \"quotes\" and \\ a slash", "hourly": True})],
    [("get_weather", {"city": "Zürich 東京 {x} </b>", "limits": {"low": -1, "high": [1, 2.5]}, "tags": ["a", "b c"]})],
    [("get_weather", {"city": "2", "days": -3, "share": 0.25, "hourly": False})],
    [("get_weather", {"city": "Oslo"}), ("get_time", {"city": "Rome"})],
]
USER = {"role": "user", "content": "Weather?"}


def assistant(calls):
    return {"role": "assistant", "content": "",
            "tool_calls": [{"id": f"call0000{i}", "type": "function", "function": {"name": n, "arguments": a}} for i, (n, a) in enumerate(calls)]}


def answer_text(tokenizer, message):
    """What the template prints for the message behind the prompt, without what ends a message."""
    prompt = tokenizer.apply_chat_template([USER], tools=TOOLS, tokenize=False, add_generation_prompt=True)
    whole = tokenizer.apply_chat_template([USER, message], tools=TOOLS, tokenize=False, add_generation_prompt=False)
    at = len(os.path.commonprefix([prompt, whole]))
    for begin, end in ("<>", "[]"):  # both may begin with the same bytes of a marker
        opened = whole.rfind(begin, 0, at)
        at = opened if opened >= 0 and end not in whole[opened:at] else at
    return whole[at:]


def python_reads(text, calls):
    """Whether what stands between the first and the last bracket is a list of these calls to Python."""
    try:
        found = ast.parse(text[text.index("["):text.rindex("]") + 1], mode="eval").body.elts
        return [(c.func.id, {k.arg: ast.literal_eval(k.value) for k in c.keywords}) for c in found] == calls
    except (SyntaxError, ValueError, AttributeError):
        return False


def judge(tokenizer, calls):
    try:
        text = answer_text(tokenizer, assistant(calls))
    except Error as e:
        return "refused", str(e)[:100]
    if any(name not in text for name, _ in calls):
        return "not printed", ""
    try:
        message = tokenizer.chat_answer([USER], tokenizer.encode(text, add_special=False), tools=TOOLS)
    except Error as e:
        return ("no format", repr(text)) if "names no known format" in str(e) else ("failed", str(e))
    try:
        found = [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in message.get("tool_calls", [])]
    except ValueError:
        return "failed", message
    if found == calls:
        return "equal", ""
    if calls[0][0] + "(" in text and not python_reads(text, calls):
        return "not Python", ""
    return "failed", f"{text!r}\n    -> {found} {message.get('content')!r}"


def main():
    failed, totals = 0, Counter()
    for file in sorted(f for folder in sys.argv[1:] for f in Path(folder).rglob("*.jinja")):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "tokenizer.json").symlink_to(BUNDLED / "tokenizer.json")
            (Path(folder) / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
            (Path(folder) / "chat_template.jinja").write_text(file.read_text())
            tokenizer = Tokenizer(folder)
            verdicts = [judge(tokenizer, calls) for calls in CALLS]
        words = [v[0] for v in verdicts]
        whole = "failed" if "failed" in words else "equal" if "equal" in words else words[0]
        totals[whole] += 1
        failed += whole == "failed"
        print(f"{file.name}: {whole} ({words.count('equal')} of {len(words)})")
        for verdict, why in verdicts:
            if verdict == "failed":
                print(f"  {verdict}: {why}")
        if whole in ("refused", "no format"):
            print(f"  {verdicts[0][1]}")
    print(", ".join(f"{n} {word}" for word, n in sorted(totals.items())))
    return 1 if failed or not totals["equal"] else 0


if __name__ == "__main__":
    sys.exit(main())
