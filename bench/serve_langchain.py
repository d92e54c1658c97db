#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""LangChain's client against a server: invoke, stream, batch.

    MOEBIUS_URL=http://127.0.0.1:8000 serve_langchain.py
"""
import os

from langchain_openai import ChatOpenAI

chat = ChatOpenAI(base_url=os.environ["MOEBIUS_URL"] + "/v1", api_key="none", model="moebius-tiny-w4a8", max_tokens=8, temperature=0)
answer = chat.invoke("It was a dark night.")
assert answer.content and answer.usage_metadata["output_tokens"] <= 8
assert "".join(part.content for part in chat.stream("It was a dark night.")) == answer.content
many = chat.batch(["It was a dark night."] * 4)
assert all(m.content == answer.content for m in many)
print("langchain passed")
