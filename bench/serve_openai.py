#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The official Python client against a server: sync, async, streams, log-probabilities, errors by class, retries.

    MOEBIUS_URL=http://127.0.0.1:8000 MOEBIUS_SMALL_URL=http://127.0.0.1:8001 serve_openai.py

The second server has the key "sesame", one slot and a queue of one.
"""
import asyncio
import json
import os
import threading
import urllib.request

import openai

URL = os.environ["MOEBIUS_URL"] + "/v1"
client = openai.OpenAI(base_url=URL, api_key="none", max_retries=2)
MESSAGES = [{"role": "user", "content": "It was a dark night."}]


def expect_error(kind, call):
    try:
        call()
    except kind as e:
        assert isinstance(e.body, dict) and set(e.body) == {"message", "type", "param", "code"}, e.body
        return e
    raise AssertionError(f"expected {kind.__name__}")


def main():
    models = client.models.list().data
    assert len(models) == 1
    model = models[0].id
    assert client.models.retrieve(model).id == model

    chat = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=12, seed=3)
    assert chat.choices[0].finish_reason in ("stop", "length") and chat.usage.completion_tokens <= 12
    assert chat.usage.total_tokens == chat.usage.prompt_tokens + chat.usage.completion_tokens

    stream = list(client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=12, seed=3, stream=True,
                                                 stream_options={"include_usage": True}))
    joined = "".join(c.choices[0].delta.content or "" for c in stream if c.choices)
    assert joined == chat.choices[0].message.content, (joined, chat.choices[0].message.content)
    assert stream[0].choices[0].delta.role == "assistant"
    assert stream[-1].choices == [] and stream[-1].usage.completion_tokens == chat.usage.completion_tokens

    two = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=6, n=2, logprobs=True, top_logprobs=3)
    assert [c.index for c in two.choices] == [0, 1]
    for choice in two.choices:
        for entry in choice.logprobs.content:
            assert len(entry.top_logprobs) == 3 and entry.logprob <= 0 and bytes(entry.bytes)

    text = client.completions.create(model=model, prompt=["It was", "Once upon"], max_tokens=5, logprobs=2, temperature=0, echo=True)
    assert len(text.choices) == 2 and text.choices[0].text.startswith("It was")
    assert text.choices[0].logprobs.token_logprobs[0] is None
    last = text.choices[0].logprobs
    assert last.token_logprobs[-1] == max(last.top_logprobs[-1].values())
    stopped = client.completions.create(model=model, prompt="It was", max_tokens=30, temperature=0, stop=[" "])
    assert " " not in stopped.choices[0].text

    e = expect_error(openai.BadRequestError, lambda: client.chat.completions.create(model=model, messages=MESSAGES, temperature=300))
    assert e.param == "temperature" and e.code == "out_of_range"
    expect_error(openai.NotFoundError, lambda: client.chat.completions.create(model="nobody", messages=MESSAGES))
    expect_error(openai.BadRequestError, lambda: client.completions.create(model=model, prompt=[1] * 100000))
    expect_error(openai.BadRequestError,
                 lambda: client.chat.completions.create(model=model, messages=MESSAGES, response_format={"type": "grammar"}))
    asyncio.run(several(model))
    turned_away(model)
    print("openai", openai.__version__, "passed")


def turned_away(model):
    small = openai.OpenAI(base_url=os.environ["MOEBIUS_SMALL_URL"] + "/v1", api_key="sesame", max_retries=0)
    expect_error(openai.AuthenticationError, lambda: small.with_options(api_key="wrong").models.list())
    long = [threading.Thread(target=small.with_options(max_retries=300).completions.create, kwargs=dict(model=model, prompt="It was", max_tokens=1900, extra_body={"ignore_eos": True}))
            for _ in range(2)]
    for t in long:
        t.start()
    state = urllib.request.Request(os.environ["MOEBIUS_SMALL_URL"] + "/api/state", headers={"Authorization": "Bearer sesame"})
    while True:
        now = json.load(urllib.request.urlopen(state))
        if now["running"] + now["waiting"] == 2:
            break
    refused = expect_error(openai.RateLimitError, lambda: small.completions.create(model=model, prompt="a", max_tokens=1))
    assert refused.code == "queue_full" and 1 <= int(refused.response.headers["retry-after"]) <= 60
    assert small.with_options(max_retries=300).completions.create(model=model, prompt="a", max_tokens=1).usage.completion_tokens == 1
    for t in long:
        t.join()


async def several(model):
    async with openai.AsyncOpenAI(base_url=URL, api_key="none") as other:
        answers = await asyncio.gather(*(other.completions.create(model=model, prompt=f"Number {i} is", max_tokens=8, seed=i) for i in range(12)))
        again = [await other.completions.create(model=model, prompt=f"Number {i} is", max_tokens=8, seed=i) for i in range(12)]
        assert [a.choices[0].text for a in answers] == [a.choices[0].text for a in again]  # alone as in company
        stream = await other.chat.completions.create(model=model, messages=MESSAGES, max_tokens=2000, stream=True)
        async for _ in stream:
            await stream.close()  # leaves early
            break


if __name__ == "__main__":
    main()
