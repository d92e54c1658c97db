#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Structured output and asked-for calls of real clients on the bundled model, whose every token is drawn at temperature 1 under the masks.

    MOEBIUS_URL=http://127.0.0.1:8000 serve_structured.py [CLIENT...]      a server with --tool-format hermes

Whatever is answered must be what the client's own types ask for; an answer that its limit of tokens cut is asked for again with another seed,
and counted. Exit status 1 when a client failed.
"""
import os
import sys
from enum import Enum
from typing import List, Optional, Union

from client_checks import run_checks

URL = os.environ["MOEBIUS_URL"]
MODEL = "moebius-tiny-w4a8"
USER = [{"role": "user", "content": "Tell me of a person."}]
cut = 0


def until_whole(ask, is_cut):
    """The first of some answers that came to its end."""
    global cut
    for seed in range(20):
        answer = ask(seed)
        if answer is not None and not is_cut(answer):
            return answer
        cut += 1
    raise AssertionError("20 answers were cut by their length")


def types():
    """Pydantic models: nested, optional, enumerated, lists, unions, recursive."""
    from pydantic import BaseModel, ConfigDict, Field

    class Closed(BaseModel):
        model_config = ConfigDict(extra="forbid")

    class Colour(str, Enum):
        red = "red"
        green = "green"

    class Address(Closed):
        street: str = Field(max_length=12)
        number: int = Field(ge=1, le=99)

    class Person(Closed):
        name: str = Field(max_length=12)
        colour: Colour
        address: Address
        nick: Optional[Colour]
        numbers: List[Address] = Field(max_length=2)

    class Cat(Closed):
        kind: Colour
        lives: int = Field(ge=1, le=9)

    class Pet(Closed):
        pet: Union[Cat, Address]

    class Tree(Closed):
        value: int = Field(ge=0, le=9)
        left: Optional["Tree"]

    return Person, Pet, Tree


def check_openai():
    import openai
    client = openai.OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0)

    def whole(ask):
        def attempt(seed):
            try:
                return ask(seed)
            except openai.LengthFinishReasonError:
                return None
        return until_whole(attempt, lambda answer: False)

    for kind in types():
        given = {"model": MODEL, "messages": USER, "response_format": kind, "temperature": 1, "max_tokens": 400}
        parsed = whole(lambda seed: client.chat.completions.parse(seed=seed, **given))
        assert isinstance(parsed.choices[0].message.parsed, kind), parsed

        def streamed(seed):
            with client.chat.completions.stream(seed=seed, **given) as stream:
                for _ in stream:
                    pass
                return stream.get_final_completion()
        assert isinstance(whole(streamed).choices[0].message.parsed, kind)
        answer = until_whole(lambda seed: client.responses.parse(model=MODEL, input="Tell.", text_format=kind, temperature=1, max_output_tokens=400,
                                                                 extra_body={"seed": seed}), lambda a: a.status == "incomplete")
        assert isinstance(answer.output_parsed, kind), answer
        tool = openai.pydantic_function_tool(kind, name="note")
        for choice in ("required", {"type": "function", "function": {"name": "note"}}):
            # One call: this model hardly ever draws the end token after one.
            called = until_whole(lambda seed: client.chat.completions.create(model=MODEL, messages=USER, tools=[tool], tool_choice=choice, temperature=1,
                                                                             parallel_tool_calls=False, max_tokens=400, seed=seed), lambda a: a.choices[0].finish_reason == "length")
            assert called.choices[0].finish_reason == "tool_calls", called
            for call in called.choices[0].message.tool_calls:
                kind.model_validate_json(call.function.arguments)


def check_anthropic():
    import anthropic
    import jsonschema
    client = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0)
    for kind in types():
        schema = kind.model_json_schema()
        tool = {"name": "note", "description": "notes it", "input_schema": schema}
        given = {"model": MODEL, "max_tokens": 400, "messages": USER}
        for choice in ({"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "note"}):
            called = until_whole(lambda seed: client.messages.create(tools=[tool], tool_choice=choice, extra_body={"temperature": 1}, **given),
                                 lambda a: a.stop_reason == "max_tokens")
            assert called.stop_reason == "tool_use", called
            for block in called.content:
                jsonschema.validate(block.input, schema)
        form = {"format": {"type": "json_schema", "schema": schema}}
        answer = until_whole(lambda seed: client.messages.create(extra_body={"output_config": form, "temperature": 1}, **given), lambda a: a.stop_reason == "max_tokens")
        kind.model_validate_json(answer.content[0].text)


def check_langchain():
    from langchain_openai import ChatOpenAI
    chat = lambda seed: ChatOpenAI(base_url=URL + "/v1", api_key="none", model=MODEL, max_tokens=400, temperature=1, seed=seed, max_retries=0)

    def ask(seed, kind, method):
        try:
            return chat(seed).with_structured_output(kind, method=method, include_raw=True).invoke("Tell me of a person, in JSON.")
        except Exception as e:
            if type(e).__name__ == "LengthFinishReasonError":
                return None
            raise

    def whole(kind, method):
        return until_whole(lambda seed: ask(seed, kind, method), lambda answer: answer["raw"].response_metadata.get("finish_reason") == "length")

    for kind in types():
        for method in ("json_schema", "function_calling"):
            if kind.__name__ == "Tree" and method == "function_calling":
                continue  # LangChain sends {} for a type that refers to itself
            answer = whole(kind, method)
            assert isinstance(answer["parsed"], kind), (method, answer)
    assert isinstance(whole(None, "json_mode")["parsed"], dict)


def check_litellm():
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # asks nobody for prices
    import litellm
    for kind in types():
        form = {"type": "json_schema", "json_schema": {"name": "note", "schema": kind.model_json_schema()}}
        answer = until_whole(lambda seed: litellm.completion(model="openai/" + MODEL, api_base=URL + "/v1", api_key="none", messages=USER, temperature=1,
                                                             max_tokens=400, seed=seed, response_format=form), lambda a: a.choices[0].finish_reason == "length")
        kind.model_validate_json(answer.choices[0].message.content)


def check_instructor():
    import instructor
    import openai
    client = openai.OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0)
    for kind in types():
        for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
            asked = instructor.from_openai(client, mode=mode)

            def ask(seed):
                try:
                    return asked.chat.completions.create(model=MODEL, messages=USER, response_model=kind, max_retries=0, temperature=1, max_tokens=400, seed=seed)
                except Exception as e:
                    if "IncompleteOutput" in type(e).__name__ or "IncompleteOutput" in str(type(e.__cause__)) or "length" in str(e).lower():
                        return None
                    raise
            assert isinstance(until_whole(ask, lambda answer: False), kind)


CHECKS = {"openai": ("openai", check_openai), "anthropic": ("anthropic", check_anthropic), "langchain": ("langchain_openai", check_langchain),
          "litellm": ("litellm", check_litellm), "instructor": ("instructor", check_instructor)}


if __name__ == "__main__":
    sys.exit(run_checks(CHECKS, sys.argv[1:], lambda: f"; {cut} answers were cut by their length and asked for again"))
