# SPDX-License-Identifier: Apache-2.0
"""Folders and layers from Python, with every kind of array."""
import array
import json
import threading
import unittest

import moebius
from common import BUNDLED, module, tool
from moebius import Error, Folder

numpy, torch, ml_dtypes = module("numpy"), module("torch"), module("ml_dtypes")
Q = "model.layers.0.self_attn.q_proj"


def wave(n):
    return [((i * 37) % 101) / 50 - 1 for i in range(n)]


class OfAFolder(unittest.TestCase):
    def test_reports_are_the_tools(self):
        folder = Folder(BUNDLED)
        self.assertEqual(folder.inspect(), json.loads(tool("inspect", BUNDLED, "--json").stdout))
        self.assertEqual(folder.inspect(deep=True), json.loads(tool("inspect", BUNDLED, "--deep", "--json").stdout))
        self.assertEqual(folder.explain(cpu="neon,dotprod"), json.loads(tool("explain", BUNDLED, "--cpu", "neon,dotprod", "--json").stdout))
        self.assertEqual(folder.architecture, "Qwen3MoeForCausalLM")
        self.assertEqual(len(folder.moe_blocks), 6)
        self.assertEqual(folder.warnings, [])
        found = {m.name: m for m in folder.modules}
        self.assertEqual((found[Q].kind, found[Q].supported, found[Q].inputs), ("linear", True, 384))

    def test_errors_have_fields(self):
        with self.assertRaises(Error) as caught:
            Folder("/no/such/folder")
        self.assertEqual((caught.exception.kind, caught.exception.file), ("file", "/no/such/folder"))
        with self.assertRaises(Error) as caught:
            Folder(BUNDLED).linear("nothing")
        self.assertEqual((caught.exception.kind, caught.exception.module), ("argument", "nothing"))
        for bad in ({"kernel": "warp_drive"}, {"dtype": "f64"}, {"int8": "x"}, {"activations": "int4"},
                    {"activations": "int8", "arithmetic": "exact"}, {"threads": -1}):
            with self.assertRaises(Error, msg=str(bad)):
                Folder(BUNDLED).linear(Q, **bad)
        with self.assertRaises(Error):
            Folder(BUNDLED).moe("model.layers.0.mlp", scope="half")


class Arrays(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Folder(BUNDLED)
        cls.linear = cls.folder.linear(Q, dtype="f32", threads=moebius.Threads(2))
        cls.moe = cls.folder.moe("model.layers.0.mlp", dtype="f32")
        cls.x = wave(3 * cls.linear.inputs)
        rows = memoryview(array.array("f", cls.x)).cast("B").cast("f", [3, cls.linear.inputs])
        cls.y = cls.linear(rows)
        cls.expected = cls.y.tobytes()

    def test_buffers(self):
        self.assertEqual(self.y.shape, (3, self.linear.outputs))
        one = self.linear(array.array("f", self.x[:self.linear.inputs]))
        self.assertEqual(one.tobytes(), self.expected[:len(one.tobytes())])
        out = memoryview(bytearray(len(self.expected))).cast("f", [3, self.linear.outputs])
        rows = memoryview(array.array("f", self.x)).cast("B").cast("f", [3, self.linear.inputs])
        self.assertIs(self.linear(rows, out), out)
        self.assertEqual(out.tobytes(), self.expected)
        read_only = memoryview(bytes(len(self.expected))).cast("f", [3, self.linear.outputs])
        for bad, word in (((array.array("f", [1.0]),), "x"), ((array.array("d", self.x),), "x"), ((3,), "x"), ((rows, read_only), "out"),
                          ((rows, array.array("f", [1.0])), "out")):
            with self.assertRaises(Error) as caught:
                self.linear(*bad)
            self.assertEqual((caught.exception.kind, caught.exception.field), ("argument", word))

    @unittest.skipIf(numpy is None, "numpy is not installed")
    def test_numpy(self):
        x = numpy.array(self.x, dtype="f4").reshape(3, -1)
        self.assertEqual(self.linear(x).tobytes(), self.expected)
        wide = numpy.zeros((3, 2 * x.shape[1]), "f4")
        wide[:, :x.shape[1]] = x
        self.assertEqual(self.linear(wide[:, :x.shape[1]]).tobytes(), self.expected)  # rows with a stride
        self.assertEqual(self.linear(numpy.asfortranarray(x)).tobytes(), self.expected)  # copied once
        self.assertEqual(self.linear(x[:0]).shape, (0, self.linear.outputs))
        self.assertEqual(self.linear(x.reshape(3, 1, -1)).shape, (3, 1, self.linear.outputs))
        with self.assertRaises(Error):
            self.linear(x, numpy.empty((3, self.linear.outputs), "f4", order="F"))
        half = self.linear(x.astype("f2"))
        self.assertEqual(half.dtype, numpy.dtype("f2"))
        bits = (x.view("u4") >> 16).astype("u2")
        self.assertEqual(self.linear(bits, bf16=True).dtype, numpy.dtype("u2"))
        with self.assertRaises(Error):
            self.linear(bits)

        class Bare:  # what speaks DLPack and nothing else
            def __dlpack__(self, **_):
                return x.__dlpack__()
            def __dlpack_device__(self):
                return x.__dlpack_device__()
        out = numpy.empty((3, self.linear.outputs), "f4")
        self.linear(Bare(), out)
        self.assertEqual(out.tobytes(), self.expected)
        y, ids, weights = self.moe(x, routing=True)
        again = self.moe.run_ids(x, ids, weights)
        experts = self.folder.moe("model.layers.0.mlp", scope="experts", dtype="f32")
        self.assertEqual(experts.run_ids(x, numpy.array(ids, dtype="i8"), numpy.array(weights)).tobytes(), y.tobytes())
        self.assertEqual(again.tobytes(), y.tobytes())

    @unittest.skipIf(ml_dtypes is None or numpy is None, "ml_dtypes is not installed")
    def test_ml_dtypes(self):
        x = numpy.array(self.x, dtype="f4").reshape(3, -1).astype(ml_dtypes.bfloat16)
        y = self.linear(x)
        self.assertEqual(y.dtype, x.dtype)

    @unittest.skipIf(torch is None, "torch is not installed")
    def test_torch(self):
        x = torch.tensor(self.x).reshape(3, -1)
        y = self.linear(x)
        self.assertIsInstance(y, torch.Tensor)
        self.assertEqual(bytes(y.untyped_storage()), self.expected)
        layer = self.folder.linear(Q)
        z = layer(x.bfloat16())
        self.assertEqual(z.dtype, torch.bfloat16)
        self.assertLess(float((z.float() - y).abs().max()), 0.1 * float(y.abs().max()) + 0.05)
        with self.assertRaises(Error):
            self.linear(x.to("meta"))

    def test_routing(self):
        rows = memoryview(array.array("f", self.x)).cast("B").cast("f", [3, self.moe.hidden])
        y, ids, weights = self.moe(rows, routing=True)
        self.assertEqual(ids.shape, (3, self.moe.slots))
        self.assertEqual(self.moe.run_ids(rows, ids, weights).tobytes(), y.tobytes())
        logits = memoryview(array.array("f", wave(3 * self.moe.experts))).cast("B").cast("f", [3, self.moe.experts])
        z, ids, weights = self.moe.run_logits(rows, logits, routing=True)
        self.assertEqual(self.moe.run_ids(rows, ids, weights).tobytes(), z.tobytes())
        bad = memoryview(array.array("i", [10**6] * 3)).cast("B").cast("i", [3, 1])
        ones = memoryview(array.array("f", [1.0] * 3)).cast("B").cast("f", [3, 1])
        with self.assertRaises(Error):
            self.moe.run_ids(rows, bad, ones)
        self.assertGreater(self.moe.packed_bytes, 0)
        self.assertTrue(self.moe.kernel)

    def test_several_threads_get_the_same_bytes(self):
        rows = memoryview(array.array("f", self.x)).cast("B").cast("f", [3, self.linear.inputs])
        found = [None] * 4
        def work(i):
            for _ in range(20):
                found[i] = self.linear(rows).tobytes()
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(found, [self.expected] * 4)


if __name__ == "__main__":
    unittest.main()
