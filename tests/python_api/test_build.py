# SPDX-License-Identifier: Apache-2.0
"""Layers from tensors in memory give what the folder gives; torch operators give what layers give (where torch is installed)."""
import array
import copy
import json
import os
import pickle
import struct
import unittest

import moebius
from common import GOLDEN, ROOT, module
from moebius import Error, Folder, Linear, MoeBuilder, MoeSpec, Part, RawTensor, Scheme

torch, numpy = module("torch"), module("numpy")
TYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "I8": "int8", "U8": "uint8", "I32": "int32", "I64": "int64",
         "F8_E4M3": "float8_e4m3fn", "F8_E8M0": "float8_e8m0fnu", "U32": "uint32"}
FOLDERS = ["qwen3moe-w4a16-g32", "qwen3moe-w4a8-g32-int", "qwen3moe-w4a8-g32-pack", "qwen3moe-fp8-block", "qwen3moe-fp8-static",
           "qwen3moe-nvfp4", "qwen3moe-mxfp4", "qwen3moe-mxfp8", "qwen3moe-w4a16-actorder-group", "qwen3moe-w3a16-g32", "qwen3moe-w8a8-static"]


def stored(folder, file="model.safetensors"):
    """Every tensor of a folder's file."""
    data = (folder / file).read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    return {name: RawTensor(data[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]], TYPES[t["dtype"]], t["shape"])
            for name, t in header.items()}


def below(tensors, prefix):
    return {name[len(prefix):]: t for name, t in tensors.items() if name.startswith(prefix)}


def rows(n, cols):
    return memoryview(array.array("f", [((i * 37) % 101) / 50 - 1 for i in range(n * cols)])).cast("B").cast("f", [n, cols])


class Built(unittest.TestCase):
    def open(self, name):
        folder = Folder(GOLDEN / name)
        config = json.loads((GOLDEN / name / "config.json").read_text())["quantization_config"]
        group = config["config_groups"]["group_0"]
        return folder, Scheme(group, format=config.get("format"), version=config.get("version")), stored(GOLDEN / name)

    def builder(self, folder, scheme, tensors, **options):
        block = folder.moe_blocks[0]
        whole = folder.moe(block, scope="experts", dtype="f32")
        up = next(m for m in folder.modules if m.name == f"{block}.experts.0.up_proj")
        spec = MoeSpec(whole.hidden, up.outputs, whole.experts, whole.slots, name=block)
        made = MoeBuilder(spec, gate=scheme, up=scheme, down=scheme, dtype="f32", **options)
        expert = lambda e: {k.replace("_proj.", "."): t for k, t in below(tensors, f"{block}.experts.{e}.").items()}
        return whole, made, expert

    def test_experts(self):
        for name in FOLDERS:
            with self.subTest(name):
                whole, builder, expert = self.builder(*self.open(name))
                needs = {n.name: n.required for n in builder.needs}
                self.assertLessEqual(set(expert(0)), set(needs))
                self.assertLessEqual({n for n, required in needs.items() if required}, set(expert(0)))
                for e in reversed(range(whole.experts)):
                    builder.set_expert(e, expert(e))
                made = builder.finish()
                self.assertEqual((made.packed_bytes, made.kernel, made.experts), (whole.packed_bytes, whole.kernel, whole.experts))
                x = rows(3, made.hidden)
                ids = memoryview(array.array("i", [0, 1, made.experts - 1, 0, 1, -1])).cast("B").cast("i", [3, 2])
                weights = memoryview(array.array("f", [0.5, 0.25] * 3)).cast("B").cast("f", [3, 2])
                self.assertEqual(made.run_ids(x, ids, weights).tobytes(), whole.run_ids(x, ids, weights).tobytes())
                logits = rows(3, made.experts)
                self.assertEqual(len(made.run_logits(x, logits).tobytes()), len(x.tobytes()))

    def test_linears_and_ranks(self):
        for name in FOLDERS:
            with self.subTest(name):
                folder, scheme, tensors = self.open(name)
                names = [m.name for m in folder.modules if m.name.endswith(("q_proj", "k_proj", "v_proj")) and ".0." in m.name]
                if not all(scheme.description == next(m.scheme for m in folder.modules if m.name == n) for n in names):
                    continue
                single = [folder.linear(n, dtype="f32") for n in names]
                parts = [Part(n, scheme, l.outputs, l.inputs, below(tensors, n + "."), split="outputs") for n, l in zip(names, single)]
                x = rows(2, single[0].inputs)
                y = Linear.build(parts, dtype="f32")(x)
                each = [l(x) for l in single]
                side_by_side = [[v for part in each for v in part.tolist()[r]] for r in range(2)]
                self.assertEqual(y.tolist(), side_by_side)
                cut = [[Linear.build([p], dtype="f32", tp=2, tp_rank=r)(x).tolist() for r in (0, 1)] for p in parts]
                self.assertEqual([[v for p in cut for half in p for v in half[r]] for r in range(2)], side_by_side)
                self.assertEqual(folder.linear(names[0], dtype="f32", tp=2, tp_rank=1)(x).tolist(), cut[0][1])

    def test_what_compressed_tensors_gave(self):
        """Modules beside the outputs of compressed-tensors' own forward (build/data/golden/README.md); the bounds of golden_apply_test.cpp."""
        compared = 0
        for name in FOLDERS:
            pairs = stored(GOLDEN / name, "logits.safetensors") if (GOLDEN / name / "logits.safetensors").exists() else {}
            folder = Folder(GOLDEN / name)
            for key in [k for k in pairs if k.startswith("apply.") and k.endswith(".x")]:
                name, want = key[6:-2], pairs[key[:-1] + "y"]
                x = memoryview(bytearray(pairs[key].data)).cast("f", pairs[key].shape)
                layer = folder.moe(name, dtype="f32") if name in folder.moe_blocks else folder.linear(name, dtype="f32")
                found, given = array.array("f", layer(x).tobytes()), array.array("f", want.data)
                scale = max(map(abs, given))
                far = [abs(a - b) / scale for a, b in zip(found, given)]
                self.assertLess(max(far), 0.02)
                self.assertGreaterEqual(sum(d < 2e-5 for d in far), 0.98 * len(far))
                if torch is not None and isinstance(layer, Linear):
                    import moebius.torch

                    y = moebius.torch.LinearModule(layer)(torch.tensor(x.tolist()))
                    self.assertEqual(y.numpy().tobytes(), found.tobytes())
                compared += 1
        self.assertGreater(compared, 10)

    def test_ranks_of_experts_add_up(self):
        folder, scheme, tensors = self.open("qwen3moe-w4a16-g32")
        x = rows(2, 64)
        ids = memoryview(array.array("i", [0, 3, 2, 1])).cast("B").cast("i", [2, 2])
        weights = memoryview(array.array("f", [0.5] * 4)).cast("B").cast("f", [2, 2])
        for ways in ({"tp": 1, "ep": 2}, {"tp": 2, "ep": 1}, {"tp": 3, "ep": 1}):
            total = None
            for rank in range(max(ways.values())):
                options = {"tp": ways["tp"], "ep": ways["ep"], ("tp_rank" if ways["tp"] > 1 else "ep_rank"): rank}
                whole, builder, expert = self.builder(folder, scheme, tensors, **options)
                for e in range(whole.experts):
                    if ways["ep"] == 1 or e // 2 == rank:
                        builder.set_expert(e, expert(e))
                    else:
                        with self.assertRaises(Error):
                            builder.set_expert(e, expert(e))
                y = [v for row in builder.finish().run_ids(x, ids, weights).tolist() for v in row]
                total = y if total is None else [a + b for a, b in zip(total, y)]
            want = [v for row in whole.run_ids(x, ids, weights).tolist() for v in row]
            self.assertLess(max(abs(a - b) for a, b in zip(total, want)), 1e-5 * max(map(abs, want)))

    def test_what_is_wrong_is_said(self):
        folder, scheme, tensors = self.open("qwen3moe-w4a16-g32")
        whole, builder, expert = self.builder(folder, scheme, tensors)
        good = expert(0)
        packed = good["gate.weight_packed"]
        for change, word in (({"gate.weight_packed": None}, "weight_packed"), ({"gate.wheel": packed}, "wheel"),
                             ({"gate.weight_packed": RawTensor(packed.data, "float32", packed.shape)}, "weight_packed"),
                             ({"gate.weight_packed": RawTensor(packed.data, "int32", [*packed.shape, 2])}, "weight_packed"),
                             ({"gate.weight_packed": RawTensor(packed.data, "complex", packed.shape)}, "complex"),
                             ({"gate.weight_packed": 3}, "weight_packed")):
            bad = {k: v for k, v in {**good, **change}.items() if v is not None}
            with self.assertRaises(Error) as caught:
                builder.set_expert(0, bad)
            self.assertIn(word, str(caught.exception))
            self.assertIn(caught.exception.kind, ("argument", "unsupported", "file"))
        with self.assertRaises(Error) as caught:
            builder.finish()
        self.assertEqual(caught.exception.kind, "state")
        for e in range(whole.experts):
            builder.set_expert(e, expert(e))
        builder.finish()
        for call in (lambda: builder.set_expert(0, good), builder.finish):
            with self.assertRaises(Error):
                call()
        builder.close()
        with self.assertRaises(Error) as caught:
            builder.finish()
        self.assertEqual(caught.exception.kind, "state")
        for bad in ({"weights": {"num_bits": 77}}, {"weights": 3}, "no json", 3, {"weights": {"num_bits": 4}, "format": "marlin-24"}):
            with self.assertRaises(Error):
                Scheme(bad)
        for bad in ({"split": "both"}, {"outputs": 0}, {"tensors": {}}):
            q = "model.layers.0.self_attn.q_proj"
            part = Part(**{**{"name": "q", "scheme": scheme, "outputs": 64, "inputs": 64, "tensors": below(tensors, q + ".")}, **bad})
            with self.assertRaises(Error):
                Linear.build([part], dtype="f32")
        for options in ({"tp": 2, "tp_rank": 2}, {"placement": "here"}, {"ep": 0}):
            with self.assertRaises(Error):
                Linear.build([], **options)
        self.assertEqual(Scheme().family, "dense")
        self.assertIsNone(scheme.problem(expert=True))

    def test_sections_of_other_methods(self):
        """The whole section and the tensors under the names that the file has for them."""
        config = json.loads((GOLDEN / "qwen3moe-gptq-v2-dynamic/config.json").read_text())["quantization_config"]
        scheme = lambda name: Scheme(config, module=f"model.layers.0.{name}")
        self.assertEqual(scheme("self_attn.q_proj").description, "w8a16 int8 per channel asym, gptq_v2")
        self.assertEqual(scheme("mlp.experts.0.down_proj").description, "w2a16 int2 g16 asym, gptq_v2")
        self.assertEqual([(n.name, n.required) for n in scheme("mlp.experts.0.down_proj").tensors],
                         [("qweight", True), ("scales", True), ("qzeros", True), ("g_idx", False), ("bias", False)])
        fp8 = Scheme({"quant_method": "fp8", "weight_block_size": [128, 128]})
        self.assertEqual([n.name for n in fp8.tensors if n.required], ["weight", "weight_scale_inv"])
        self.assertEqual(fp8.family, "fp8_block")
        with self.assertRaises(Error) as caught:
            Scheme({"quant_method": "gptq", "bits": 9})
        self.assertIn("bits is 9", str(caught.exception))

    def test_threads(self):
        own = moebius.Threads(cpus=[sorted(os.sched_getaffinity(0))[0]])
        self.assertEqual((own.count, own.backend), (1, "own"))
        for bad in ({"backend": "both"}, {"cpus": [-1]}, {"count": 3, "cpus": [0]}, {"cpus": [0, 0]}):
            with self.assertRaises(Error):
                moebius.Threads(**bad)
        if torch is None:
            with self.assertRaises(Error) as caught:
                moebius.Threads(backend="openmp")
            self.assertEqual(caught.exception.kind, "state")


@unittest.skipIf(torch is None, "torch is not installed")
class Torch(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        import moebius.torch

        cls.folder = Folder(GOLDEN / "qwen3moe-w4a8-g32-pack")
        cls.threads = moebius.Threads(2, backend="openmp")
        name = next(m.name for m in cls.folder.modules if m.name.endswith("q_proj"))
        cls.linear = cls.folder.linear(name, dtype="f32", threads=cls.threads)
        cls.moe = cls.folder.moe(cls.folder.moe_blocks[0], scope="experts", dtype="f32", threads=cls.threads)
        cls.own = cls.folder.moe(cls.folder.moe_blocks[0], scope="experts", dtype="f32", threads=1)
        cls.x = torch.tensor(rows(5, cls.moe.hidden).tolist())
        cls.ids, cls.weights = torch.tensor([[0, 1], [2, 3], [1, 0], [3, -1], [2, 2]]), torch.full((5, 2), 0.5)

    def test_modules_give_what_layers_give(self):
        modules = moebius.torch
        linear, moe = modules.LinearModule(self.linear), modules.MoeModule(self.moe)
        self.assertTrue(torch.equal(linear(self.x), self.linear(self.x)))
        self.assertEqual(linear(self.x.reshape(5, 1, -1)).shape, (5, 1, self.linear.outputs))
        self.assertTrue(torch.equal(linear(self.x.t().contiguous().t()), self.linear(self.x)))
        want = self.moe.run_ids(self.x, self.ids, self.weights)
        self.assertTrue(torch.equal(moe(self.x, ids=self.ids, weights=self.weights), want))
        self.assertTrue(torch.equal(self.own.run_ids(self.x, self.ids, self.weights), want))  # threads of either kind
        logits = torch.randn(5, self.moe.experts)
        self.assertTrue(torch.equal(moe(self.x, logits), self.moe.run_logits(self.x, logits)))
        self.assertTrue(torch.equal(copy.deepcopy(linear)(self.x), linear(self.x)))
        with self.assertRaises(TypeError):
            pickle.dumps(linear)
        modules.release(linear.layer_number)
        for call in (lambda: linear(self.x), lambda: moe(self.x), lambda: moe(self.x[:, :-1], logits),
                     lambda: moe(self.x, ids=self.ids[:1], weights=self.weights), lambda: moe(self.x.double(), logits),
                     lambda: torch.ops.moebius.linear(self.x, moe.layer_number, 64)):
            with self.assertRaises(Error):
                call()

    def test_operators_are_proper(self):
        linear, moe = moebius.torch.LinearModule(self.linear), moebius.torch.MoeModule(self.moe)
        ops, tests = torch.ops.moebius, ("test_schema", "test_faketensor")
        torch.library.opcheck(ops.linear.default, (self.x, linear.layer_number, self.linear.outputs), test_utils=tests)
        torch.library.opcheck(ops.moe.default, (self.x, self.ids.int(), self.weights, moe.layer_number), test_utils=tests)
        torch.library.opcheck(ops.moe_logits.default, (self.x, torch.randn(5, self.moe.experts), moe.layer_number), test_utils=tests)

    def test_compiles_as_one_graph(self):
        linear, moe = moebius.torch.LinearModule(self.linear), moebius.torch.MoeModule(self.moe)

        def block(x, ids, weights):
            return linear(x + moe(x, ids=ids, weights=weights))

        want = block(self.x, self.ids, self.weights)
        for backend in ("aot_eager", "inductor") if os.environ.get("MOEBIUS_FULL") else ("aot_eager",):
            compiled = torch.compile(block, fullgraph=True, backend=backend)
            self.assertTrue(torch.equal(compiled(self.x, self.ids, self.weights), want))
            self.assertTrue(torch.equal(compiled(self.x[:3], self.ids[:3], self.weights[:3]), want[:3]))


class Plugin(unittest.TestCase):
    """What can be looked at without vLLM; bench/vllm_plugin.py does the rest."""

    def test_settings(self):
        from moebius.vllm.settings import Settings, parse

        self.assertEqual(parse({}), Settings(layers="all", int8="declared", kernel=None, threads="openmp", routing="moebius"))
        self.assertEqual(parse({"layers": "moe"}, Settings(threads="own")), Settings(layers="moe", threads="own"))
        for bad in ({"layers": "some"}, {"int8": 8}, {"speed": "fast"}):
            with self.assertRaises(ValueError) as caught:
                parse(bad)
            self.assertIn(next(iter(bad)), str(caught.exception))

    def test_folders_of_other_methods(self):
        """What the plugin makes of a folder before its tensors come, and the layers that its tensors then give."""
        from moebius.vllm.stored import METHODS, StoredFolder

        packed = {"qkv_proj": ("q_proj", "k_proj", "v_proj")}
        methods = set()
        for name in ("qwen3moe-gptq-v2-dynamic", "qwen3moe-gptq-w4-g32", "qwen3moe-modelopt-nvfp4-file", "qwen3moe-native-fp8-ragged",
                     "olmoe-quark-fp8-static", "qwen3moe-fbgemm-fp8", "glm4moe-awq-sym-channel", "qwen3moe-autoround-real-gptq"):
            with self.subTest(name):
                folder, tensors = Folder(GOLDEN / name), stored(GOLDEN / name)
                section = json.loads((GOLDEN / name / "config.json").read_text()).get("quantization_config")
                if section is None:
                    section = {"quant_method": "modelopt", **json.loads((GOLDEN / name / "hf_quant_config.json").read_text())}
                self.assertIn(section["quant_method"], METHODS)
                methods.add(section["quant_method"])
                known = StoredFolder(str(GOLDEN / name), section)
                parts = known.parts("model.layers.0.self_attn.qkv_proj", packed)
                single = [folder.linear(p.name, dtype="f32") for p in parts]
                for p in parts:
                    self.assertLessEqual({k for k in below(tensors, p.name + ".")} - {"bias"}, p.awaited)
                x = rows(2, single[0].inputs)
                y = Linear.build([Part(p.name, p.scheme, l.outputs, l.inputs, below(tensors, p.name + ".")) for p, l in zip(parts, single)],
                                 dtype="f32")(x)
                self.assertEqual(y.tolist(), [[v for l in single for v in l(x).tolist()[r]] for r in range(2)])
                block = folder.moe_blocks[0]
                whole = folder.moe(block, scope="experts", dtype="f32")
                names = ("gate_proj", "up_proj", "down_proj")
                gate, up, down = known.expert(f"{block}.experts", 0, names)
                outputs = next(m.outputs for m in folder.modules if m.name == up.name)
                builder = MoeBuilder(MoeSpec(whole.hidden, outputs, whole.experts, whole.slots, name=block), gate=gate.scheme, up=up.scheme,
                                     down=down.scheme, dtype="f32")
                for e in range(whole.experts):
                    builder.set_expert(e, {k.replace("_proj.", "."): t for k, t in below(tensors, f"{block}.experts.{e}.").items()})
                made = builder.finish()
                x = rows(3, made.hidden)
                ids = memoryview(array.array("i", [0, 1, made.experts - 1, 0, 1, -1])).cast("B").cast("i", [3, 2])
                weights = memoryview(array.array("f", [0.5, 0.25] * 3)).cast("B").cast("f", [3, 2])
                self.assertEqual(made.run_ids(x, ids, weights).tobytes(), whole.run_ids(x, ids, weights).tobytes())
                self.assertIsNone(known.matrix("lm_head").scheme if "lm_head.weight" in tensors else None)
                for missing in ("model.layers.0.self_attn.wheel_proj", "lm_head_2"):
                    with self.assertRaises(Error) as caught:
                        known.parts(missing, packed)
                    self.assertIn(missing, str(caught.exception))
        quark = GOLDEN / "qwen3moe-quark-mxfp4"
        known = StoredFolder(str(quark), json.loads((quark / "config.json").read_text())["quantization_config"])
        self.assertEqual([m.name.rpartition(".")[2] for m in known.parts("model.layers.0.mlp.gate_up_proj", {})], ["gate_proj", "up_proj"])
        stacks = GOLDEN / "qwen3moe-finegrained-real-fp8"
        with self.assertRaises(Error) as caught:
            StoredFolder(str(stacks), json.loads((stacks / "config.json").read_text())["quantization_config"]).expert(
                "model.layers.0.mlp.experts", 0, ("gate_proj", "up_proj", "down_proj"))
        self.assertIn("in stacks", str(caught.exception))
        self.assertEqual(methods, {"gptq", "modelopt", "fp8", "quark", "fbgemm_fp8", "awq", "auto-round"})

    def test_gguf_is_refused(self):
        from moebius.vllm.stored import StoredFolder

        made = GOLDEN.parent / "negative/gguf"
        for path in (made / "good/qwen3moe.gguf", made / "split"):
            with self.assertRaises(Error) as caught:
                StoredFolder(str(path), {"quant_method": "fp8"})
            self.assertIn("vLLM has a reader of its own for GGUF", str(caught.exception))

    def test_register_never_raises(self):
        import moebius.vllm

        if module("vllm") is None:
            with self.assertLogs("vllm.moebius", "WARNING") as said:
                moebius.vllm.register()
            self.assertIn("the plugin is off", said.output[0])
        entry = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        self.assertIn('[project.entry-points."vllm.general_plugins"]\nmoebius = "moebius.vllm:register"', entry)

    @unittest.skipIf(torch is None or module("vllm") is None, "vLLM is not installed")
    def test_the_user_may_ask_for_vllms_own(self):
        from moebius.vllm.config import MoebiusConfig

        ask = MoebiusConfig.override_quantization_method
        self.assertEqual(ask({"quant_method": "compressed-tensors"}, None), "moebius")
        self.assertEqual(ask({"quant_method": "compressed-tensors"}, "moebius"), "moebius")
        self.assertIsNone(ask({"quant_method": "compressed-tensors"}, "compressed-tensors"))
        self.assertIsNone(ask({"quant_method": "fp8"}, None))
        config = json.loads((GOLDEN / "qwen3moe-w4a16-actorder-group/config.json").read_text())["quantization_config"]
        kept = MoebiusConfig.from_config(config)  # vLLM refuses such an order of columns
        self.assertEqual(kept.target_scheme_map["Linear"]["moebius"]["weights"]["actorder"], "group")
        self.assertIsNone(kept.target_scheme_map["Linear"]["weights"].actorder)

    @unittest.skipIf(torch is None, "torch is not installed")
    def test_cpus_of_a_bound_team(self):
        from unittest import mock

        from moebius.vllm.threads import bound_cpus

        for variables, want in (({"GOMP_CPU_AFFINITY": "0 1 5"}, [0, 1, 5]), ({"OMP_PLACES": "{0,1}"}, [0, 1]),
                                ({"KMP_AFFINITY": "granularity=fine,explicit,proclist=[2,3]"}, [2, 3]), ({"OMP_PLACES": "cores"}, None), ({}, None)):
            with mock.patch.dict(os.environ, variables, clear=True):
                self.assertEqual(bound_cpus(), want)


if __name__ == "__main__":
    unittest.main()
