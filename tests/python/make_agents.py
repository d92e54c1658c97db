#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes build/data/golden-text/agents/*.json: conversations of ten turns in the forms that coding agents send.

    make_agents.py [FOLDER]

The forms follow the public request types of the clients: blocks with cache_control, a system block that changes with every request, tools
with schemas, results of tools, thinking (Claude Code, /v1/messages); instructions, items, reasoning, calls and their outputs, a cache key
(Codex, /v1/responses). A file has the path, what every request says, and what each turn adds to the list of messages.
"""
import json
import sys
from pathlib import Path

FILES = ["src/main.c", "src/list.c", "Makefile", "README.md", "tests/list_test.c"]


def schema(**properties):
    return {"type": "object", "properties": {k: {"type": v, "description": f"the {k}"} for k, v in properties.items()},
            "required": list(properties)[:1], "additionalProperties": False}


TOOLS = {"Bash": schema(command="string", timeout="integer"), "Read": schema(file_path="string", offset="integer", limit="integer"),
         "Edit": schema(file_path="string", old_string="string", new_string="string"), "Grep": schema(pattern="string", path="string")}


def claude_code():
    base = {"model": "tiny", "max_tokens": 8, "stream": False, "metadata": {"user_id": "user_0"}, "temperature": 1,
            "system": [{"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; turn={turn}"},
                       {"type": "text", "text": "You are an agent that edits code in a terminal. Use the tools.", "cache_control": {"type": "ephemeral"}}],
            "tools": [{"name": n, "description": f"{n} for the user", "input_schema": s} for n, s in TOOLS.items()]}
    turns = [[{"role": "user", "content": [{"type": "text", "text": "<system-reminder>Today is a day.</system-reminder>"},
                                           {"type": "text", "text": "Mend the list.", "cache_control": {"type": "ephemeral"}}]}]]
    for i in range(9):
        name = ["Read", "Grep", "Edit", "Bash"][i % 4]
        path = FILES[i % len(FILES)]
        given = {"Read": {"file_path": path}, "Grep": {"pattern": "list_", "path": "src"}, "Bash": {"command": "make test"},
                 "Edit": {"file_path": path, "old_string": "int n;", "new_string": "size_t n;"}}[name]
        blocks = [{"type": "thinking", "thinking": f"Step {i}.", "signature": "moebius"}] if i % 3 == 0 else []
        blocks += [{"type": "text", "text": f"I use {name}."}] if i % 2 == 0 else []
        blocks.append({"type": "tool_use", "id": f"toolu_{i:024x}", "name": name, "input": given})
        result = {"type": "tool_result", "tool_use_id": f"toolu_{i:024x}", "content": [{"type": "text", "text": f"{path}: {i} lines\n    ok"}],
                  "cache_control": {"type": "ephemeral"}}
        turns.append([{"role": "assistant", "content": blocks}, {"role": "user", "content": [result]}])
    return {"path": "/v1/messages", "list": "messages", "base": base, "turns": turns}


def codex():
    base = {"model": "tiny", "max_output_tokens": 8, "stream": False, "store": False, "parallel_tool_calls": False, "tool_choice": "auto",
            "include": ["reasoning.encrypted_content"], "prompt_cache_key": "0198-conversation", "reasoning": {"effort": "medium", "summary": "auto"},
            "instructions": "You are a coding agent in a terminal. Use the shell.", "text": {"verbosity": "low"},
            "tools": [{"type": "function", "name": "shell", "description": "Runs a command.", "strict": False,
                       "parameters": {"type": "object", "properties": {"command": {"type": "array", "items": {"type": "string"}}, "workdir": {"type": "string"}},
                                      "required": ["command"], "additionalProperties": False}}]}
    turns = [[{"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "<permissions>read only</permissions>"}]},
              {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<environment_context>/tmp</environment_context>"}]},
              {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Mend the list."}]}]]
    for i in range(9):
        items = [{"type": "reasoning", "id": f"rs_{i:024x}", "summary": [], "encrypted_content": None,
                  "content": [{"type": "reasoning_text", "text": f"Step {i}."}]}] if i % 3 == 0 else []
        if i % 2 == 0:
            items.append({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": f"I look at {FILES[i % 5]}."}]})
        items.append({"type": "function_call", "call_id": f"call_{i:024x}", "name": "shell", "arguments": json.dumps({"command": ["cat", FILES[i % 5]]})})
        items.append({"type": "function_call_output", "call_id": f"call_{i:024x}", "output": json.dumps({"output": f"{i} lines\n", "metadata": {"exit_code": 0}})})
        turns.append(items)
    return {"path": "/v1/responses", "list": "input", "base": base, "turns": turns}


def main():
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parents[2] / "build/data/golden-text/agents")
    folder.mkdir(parents=True, exist_ok=True)
    for name, talk in {"claude_code": claude_code(), "codex": codex()}.items():
        (folder / f"{name}.json").write_text(json.dumps(talk, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
