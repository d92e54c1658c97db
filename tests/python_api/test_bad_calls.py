# SPDX-License-Identifier: Apache-2.0
"""Calls that make no sense end in moebius.Error, in words: never in a crash, never in a wrong answer without a word."""
import array
import copy
import ctypes
import os
import pickle
import signal
import subprocess
import sys
import threading
import unittest
from unittest import mock

import moebius
from common import BUNDLED, GOLDEN, module
from moebius import llm as llm_module
from moebius import LLM, Error, Folder, Linear, MoeBuilder, MoeSpec, Part, RawTensor, SamplingParams, Scheme, Threads, Tokenizer

numpy, torch = module("numpy"), module("torch")
Q, BLOCK = "model.layers.0.self_attn.q_proj", "model.layers.0.mlp"
SMALL = GOLDEN / "qwen3moe-w4a8-g32-pack"
HUGE = (2**31, 2**32 + 1, 2**63, 2**64 + 1, 2**70)


def floats(rows, cols, value=0.5):
    return memoryview(array.array("f", [value] * (rows * cols))).cast("B").cast("f", [rows, cols])


def ints(rows, cols, value=0, kind="i"):
    return memoryview(array.array(kind, [value] * (rows * cols))).cast("B").cast(kind, [rows, cols])


class Bad(unittest.TestCase):
    def refused(self, call, kind="argument", field=None, what=""):
        with self.assertRaises(Error, msg=str(what)) as caught:
            call()
        self.assertTrue(str(caught.exception), what)
        if kind is not None:
            self.assertEqual(caught.exception.kind, kind, f"{what}: {caught.exception}")
        if field is not None:
            self.assertEqual(caught.exception.field, field, f"{what}: {caught.exception}")
        return caught.exception


class Layers(Bad):
    @classmethod
    def setUpClass(cls):
        cls.folder = Folder(BUNDLED)
        cls.linear = cls.folder.linear(Q, dtype="f32")
        cls.moe = cls.folder.moe(BLOCK, dtype="f32")
        cls.experts = cls.folder.moe(BLOCK, scope="experts", dtype="f32")
        cls.x = floats(3, cls.moe.hidden)

    def test_arrays_that_are_none(self):
        for bad in (None, 3, "text", b"bytes", [1.0, 2.0], {}, object(), floats, array.array("d", [0.0] * 384), array.array("f", []),
                    memoryview(b""), floats(3, 383), floats(0 + 3, 385), memoryview(bytearray(4)).cast("f", [])):
            self.refused(lambda: self.linear(bad), field="x", what=bad)
            self.refused(lambda: self.moe(bad), field="x", what=bad)
        gone = floats(3, 384)
        gone.release()
        self.refused(lambda: self.linear(gone), field="x")
        for bad in (3, "text", array.array("f", [0.0]), memoryview(bytes(3 * 384 * 4)).cast("f", [3, 384]), floats(2, 384), ints(3, 384)):
            self.refused(lambda: self.moe(self.x, bad), field="out", what=bad)

    def test_rows_of_buffers_that_are_not_contiguous(self):
        spread = memoryview(array.array("f", [float(i % 7) for i in range(768)]))[::2]
        tight = array.array("f", spread.tolist())
        self.assertEqual(self.linear(spread).tobytes(), self.linear(tight).tobytes())
        self.refused(lambda: self.linear(tight, memoryview(array.array("f", [0.0] * 2 * self.linear.outputs))[::2]), field="out")

    def test_experts_that_are_none(self):
        k, ones = self.moe.slots, floats(3, self.moe.slots)
        for value in (self.moe.experts, -2, 2**31 - 1, -(2**31)):
            self.refused(lambda: self.moe.run_ids(self.x, ints(3, k, value), ones), what=value)
        for value in (2**31, -(2**31) - 1, 2**32, 2**62):
            self.refused(lambda: self.moe.run_ids(self.x, ints(3, k, value, "q"), ones), field="ids", what=value)
        for bad in (None, floats(3, k), floats(3, k, float("nan")), ints(2, k), ints(3, k + 1), array.array("i", []), 3, [[0] * k] * 3):
            self.refused(lambda: self.moe.run_ids(self.x, bad, ones), what=bad)
        for bad in (None, floats(3, k + 1), ints(3, k), floats(2, k), 1.0):
            self.refused(lambda: self.moe.run_ids(self.x, ints(3, k), bad), field="weights", what=bad)
        for bad in (None, floats(3, self.moe.experts + 1), floats(2, self.moe.experts), ints(3, self.moe.experts)):
            self.refused(lambda: self.moe.run_logits(self.x, bad), field="logits", what=bad)
        self.refused(lambda: self.experts(self.x), what="no router")

    def test_numbers_that_are_none_go_through(self):
        """NaN and infinity are values: whatever they give, the other rows are not touched."""
        good = self.moe(self.x)
        for value in (float("nan"), float("inf"), -float("inf")):
            mixed = floats(3, self.moe.hidden)
            for c in range(self.moe.hidden):
                mixed[1, c] = value
            rows = self.moe(mixed).tolist()
            self.assertEqual([rows[0], rows[2]], [good.tolist()[0], good.tolist()[2]])
            self.linear(mixed)
            scores = floats(3, self.moe.experts, value)
            y, ids, _ = self.moe.run_logits(self.x, scores, routing=True)
            self.assertTrue(all(0 <= i < self.moe.experts for row in ids.tolist() for i in row), value)
            self.moe.run_ids(self.x, ids, floats(3, self.moe.slots, value))

    def test_nothing_to_do(self):
        if numpy is None:
            self.skipTest("numpy is not installed")
        none = numpy.empty((0, 384), "f4")
        self.assertEqual((self.linear(none).shape, self.moe(none).shape), ((0, self.linear.outputs), (0, 384)))
        self.assertEqual(self.moe.run_ids(none, numpy.empty((0, 2), "i4"), numpy.empty((0, 2), "f4")).shape, (0, 384))
        self.assertEqual(self.moe.run_logits(none, numpy.empty((0, self.moe.experts), "f4")).shape, (0, 384))
        x = numpy.ones((2, 384), "f4")  # no expert at all
        self.assertFalse(self.experts.run_ids(x, numpy.empty((2, 0), "i4"), numpy.empty((2, 0), "f4")).any())
        self.assertFalse(self.experts.run_ids(x, numpy.full((2, 2), -1, "i4"), numpy.ones((2, 2), "f4")).any())

    def test_options_that_are_none(self):
        for bad in ({"threads": "2"}, {"threads": 1.5}, {"threads": -1}, {"threads": 1025}, {"kernel": 3}, {"kernel": "a\0b"},
                    {"arithmetic": None}, {"int8": []}, {"dtype": torch}, {"dtype": "int8"}, {"tp": 0}, {"tp": -1}, {"tp": 2, "tp_rank": 2},
                    {"ep": 3, "ep_rank": -1}, {"tp": 100000}, {"placement": 1}, {"progress": 3}, {"progress": "bar"}, *({"threads": h} for h in HUGE),
                    *({"tp": h} for h in HUGE[2:])):
            self.refused(lambda: self.folder.linear(Q, **bad), what=bad)
            self.refused(lambda: self.folder.moe(BLOCK, **bad), what=bad)
        for bad in (3, None, b"q", "a\0b", "", "nothing", "x" * 100000):
            self.refused(lambda: self.folder.linear(bad), what=bad)
            self.refused(lambda: self.folder.moe(bad), what=bad)
        self.refused(lambda: self.folder.moe(BLOCK, scope=3))
        self.refused(lambda: self.folder.explain(cpu="warp"), kind=None)
        self.refused(lambda: self.folder.explain(cpu=3))
        for bad in ({"count": "2"}, {"count": -1}, {"count": 2**33}, {"cpus": ["0"]}, {"cpus": [2**33]}, {"cpus": [65535]}, {"backend": 3}):
            self.refused(lambda: Threads(**bad), what=bad, kind=None)

    def test_progress(self):
        for load in (lambda p: self.folder.linear(Q, progress=p), lambda p: self.folder.moe(BLOCK, progress=p), lambda p: LLM(SMALL, progress=p)):
            told, folder = [], self.folder

            class Bar:
                def __init__(self, total, desc, unit, unit_scale):
                    told.append(total)

                def update(self, n):
                    told.append(n)
                    folder.linear(Q, dtype="f32")(floats(1, 384))  # a call from inside a load

                def close(self):
                    told.append("closed")

            load(Bar).close()
            self.assertEqual((sum(told[1:-1]), told[-1]), (told[0], "closed"))
            self.assertGreater(told[0], 0)

            class Raises(Bar):
                def update(self, n):
                    raise KeyError("enough")

            class RaisesAtTheEnd(Bar):
                def close(self):
                    raise KeyError("enough")

            for bad in (Raises, RaisesAtTheEnd, mock.Mock(side_effect=KeyError("enough"))):
                with self.assertRaises(KeyError):
                    load(bad)
        self.refused(lambda: MoeBuilder(MoeSpec(64, 32, 4, 2), gate=None, up=None, down=None, progress=True), field="progress")

    def test_what_was_closed(self):
        folder, threads = Folder(BUNDLED), Threads(1)
        linear, moe, scheme = folder.linear(Q, dtype="f32"), folder.moe(BLOCK, dtype="f32"), Scheme()
        tokenizer, builder = Tokenizer(BUNDLED), MoeBuilder(MoeSpec(64, 32, 4, 2), gate=None, up=None, down=None)
        for _ in range(3):
            for handle in (folder, threads, linear, moe, scheme, tokenizer, builder):
                handle.close()
        calls = {"architecture": lambda: folder.architecture, "warnings": lambda: folder.warnings, "blocks": lambda: folder.moe_blocks,
                 "modules": lambda: folder.modules, "inspect": folder.inspect, "explain": folder.explain, "linear": lambda: folder.linear(Q),
                 "moe": lambda: folder.moe(BLOCK), "count": lambda: threads.count, "threads": lambda: self.folder.linear(Q, threads=threads),
                 "run": lambda: linear(self.x), "kernel": lambda: linear.kernel, "bytes": lambda: linear.packed_bytes, "moe run": lambda: moe(self.x),
                 "slots": lambda: moe.slots, "moe kernel": lambda: moe.kernel, "moe bytes": lambda: moe.packed_bytes,
                 "family": lambda: scheme.family, "description": lambda: scheme.description, "problem": scheme.problem,
                 "tensors": lambda: scheme.tensors, "part": lambda: Linear.build([Part("q", scheme, 4, 4, {})]),
                 "begin": lambda: MoeBuilder(MoeSpec(64, 32, 4, 2), gate=scheme, up=None, down=None),
                 "encode": lambda: tokenizer.encode("x"), "decode": lambda: tokenizer.decode([1]), "id": lambda: tokenizer.token_to_id("a"),
                 "token": lambda: tokenizer.id_to_token(1), "special": lambda: tokenizer.is_special(1), "vocab": lambda: tokenizer.vocab_size,
                 "template": lambda: tokenizer.has_template, "set": lambda: builder.set_expert(0, {}), "finish": builder.finish}
        for what, call in calls.items():
            self.refused(call, kind="state", what=what)
        for handle in (self.folder, self.linear, self.moe, Scheme()):
            for make in (pickle.dumps, copy.copy, copy.deepcopy):
                self.refused(lambda: make(handle), kind="state", what=handle)
        with Folder(BUNDLED) as held:
            self.assertTrue(held.modules)
        self.refused(lambda: held.modules, kind="state")

    def test_after_a_fork(self):
        child = os.fork()
        if child == 0:
            wrong = 0
            for call in (lambda: self.linear(self.x), lambda: self.folder.modules, lambda: self.moe.slots, lambda: self.folder.linear(Q)):
                try:
                    call()
                    wrong += 1
                except Error as e:
                    wrong += e.kind != "state" or "fork()" not in str(e)
            own = Folder(BUNDLED).linear(Q, dtype="f32", threads=2)  # what is made here works
            wrong += own(self.x).shape[0] != 3
            self.linear.close()
            os._exit(wrong)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        self.assertEqual(self.linear(self.x).shape[0], 3)

    def test_c_strings_and_handles_freed_twice(self):
        lib = moebius._library.lib
        text = lib.moebius_linear_kernel(self.linear._handle)
        for _ in range(2):
            lib.moebius_string_free(ctypes.cast(text, ctypes.c_char_p))
        self.assertIn(b"freed", lib.moebius_last_error())
        lib.moebius_string_free(ctypes.create_string_buffer(b"mine"))
        self.assertEqual(lib.moebius_last_error_field(b"kind"), b"state")
        for number in (1, 0xFFFF, 2**63):
            lib.moebius_linear_free(number)
            self.assertEqual(lib.moebius_linear_inputs(number), 0)
            self.assertIn(b"not a handle", lib.moebius_last_error())


class Numpy(Bad):
    @classmethod
    def setUpClass(cls):
        if numpy is None:
            raise unittest.SkipTest("numpy is not installed")
        cls.linear = Folder(BUNDLED).linear(Q, dtype="f32")
        cls.moe = Folder(BUNDLED).moe(BLOCK, dtype="f32")
        cls.row = (numpy.arange(384, dtype="f4") % 13 - 6) / 5
        cls.want = cls.linear(cls.row).tobytes()

    def test_rows_that_lie_in_one_place(self):
        x = numpy.broadcast_to(self.row, (5, 384))
        self.assertEqual(self.linear(x).tobytes(), 5 * self.want)
        self.assertEqual(self.moe(x).tobytes(), 5 * self.moe(self.row).tobytes())
        overlapping = numpy.lib.stride_tricks.as_strided(numpy.tile(self.row, 2), (384, 384), (4, 4))
        self.assertEqual(self.linear(overlapping).tobytes(), self.linear(numpy.ascontiguousarray(overlapping)).tobytes())
        out = numpy.lib.stride_tricks.as_strided(numpy.empty(self.linear.outputs, "f4"), (5, self.linear.outputs), (0, 4))
        self.refused(lambda: self.linear(x, out), field="out")
        ids = numpy.broadcast_to(numpy.array([0, 3], "i4"), (5, 2))
        weights = numpy.broadcast_to(numpy.array([0.5, 0.25], "f4"), (5, 2))
        want = self.moe.run_ids(x, ids.copy(), weights.copy()).tobytes()
        self.assertEqual(self.moe.run_ids(x, ids, weights).tobytes(), want)
        self.assertEqual(self.moe.run_ids(x, ids.astype("i8")[::-1], numpy.asfortranarray(weights)).tobytes(), want)

    def test_elements_between_elements(self):
        record = numpy.zeros((3, 384), dtype=[("v", "<f4"), ("b", "u1")])
        record["v"] = self.row
        self.assertEqual(self.linear(record["v"]).tobytes(), 3 * self.want)
        packed = numpy.zeros(3, dtype=[("b", "u1"), ("v", "<f4", 384)])  # rows at odd addresses
        packed["v"] = self.row
        self.assertEqual(self.linear(packed["v"]).tobytes(), 3 * self.want)
        turned = numpy.stack([self.row] * 3)[::-1, :]
        self.assertEqual(self.linear(turned).tobytes(), 3 * self.want)
        self.assertEqual(self.linear(self.row[::-1][::-1]).tobytes(), self.want)
        self.assertEqual(self.linear(numpy.stack([self.row[::-1]] * 2)[:, ::-1]).tobytes(), 2 * self.want)
        deep = numpy.zeros((2, 3, 5, 384), "f4")
        deep[:] = self.row
        self.assertEqual(self.linear(deep[:, ::2, 1:4]).tobytes(), 12 * self.want)

    def test_what_is_refused(self):
        self.row.flags.writeable = True
        frozen = numpy.empty((1, self.linear.outputs), "f4")
        frozen.flags.writeable = False
        self.refused(lambda: self.linear(self.row[None], frozen), field="out")
        for dtype in ("f8", "i4", "u1", "c8", "?", "O", "U4", ">f4", "M8[s]"):
            self.refused(lambda: self.linear(numpy.zeros((2, 384), dtype)), field="x", what=dtype)
        self.refused(lambda: self.linear(numpy.float32(3)), field="x")
        self.refused(lambda: self.linear(numpy.zeros(())), field="x")

        class Odd:
            def __init__(self, **interface):
                self.__array_interface__ = interface

        for bad in ({}, {"typestr": "<f4"}, {"typestr": "<f4", "shape": (384,), "data": b"12"}, {"typestr": "f", "shape": (1,), "data": (0, False)},
                    {"typestr": "<f4", "shape": "x", "data": (0, False)}, {"typestr": "<f4", "shape": (1, 384), "data": (0, False)}):
            self.refused(lambda: self.linear(Odd(**bad)), what=bad)

        class Packs:
            def __init__(self, capsule, device=(1, 0)):
                self.capsule, self.device = capsule, device

            def __dlpack__(self, **_):
                if isinstance(self.capsule, Exception):
                    raise self.capsule
                return self.capsule

            def __dlpack_device__(self):
                return self.device

        for bad in (Packs(None), Packs(3), Packs(BufferError("no")), Packs(None, (2, 0)), Packs(None, ()), Packs(None, None),
                    Packs(self.row.__dlpack__(), (2, 0))):
            self.refused(lambda: self.linear(bad), field="x", what=bad.capsule)
        self.refused(lambda: self.linear(Packs(self.row.__dlpack__())), field="out", what="a result of which library?")


class Memory(Bad):
    def test_tensors_that_are_none(self):
        scheme = Scheme({"weights": {"num_bits": 4, "type": "int", "group_size": 32, "strategy": "group", "symmetric": True}}, format="pack-quantized")
        good = {"weight": RawTensor(bytes(4 * 64 * 32), "float32", [32, 64])}
        self.assertEqual(Linear.build([Part("q", None, 32, 64, good)], dtype="f32").outputs, 32)
        for bad in ({"weight": RawTensor(b"", "float32", [32, 64])}, {"weight": RawTensor(bytes(8192), "float32", [32, -64])},
                    {"weight": RawTensor(bytes(8192), "float32", ["a"])}, {"weight": RawTensor(3, "float32", [32, 64])},
                    {"weight": RawTensor(bytes(8192), "float99", [32, 64])}, {"weight": None}, {"weight": 3}, {3: good["weight"]},
                    {"we\0ight": good["weight"]}, {"weight": floats(32, 63)}, {"weight": floats(64, 32)}, {"weight": array.array("d", [0.0])},
                    {"weight": RawTensor(bytes(8192), "float32", [2**40, 2**40])}, {}, {**good, "wheel": good["weight"]}):
            self.refused(lambda: Linear.build([Part("q", None, 32, 64, bad)], dtype="f32"), kind=None, what=bad)
        for bad in ({"outputs": -1}, {"outputs": 2**64 + 32}, {"inputs": 0}, {"inputs": "64"}, {"name": 3}, {"name": "a\0b"}, {"split": None}, {"tp": -1},
                    {"tp": 2, "tp_rank": 2}, {"scheme": {}}, {"scheme": scheme}, {"tensors": None}, {"tensors": []}):
            part = Part(**{**{"name": "q", "scheme": None, "outputs": 32, "inputs": 64, "tensors": good}, **bad})
            self.refused(lambda: Linear.build([part], dtype="f32"), kind=None, what=bad)
        for bad in (None, 3, "q"):
            self.refused(lambda: Linear.build([bad]), what=bad)
        for bad in ({"hidden": 0}, {"hidden": -1}, {"hidden": 2**40}, {"experts": 0}, {"experts": 2**40}, {"slots": 0}, {"slots": 5}, {"activation": "x"},
                    {"activation": 3}, {"gate_up_step": 3}, {"scoring": "x"}, {"expert_map": [0, 0, 0, 0]}, {"expert_map": [0]}, {"expert_map": [2**33] * 4},
                    {"expert_map": [-5, 0, 1, 2]}, {"correction_bias": [0.0]}, {"correction_bias": ["x"] * 4}, {"groups": -1},
                    {"groups": 2, "group_slots": 9}, {"limit": "x"}, {"scaling": float("nan")}, {"name": None}):
            spec = MoeSpec(**{**{"hidden": 64, "intermediate": 32, "experts": 4, "slots": 2}, **bad})

            def build(spec=spec):
                builder = MoeBuilder(spec, gate=None, up=None, down=None, dtype="f32")
                for e in range(4):
                    builder.set_expert(e, {f"{p}.weight": floats(*s) for p, s in (("gate", (32, 64)), ("up", (32, 64)), ("down", (64, 32)))})
                builder.finish()

            self.refused(build, kind=None, what=bad)
        self.refused(lambda: MoeBuilder(None, gate=None, up=None, down=None))
        self.refused(lambda: MoeBuilder(MoeSpec(64, 32, 4, 2), gate={}, up=None, down=None))
        builder = MoeBuilder(MoeSpec(64, 32, 4, 2), gate=None, up=None, down=None, dtype="f32")
        for bad in (-1, 4, 2**63, 2**64, "0", None, 0.5):
            self.refused(lambda: builder.set_expert(bad, {}), what=bad)
        for bad in (3, [1], {"weights": object()}, {"weights": {"num_bits": float("nan")}}, "[", "3"):
            self.refused(lambda: Scheme(bad), kind=None, what=bad)


class Models(Bad):
    @classmethod
    def setUpClass(cls):
        cls.llm = LLM(BUNDLED)

    def test_folders_that_are_none(self):
        for bad in (3, None, "", "a\0b", "/no/such/folder", "/dev/null", "x" * 5000, str(GOLDEN)):
            for make in (Folder, Tokenizer, LLM):
                self.refused(lambda: make(bad), kind=None, what=(make, bad))

    def test_options_that_are_none(self):
        for bad in ({"context": -1}, {"context": "9"}, {"context": 2**70}, {"parallel": 0}, {"parallel": -1}, {"parallel": 2**40}, {"kv_gib": -1},
                    {"kv_gib": float("nan")}, {"kv_gib": float("inf")}, {"kv_gib": "1"}, {"kv_gib": 1e-9}, {"dtype": 3}, {"dtype": "f64"}, {"kv_dtype": "x"}, {"kv_dtype": None}, {"pack_dir": 3},
                    {"kernel": "x"}, {"threads": 2**33}, {"activations": "x"}, {"progress": 3}):
            self.refused(lambda: LLM(SMALL, **bad), kind=None, what=bad)

    def test_prompts_that_are_none(self):
        for bad in (3, None, b"text", [None], [[None]], [["a"]], [1.5], [[1.5]], [[]], {"prompt_token_ids": None}, {"prompt_token_ids": "12"}, {"text": "a"},
                    [2**31], [2**32 + 5], [-1], [10**6], [[1], 3]):
            self.refused(lambda: self.llm.generate(bad), kind="argument", what=bad)
            if not isinstance(bad, list) or bad != [[1], 3]:
                self.refused(lambda: list(self.llm.stream(bad)), kind="argument", what=bad)
        self.refused(lambda: self.llm.stream(["a", "b"]))
        self.assertEqual(self.llm.generate([]), [])
        for bad in (3, None, "12", [1.5], [2**32 + 5], [-1], [10**6], [], ["a"]):
            self.refused(lambda: self.llm.logits(bad), what=bad)
        for bad in ([], [1], "", "a", [2**32, 2**32], 3):
            self.refused(lambda: self.llm.perplexity(bad), what=bad)
        self.refused(lambda: self.llm.perplexity([1, 2, 3], context=0))
        self.refused(lambda: self.llm.perplexity([1, 2, 3], context=-1))
        for bad in (3, None, "text", [], [3], [[3]], [{}], [{"role": 3}], [{"role": "user", "content": object()}], {"role": "user"}):
            self.refused(lambda: self.llm.chat(bad), kind=None, what=bad)

    def test_sampling_limits_are_the_librarys(self):
        """Said when the parameters are made; what may be said, the library takes."""
        for name, limits in {**llm_module.REAL, **llm_module.WHOLE}.items():
            if name in ("max_tokens", "n", "seed", "min_tokens"):
                continue
            low, high = limits
            for value, beyond in ((0.0101 if low == 0.01 else low, low - 1), (high, high + 1)):  # 0.01 is less as a float
                with self.assertRaises(Error) as caught:
                    SamplingParams(**{name: beyond})
                self.assertEqual((caught.exception.kind, caught.exception.field), ("argument", name))
                self.assertTrue(self.llm.generate("It", SamplingParams(max_tokens=1, **{name: value}))[0].finished, (name, value))

    def test_sampling_that_is_none(self):
        nan, infinity = float("nan"), float("inf")
        for bad in ({"temperature": nan}, {"temperature": infinity}, {"temperature": -1}, {"temperature": "hot"}, {"top_p": 1.5}, {"top_p": nan},
                    {"min_p": -0.1}, {"min_p": 2}, {"top_n_sigma": 101}, {"top_n_sigma": nan}, {"top_k": -2}, {"top_k": 2**31}, {"top_k": 1.5}, {"max_tokens": -1}, {"max_tokens": 2**64}, {"max_tokens": "9"},
                    {"seed": -1}, {"seed": 2**64}, {"logprobs": -1}, {"logprobs": 2**31}, {"min_tokens": -1}, {"n": 0}, {"n": -1}, {"n": 1025},
                    {"n": 2**64 + 1}, {"repetition_penalty": 0}, {"repetition_penalty": nan}, {"presence_penalty": infinity}, {"frequency_penalty": nan}, {"stop": 3}, {"stop": [3]},
                    {"stop": ["a\0b"]}, {"stop_token_ids": ["a"]}, {"stop_token_ids": [2**32]}, {"stop_token_ids": 3}):
            self.refused(lambda: self.llm.generate("It", SamplingParams(**bad)), what=bad)
        for bad in (3, "x", {"temperature": 0}, [3], [SamplingParams()] * 2):
            self.refused(lambda: self.llm.generate("It", bad), what=bad)
        for bad in (3, "x", [SamplingParams()], SamplingParams(n=2)):
            self.refused(lambda: self.llm.stream("It", bad), what=bad)
        self.assertTrue(self.llm.generate("It", SamplingParams(max_tokens=2))[0].outputs[0].token_ids)  # nothing was left behind

    def test_text(self):
        t = self.llm.tokenizer
        for bad in (3, None, b"x", ["x"]):
            self.refused(lambda: t.encode(bad), what=bad)
            self.refused(lambda: t.decode(3), what=bad)
            self.refused(lambda: t.token_to_id(bad), what=bad)
        for bad in ([2**32], ["a"], [None], "12"):
            self.refused(lambda: t.decode(bad), what=bad)
        for bad in ("1", None, 1.5):
            self.refused(lambda: t.id_to_token(bad), what=bad)
        for odd in (2**32 + 5, -1, 10**9):
            self.assertIsNone(t.id_to_token(odd))
        self.assertIsNone(t.token_to_id("a\0b"))
        self.assertEqual(t.decode(t.encode("a\0b", add_special=False)), "a\0b")
        self.assertEqual(t.encode("\ud800"), t.encode("\ud800"))  # half a character is some bytes

    def test_an_interrupt_ends_a_step_and_nothing_else(self):
        llm, engine = self.llm, self.llm._engine
        want = llm.generate("It was", SamplingParams(max_tokens=8, temperature=0))[0].outputs[0].token_ids
        steps, real_step = [], moebius.llm.lib.moebius_engine_step
        other = llm.stream("It was", SamplingParams(max_tokens=8, temperature=0))
        first = next(other).token_id

        class Interrupting:
            def __getattr__(self, name):
                return getattr(moebius._library.lib, name)

            def moebius_engine_step(self, *arguments):
                steps.append(1)
                status = real_step(*arguments)
                if len(steps) == 3:
                    os.kill(os.getpid(), signal.SIGINT)
                return status

        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with mock.patch.object(moebius.llm, "lib", Interrupting()):
                with self.assertRaises(KeyboardInterrupt):
                    llm.generate("The sea", SamplingParams(max_tokens=400, temperature=0, ignore_eos=True))
        finally:
            signal.signal(signal.SIGINT, before)
        self.assertLessEqual(len(steps), 4)  # within a step
        self.assertEqual([first] + [c.token_id for c in other if c.token_id is not None], want)  # no event of the other was lost
        self.assertEqual(llm.generate("It was", SamplingParams(max_tokens=8, temperature=0))[0].outputs[0].token_ids, want)
        self.assertFalse(engine._waiting)

    def test_closed_while_others_use_it(self):
        llm, errors = LLM(SMALL), []

        def work():
            try:
                while True:
                    llm.generate([1, 2, 3], SamplingParams(max_tokens=20, temperature=0, ignore_eos=True))
            except Error as e:
                errors.append(e.kind)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for t in threads:
            t.start()
        for _ in range(3):
            llm.logits([1, 2, 3])
        llm.close()
        for t in threads:
            t.join()
        self.assertEqual(errors, ["state"] * 3)

    def test_an_exit_in_the_middle(self):
        code = f"""
import sys, moebius
llm = moebius.LLM({str(SMALL)!r})
stream = llm.stream([1, 2, 3], moebius.SamplingParams(max_tokens=50, ignore_eos=True))
next(stream)
layer = moebius.Folder({BUNDLED!r}).linear({Q!r})
sys.exit(7)
"""
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        self.assertEqual((run.returncode, run.stderr), (7, ""))


@unittest.skipIf(torch is None, "torch is not installed")
class Torch(Bad):
    @classmethod
    def setUpClass(cls):
        import moebius.torch as modules

        folder = Folder(BUNDLED)
        cls.linear, cls.moe = folder.linear(Q, dtype="f32"), folder.moe(BLOCK, scope="experts", dtype="f32")
        cls.modules, cls.l, cls.m = modules, modules.LinearModule(cls.linear), modules.MoeModule(cls.moe)
        cls.row = torch.arange(384, dtype=torch.float32) % 13 - 6
        cls.ids, cls.weights = torch.tensor([[0, 3]] * 5, dtype=torch.int32), torch.tensor([[0.5, 0.25]] * 5)

    def test_rows_that_lie_in_one_place(self):
        x, tight = self.row.expand(5, 384), self.row.repeat(5, 1)
        for call in (self.linear, self.l, lambda v: self.m(v, ids=self.ids, weights=self.weights), lambda v: self.moe.run_ids(v, self.ids, self.weights),
                     lambda v: self.m(v, ids=self.ids[:1].expand(5, 2), weights=self.weights[:1].expand(5, 2)),
                     lambda v: self.m(v, torch.ones(1, self.moe.experts).expand(5, -1))):
            self.assertTrue(torch.equal(call(x), call(tight)))
        self.assertTrue(torch.equal(self.l(torch._neg_view(-tight)), self.l(tight)))
        self.assertTrue(torch.equal(self.linear(torch._neg_view(-tight)), self.l(tight)))
        self.refused(lambda: self.linear(x, torch.empty(1, self.linear.outputs).expand(5, -1)), field="out")

    def test_what_is_refused(self):
        x = self.row.repeat(5, 1)
        for bad in (x.double(), x.int(), x.to_sparse(), x.to("meta"), x[:, :-1], torch.empty(()), torch.empty(0)):
            self.refused(lambda: self.linear(bad), field="x", what=bad.dtype)
        for ids in (self.ids.float(), torch.full((5, 2), float("nan")), self.ids.bool(), self.ids.long() + 2**32, self.ids + 1000, self.ids[:, :1], self.ids[:4], self.ids - 3):
            self.refused(lambda: self.m(x, ids=ids, weights=self.weights), kind="argument", what=ids)
        for bad in (torch.empty(0, dtype=torch.int64), torch.zeros(2, dtype=torch.int64), torch.zeros(1), torch.tensor([10**9]), self.m.layer_number):
            self.refused(lambda: torch.ops.moebius.linear(x, bad, self.linear.outputs), kind=None, what=bad)
        self.refused(lambda: torch.ops.moebius.linear(x, self.l.layer_number, 7))
        self.refused(lambda: self.m(x, torch.ones(4, self.moe.experts)))
        closed = Folder(BUNDLED).linear(Q, dtype="f32")
        module = self.modules.LinearModule(closed)
        closed.close()
        self.refused(lambda: module(x), kind="state")
        self.assertEqual(self.l(x[:0]).shape, (0, self.linear.outputs))
        self.assertEqual(self.m(x[:0], ids=self.ids[:0], weights=self.weights[:0]).shape, (0, 384))


if __name__ == "__main__":
    unittest.main()
