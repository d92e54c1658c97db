#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of the scripts in bench/ that compare builds, with tools that are told what to say."""
import contextlib
import io
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "bench"))

import build_times
import compare_llamacpp
import same_bytes
import two_builds


def program(path, text):
    """A file that runs as a program."""
    path.write_text(f"#!{sys.executable} -IS\nimport json, sys\nfrom pathlib import Path\nwords = sys.argv\n{text}")
    path.chmod(0o755)
    return path


def said_by(main, *words):
    """(status, stdout) of a script's main()."""
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(io.StringIO()):
        status = main([str(word) for word in words])
    return status, said.getvalue()


class SameBytes(unittest.TestCase):
    TOOL = """
if words[1] == "logits":
    Path("logits.safetensors").write_bytes(b"0123456789" + b"%s")
elif words[1] == "run":
    sys.exit("here: refused by %s")
else:
    Path("packed").mkdir()
    Path("packed/%s").write_bytes(b"same")
"""

    def status(self, *texts):
        with tempfile.TemporaryDirectory() as folder:
            tools = [program(Path(folder) / f"tool{i}", self.TOOL % text) for i, text in enumerate(texts)]
            return said_by(same_bytes.main, *tools, Path(folder) / "model", "--parts", "logits,run,pack")

    def test_equal(self):
        status, said = self.status(("a", "b", "c"), ("a", "b", "c"))
        self.assertEqual(0, status)
        self.assertIn("1 folders, 3 results of which 2 were accepted, 0 differences", said)

    def test_each_difference_has_a_line(self):
        status, said = self.status(("a", "b", "c"), ("x", "y", "z"))
        self.assertEqual(1, status)
        self.assertIn("/model: logits: 11 and 11 bytes, first difference at 10: ", said)
        self.assertIn("here: refused by b' and b'1: here: refused by y'", said)
        self.assertIn("/model: pack, c: only before", said)
        self.assertIn("/model: pack, z: only after", said)

    def test_nothing_accepted_is_a_failure(self):
        with tempfile.TemporaryDirectory() as folder:
            tool = program(Path(folder) / "tool", "sys.exit(1)")
            self.assertEqual(1, said_by(same_bytes.main, tool, tool, folder, "--parts", "run")[0])

    def test_masks(self):
        bodies = [b'{"id":"cmpl-394170bfd4f7112e","created":%d,"system_fingerprint":"moebius-%d","choices":[{"text":"%d"}]}' % (i, i, text)
                  for i, text in ((1, 5), (2, 5), (3, 6))]
        one, same, other = map(same_bytes.masked, bodies)
        self.assertEqual(one, same)
        self.assertNotEqual(one, other)


class TwoBuilds(unittest.TestCase):
    # Speeds of one tool, round by round; the other's are 100.
    TOOL = """
rounds = Path(words[0] + ".rounds")
rounds.write_text((rounds.read_text() if rounds.exists() else "") + ".")
speed = %s[len(rounds.read_text()) - 1]
print(json.dumps({"prompt_tokens": 0, "new_tokens": speed, "busy_seconds": 1}))
"""

    def status(self, speeds):
        with tempfile.TemporaryDirectory() as folder:
            before, after = (program(Path(folder) / name, self.TOOL % s) for name, s in (("before", [100] * 7), ("after", speeds)))
            return said_by(two_builds.main, before, after, "--parts", "engine")

    def test_slower_is_behind_in_six_rounds_and_by_more_than_3_percent(self):
        status, said = self.status([96] * 6 + [101])
        self.assertEqual(1, status)
        self.assertRegex(said, r"engine, .* 0\.960  0\.960-1\.010  6 of 7  SLOWER")
        self.assertFalse(two_builds.slower([0.96] * 5 + [1.01] * 2, 0.97))
        self.assertFalse(two_builds.slower([0.98] * 7, 0.97))
        self.assertFalse(two_builds.slower([1.05] * 7, 0.97))


class CompareLlamaCpp(unittest.TestCase):
    OURS = """
layers = int(words[3].rpartition("-")[2])
print(json.dumps({"pp512_ms": 10 * layers + 3, "tg_b1_ms": layers + 1, "tg_b8_ms": 2 * layers + 5, "commit": "1", "cpu": "CPU", "features": "none",
                  "bytes_per_token": 5e6}))
"""
    PEER = """
layers = int(words[words.index("-m") + 1].rpartition("-")[2])
prompts = [int(n) for n in words[words.index("-p") + 1].split(",")]
steps = int(words[words.index("-n") + 1])
line = lambda prompt, steps, ms: {"build_commit": "2", "n_prompt": prompt, "n_gen": steps, "samples_ns": [ms * 1e6]}
print(json.dumps([line(n, 0, 40 * layers + 9) for n in prompts] + [line(0, steps, steps * (3 * layers + 1))]))
"""
    SEVERAL = """
layers = int(words[words.index("-m") + 1].rpartition("-")[2])
steps = int(words[words.index("-ntg") + 1])
print("loading")
print(json.dumps({"pl": 8, "t_tg": steps * (5 * layers + 7) / 1e3}))
"""

    def test_time_of_a_layer(self):
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            tool = program(place / "moebius", self.OURS)
            program(place / "llama-bench", self.PEER)
            program(place / "llama-batched-bench", self.SEVERAL)
            with unittest.mock.patch("compare_llamacpp.model", lambda a, side, kind, layers: place / f"model-{layers}"):
                words = [place, "-", place, "--tool", tool, "--types", "Q4_0", "--ours", "w4a8", "--cases", "pp512,tg1,tg8", "--threads", "1",
                         "--rounds", "2", "--out", place / "out"]
                said = said_by(compare_llamacpp.main, *words)[1]
            self.assertIn("| pp512 | 10.00 | 40.00 | 4.00 (4.00-4.00) |", said)
            self.assertIn("| tg1 | 1.00 | 3.00 | 3.00 (3.00-3.00) |", said)
            self.assertIn("| tg8 | 2.00 | 5.00 | 2.50 (2.50-2.50) |", said)
            self.assertIn("| tg1 | 7.00 | 19.00 | 2.71 (2.71-2.71) |", said)
            self.assertIn("Moebius 1, llama.cpp 2; CPU, none", said)
            self.assertEqual(said, said_by(compare_llamacpp.main, "--table", place / "out")[1])


class BuildTimes(unittest.TestCase):
    NINJA = "rule CXX\n  command = c\nbuild a.o | a.d: CXX a.cpp | gen.h || order\nbuild order: phony\nbuild gen.h: CUSTOM gen.cpp\nbuild b.o: CXX b$:.cpp\n" \
            "build libx.a: AR a.o $\n  b.o\nbuild tool: LINK libx.a\n"
    LOG = "# ninja log v5\n0\t9000\t1\ta.o\tff\n0\t1000\t1\tgen.h\t1\n1000\t4000\t1\ta.o\tff\n0\t%s\t1\tb.o\t2\n4000\t4500\t1\tlibx.a\t3\n4500\t5000\t1\ttool\t4\n"

    def test_longest_chain(self):
        self.assertEqual(["a.cpp", "gen.h", "order"], build_times.waits(self.NINJA)["a.o"])
        self.assertEqual(["a.o", "b.o"], build_times.waits(self.NINJA)["libx.a"])
        self.assertEqual(["b:.cpp"], build_times.waits(self.NINJA)["b.o"])
        self.assertEqual(5, build_times.longest_chain(self.LOG % "3500", self.NINJA))  # gen.h, a.o, libx.a, tool
        self.assertEqual(7, build_times.longest_chain(self.LOG % "6000", self.NINJA))

    def status(self, *words, broken=False):
        """Two commits whose builds say that b.o took 2 and 8 seconds."""
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            git = ["git", "-C", folder, "-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false"]
            subprocess.run([*git, "init", "--quiet"], check=True)
            for milliseconds in (2000, 8000):
                program(root / "moebius", f"place = Path('build/release')\nplace.mkdir(parents=True)\n(place / '.ninja_log').write_text({self.LOG % milliseconds!r})\n"
                                          f"(place / 'build.ninja').write_text({self.NINJA!r})\nsys.exit({int(broken)})\n")
                program(root / "test", "")
                subprocess.run([*git, "add", "."], check=True)
                subprocess.run([*git, "commit", "--quiet", "-m", "c"], check=True)
            with unittest.mock.patch.object(build_times, "ROOT", root):
                return said_by(build_times.main, "HEAD^", "HEAD", *words)

    def test_table(self):
        status, said = self.status("--tests")
        self.assertEqual(0, status)
        self.assertRegex(said, r"longest unit, s +3\.0 +8\.0 +2\.67\n")
        self.assertRegex(said, r"longest chain, s +5\.0 +9\.0 +1\.80\n")
        self.assertRegex(said, r"first command, CPU s +\d")
        self.assertRegex(said, r"second command, s +\d")

    def test_bar(self):
        self.assertEqual(1, self.status("--bar", "0")[0])

    def test_a_build_that_fails_ends_it(self):
        with self.assertRaises(SystemExit) as end:
            self.status(broken=True)
        self.assertIn("ended with status 1", str(end.exception))


if __name__ == "__main__":
    unittest.main()
