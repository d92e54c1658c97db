# SPDX-License-Identifier: Apache-2.0
"""The package itself: light to import, documented, true to the C header; the README's block runs."""
import ast
import ctypes
import inspect
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import moebius
from common import ROOT, TOOL
from moebius import _abi


def imported(module, path, files):
    """Modules of the package that a file imports, wherever it does."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            up = package.rsplit(".", node.level - 1)[0] if node.level else ""
            base = ".".join(filter(None, (up, node.module)))
            # A name of a package may be one of its modules.
            found.update(name if (name := f"{base}.{alias.name}") in files else base for alias in node.names)
    return found & files.keys()


class Package(unittest.TestCase):
    def run_python(self, code, **environment):
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env={**os.environ, **environment})

    def test_imports_nothing_heavy(self):
        run = self.run_python("import sys, moebius; print([m for m in ('numpy', 'torch', 'vllm') if m in sys.modules])")
        self.assertEqual(run.stdout.strip(), "[]", run.stderr)

    def test_no_module_imports_itself_through_others(self):
        """Imports inside functions and for type checkers count too."""
        root = ROOT / "python/moebius"
        files = {".".join(("moebius", *path.relative_to(root).with_suffix("").parts)).removesuffix(".__init__"): path for path in root.rglob("*.py")}
        self.assertGreater(len(files), 15)
        wants = {module: imported(module, path, files) for module, path in files.items()}
        self.assertIn("moebius.parts", wants["moebius.layers"])
        # The package's own __init__ names its modules for type checkers, and loads them only when they are asked for.
        wants["moebius"] = {"moebius._library"}
        while leaves := [m for m, needed in wants.items() if not needed & wants.keys()]:
            for m in leaves:
                del wants[m]
        self.assertFalse(wants, "these import each other")

    def test_every_name_is_there(self):
        code = "import moebius; print(all(n in dir(moebius) for n in moebius.__all__)); from moebius import *; print(LLM, cpu, Threads); moebius.nothing"
        run = self.run_python(code)
        self.assertTrue(run.stdout.startswith("True\n<class 'moebius.llm.LLM'>"), run.stderr)
        self.assertIn("AttributeError: module 'moebius' has no attribute 'nothing'", run.stderr)
        self.assertEqual(sorted(moebius._PLACES), sorted(set(moebius.__all__) - {"Error"}))

    def test_missing_or_foreign_library_is_one_sentence(self):
        run = self.run_python("import moebius", MOEBIUS_LIBRARY="/no/such/library.so")
        self.assertIn("ImportError: the library of moebius is missing", run.stderr)
        with tempfile.TemporaryDirectory() as folder:
            fake = Path(folder) / "libmoebius.so"
            fake.write_text("not a library")
            self.assertIn("ImportError", self.run_python("import moebius", MOEBIUS_LIBRARY=str(fake)).stderr)

    def test_the_environment_narrows_the_cpu(self):
        code = "import moebius; print(moebius.cpu().description)"
        self.assertEqual(self.run_python(code, MOEBIUS_CPU="reference").stdout, "no instruction set assumed\n")
        broken = self.run_python(code, MOEBIUS_CPU="warp")
        self.assertNotEqual(broken.returncode, 0)
        self.assertIn("ImportError: the environment sets MOEBIUS_CPU: ", broken.stderr)

    def test_versions_agree(self):
        said = subprocess.run([TOOL, "--version"], capture_output=True, text=True).stdout
        self.assertIn(moebius.__version__, said)
        self.assertIn(f"VERSION {moebius.__version__} ", (ROOT / "CMakeLists.txt").read_text())
        newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
        self.assertEqual(newest[1], moebius.__version__)

    def test_every_public_name_is_documented(self):
        page = (ROOT / "docs/python.md").read_text(encoding="utf-8")
        for name in moebius.__all__:
            thing = getattr(moebius, name)
            self.assertTrue(inspect.getdoc(thing), name)
            self.assertIn(name, page)
            for member, value in vars(thing).items() if inspect.isclass(thing) else ():
                if not member.startswith("_") and (callable(value) or isinstance(value, property)):
                    self.assertTrue(inspect.getdoc(value), f"{name}.{member}")

    def test_structs_lie_as_the_compiler_lays_them(self):
        compiler = os.environ.get("MOEBIUS_CC")
        if not compiler:
            self.skipTest("no C compiler was named (MOEBIUS_CC)")
        structs = [c for c in vars(_abi).values() if inspect.isclass(c) and issubclass(c, ctypes.Structure) and c is not ctypes.Structure]
        lines = []
        for s in structs:
            lines.append(f'printf("{s.__name__} %zu", sizeof({s.__name__}));')
            lines += [f'printf(" %zu", offsetof({s.__name__}, {f[0]}));' for f in s._fields_]
            lines.append('puts("");')
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "layout.c"
            source.write_text("#include <stdio.h>\n#include \"moebius/moebius.h\"\nint main(void) {" + "\n".join(lines) + "return 0;}\n")
            program = Path(folder) / "layout"
            subprocess.run([compiler, "-I", str(ROOT / "include"), str(source), "-o", str(program)], check=True)
            said = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout.splitlines()
        for s, line in zip(structs, said):
            self.assertEqual(line.split(), [s.__name__, str(ctypes.sizeof(s)), *[str(getattr(s, f[0]).offset) for f in s._fields_]])

    def test_the_readmes_block_runs(self):
        for page in ("README.md", "docs/python.md"):
            blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), flags=re.S)
            self.assertTrue(blocks, page)
            for block in blocks:
                run = self.run_python(block)
                self.assertEqual(run.returncode, 0, f"{page}: {block}\n{run.stderr}")
                self.assertTrue(run.stdout.strip(), block)

    def test_examples_run(self):
        examples = sorted((ROOT / "examples").glob("*.py"))
        self.assertGreater(len(examples), 1)
        said = {}
        for example in examples:
            run = subprocess.run([sys.executable, str(example), "models/moebius-tiny-w4a8"], capture_output=True, text=True, cwd=ROOT)
            self.assertEqual(run.returncode, 0, f"{example}: {run.stderr}")
            said[example.name] = run.stdout
        want = subprocess.run([TOOL, "run", "models/moebius-tiny-w4a8", "-p", "It was a dark", "-n", "24", "--temp", "0", "-q"],
                              capture_output=True, text=True, cwd=ROOT).stdout
        self.assertEqual(said["generate.py"].strip("\n"), want.strip("\n"))

    def test_the_readmes_c_block_runs(self):
        compiler, library = os.environ.get("MOEBIUS_CC"), os.environ["MOEBIUS_LIBRARY"]
        if not compiler:
            self.skipTest("no C compiler was named (MOEBIUS_CC)")
        blocks = [b for b in re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.S)
                  if "examples/generate.c" in b]
        self.assertEqual(len(blocks), 1)
        with tempfile.TemporaryDirectory() as folder:
            built = Path(folder) / "release"  # no spaces, wherever the clone lies
            built.symlink_to(Path(library).parent)
            block = re.sub(r"(\$PWD/)?build/release", lambda _: str(built), blocks[0])
            block = block.replace("build/generate", str(Path(folder) / "generate")).replace("cc ", f"{compiler} ", 1)
            run = subprocess.run(["sh", "-ec", block], capture_output=True, text=True, cwd=ROOT)
        self.assertEqual(run.returncode, 0, run.stderr)
        want = subprocess.run([TOOL, "run", "models/moebius-tiny-w4a8", "-p", "It was a dark", "-n", "24", "--temp", "0", "-q"],
                              capture_output=True, text=True, cwd=ROOT).stdout
        self.assertTrue(run.stdout.strip("\n").endswith("\n" + want.strip("\n")), run.stdout)  # behind the build's lines


if __name__ == "__main__":
    unittest.main()
