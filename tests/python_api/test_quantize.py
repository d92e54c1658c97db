# SPDX-License-Identifier: Apache-2.0
"""Quantized folders from Python: what the tool makes and measures, progress, stopping and going on, errors in words."""
import json
import random
import tempfile
import unittest
from pathlib import Path

import moebius
from common import GOLDEN, tool, tool_json
from moebius import Error

SOURCE = GOLDEN / "qwen3moe-dense"
TOKENS = [random.Random(5).randrange(2, 30) for _ in range(256)]


def files(folder):
    return {p.name: p.read_bytes() for p in Path(folder).iterdir()}


class Quantize(unittest.TestCase):
    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.addCleanup(self._folder.cleanup)
        self.dir = Path(self._folder.name)

    def test_makes_the_bytes_of_the_tool(self):
        seen = []
        answer = moebius.quantize(SOURCE, self.dir / "a", "W4A16", group=32, progress=lambda done, total: seen.append((done, total)))
        said = tool_json("quantize", SOURCE, self.dir / "b", "--scheme", "W4A16", "--group", "32")
        self.assertEqual(files(self.dir / "a"), files(self.dir / "b"))
        for key in ("method", "modules", "left", "bytes_in", "bytes_out", "quantization_config"):
            self.assertEqual(answer[key], said[key], key)
        self.assertEqual(set(answer), set(said))
        self.assertTrue(answer["done"])
        self.assertEqual(max(seen), (answer["bytes_in"], answer["bytes_in"]))

    def test_calibrated(self):
        lines = [json.dumps({"input_ids": TOKENS[i:i + 64]}) for i in range(0, 256, 64)]
        (self.dir / "c.jsonl").write_text("\n".join(lines))
        answer = moebius.quantize(SOURCE, self.dir / "a", "W4A16", group=32, calib=self.dir / "c.jsonl", calib_ctx=64, min_rows=0.1)
        self.assertEqual(answer["method"], "gptq")
        self.assertEqual(answer["calibration_tokens"], 256)
        self.assertTrue(any(m["method"] == "gptq" for m in answer["made"]))

    def test_stops_and_goes_on(self):
        class Enough(Exception):
            pass

        def stop(done, total):
            raise Enough(f"{done} of {total}")

        for progress, error in ((stop, Enough), (lambda done, total: False, Error)):
            with self.assertRaises(error):
                moebius.quantize(SOURCE, self.dir / "a", "W8A8", shard_size=20000, overwrite=True, progress=progress)
            self.assertFalse((self.dir / "a").exists())
        moebius.quantize(SOURCE, self.dir / "a", "W8A8", shard_size=20000, resume=True)
        moebius.quantize(SOURCE, self.dir / "b", "W8A8", shard_size=20000)
        self.assertEqual(files(self.dir / "a"), files(self.dir / "b"))

    def test_errors_say_what_is_wrong(self):
        cases = [(dict(scheme="W4A17"), "W4A17"), (dict(scheme="W4A16"), "a group of 128"), (dict(), "a scheme or config_groups"),
                 (dict(scheme="W8A8", colour=1), "no option 'colour'"), (dict(scheme="W8A8", threads="two"), "threads is"),
                 (dict(scheme="W8A8", method="best"), "rtn, search, gptq"), (dict(scheme="NVFP4"), "expected --calib"),
                 (dict(scheme="W8A8", progress=3), "progress is 3"), (dict(scheme="W8A8", memory=1000), "may be used")]
        for options, words in cases:
            with self.assertRaises(Error) as caught:
                moebius.quantize(SOURCE, self.dir / "a", **options)
            self.assertIn(words, str(caught.exception))
        self.assertEqual(list(self.dir.iterdir()), [])

    def test_dry_run_writes_nothing(self):
        answer = moebius.quantize(SOURCE, self.dir / "a", "W8A8", dry_run=True)
        self.assertFalse(answer["done"])
        self.assertEqual(list(self.dir.iterdir()), [])


class Evaluate(unittest.TestCase):
    def test_says_what_the_tool_says(self):
        with tempfile.TemporaryDirectory() as folder:
            tool("quantize", SOURCE, f"{folder}/q", "--scheme", "W3A16", "--group", "32", "-q")
            Path(folder, "t.bin").write_bytes(b"".join(t.to_bytes(2, "little") for t in TOKENS))
            seen = []
            ours = moebius.evaluate(f"{folder}/q", SOURCE, tokens=TOKENS, ctx=32, layers=True,
                                    progress=lambda done, total: seen.append((done, total)))
            said = tool_json("eval", f"{folder}/q", "--base", SOURCE, "--tokens-file", f"{folder}/t.bin", "--ctx", "32", "--layers")
            self.assertEqual(ours, said)
            self.assertGreater(ours["kl"]["mean"], 0)
            self.assertEqual(len(ours["hidden"]), 2)
            self.assertEqual(max(seen), (255, 255))
            with self.assertRaises(ZeroDivisionError):
                moebius.evaluate(f"{folder}/q", SOURCE, tokens=TOKENS, progress=lambda done, total: 1 // 0)

    def test_errors_say_what_is_wrong(self):
        for options, words in [(dict(), "expected one of them"), (dict(tokens=[1]), "expected at least 2"), (dict(tokens=[1, -4]), "no token id"),
                               (dict(tokens=[1, 999999]), "999999"), (dict(tokens=[1, 2], ctx=0), "expected at least 1")]:
            with self.assertRaises(Error) as caught:
                moebius.evaluate(SOURCE, SOURCE, **options)
            self.assertIn(words, str(caught.exception))


if __name__ == "__main__":
    unittest.main()
