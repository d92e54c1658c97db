#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Structured output against a validator that is not ours: many schemas, several answers each, at temperature 1.

    structured_answers.py TOOL [--schemas 500] [--answers 4] [--model DIR]     needs jsonschema from PyPI

Starts `TOOL serve`, asks for answers of schemas.py's schemas and judges each: JSON that validates, or cut by its length. Exit status 1
if one is neither. Then the same requests one by one: every text must be the same.
"""
import argparse
import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import jsonschema

import schemas as maker

CHECKER = jsonschema.Draft202012Validator.FORMAT_CHECKER


def ask(url, schema, answers, seed, tokens):
    body = {"prompt": "It was", "max_tokens": tokens, "temperature": 1, "top_p": 1, "n": answers, "seed": seed, "json_schema": schema}
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=600) as reply:
            return json.load(reply)["choices"]
    except urllib.error.HTTPError as error:
        return json.load(error)["error"]


def judge(schema, choice):
    if choice["finish_reason"] == "length":
        return "length"
    try:
        value = json.loads(choice["text"])
        jsonschema.Draft202012Validator(schema, format_checker=CHECKER).validate(value)
    except (ValueError, jsonschema.ValidationError) as error:
        print(f"NOT VALID: {choice['text']!r:.200} of {json.dumps(schema)[:300]}: {str(error)[:200]}", file=sys.stderr)
        return "not valid"
    return "valid"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tool")
    parser.add_argument("--schemas", type=int, default=500)
    parser.add_argument("--answers", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--again", type=int, default=20, help="requests that are asked again alone")
    parser.add_argument("--model", nargs="*", default=[])
    options = parser.parse_args()
    server = subprocess.Popen([options.tool, "serve", *options.model, "--port", "0", "--parallel", "16"], stdout=subprocess.PIPE, text=True)
    try:
        url = server.stdout.readline().strip()
        while True:
            try:
                urllib.request.urlopen(url + "/health", timeout=5)
                break
            except urllib.error.HTTPError:
                pass
        cases = maker.make(options.schemas)
        with ThreadPoolExecutor(4) as pool:
            replies = list(pool.map(lambda i: ask(url, cases[i], options.answers, i, options.tokens), range(len(cases))))
        found = Counter()
        for schema, reply in zip(cases, replies):
            if isinstance(reply, dict):
                found["refused: " + reply["code"]] += 1
                print(f"refused: {reply['message'][:200]}", file=sys.stderr)
            else:
                found.update(judge(schema, choice) for choice in reply)
        different = 0
        for i in range(min(options.again, len(cases))):
            alone = ask(url, cases[i], options.answers, i, options.tokens)
            different += alone != replies[i]
        print(json.dumps({"schemas": len(cases), **found, "asked again alone, different": different}))
        return 1 if found["not valid"] or different else 0
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    sys.exit(main())
