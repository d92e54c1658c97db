#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A server that loses its GPU while it answers:  lost_device.py TOOL LOSE_DEVICE.so

Eight clients stream when a kernel of the same process writes where nothing is (lose_device.cu). What is under way must end with an error
in words, the server with status 3; `run` ends with status 1 and the words. A new start gives the texts of before. All on the device, and
with experts on the CPU. The last line is "lost device: N checks, N wrong".
"""
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

TOOL, LIBRARY = sys.argv[1:3]
WORDS = "an illegal memory access"
checks = wrong = 0


def check(holds, what):
    global checks, wrong
    checks += 1
    if not holds:
        wrong += 1
        print("WRONG:", what, flush=True)


class Server:
    def __init__(self, words, environment):
        self.process = subprocess.Popen([TOOL, "serve", "--port", "0", "--parallel", "8", *words], stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, env={**os.environ, **environment})
        self.said = []
        self.address = None
        ready = threading.Event()

        def read(stream):
            for line in stream:
                self.said.append(line)
                if self.address is None and "http://" in line:
                    self.address = "http://" + line.split("http://")[1].split()[0].rstrip("/,;)")
                    ready.set()

        for stream in (self.process.stdout, self.process.stderr):
            threading.Thread(target=read, args=(stream,), daemon=True).start()
        if not ready.wait(60):
            raise SystemExit("the server did not begin:\n" + "".join(self.said))
        while self.process.poll() is None:
            try:
                return urllib.request.urlopen(self.address + "/health", timeout=60).close()
            except OSError:  # it loads
                time.sleep(0.05)

    def completion(self, **fields):
        """(status, body): of a stream all its events."""
        request = urllib.request.Request(self.address + "/v1/completions", json.dumps({"temperature": 0, "ignore_eos": True, **fields}).encode(),
                                         {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as e:
            return e.code, e.read().decode()
        except OSError as e:
            return 0, str(e)


def text_of(server):
    status, body = server.completion(prompt="It was a dark", max_tokens=24)
    check(status == 200, f"an answer is {status}: {body:.200}")
    return json.loads(body)["choices"][0]["text"] if status == 200 else None


for words in (["--device", "cuda"], ["--device", "cuda", "--experts", "cpu"]):
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "now")
        injected = {"LD_PRELOAD": LIBRARY, "MOEBIUS_LOSE_DEVICE": file}
        server = Server(words, injected)
        before = text_of(server)
        answers = []

        def ask(number):  # again and again, until something is not an answer
            while True:
                status, body = server.completion(prompt=f"{number} was", max_tokens=64, stream=True)
                if status != 200 or '"error"' in body:
                    return answers.append((status, body))

        streams = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
        for s in streams:
            s.start()
        time.sleep(0.5)
        open(file, "w").close()
        for s in streams:
            s.join()
        told = [body for status, body in answers if status != 0 and WORDS in body]
        # One that came later finds nobody, or a server that ends.
        check(len(told) >= 4 and all(status in (0, 200, 500, 503) for status, _ in answers), f"streams ended with {answers}")
        try:
            code = server.process.wait(60)
        except subprocess.TimeoutExpired:
            server.process.kill()
            code = "no end within 60 s"
        check(code == 3, f"the server ended with {code}: {''.join(server.said)[-400:]}")
        print(f"serve {' '.join(words)}: status {code}; {len(told)} of 8 streams: {told[0][-160:].strip() if told else 'no words'}", flush=True)
        # The file is there: the device is lost when the model begins, or loads.
        lost = subprocess.run([TOOL, "run", "-p", "It was", "-n", "2000", "--ignore-eos", "-q", *words], capture_output=True, text=True, timeout=60,
                              env={**os.environ, **injected})
        check(lost.returncode == 1 and lost.stderr.count("\n") <= 3 and WORDS in lost.stderr,
              f"run ended with {lost.returncode}: {lost.stderr[-400:]}")
        again = Server(words, {})
        check(text_of(again) == before, "a new start gives another text")
        again.process.terminate()
        check(again.process.wait(60) == 0, "a new start does not end well")
print(f"lost device: {checks} checks, {wrong} wrong")
sys.exit(wrong != 0)
