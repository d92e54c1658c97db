# SPDX-License-Identifier: Apache-2.0
"""Layers on a CUDA device without one: what is refused and in which words, and with a plugin of the host (MOEBIUS_EMULATED) the whole way
from an array to the plugin and back."""
import os
import subprocess
import sys
import unittest

import moebius
from common import BUNDLED, GOLDEN, ROOT, module
from moebius import Error, Folder

torch = module("torch")
Q = "model.layers.0.self_attn.q_proj"


class Foreign:
    """Memory that is said to lie on a GPU."""

    def __init__(self, columns):
        self.__cuda_array_interface__ = {"typestr": "<f4", "shape": (1, columns), "strides": None, "data": (4096, False), "version": 3}


class WithoutADevice(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        os.environ["MOEBIUS_CUDA_MODULE"] = "/nonexistent/libmoebius_cuda.so"  # the first layer decides for the process

    def words(self, call):
        with self.assertRaises(Error) as caught:
            call()
        return caught.exception

    def test_a_layer_says_that_there_is_none(self):
        folder = Folder(BUNDLED)
        for load in (lambda: folder.linear(Q, device="cuda"), lambda: folder.moe(folder.moe_blocks[0], device="cuda")):
            error = self.words(load)
            self.assertIn("device cuda: the CUDA module does not open", str(error))
            self.assertEqual((error.kind, error.field), ("unsupported", "device"))

    def test_a_model_says_so_too(self):
        error = self.words(lambda: moebius.LLM(BUNDLED, device="cuda"))
        self.assertIn("device cuda: the CUDA module does not open", str(error))
        self.assertEqual((error.kind, error.field), ("unsupported", "device"))
        for words, options in (("device is 'tpu'; expected cpu, cuda or cuda:N", {"device": "tpu"}),
                               ("experts is 'gpu'; expected cpu or auto", {"device": "cuda", "experts": "gpu"}),
                               ("experts is for models on a GPU", {"experts": "cpu"}), ("gpu_memory is for models on a GPU", {"gpu_gib": 1})):
            self.assertIn(words, str(self.words(lambda some=options: moebius.LLM(BUNDLED, **some))))

    def test_names_of_devices(self):
        error = self.words(lambda: Folder(BUNDLED).linear(Q, device="tpu"))
        self.assertIn("device is 'tpu'; expected cpu or cuda", str(error))

    def test_ranks_and_memory_stay_on_the_cpu(self):
        self.assertIn("tp and ep are 1", str(self.words(lambda: Folder(BUNDLED).linear(Q, device="cuda", tp=2))))
        part = moebius.Part("p", None, 4, 4, {"weight": memoryview(bytearray(64)).cast("f", [4, 4])})
        self.assertIn("layers from memory run on the CPU", str(self.words(lambda: moebius.Linear.build([part], device="cuda", dtype="f32"))))

    def test_memory_of_a_gpu_needs_a_layer_there(self):
        layer = Folder(BUNDLED).linear(Q)
        self.assertEqual(layer.device, "cpu")
        self.assertIn("x is a Foreign; expected an array", str(self.words(lambda: layer(Foreign(layer.inputs)))))
        x = moebius._abi.moebius_input(48, 4096, moebius._abi.MOEBIUS_F32, 1, layer.inputs, 0)
        y = moebius._abi.moebius_output(48, 4096, moebius._abi.MOEBIUS_F32, 1, layer.outputs, 0)
        lib = moebius.layers.lib
        self.assertEqual(lib.moebius_linear_launch(layer._pointer, x, y, None), 1)
        self.assertIn(b"this layer runs on the CPU", lib.moebius_last_error())

    @unittest.skipIf(torch is None, "torch is not there")
    def test_modules_of_torch_stay_where_their_layer_is(self):
        from moebius.torch import LinearModule

        held = LinearModule(Folder(BUNDLED).linear(Q)).to(torch.float16)
        self.assertEqual(held.layer_number.device.type, "cpu")


class Emulated(unittest.TestCase):
    def test_every_call_reaches_the_plugin(self):
        environment = {**os.environ, "MOEBIUS_CUDA_MODULE": os.environ["MOEBIUS_EMULATED"]}
        run = subprocess.run([sys.executable, "-B", str(ROOT / "tests/gpu/faces.py"), str(GOLDEN), "--emulated", "--every", "23"],
                             capture_output=True, text=True, check=False, env=environment)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        self.assertRegex(run.stdout, r"faces: \d+ folders, [1-9]\d+ checks, 0 wrong")

    def test_models_answer_as_on_the_cpu(self):
        script = """
import moebius, sys
for options in ({}, {"device": "cuda"}, {"device": "cuda", "experts": "cpu"}, {"device": "cuda", "experts": "auto", "gpu_gib": 0.3}):
    with moebius.LLM(sys.argv[1], context=64, **options) as llm:
        print(llm.generate("Once upon a time", moebius.SamplingParams(max_tokens=6, temperature=0))[0].outputs[0].token_ids)
try:
    moebius.LLM(sys.argv[1], device="cuda", gpu_gib=0.1)
except moebius.Error as e:
    print(e)
"""
        environment = {**os.environ, "MOEBIUS_CUDA_MODULE": os.environ["MOEBIUS_EMULATED"]}
        run = subprocess.run([sys.executable, "-B", "-c", script, str(BUNDLED)], capture_output=True, text=True, check=False, env=environment)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        *answers, refusal = run.stdout.splitlines()
        self.assertEqual(len(answers), 4)
        self.assertEqual(len(set(answers)), 1, run.stdout)
        self.assertIn("may be used", refusal)


if __name__ == "__main__":
    unittest.main()
