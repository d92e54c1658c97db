# SPDX-License-Identifier: Apache-2.0
"""Whole models from Python: what the tool says, streams, chats, scores, errors."""
import gc
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

import moebius
from common import BUNDLED, GOLDEN, TOOL, golden_folders, tool, tool_json
from moebius import LLM, Error, SamplingParams

GREEDY = SamplingParams(max_tokens=12, temperature=0)
FULL = bool(os.environ.get("MOEBIUS_FULL"))  # ./test --full: every folder, and as many cycles as were promised


def write_large_folder(folder):
    """A model whose token table and output projection have 2 GiB each, of which the disk holds nothing."""
    source = GOLDEN / "qwen3moe-dense"
    config = json.loads((source / "config.json").read_text())
    config["vocab_size"] = rows = 1 << 24
    (folder / "config.json").write_text(json.dumps(config))
    data = (source / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header, small, end = json.loads(data[8:8 + size]), b"", 0
    large = ("model.embed_tokens.weight", "lm_head.weight")
    for name in sorted((n for n in header if n != "__metadata__"), key=lambda n: n in large):
        begin, behind = (8 + size + at for at in header[name]["data_offsets"])
        length = behind - begin
        if name in large:
            length = 2 * rows * config["hidden_size"]
            header[name]["shape"] = [rows, config["hidden_size"]]
        else:
            small += data[begin:behind]
        header[name]["data_offsets"] = [end, end + length]
        end += length
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text + small)
        out.truncate(8 + len(text) + end)


class Generate(unittest.TestCase):
    def test_bundled_model_says_what_the_tool_says(self):
        cases = [(["--temp", "0"], {"temperature": 0}), (["--temp", "0.8", "--seed", "5"], {"temperature": 0.8, "seed": 5}),
                 (["--temp", "0", "--stop", " and"], {"temperature": 0, "stop": " and"}),
                 (["--temp", "1.5", "--top-n-sigma", "1.5", "--seed", "5"], {"temperature": 1.5, "top_n_sigma": 1.5, "seed": 5}),
                 (["--temp", "0.9", "--top-k", "7", "--top-p", "0.9", "--repetition-penalty", "1.2", "--seed", "3"],
                  {"temperature": 0.9, "top_k": 7, "top_p": 0.9, "repetition_penalty": 1.2, "seed": 3})]
        with LLM(BUNDLED) as llm:
            for words, params in cases:
                said = tool_json("run", BUNDLED, "-p", "It was a dark", "-n", "16", *words)
                answer = llm.generate("It was a dark", SamplingParams(max_tokens=16, **params))[0].outputs[0]
                self.assertEqual((answer.text, answer.token_ids, answer.finish_reason),
                                 (said["text"], said["tokens"], said["finish"]))

    def test_answers_in_a_form(self):
        schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
                  "required": ["name", "age"], "additionalProperties": False}
        sampling = {"max_tokens": 80, "temperature": 1, "seed": 3}
        with LLM(BUNDLED) as llm:
            texts = [llm.generate("Her name was", SamplingParams(json_schema=s, **sampling))[0].outputs[0].text
                     for s in (schema, json.dumps(schema))]
            self.assertEqual(texts[0], texts[1])
            value = json.loads(texts[0])
            self.assertEqual([type(value["name"]), type(value["age"])], [str, int])
            regex = llm.generate("Her name was", SamplingParams(regex="[A-Z][a-z]{2,8}", **sampling))[0].outputs[0].text
            self.assertRegex(regex, "^[A-Z][a-z]{2,8}$")
            choice = llm.generate("Her name was", SamplingParams(choice=["yes", "no"], **sampling))[0].outputs[0].text
            self.assertIn(choice, ["yes", "no"])
            for wrong in ({"json_schema": {"not": {}}}, {"regex": "["}, {"choice": "yes"}, {"regex": "a", "choice": ["a"]},
                          {"json_schema": True, "min_tokens": 3}):
                with self.assertRaises(Error):
                    llm.generate("a", SamplingParams(**wrong))

    def test_golden_folders_say_what_the_tool_says(self):
        folders = golden_folders()[::1 if FULL else 12]
        self.assertGreater(len(folders), 15)
        for folder in folders:
            run = tool("run", folder, "--tokens", "1,2,3,4,5", "-n", "6", "--temp", "0", "-q", check=False)
            if run.returncode != 0:  # an architecture that does not run whole
                with self.assertRaises(Error) as caught:
                    LLM(folder)
                self.assertTrue(caught.exception.file)
                continue
            said = tool_json("run", folder, "--tokens", "1,2,3,4,5", "-n", "6", "--temp", "0", "-q")
            with LLM(folder) as llm:
                answer = llm.generate([1, 2, 3, 4, 5], SamplingParams(max_tokens=6, temperature=0))[0].outputs[0]
            self.assertEqual(answer.token_ids, said["tokens"], folder)
            self.assertEqual(answer.text, said.get("text", ""), folder)

    def test_many_prompts_keep_their_order_and_their_tokens(self):
        with LLM(BUNDLED, parallel=3) as llm:
            prompts = ["It was a dark", "The moon", {"prompt": "A child"}, {"prompt_token_ids": [5, 6, 7]}, "The sea"]
            alone = [llm.generate([p], GREEDY)[0] for p in prompts]
            together = llm.generate(prompts, GREEDY)
            self.assertEqual([o.outputs[0].token_ids for o in alone], [o.outputs[0].token_ids for o in together])
            self.assertEqual(together[3].prompt_token_ids, [5, 6, 7])
            self.assertTrue(all(o.finished and o.metrics.seconds > 0 for o in together))

    def test_answers_and_logprobs(self):
        with LLM(BUNDLED) as llm:
            output = llm.generate("The", SamplingParams(max_tokens=5, temperature=1.0, n=3, logprobs=2, seed=1))[0]
            self.assertEqual([o.index for o in output.outputs], [0, 1, 2])
            self.assertGreater(len({tuple(o.token_ids) for o in output.outputs}), 1)
            for answer in output.outputs:
                self.assertEqual(len(answer.logprobs), len(answer.token_ids))
                for token, entry in zip(answer.token_ids, answer.logprobs):
                    self.assertIn(token, entry)
                    self.assertIn(1, [p.rank for p in entry.values()])
                self.assertAlmostEqual(answer.cumulative_logprob,
                                       sum(e[t].logprob for t, e in zip(answer.token_ids, answer.logprobs)), places=4)

    def test_a_gguf_file(self):
        path = GOLDEN.parent / "negative/gguf/odd/shown.gguf"
        with LLM(str(path)) as llm:
            said = llm.generate("abc", SamplingParams(max_tokens=3, temperature=0))[0].outputs[0]
        self.assertEqual(said.token_ids, tool_json("run", path, "-p", "abc", "-n", "3", "--temp", "0")["tokens"])

    def test_streams_and_ends_early(self):
        with LLM(BUNDLED) as llm:
            whole = llm.generate("It was", GREEDY)[0].outputs[0]
            chunks = list(llm.stream("It was", GREEDY))
            self.assertEqual("".join(c.text for c in chunks), whole.text)
            self.assertEqual([c.token_id for c in chunks if c.token_id is not None], whole.token_ids)
            self.assertEqual(chunks[-1].finish_reason, "length")
            stream = llm.stream("It was", SamplingParams(max_tokens=500, ignore_eos=True))
            next(stream)
            stream.close()  # cancels
            self.assertEqual(llm.generate("It was", GREEDY)[0].outputs[0].text, whole.text)
            # Two at once, in turns.
            a, b = llm.stream("It was", GREEDY), llm.stream("The sea", GREEDY)
            first, second = [], []
            for x, y in zip(a, b):
                first.append(x.text), second.append(y.text)
            self.assertEqual("".join(first), whole.text)
            self.assertEqual("".join(second), llm.generate("The sea", GREEDY)[0].outputs[0].text)

    def test_threads_share_a_model(self):
        with LLM(BUNDLED) as llm:
            expected = [o.outputs[0].text for o in llm.generate(["It was", "The sea"], GREEDY)]
            found = {}
            def work(i, prompt):
                found[i] = llm.generate(prompt, GREEDY)[0].outputs[0].text
            threads = [threading.Thread(target=work, args=(i, p)) for i, p in enumerate(["It was", "The sea"])]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            self.assertEqual([found[0], found[1]], expected)

    def test_other_threads_run_during_a_call(self):
        with LLM(BUNDLED) as llm:
            state = []
            def work():
                state.append("in")
                llm.logits([(i * 37) % 4000 for i in range(512)])
                state.append("out")
            thread = threading.Thread(target=work)
            thread.start()
            while not state:
                pass
            count = 0
            while len(state) == 1:
                count += 1
            thread.join()
            # One that held the interpreter would let no more through than a switch or two.
            self.assertGreater(count, 1000)
            print(f"\na Python thread counted to {count} during one call")

    def test_chats_by_the_template(self):
        with tempfile.TemporaryDirectory() as folder:
            for file in Path(BUNDLED).iterdir():
                (Path(folder) / file.name).write_bytes(file.read_bytes())
            (Path(folder) / "chat_template.jinja").write_text(
                "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}{{ start or 'It' }}{% endif %}")
            messages = [{"role": "user", "content": "It was a dark night"}]
            tokenizer = moebius.Tokenizer(folder)
            self.assertTrue(tokenizer.has_template)
            self.assertEqual(tokenizer.apply_chat_template(messages, tokenize=False), "user: It was a dark night\n")  # as transformers
            self.assertEqual(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True), "user: It was a dark night\nIt")
            ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
            self.assertEqual(tokenizer.decode(ids, skip_special=True), "user: It was a dark night\nIt")
            with LLM(folder) as llm:
                answer = llm.chat(messages, GREEDY)[0]
                self.assertEqual(answer.prompt_token_ids, ids)
                self.assertEqual(answer.outputs[0].token_ids, llm.generate({"prompt_token_ids": ids}, GREEDY)[0].outputs[0].token_ids)
                chunks = list(llm.stream_chat(messages, GREEDY))
                self.assertEqual("".join(c.text for c in chunks), answer.outputs[0].text)
                self.assertEqual(chunks[-1].finish_reason, answer.outputs[0].finish_reason)
                file = Path(folder) / "messages"
                file.write_text(json.dumps(messages))
                said = tool_json("run", folder, "--messages", file, "-n", "12", "--temp", "0")
                self.assertEqual((said["text"], said["tokens"]), (answer.outputs[0].text, answer.outputs[0].token_ids))
                several = llm.chat([messages, [*messages, {"role": "assistant", "content": "And?"}]], GREEDY)
                self.assertEqual([len(several), several[0].outputs[0].text], [2, answer.outputs[0].text])
                other = llm.chat(messages, GREEDY, template_args={"start": "The"})[0]
                self.assertNotEqual(other.prompt_token_ids, ids)
                self.assertEqual(llm.chat(messages, GREEDY, add_generation_prompt=False)[0].prompt_token_ids[:3], ids[:3])
                for bad in ("text", [{"role": 3}], [[]], {"role": "user"}):
                    with self.assertRaises(Error, msg=str(bad)):
                        llm.chat(bad, GREEDY)

    def test_chats_with_tools(self):
        parameters = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Paris"]}}, "required": ["city"], "additionalProperties": False}
        tools = [{"type": "function", "function": {"name": "get_weather", "parameters": parameters}},
                 {"type": "function", "function": {"name": "get_time"}}]
        with tempfile.TemporaryDirectory() as folder:
            for file in Path(BUNDLED).iterdir():
                (Path(folder) / file.name).write_bytes(file.read_bytes())
            template = GOLDEN.parent / "golden-text/tools/hermes.jinja"
            (Path(folder) / "chat_template.jinja").write_text(template.read_text().replace("think>", "notes>"))  # no reasoning
            (Path(folder) / "tools").write_text(json.dumps(tools))
            messages = [{"role": "user", "content": "Rain?"}]
            params = SamplingParams(max_tokens=128, temperature=1.0, seed=4)
            with LLM(folder) as llm:
                answer = llm.chat(messages, params, tools=tools, tool_choice="get_weather")[0].outputs[0]
                calls = answer.message["tool_calls"]
                self.assertEqual((answer.finish_reason, calls[0]["function"]["name"]), ("tool_calls", "get_weather"))
                self.assertIn(json.loads(calls[0]["function"]["arguments"])["city"], ("Oslo", "Paris"))
                self.assertIn("<tool_call>", answer.text)
                file = Path(folder) / "messages"
                file.write_text(json.dumps(messages))
                said = tool_json("run", folder, "--messages", file, "--tools", Path(folder) / "tools", "--tool-choice", "get_weather",
                                 "-n", "128", "--temp", "1", "--seed", "4")
                self.assertEqual((said["message"], said["tokens"]), (answer.message, answer.token_ids))
                streamed = "".join(c.text for c in llm.stream_chat(messages, params, tools=tools, tool_choice="get_weather"))
                self.assertEqual(streamed, answer.text)
                result = {"role": "tool", "tool_call_id": calls[0]["id"], "content": "no"}
                again = llm.chat([*messages, answer.message, result], GREEDY, tools=tools)[0]
                prompt = llm.tokenizer.decode(again.prompt_token_ids)
                self.assertIn("<tool_response>\nno\n", prompt)
                self.assertIn('"arguments": {"city": ', prompt)
                free = llm.chat(messages, GREEDY, tools=tools)[0].outputs[0]
                self.assertEqual(free.message, {"role": "assistant", "content": free.text})
                for wrong in ({"tools": tools, "tool_choice": "nobody"}, {"tools": [{"name": "a b"}]}, {"tools": tools, "tool_choice": 3}, {"tools": [3]}):
                    with self.assertRaises(Error, msg=str(wrong)):
                        llm.chat(messages, GREEDY, **wrong)
        with LLM(BUNDLED) as llm, self.assertRaisesRegex(Error, "names no known format of calls"):
            llm.chat(messages, GREEDY, tools=tools)


class Score(unittest.TestCase):
    def test_logits_equal_the_tools(self):
        folder = GOLDEN / "qwen3moe-w4a8-g32-pack"
        with tempfile.TemporaryDirectory() as out, LLM(folder) as llm:
            file = Path(out) / "logits.safetensors"
            tool("logits", folder, "--tokens", "1,2,3,4", "--out", file)
            raw = file.read_bytes()
            length = struct.unpack("<Q", raw[:8])[0]
            logits = llm.logits([1, 2, 3, 4])
            self.assertEqual(tuple(logits.shape), (4, llm.info.vocab))
            self.assertEqual(logits.tobytes(), raw[8 + length:])

    def test_perplexity_equals_the_tools(self):
        with tempfile.TemporaryDirectory() as out, LLM(BUNDLED) as llm:
            text = "It was a dark night, and the sea was high. " * 8
            file = Path(out) / "text"
            file.write_text(text)
            said = tool_json("perplexity", BUNDLED, "-f", file, "--ctx", "32")
            found = llm.perplexity(text, context=32)
            self.assertEqual((found.loss, found.perplexity, found.tokens), (said["loss"], said["perplexity"], said["tokens"]))


class Text(unittest.TestCase):
    def test_tokenizer(self):
        t = moebius.Tokenizer(BUNDLED)
        text = "It was a dark night, äh 你好."
        ids = t.encode(text, add_special=False)
        self.assertEqual(" ".join(map(str, t.encode(text))), tool("tokenize", BUNDLED, "-p", text).stdout.strip())
        self.assertEqual(t.decode(ids), text)
        self.assertEqual(t.token_to_id(t.id_to_token(ids[0])), ids[0])
        self.assertIsNone(t.token_to_id("no such token at all"))
        self.assertIsNone(t.id_to_token(1 << 30))
        self.assertGreater(t.vocab_size, 1000)
        self.assertFalse(t.is_special(ids[0]))


class Errors(unittest.TestCase):
    def test_negative_folders_raise_with_their_file(self):
        root = GOLDEN.parent / "negative/folders"
        expected = json.loads((root / "expected.json").read_text())
        self.assertEqual(sorted(expected), sorted(p.name for p in root.iterdir() if p.is_dir()))
        kinds = {"open": {"file", "config"}, "deep": {"file"}, "unsupported": {"unsupported"}}
        for name, facts in expected.items():
            stage = facts["stage"]
            with self.subTest(name):
                if stage != "open":
                    moebius.Folder(root / name)  # what is wrong is found when it is loaded
                if stage == "good":
                    LLM(root / name).close()
                    continue
                for make in (LLM, moebius.Folder) if stage == "open" else (LLM,):
                    with self.assertRaises(Error) as caught:
                        make(root / name)
                    e = caught.exception
                    self.assertTrue(all(part in str(e) for part in facts["says"]), e)
                    self.assertIn(e.kind, kinds[stage])
                    self.assertTrue(e.file.startswith(str(root / name)), e.file)
                    if stage != "open":  # a matrix
                        self.assertIn(e.module, str(e))
                    for known in (e.tensor, e.module, e.field):
                        self.assertNotEqual(known, "")

    def test_bad_calls(self):
        llm = LLM(BUNDLED)
        for bad in ({"temperature": -1}, {"max_tokens": -1}, {"n": 0}, {"top_p": 2.0}):
            with self.assertRaises(Error, msg=str(bad)) as caught:
                llm.generate("x", SamplingParams(**bad))
            self.assertEqual(caught.exception.kind, "argument")
        with self.assertRaises(Error):
            llm.generate([[]], GREEDY)
        with self.assertRaises(Error):
            llm.logits([1 << 30])
        with self.assertRaises(Error):
            LLM(BUNDLED, dtype="f64")
        with self.assertRaises(Error):
            LLM(BUNDLED, arithmetic="sloppy")
        llm.close()
        llm.close()
        for call in (lambda: llm.generate("x", GREEDY), lambda: llm.info, lambda: llm.logits([1])):
            with self.assertRaises(Error) as caught:
                call()
            self.assertEqual(caught.exception.kind, "state")

    def test_messages_are_for_python(self):
        with LLM(BUNDLED, context=8) as llm:
            with self.assertRaises(Error) as caught:
                llm.generate([[1] * 8], GREEDY)
            self.assertIn("raise context=", str(caught.exception))
            self.assertNotIn("--", str(caught.exception))
        with self.assertRaises(Error) as caught:
            llm.generate("x", GREEDY)
        self.assertEqual((caught.exception.kind, str(caught.exception)), ("state", "this LLM was closed"))
        messages = [{"role": "user", "content": "x"}]
        with LLM(BUNDLED) as llm:
            for call, name, ours in ((lambda **k: LLM(BUNDLED, **k), "max_model_len", "context="),
                                     (lambda **k: LLM(BUNDLED, **k), "tensor_parallel_size", "--tp"),
                                     (SamplingParams, "structured_outputs", "json_schema="),
                                     (lambda **k: llm.generate("x", GREEDY, **k), "use_tqdm", "progress="),
                                     (lambda **k: llm.chat(messages, GREEDY, **k), "use_tqdm", "progress="),
                                     (lambda **k: llm.stream("x", GREEDY, **k), "use_tqdm", "progress="),
                                     (lambda **k: llm.stream_chat(messages, GREEDY, **k), "use_tqdm", "progress=")):
                with self.assertRaises(Error, msg=name) as caught:
                    call(**{name: 2})
                self.assertEqual((caught.exception.kind, caught.exception.field), ("argument", name))
                self.assertIn(ours, str(caught.exception))
                self.assertNotIn("\n", str(caught.exception))
                with self.assertRaises(TypeError):  # a name that nobody has
                    call(no_such_name=2)
        self.assertEqual(SamplingParams(3, seed=4), SamplingParams(max_tokens=3, seed=4))

    def test_progress_is_told_and_may_raise(self):
        class Bar:
            done = total = 0
            def __init__(self, total, desc, unit, unit_scale):
                Bar.total = total
            def update(self, n):
                Bar.done += n
            def close(self):
                pass
        LLM(BUNDLED, progress=Bar).close()
        self.assertEqual(Bar.done, Bar.total)
        class Broken(Bar):
            def update(self, n):
                raise ValueError("enough")
        with self.assertRaisesRegex(ValueError, "enough"):
            LLM(BUNDLED, progress=Broken)

    def test_a_folder_too_large_is_refused_before_it_is_read(self):
        # In a process of its own, since the limit holds for all of it. Its threads are there before the limit is.
        code = f"""
import resource, moebius
with moebius.LLM({str(BUNDLED)!r}, threads=1) as llm:
    llm.generate("x", moebius.SamplingParams(max_tokens=1))
soft, hard = resource.getrlimit(resource.RLIMIT_AS)
size = next(int(l.split()[1]) << 10 for l in open("/proc/self/status") if l.startswith("VmSize:"))
folder = moebius.Folder({str(BUNDLED)!r})
resource.setrlimit(resource.RLIMIT_AS, (size + (20 << 20), hard))
try:
    moebius.LLM({str(BUNDLED)!r}, threads=1)
except moebius.Error as e:
    print(e.kind, e)
resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
print(folder.architecture, len(moebius.LLM({str(BUNDLED)!r}, threads=1).generate("x", moebius.SamplingParams(max_tokens=2, ignore_eos=True))[0].outputs[0].token_ids))
"""
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        refusal, answer = run.stdout.splitlines()
        self.assertRegex(refusal, r"^memory .*this model needs .* of memory .* \(ulimit -v\) are free: .* are missing")
        self.assertEqual(answer, "Qwen3MoeForCausalLM 2")

    def test_dense_weights_beyond_the_limit_are_refused_in_the_words_of_the_tool(self):
        with tempfile.TemporaryDirectory() as folder:
            write_large_folder(Path(folder))
            code = f"import moebius; moebius.LLM({folder!r}, threads=1)"
            said = []
            for command in ([TOOL, "run", folder, "--tokens", "1", "-n", "1", "--threads", "1"], [sys.executable, "-c", code]):
                run = subprocess.run(["sh", "-c", 'ulimit -v 3145728; exec "$@"', "sh", *command], capture_output=True, text=True, check=False)
                self.assertNotEqual(run.returncode, 0)
                refusal = run.stderr.strip().splitlines()[-1]
                self.assertRegex(refusal, r"this model needs 4\.\d+ GB of memory .* \(ulimit -v\) are free: .* are missing; --pack-dir ")
                said.append(re.sub(r"[0-9.]+ [MG]B of process .* are missing", "", refusal[refusal.index(folder):]))
            self.assertEqual(*said)

    def test_fork_then_call(self):
        llm = LLM(BUNDLED)
        child = os.fork()
        if child == 0:
            try:
                llm.generate("x", GREEDY)
                os._exit(1)
            except Error as e:
                os._exit(0 if e.kind == "state" and "fork" in str(e) else 2)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        self.assertTrue(llm.generate("It was", GREEDY)[0].outputs[0].text)

    def test_nothing_stays(self):
        weight = {"weight": moebius.RawTensor(bytes(4 * 64 * 64), "float32", [64, 64])}
        def cycle():  # open, build, run, drop
            with LLM(GOLDEN / "qwen3moe-w4a8-g32-pack") as llm:
                llm.generate([1, 2, 3], SamplingParams(max_tokens=1, temperature=0))
            folder = moebius.Folder(GOLDEN / "qwen3moe-w4a8-g32-pack")
            rows = memoryview(bytearray(4 * 64)).cast("f", [1, 64])
            folder.linear("model.layers.0.self_attn.q_proj", dtype="f32")(rows)
            folder.moe(folder.moe_blocks[0], dtype="f32")(rows, routing=True)
            moebius.Linear.build([moebius.Part("q", None, 64, 64, weight)], dtype="f32")(rows)
            with self.assertRaises(Error):
                folder.linear("nothing")
        def resident():
            gc.collect()
            return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        for _ in range(50):
            cycle()
        before = resident()
        for _ in range(250):
            cycle()
        self.assertLess(resident() - before, 2 << 20)


if __name__ == "__main__":
    unittest.main()
