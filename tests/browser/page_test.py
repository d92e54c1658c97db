#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The server's page in Debian's Chromium: chats, stop, keys, keyboard, errors, Markdown, hostile text, engine, themes, widths, policy.

    page_test.py MOEBIUS [CASE...] [--pictures FOLDER]     needs the packages chromium and chromium-driver

Most cases talk to a server of the bundled model. Where the model would have to say something certain, a stand-in serves the same page
with the same header fields and a scripted answer. Exit status 1 when a case failed, 77 without a browser.
"""
import argparse
import http.server
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from webdriver import ENTER, RIGHT, SPACE, TAB, Browser, missing

HOSTILE = ("<script>window.hit = 1</script><img src=x onerror='window.hit = 2'> **bold** `code` [link](javascript:hit=3)\n"
           "| a | <b>b</b> |\n|---|---|\n| <svg onload=hit=4> | d |\n- <iframe src=//foreign.example>\n```\n<style>*{display:none}</style>\n```\n")


class Server:
    """A server process of the bundled model."""

    def __init__(self, tool, *options, key=None, port=0):
        environment = dict(os.environ)
        environment.pop("MOEBIUS_API_KEY", None)
        if key:
            environment["MOEBIUS_API_KEY"] = key
        self.process = subprocess.Popen([tool, "serve", "--port", str(port), "--quiet", *options], stdout=subprocess.PIPE, text=True, env=environment)
        self.url = self.process.stdout.readline().strip()
        while True:
            try:
                urllib.request.urlopen(self.url + "/health").close()
                return
            except urllib.error.HTTPError:
                time.sleep(0.05)

    @property
    def port(self):
        return int(self.url.rsplit(":", 1)[1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def metric(self, name):
        with urllib.request.urlopen(self.url + "/metrics") as answer:
            figures = re.sub(r'{model_name="[^"]*"(,|(})) ?', lambda found: " " if found[2] else "{", answer.read().decode())
        return float(re.search(rf"^moebius_{re.escape(name)} (\S+)$", figures, re.M).group(1))

    def ask(self, body):
        request = urllib.request.Request(self.url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    def long_seed(self):
        """A seed whose answer to "Tell" goes on to the end of the context."""
        for seed in range(200):
            answer = self.ask({"messages": [{"role": "user", "content": "Tell"}], "seed": seed, "max_tokens": 400})
            if answer["choices"][0]["finish_reason"] == "length":
                return str(seed)
        raise AssertionError("every answer is short")


class StandIn:
    """The page of a server, with answers from a list: (pieces, seconds between them, an error at the end, why it ended)."""

    def __init__(self, server, answers):
        outer, self.answers, self.bodies = self, list(answers), []
        with urllib.request.urlopen(server.url + "/") as page:
            head, body = page.headers.items(), page.read()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                for name, value in head if self.path == "/" else [("Content-Type", "application/json")]:
                    if name.lower() not in ("connection", "content-length"):
                        self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body if self.path == "/" else b'{"data":[{"id":"scripted","max_model_len":200}],"tool_format":"hermes"}')

            def do_POST(self):
                outer.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                pieces, pause, error, *finish = outer.answers.pop(0)
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream; charset=utf-8")
                self.end_headers()
                for piece in pieces:
                    delta = {"content": piece} if isinstance(piece, str) else piece
                    self.wfile.write(b"data: " + json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode() + b"\n\n")
                    if pause:
                        time.sleep(pause)
                if finish:
                    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": finish[0]}]}
                    usage = {"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": len(pieces)}}
                    self.wfile.write(b"".join(b"data: " + json.dumps(e).encode() + b"\n\n" for e in (end, usage)))
                if error:
                    self.wfile.write(b'data: {"error":{"message":"' + error.encode() + b'"}}\n\n')
                self.wfile.write(b"data: [DONE]\n\n")

            def log_message(self, *_):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.http.server_close()


def open_page(browser, url, model="moebius-tiny-w4a8"):
    browser.open(url)
    browser.run("localStorage.clear(); sessionStorage.clear()")
    browser.open(url)
    browser.until("the model's name", lambda: browser.text("#title") == model)


def say(browser, text):
    browser.fill("#text", text)
    browser.click("#send")


def answered(browser, count=1):
    browser.until("an answer", lambda: browser.run(
        "return document.querySelectorAll('.message.assistant').length === arguments[0] && document.getElementById('stop').disabled", count))
    return browser.run("return [...document.querySelectorAll('.message.assistant .body')].pop().textContent")


def in_sight(browser, css):
    """Whether all of an element is inside the window, and nothing lies over it."""
    return browser.run("const e = document.querySelector(arguments[0]), r = e.getBoundingClientRect(); "
                       "return r.height > 0 && r.top >= 0 && r.bottom <= innerHeight && e.contains(document.elementFromPoint(r.left + r.width / 2, r.top + r.height / 2))", css)


FIRST_PIECE = "const b = document.querySelector('.message.assistant .body'); return b && b.textContent.length > 5"


def case_chat(browser, server):
    open_page(browser, server.url)
    browser.fill("#seed", "1")
    browser.fill("#max_tokens", "24")
    browser.fill("#temperature", "0")
    say(browser, "Once upon a time")
    text = answered(browser)
    whole = server.ask({"messages": [{"role": "user", "content": "Once upon a time"}], "seed": 1, "max_tokens": 24, "temperature": 0})
    expected = whole["choices"][0]["message"]["content"]
    squeeze = lambda s: re.sub(r"[\s*_`#>|-]+", "", s)
    assert squeeze(text) == squeeze(expected) and text, (text, expected)
    assert re.match(r"\d+ tokens in", browser.text("#state")), browser.text("#state")
    facts = browser.text(".facts")
    assert re.match(r"\d+ tokens · [\d.]+ tokens/s · first after [\d.]+ s · context \d+ of [\d,]+$", facts), facts
    say(browser, "And then?")
    answered(browser, 2)
    browser.open(server.url)  # reloaded: the chat is kept, and so are the settings and the facts
    assert len(browser.find_all(".message")) == 4 and len(browser.find_all(".facts")) == 2
    assert browser.run("return document.getElementById('max_tokens').value") == "24"
    browser.click("#again")
    answered(browser, 2)
    browser.click("[aria-label='Edit message 1']")
    assert browser.run("return document.getElementById('text').value") == "Once upon a time"
    assert not browser.find_all(".message")
    browser.click("#undo-button")  # what was taken out comes back
    assert len(browser.find_all(".message")) == 4 and browser.run("return document.getElementById('undo').hidden")


def case_chats(browser, server):
    """Several chats: begun, gone back to, deleted, brought back, kept, exported; a file becomes one more."""
    titles = lambda: browser.run("return [...document.querySelectorAll('#chat-list .open')].map((b) => b.textContent)")
    texts = lambda: browser.run("return [...document.querySelectorAll('.message .body')].map((b) => b.textContent)")
    with StandIn(server, [([f"answer {i}"], 0, None, "stop") for i in range(3)]) as fake:
        open_page(browser, fake.url, "scripted")
        say(browser, "first question")
        answered(browser)
        browser.click("#new")
        assert not texts() and titles() == ["New chat", "first question"]
        browser.click("#new")  # an empty one is enough
        say(browser, "second question")
        answered(browser)
        assert titles() == ["second question", "first question"]
        assert fake.bodies[1]["messages"] == [{"role": "user", "content": "second question"}], "a chat does not know of another"
        browser.click("[aria-label='Delete chat second question']")
        assert titles() == ["first question"] and texts() == ["first question", "answer 0"]
        assert in_sight(browser, "#undo")
        browser.click("#undo-button")
        assert titles() == ["second question", "first question"] and texts() == ["second question", "answer 1"]
        browser.click("#chat-list li:last-child .open")
        assert texts() == ["first question", "answer 0"]
        browser.open(fake.url)
        assert titles() == ["second question", "first question"] and texts() == ["first question", "answer 0"]
        # What an older page kept was one chat.
        browser.run("localStorage.setItem('moebius', JSON.stringify({ messages: [{ role: 'user', content: 'old' }], settings: { seed: '7' } }))")
        browser.open(fake.url)
        assert titles() == ["old"] and browser.run("return document.getElementById('seed').value") == "7"
        browser.run("const t = new DataTransfer(); t.items.add(new File([arguments[0]], 'chat.json')); const f = document.getElementById('file'); "
                    "f.files = t.files; f.dispatchEvent(new Event('change'))", json.dumps({"messages": [{"role": "user", "content": "from a file"}]}))
        browser.until("the file's chat", lambda: titles() == ["from a file", "old"])


def case_cut(browser, server):
    """An answer that ended at the limit says so and can go on; a full context only says so."""
    with StandIn(server, [(["one ", "two "], 0, None, "length"), (["three"], 0, None, "stop"), (["x"] * 190, 0, None, "length")]) as fake:
        open_page(browser, fake.url, "scripted")
        say(browser, "Count")
        answered(browser)
        assert browser.text(".note span") == "Cut at 2 tokens."
        browser.click("[aria-label='Go on with message 2']")
        browser.until("the rest", lambda: browser.text(".message.assistant .body") == "one two three")
        answered(browser)
        assert not browser.find_all(".note") and browser.text(".facts").startswith("3 tokens"), browser.text(".facts")
        body = fake.bodies[1]
        assert body["continue_final_message"] is True and body["add_generation_prompt"] is False, body
        assert body["messages"][-1] == {"role": "assistant", "content": "one two "}
        assert "continue_final_message" not in fake.bodies[0]
        browser.click("#again")
        answered(browser)
        assert browser.text(".note") == "The context is full."
    # The server takes it: the answer begins as it did and is longer.
    open_page(browser, server.url)
    browser.fill("#seed", server.long_seed())
    browser.fill("#max_tokens", "12")
    say(browser, "Tell")
    begin = answered(browser)
    browser.click("[aria-label='Go on with message 2']")
    browser.until("more", lambda: len(answered(browser)) > len(begin))
    assert answered(browser).startswith(begin) and not browser.find_all(".note.bad"), (begin, answered(browser))


def case_markdown(browser, server):
    text = ("# Title\n## Part\nplain *slanted* and **strong *both* words**, snake_case_name, 2 * 3 * 4, `a*b*c`\n"
            "- one\n- two\n  - inner\n    1. deepest\n- three\n\n3. third\n\n4. fourth\n\n"
            "> quoted\n> > twice\n\n[text](https://foreign.example/a) ![picture](https://foreign.example/b.png)\n***\nend\n" + "> " * 40 + "deep")
    with StandIn(server, [([text[i:i + 5] for i in range(0, len(text), 5)], 0, None)]) as fake:
        open_page(browser, fake.url, "scripted")
        say(browser, "Hello")
        shown = answered(browser)
        found = lambda css: browser.run("return [...document.querySelectorAll('.message.assistant .body ' + arguments[0])].map((e) => e.textContent)", css)
        assert found("h3") == ["Title"] and found("h4") == ["Part"]
        assert found("em") == ["slanted", "both"] and found("strong") == ["strong both words"] and found("code") == ["a*b*c"]
        assert "snake_case_name, 2 * 3 * 4" in shown
        assert found("ul ul > li > ol > li") == ["deepest"] and len(found("> ul > li")) == 3
        assert found("ol[start='3'] > li") == ["third", "fourth"]
        assert found("blockquote > blockquote")[0] == "twice" and len(found("hr")) == 1
        assert found(".address") == ["(https://foreign.example/a)", "(https://foreign.example/b.png)"] and not found("a, img")
        assert len(found("blockquote")) <= 12 and "> > deep" in shown


def case_line(browser, server):
    """One line that grows with what is written, Send at its right, on a phone too; both stay in sight."""
    open_page(browser, server.url)
    boxes = lambda: browser.run("return ['text', 'send'].map((id) => { const r = document.getElementById(id).getBoundingClientRect(); return [r.left, r.right, r.top, r.bottom]; })")
    for width in (1000, 360):
        browser.cdp("Emulation.setDeviceMetricsOverride", width=width, height=640, deviceScaleFactor=1, mobile=False)
        heights = []
        for lines in (1, 3, 60):
            browser.run("const t = document.getElementById('text'); t.value = Array(arguments[0]).fill('line').join('\\n'); t.dispatchEvent(new Event('input'))", lines)
            text, send = boxes()
            assert text[1] <= send[0] and send[1] <= width and text[2] - 8 <= send[2] and abs(text[3] - send[3]) <= 8, (width, lines, text, send)
            assert in_sight(browser, "#send") and in_sight(browser, "#text")
            heights.append(text[3] - text[2])
        assert heights[0] < 48 and heights[0] + 40 < heights[1] < heights[2] < 320, heights
    browser.cdp("Emulation.clearDeviceMetricsOverride")


def case_tools(browser, server):
    """Reasoning is folded, calls are shown, what they gave goes back; tools and a schema come from the settings."""
    call = lambda more: {"tool_calls": [{"index": 0, **more}]}
    pieces = [{"reasoning_content": "hm"}, "I look.", call({"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ""}}),
              call({"function": {"arguments": '{"city":'}}), call({"function": {"arguments": '"Oslo"}'}})]
    with StandIn(server, [(pieces, 0, "", "tool_calls"), (["Rain."], 0, "", "stop")]) as fake:
        open_page(browser, fake.url, "scripted")
        browser.run("document.getElementById('settings').open = true")
        browser.until("the format of calls", lambda: browser.text("#tool-format") == "Calls are read in the format hermes.")
        browser.fill("#tools", '[{"type":"function","function":{"name":"weather"}}]')
        browser.fill("#schema", '{"type":"object"}')
        say(browser, "Weather?")
        answered(browser)
        assert fake.bodies[0]["tools"][0]["function"]["name"] == "weather"
        assert fake.bodies[0]["response_format"]["json_schema"]["schema"] == {"type": "object"}
        assert browser.run("const d = document.querySelector('.message.assistant details'); return !d.open && !d.hidden && d.textContent") == "Reasoninghm"
        assert browser.text(".call summary") == "Calls weather" and '"city": "Oslo"' in browser.text(".call pre")
        browser.fill("[aria-label='Result of weather']", "rain")
        browser.click("[aria-label='Send the results']")
        assert answered(browser, 2) == "Rain."
        said = fake.bodies[1]["messages"]
        assert said[1]["tool_calls"][0] == {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Oslo"}'}}, said
        assert said[2] == {"role": "tool", "tool_call_id": "call_1", "content": "rain"}, said


def case_stop(browser, server):
    open_page(browser, server.url)
    browser.fill("#seed", server.long_seed())
    before = server.metric('request_success_total{finished_reason="cancelled"}')
    say(browser, "Tell")
    browser.until("a first piece", lambda: browser.run(FIRST_PIECE))
    # While the answer grows beyond the window, the button stays where it is and the end of the text is seen above it.
    at = "return document.getElementById('stop').getBoundingClientRect().top"
    top = browser.run(at)
    browser.until("more than fits the window", lambda: browser.run("return document.documentElement.scrollHeight > innerHeight + 100"))
    assert abs(browser.run(at) - top) <= 16, (browser.run(at), top)  # less than half its height
    browser.until("the end to be seen", lambda: browser.run(
        "return document.getElementById('log').getBoundingClientRect().bottom <= document.getElementById('ask').getBoundingClientRect().top + 10"))
    browser.click("#stop")
    browser.until("the slot to be free", lambda: server.metric("num_requests_running") == 0)
    assert server.metric('request_success_total{finished_reason="cancelled"}') == before + 1
    assert answered(browser) and browser.text("#state") == "stopped" and browser.text(".note span") == "Stopped."


def case_keyboard(browser, server):
    """From the address bar to an answer, its stop, the engine and back, without a pointer."""
    open_page(browser, server.url)
    browser.fill("#seed", server.long_seed())
    browser.run("document.activeElement.blur()")

    def tab_to(name, most=30):
        for _ in range(most):
            if browser.focused() == name:
                outline = browser.run("const s = getComputedStyle(document.activeElement); return s.outlineStyle + s.outlineWidth")
                assert outline == "solid3px", (name, outline)
                return
            browser.keys(TAB)
        raise AssertionError(f"Tab does not reach {name}")

    tab_to("tab-chat")
    tab_to("text")
    browser.keys("Tell" + ENTER)
    browser.until("a first piece", lambda: browser.run(FIRST_PIECE))
    tab_to("stop")
    browser.keys(ENTER)
    browser.until("the end", lambda: browser.text("#state") == "stopped")
    tab_to("tab-chat", 60)
    browser.keys(RIGHT)
    assert browser.focused() == "tab-engine" and not browser.run("return document.getElementById('engine').hidden")
    tab_to("table-button")
    browser.keys(SPACE)
    assert browser.text("#table-button") == "Hide the table"


def case_engine(browser, server):
    open_page(browser, server.url)
    browser.click("#tab-engine")
    figure = lambda name: browser.run("const f = [...document.querySelectorAll('.figure')].find((f) => f.textContent.includes(arguments[0])); "
                                      "return f && f.querySelector('b').textContent", name)
    browser.until("figures", lambda: figure("Waiting") == "0")
    worker = threading.Thread(target=lambda: [server.ask({"messages": [{"role": "user", "content": "Tell"}], "max_tokens": 300, "n": 2}) for _ in range(12)])
    worker.start()
    browser.until("tokens per second", lambda: float(figure("Tokens per second, answers") or 0) > 0)
    browser.until("blocks", lambda: (figure("KV blocks") or "").split(" / ")[2].isdigit())
    browser.until("a heat map", lambda: browser.run("const c = document.getElementById('heat'); return !c.hidden && c.width > 1 && "
                                                    "c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some((v, i) => i % 4 === 0 && v > 100)"))
    browser.click("#table-button")
    browser.until("the table", lambda: browser.find_all("#heat-table td"))
    # Every row of a layer goes to as many experts: layers have equal sums, and the note names the largest count.
    counts, note = browser.run("return [[...document.querySelectorAll('#heat-table tr')].map((r) => [...r.querySelectorAll('td')].map((d) => Number(d.textContent))), "
                               "document.getElementById('experts-note').textContent]")
    assert len({sum(layer) for layer in counts}) == 1 and sum(counts[0]) > 0, counts
    assert f"ran {max(max(layer) for layer in counts)} rows" in note, note
    assert browser.find_all("#phases td")
    browser.until("curves", lambda: browser.run("return [...document.querySelectorAll('.figure polyline')].some((p) => p.getAttribute('points').split(' ').length > 3)"))
    browser.click("#history-button")
    browser.until("the history", lambda: len(browser.find_all("#history-table td")) >= 5)
    worker.join()
    # No stream of states stays behind when the view is left.
    browser.click("#tab-chat")
    browser.until("the stream to end", lambda: server.metric('connections{state="active"}') == 1)
    browser.click("#tab-engine")  # what was seen is still there
    assert browser.find_all("#phases td") and browser.find_all(".figure polyline")


def case_values(browser, server):
    """The engine's view keeps its last values when nothing runs any more, and when the server is gone."""
    first = Server(server.tool)
    open_page(browser, first.url)
    browser.click("#tab-engine")
    first.ask({"messages": [{"role": "user", "content": "Tell"}], "max_tokens": 200})
    browser.until("an expert map", lambda: not browser.run("return document.getElementById('heat').hidden"))
    looks = lambda: browser.run("return [document.getElementById('phases').textContent, document.getElementById('experts-note').textContent, "
                                "document.querySelectorAll('.figure')[6].textContent]")
    browser.until("the times of steps", lambda: "moe0.0" not in looks()[0])
    browser.until("idleness to be told", lambda: browser.text("#engine-state").startswith("Nothing ran"), 30)
    kept = looks()
    assert "ran 0 rows" not in kept[1] and not kept[2].startswith("0.0 / 0.0"), kept
    first.__exit__()
    browser.until("the loss to be told", lambda: browser.text("#engine-state").startswith("The server does not answer: these are the values of"))
    assert looks() == kept


def case_hostile(browser, server):
    with StandIn(server, [([HOSTILE[i:i + 7] for i in range(0, len(HOSTILE), 7)], 0, None)] * 2) as fake:
        open_page(browser, fake.url, "scripted")
        say(browser, HOSTILE)
        text = answered(browser)
        for word in ("<script>", "onerror", "<svg onload=hit=4>", "<iframe src=//foreign.example>", "<style>", "javascript:"):
            assert word in text, word
        assert browser.run("return window.hit") is None
        assert browser.run("return document.querySelectorAll('#log :is(script, img, svg, iframe, style, a, b)').length") == 0
        assert browser.run("return [...document.querySelectorAll('.message.assistant :is(strong, code, td, li)')].length") >= 4
        browser.open(fake.url)  # what is kept is as harmless
        assert browser.run("return window.hit") is None and len(browser.find_all(".message")) == 2
        assert fake.bodies[0]["messages"] == [{"role": "user", "content": HOSTILE}]


def case_errors(browser, server):
    open_page(browser, server.url)
    browser.fill("#temperature", "300")
    say(browser, "Hello")
    browser.until("the error", lambda: browser.text("#state") == "temperature is 300; expected 0 to 100")
    assert browser.run("return document.getElementById('state').className") == "bad"
    assert browser.text(".note.bad span") == "temperature is 300; expected 0 to 100" and in_sight(browser, "#state") and in_sight(browser, ".note.bad")
    browser.fill("#temperature", "0")
    browser.fill("#max_tokens", "4")
    browser.click(".note.bad button")
    answered(browser)
    assert not browser.find_all(".note.bad")
    long = "\n\n".join(["paragraph"] * 60)
    with StandIn(server, [([long], 0, None), (["one ", "two"], 0, "no finite logit")]) as fake:
        open_page(browser, fake.url, "scripted")
        say(browser, "Hello")
        answered(browser)
        say(browser, "Hello again")
        assert answered(browser, 2) == "one two" and browser.text("#state") == "no finite logit"
        # Below a conversation that is longer than the window.
        assert browser.text(".note.bad span") == "no finite logit" and in_sight(browser, "#state") and in_sight(browser, ".note.bad")


def case_settings(browser, server):
    """A setting that cannot be used is named, and neither the typed message nor an answer is lost by it."""
    with StandIn(server, [(["first"], 0, None, "stop"), (["second"], 0, None, "stop")]) as fake:
        open_page(browser, fake.url, "scripted")
        typed = lambda: browser.run("return document.getElementById('text').value")
        for box, text, words in (("#tools", "[{", "The tools in the settings: "), ("#schema", "{", "The schema in the settings: "),
                                 ("#temperature", "hot", 'temperature in the settings: "hot" is not a number'),
                                 ("#max_tokens", "1,5", 'max_tokens in the settings: "1,5" is not a number')):
            browser.fill(box, text)
            say(browser, "a long question")
            assert browser.text("#state").startswith(words), browser.text("#state")
            assert browser.run("return document.getElementById('state').className") == "bad"
            assert typed() == "a long question" and not browser.find_all(".message") and not fake.bodies, (box, typed())
            browser.fill(box, "")
        browser.click("#send")
        assert answered(browser) == "first" and typed() == ""
        browser.fill("#temperature", "hot")
        browser.click("#again")
        assert answered(browser) == "first" and len(fake.bodies) == 1
        browser.fill("#temperature", "0.5")
        browser.click("#again")
        browser.until("the second answer", lambda: answered(browser) == "second")
        assert fake.bodies[1]["temperature"] == 0.5 and "temperature" not in fake.bodies[0]


def case_narrow(browser, server):
    """With several models the header of a phone is one line: no word is broken, nothing lies outside."""
    folder = Path(__file__).parents[2] / "models" / "moebius-tiny-w4a8"
    with Server(server.tool, "--model", f"one={folder}", "--model", f"a-name-of-more-than-thirty-letters={folder}") as two:
        open_page(browser, two.url, "Moebius")
        browser.run("document.getElementById('model').value = arguments[0]; document.getElementById('model').dispatchEvent(new Event('change'))",
                    "a-name-of-more-than-thirty-letters")
        for width in (320, 360, 412):
            browser.cdp("Emulation.setDeviceMetricsOverride", width=width, height=740, deviceScaleFactor=1, mobile=True)
            boxes = browser.run("return ['model', 'tab-chat', 'tab-engine'].map((id) => { const e = document.getElementById(id), "
                                "r = e.getBoundingClientRect(); return [id, r.left, r.right, r.height, r.width]; })")
            for name, left, right, height, wide in boxes:
                assert left >= 0 and right <= width and height < 40 and wide >= 30, (width, boxes)
            assert browser.run("return document.documentElement.scrollWidth") <= width, width
            for view in ("engine", "chat"):
                browser.click("#tab-" + view)
                assert not browser.run("return document.getElementById(arguments[0]).hidden", view)
        browser.cdp("Emulation.clearDeviceMetricsOverride")


def case_key(browser, server):
    with Server(server.tool, key="sesame") as guarded:
        browser.open(guarded.url)
        browser.run("localStorage.clear(); sessionStorage.clear()")
        browser.open(guarded.url)
        browser.until("the question", lambda: not browser.run("return document.getElementById('key-form').hidden"))
        for key, good in (("wrong", False), ("sesame", True)):
            browser.run("document.getElementById('key').focus()")
            browser.keys(key + ENTER)
            browser.until("an answer to the key", lambda: browser.run("return document.getElementById('key-form').hidden") == good and
                          (browser.text("#title") == "moebius-tiny-w4a8" if good else in_sight(browser, "#key-wrong")))
        browser.fill("#max_tokens", "4")
        say(browser, "Hello")
        answered(browser)
        assert "sesame" not in browser.run("return JSON.stringify(localStorage)")


def case_gone(browser, server):
    first = Server(server.tool)
    open_page(browser, first.url)
    first.__exit__()
    browser.until("the loss to be told", lambda: browser.text("#state") == "the server does not answer")
    with Server(server.tool, port=first.port) as second:
        browser.until("its return", lambda: browser.text("#state") == "")
    say(browser, "Hello")
    browser.until("words", lambda: browser.run("return document.getElementById('state').className") == "bad" and browser.text("#state"))
    assert not browser.run("return document.getElementById('send').disabled")
    with Server(server.tool, port=first.port):
        browser.fill("#max_tokens", "4")
        browser.click("#again")
        answered(browser)


def case_long(browser, server):
    """10,000 tokens: the page goes on drawing, and the middle of its frames is no slower at the end than at the begin, times eight."""
    pieces = [f"word{i} " + ("\n\n" if i % 40 == 39 else "") for i in range(10000)]
    with StandIn(server, [(pieces, 0.0005, None)]) as fake:
        open_page(browser, fake.url, "scripted")
        browser.run("window.frames_at = []; const f = (t) => { window.frames_at.push(t); requestAnimationFrame(f); }; requestAnimationFrame(f)")
        say(browser, "Hello")
        text = answered(browser)
        assert text.replace("\n", "").split() == "".join(pieces).split()
        times = browser.run("return window.frames_at")
        gaps = sorted(b - a for a, b in zip(times, times[1:]))
        print(f"  {len(gaps)} frames in {(times[-1] - times[0]) / 1000:.1f} s, gap p50 {gaps[len(gaps) // 2]:.0f} ms, p99 {gaps[int(0.99 * len(gaps))]:.0f} ms")
        assert gaps[len(gaps) // 2] < 200 and gaps[int(0.99 * len(gaps))] < 1000, gaps[-5:]


CONTRAST = """
const light = (c) => { const f = c.map((v) => v / 255).map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
                       return 0.2126 * f[0] + 0.7152 * f[1] + 0.0722 * f[2]; };
const parse = (s) => { const m = s.match(/[\\d.]+/g).map(Number); return { rgb: m.slice(0, 3), a: m.length > 3 ? m[3] : 1 }; };
const behind = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c.a === 1) return c.rgb; } return [255, 255, 255]; };
let worst = 99, where = "", count = 0;
for (const e of document.querySelectorAll("body *")) {
  if (![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) && !/INPUT|TEXTAREA/.test(e.tagName)) continue;
  if (!e.checkVisibility() || e.disabled || e.closest(".hidden, script, style")) continue;
  const a = light(parse(getComputedStyle(e).color).rgb), b = light(behind(e)), ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  ++count;
  if (ratio < worst) { worst = ratio; where = e.tagName + " " + e.textContent.slice(0, 30); }
}
return [worst, where, count];
"""


def each_look(browser, server):
    """Both views with something in them, in both themes, wide and narrow."""
    with StandIn(server, [([HOSTILE + "word" * 100 + "\n| " + " | ".join(["wide cell"] * 20) + " |\n" + "|---" * 20 + "|\n"], 0, None)]) as fake:
        open_page(browser, fake.url, "scripted")
        say(browser, "A long question: " + "x" * 300)
        answered(browser)
        kept = browser.run("return localStorage.getItem('moebius')")
    open_page(browser, server.url)
    browser.run("localStorage.setItem('moebius', arguments[0])", kept)
    for theme in ("light", "dark"):
        browser.cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
        for width in (1000, 320):
            browser.cdp("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)
            browser.open(server.url)
            browser.until("the model's name", lambda: browser.text("#title") == "moebius-tiny-w4a8")
            browser.run("document.getElementById('settings').open = true; document.getElementById('key-form').hidden = false")
            for view in ("chat", "engine", "menu"):
                if view == "menu":
                    browser.click("#tab-chat")
                    browser.run("document.getElementById('menu').click()")
                else:
                    browser.click("#tab-" + view)
                if view == "engine":
                    browser.until("figures", lambda: browser.find_all(".figure"))
                    browser.click("#table-button")
                yield theme, width, view
    browser.cdp("Emulation.clearDeviceMetricsOverride")
    browser.cdp("Emulation.setEmulatedMedia", features=[])


def case_looks(browser, server):
    for theme, width, view in each_look(browser, server):
        background = browser.run("return getComputedStyle(document.body).backgroundColor")
        assert (theme == "dark") == (background != "rgb(255, 255, 255)"), background
        worst, where, count = browser.run(CONTRAST)
        assert worst >= 4.5 and count > 10, (theme, width, view, worst, where)
        wide, shown = browser.run("return [document.documentElement.scrollWidth, innerWidth]")
        assert wide <= shown == width, (theme, width, view, wide)
        if browser.pictures:
            browser.screenshot(browser.pictures / f"{view}-{theme}-{width}.png")


def case_controls(browser, server):
    """Every control has a role and a name, every view its landmarks; nothing is smaller than 24 pixels."""
    open_page(browser, server.url)
    browser.fill("#max_tokens", "4")
    say(browser, "Hello")
    answered(browser)
    browser.run("document.getElementById('settings').open = true; document.getElementById('key-form').hidden = false")
    roles = set()
    for view in ("chat", "engine"):
        browser.click("#tab-" + view)
        shown = [e for e in browser.find_all("button, input, textarea, summary, canvas, [role=tab], [role=tabpanel], [role=log]")
                 if browser.call("GET", f"/element/{e}/displayed")]
        assert len(shown) >= 5
        for e in shown:
            role, label = browser.role(e), browser.label(e)
            html = browser.run("return arguments[0].outerHTML.slice(0, 80)", {"element-6066-11e4-a52e-4f735466cecf": e})
            assert role not in ("", "none", "generic") and label, (role, label, html)
            roles.add(role)
            size = browser.call("GET", f"/element/{e}/rect")
            assert role in ("log", "image", "img", "tabpanel") or "hidden" in html or min(size["width"], size["height"]) >= 24, (html, size)
    assert {"button", "tab", "textbox", "log"} <= roles, roles
    for landmark in ("header", "main", "h1"):
        assert len(browser.find_all(landmark)) == 1, landmark
    assert browser.run("return document.documentElement.lang") == "en"


def case_pictures(browser, server):
    """The pictures of the README, and each look; only with --pictures."""
    if not browser.pictures:
        return
    browser.cdp("Emulation.setDeviceMetricsOverride", width=900, height=700, deviceScaleFactor=1, mobile=False)
    open_page(browser, server.url)
    browser.fill("#max_tokens", "90")
    browser.fill("#temperature", "0.7")
    browser.fill("#seed", "11")
    say(browser, "Once upon a time")
    answered(browser)
    say(browser, "And what did she say then?")
    answered(browser, 2)
    browser.screenshot(browser.pictures / "page-chat.png")
    browser.click("#tab-engine")
    workers = [threading.Thread(target=lambda: [server.ask({"messages": [{"role": "user", "content": "Tell"}], "max_tokens": 600, "seed": k, "temperature": 1.5})
                                                for k in range(12)]) for _ in range(6)]
    for w in workers:
        w.start()
    time.sleep(4)
    browser.screenshot(browser.pictures / "page-engine.png")
    for w in workers:
        w.join()
    browser.cdp("Emulation.clearDeviceMetricsOverride")


def foreign(browser):
    own = ("http://127.0.0.1:", "data:", "blob:", "chrome:", "about:")
    return [u for u in browser.requests() if not u.startswith(own)]


def run_case(name, case, browser, server):
    begin = time.monotonic()
    try:
        case(browser, server)
        reports = browser.run("return window.reports")
        severe = [e["message"] for e in browser.log("browser") if "Content Security Policy" in e["message"] or "Uncaught" in e["message"]]
        assert not reports and not severe, (reports, severe)
        strangers = foreign(browser)
        assert not strangers, strangers
    except Exception:  # every case is told of, whatever befell it
        traceback.print_exc()
        print(f"{name}: failed")
        if browser.pictures:
            browser.screenshot(browser.pictures / f"failed-{name}.png")
        return False
    print(f"{name}: passed ({time.monotonic() - begin:.1f} s)")
    return True


def main():
    cases = {name[5:]: f for name, f in globals().items() if name.startswith("case_")}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool")
    parser.add_argument("cases", nargs="*", default=list(cases))
    parser.add_argument("--pictures", type=Path, help="folder for screenshots")
    options = parser.parse_args()
    if missing():
        print("skipped, not installed:", *missing())
        return 77
    if options.pictures:
        options.pictures.mkdir(parents=True, exist_ok=True)
    with Server(options.tool) as server, Browser() as browser:
        server.tool, browser.pictures = options.tool, options.pictures
        results = [run_case(name, cases[name], browser, server) for name in options.cases]
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) and results else 1


if __name__ == "__main__":
    sys.exit(main())
