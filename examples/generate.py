# SPDX-License-Identifier: Apache-2.0
"""Continues a text as it comes:  generate.py FOLDER [TEXT]"""
import sys

import moebius

with moebius.LLM(sys.argv[1]) as llm:
    for chunk in llm.stream(sys.argv[2] if len(sys.argv) > 2 else "It was a dark", moebius.SamplingParams(max_tokens=24, temperature=0)):
        print(chunk.text, end="", flush=True)
print()
