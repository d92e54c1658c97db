#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Agents' clients from the registry against a server with scripted answers: openai, anthropic, langchain-openai, litellm, instructor.

    serve_agents.py MOEBIUS_TESTS [CLIENT...]      MOEBIUS_TESTS: the test program, which serves the script

Every event is validated by the clients' own types. A client that is not installed is left out, in words. Exit status 1 when one failed.
"""
import contextlib
import json
import os
import subprocess
import sys

from client_checks import run_checks

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}\n</tool_call>'
THINK = "<think>\nThe user asks for the weather.\n</think>\n\n"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}
ARGUMENTS = {"city": "Paris", "days": 2}
USER = [{"role": "user", "content": "Weather in Paris?"}]


@contextlib.contextmanager
def serving(*answers):
    """The address of a server that gives these answers in turn, the last one again and again."""
    environment = dict(os.environ, MOEBIUS_SCRIPT=json.dumps(answers))
    command = [sys.argv[1], "--gtest_also_run_disabled_tests", "--gtest_filter=ScriptedServer.*"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        for line in process.stdout:
            if line.startswith("http://"):
                yield line.strip()
                break
        else:
            raise AssertionError("the server did not start")
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait()


def openai_client(url):
    import openai
    return openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, _strict_response_validation=True)


def check_openai():
    import openai
    from pydantic import BaseModel

    tool = {"type": "function", "function": {"name": "get_weather", "description": "the weather", "parameters": SCHEMA}}
    with serving(THINK + "I look.\n" + CALL, "Rain.") as url:
        client = openai_client(url)
        first = client.chat.completions.create(model="tiny", messages=USER, tools=[tool])
        message = first.choices[0].message
        assert first.choices[0].finish_reason == "tool_calls" and message.content == "\n\nI look.", first
        assert json.loads(message.tool_calls[0].function.arguments) == ARGUMENTS
        assert message.reasoning_content == "\nThe user asks for the weather.\n"
        assert first.usage.completion_tokens_details.reasoning_tokens > 0
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "rain"}
        second = client.chat.completions.create(model="tiny", messages=USER + [message, result], tools=[tool])
        assert second.choices[0].message.content == "Rain." and second.choices[0].finish_reason == "stop"
    with serving(CALL + "\n" + CALL) as url:
        with openai_client(url).chat.completions.stream(model="tiny", messages=USER, tools=[tool]) as stream:
            kinds = [e.type for e in stream]
            calls = stream.get_final_completion().choices[0].message.tool_calls
        assert [json.loads(c.function.arguments) for c in calls] == [ARGUMENTS] * 2, calls
        assert kinds.count("tool_calls.function.arguments.done") == 2, kinds

        class get_weather(BaseModel):
            city: str
            days: int

        parsed = openai_client(url).chat.completions.parse(model="tiny", messages=USER, tools=[openai.pydantic_function_tool(get_weather)])
        assert parsed.choices[0].message.tool_calls[0].function.parsed_arguments == get_weather(**ARGUMENTS)


def check_responses():
    tool = {"type": "function", "name": "get_weather", "parameters": SCHEMA, "strict": False}
    with serving(THINK + "I look.\n" + CALL, "Rain.") as url:
        client = openai_client(url)
        first = client.responses.create(model="tiny", input="Weather?", tools=[tool])
        assert [o.type for o in first.output] == ["reasoning", "message", "function_call"], first
        assert json.loads(first.output[2].arguments) == ARGUMENTS and first.status == "completed"
        items = USER + [o.model_dump(exclude_none=True) for o in first.output]
        items.append({"type": "function_call_output", "call_id": first.output[2].call_id, "output": "rain"})
        second = client.responses.create(model="tiny", input=items, tools=[tool])
        assert second.output_text == "Rain.", second
    with serving(THINK + "I look.\n" + CALL) as url:
        client = openai_client(url)
        with client.responses.stream(model="tiny", input="Weather?", tools=[tool]) as stream:
            events = list(stream)
            final = stream.get_final_response()
        assert [e.sequence_number for e in events] == list(range(len(events)))
        assert events[0].type == "response.created" and events[-1].type == "response.completed"
        assert final.output[2].name == "get_weather" and json.loads(final.output[2].arguments) == ARGUMENTS
        raw = list(client.responses.create(model="tiny", input="Weather?", tools=[tool], stream=True))
        assert raw[-1].response.usage.output_tokens_details.reasoning_tokens > 0
        parsed = client.responses.parse(model="tiny", input="Weather?", tools=[tool])
        assert parsed.output[2].name == "get_weather"


def check_anthropic():
    import anthropic
    tool = {"name": "get_weather", "description": "the weather", "input_schema": SCHEMA}
    with serving(THINK + "I look.\n" + CALL, "Rain.") as url:
        client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, _strict_response_validation=True)
        first = client.messages.create(model="tiny", max_tokens=500, messages=USER, tools=[tool], thinking={"type": "enabled", "budget_tokens": 1024})
        assert [b.type for b in first.content] == ["thinking", "text", "tool_use"] and first.stop_reason == "tool_use", first
        assert first.content[2].input == ARGUMENTS
        answer = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": first.content[2].id, "content": "rain"}]}
        history = USER + [{"role": "assistant", "content": first.content}, answer]
        second = client.messages.create(model="tiny", max_tokens=500, messages=history, tools=[tool])
        assert second.content[0].text == "Rain." and second.stop_reason == "end_turn", second
        counted = client.messages.count_tokens(model="tiny", messages=history, tools=[tool]).input_tokens
        assert counted == second.usage.input_tokens + second.usage.cache_read_input_tokens, (counted, second.usage)
        assert [m.id for m in client.models.list()][0] == "tiny"
        try:
            client.messages.create(model="gone", max_tokens=5, messages=USER)
            raise AssertionError("a model that is not there")
        except anthropic.NotFoundError as e:
            assert e.body["error"]["type"] == "not_found_error"
    with serving(THINK + "I look.\n" + CALL) as url:
        client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, _strict_response_validation=True)
        with client.messages.stream(model="tiny", max_tokens=500, messages=USER, tools=[tool]) as stream:
            kinds = [e.type for e in stream]
            final = stream.get_final_message()
        assert kinds[0] == "message_start" and kinds[-1] == "message_stop", kinds
        assert final.content[2].input == ARGUMENTS and final.content[0].thinking.strip(), final
        assert final.usage.output_tokens > 0


def check_langchain():
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    @tool
    def get_weather(city: str, days: int = 1) -> str:
        """The weather."""
        return f"rain in {city} for {days} days"

    for responses in (False, True):
        with serving(CALL, "Rain.") as url:
            model = ChatOpenAI(model="tiny", base_url=url + "/v1", api_key="none", max_retries=0, use_responses_api=responses).bind_tools([get_weather])
            talk = [HumanMessage("Weather?")]
            talk.append(model.invoke(talk))
            assert talk[1].tool_calls[0]["args"] == ARGUMENTS, talk
            for call in talk[1].tool_calls:
                talk.append(ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"]))
            said = model.invoke(talk).content
            assert (said if isinstance(said, str) else said[0]["text"]) == "Rain.", said
    with serving(CALL, "Rain.") as url:
        try:
            from langchain.agents import create_agent
        except ImportError:
            return
        agent = create_agent(ChatOpenAI(model="tiny", base_url=url + "/v1", api_key="none", max_retries=0), tools=[get_weather])
        said = agent.invoke({"messages": [HumanMessage("Weather?")]})["messages"]
        assert [m.type for m in said] == ["human", "ai", "tool", "ai"] and said[-1].content == "Rain.", said


def check_litellm():
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # asks nobody for prices
    import litellm
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
    with serving(CALL) as url:
        answer = litellm.completion(model="openai/tiny", api_base=url + "/v1", api_key="none", messages=USER, tools=[tool])
        assert json.loads(answer.choices[0].message.tool_calls[0].function.arguments) == ARGUMENTS
        pieces = litellm.completion(model="anthropic/tiny", api_base=url, api_key="none", messages=USER, tools=[tool], max_tokens=500, stream=True)
        text = "".join(c.function.arguments or "" for p in pieces for c in (p.choices[0].delta.tool_calls or []))
        assert json.loads(text) == ARGUMENTS, text


def check_instructor():
    import instructor
    from pydantic import BaseModel

    class get_weather(BaseModel):
        city: str
        days: int

    with serving(CALL) as url:
        client = instructor.from_openai(openai_client(url), mode=instructor.Mode.PARALLEL_TOOLS)
        from collections.abc import Iterable
        found = list(client.chat.completions.create(model="tiny", messages=USER, response_model=Iterable[get_weather], max_retries=0))
        assert found == [get_weather(**ARGUMENTS)], found


CHECKS = {"openai": ("openai", check_openai), "responses": ("openai", check_responses), "anthropic": ("anthropic", check_anthropic),
          "langchain": ("langchain_openai", check_langchain), "litellm": ("litellm", check_litellm), "instructor": ("instructor", check_instructor)}


if __name__ == "__main__":
    sys.exit(run_checks(CHECKS, sys.argv[2:]))
