#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The checks must be able to fail: each rule is given a small violation, and must see it."""
import contextlib
import io
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent.parent / "scripts"), str(HERE.parent.parent / "bench")]
import check_acceptance
import check_comments
import check_includes
import check_links
import check_names
import check_sentences
import check_symbols
import check_tree
import data
import generate_docs
import oracle_order
import run_documents


class Includes(unittest.TestCase):
    def tree(self, files):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                path = Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            return check_includes.check_tree(Path(folder))[1]

    def test_down_is_fine(self):
        self.assertEqual([], self.tree({
            "src/base/error.h": "#include <string>\n",
            "src/quant/scheme.h": '#include "base/error.h"\n',
            "src/kernels/kernel.h": '#include "quant/scheme.h"\n',
            "src/nn/moe.cpp": '#include "kernels/kernel.h"\n'}))

    def test_up_is_seen(self):
        found = self.tree({"src/base/error.h": '#include "quant/scheme.h"\n', "src/quant/scheme.h": ""})
        self.assertEqual(1, len(found))
        self.assertIn("src/base/error.h:1", found[0])

    def test_sideways_is_seen(self):
        self.assertEqual(1, len(self.tree({"src/text/a.h": '#include "checkpoint/b.h"\n', "src/checkpoint/b.h": ""})))

    def test_folders_within_a_folder(self):
        files = {"src/model/run/decoder.h": "", "src/model/backend.h": "", "src/model/graph/graph.h": "", "src/model/run/runner.h": "",
                 "src/engine/engine.h": "", "src/kernels/x86/x86_a.h": ""}
        graph, runner = '#include "model/graph/graph.h"\n', '#include "model/run/runner.h"\n'
        self.assertEqual([], self.tree(files | {"src/model/run/a.cpp": graph + '#include "model/run/decoder.h"\n', "src/model/run/decoder.cpp": runner}))
        self.assertEqual(1, len(self.tree(files | {"src/model/graph/a.cpp": runner})))
        self.assertEqual(1, len(self.tree(files | {"src/model/a.cpp": '#include "engine/engine.h"\n'})))
        self.assertEqual([], self.tree(files | {"src/engine/a.cpp": '#include "model/backend.h"\n'}))
        self.assertEqual(1, len(self.tree(files | {"src/engine/a.cpp": '#include "model/run/decoder.h"\n'})))
        self.assertEqual(1, len(self.tree(files | {"src/model/other/a.cpp": ""})))
        self.assertEqual(1, len(self.tree(files | {"src/kernels/arm/arm_a.cpp": '#include "kernels/x86/x86_a.h"\n'})))

    def test_isa_file(self):
        files = {"src/kernels/kernel.h": "", "src/base/error.h": "", "src/quant/quant_matrix.h": ""}
        good = '#include "kernels/kernel.h"\n#include "quant/quant_matrix.h"\n#include <arm_neon.h>\n'
        self.assertEqual([], self.tree(files | {"src/kernels/arm/arm_i8mm.cpp": good}))
        self.assertEqual(1, len(self.tree(files | {"src/kernels/arm/arm_i8mm.cpp": '#include "base/error.h"\n'})))
        self.assertEqual(1, len(self.tree(files | {"src/kernels/x86/x86_amx.cpp": "#include <fmt/core.h>\n"})))

    def test_machine_code_stays_behind_the_waist(self):
        for text in ('asm volatile("nop");\n', 'asm("nop");\n', "#include <immintrin.h>\n"):
            self.assertEqual(1, len(self.tree({"src/base/a.cpp": text})), text)
            self.assertEqual([], self.tree({"src/kernels/x86/x86_a.cpp": text}))

    def test_server(self):
        files = {"src/nn/moe.h": "", "src/engine/engine.h": "", "src/serve/http.h": ""}
        self.assertEqual([], self.tree(files | {"src/serve/server.cpp": '#include "engine/engine.h"\n'}))
        self.assertEqual([], self.tree(files | {"src/apps/serve.cpp": '#include "serve/http.h"\n'}))
        self.assertEqual(1, len(self.tree(files | {"src/serve/server.cpp": '#include "nn/moe.h"\n'})))
        self.assertEqual(1, len(self.tree(files | {"src/model/a.cpp": '#include "serve/http.h"\n'})))
        beast = "#include <boost/beast/http/basic_parser.hpp>\n"
        self.assertEqual([], self.tree(files | {"src/serve/http.cpp": beast}))
        self.assertEqual(1, len(self.tree(files | {"src/serve/http.cpp": beast, "src/serve/b.cpp": beast})))

    def test_python_imports_in_a_circle(self):
        files = {"python/moebius/__init__.py": "from .a import A\n", "python/moebius/a.py": "from . import b\n",
                 "python/moebius/v/__init__.py": "def f():\n    from .c import C\n", "python/moebius/v/c.py": "from ..a import A\n"}
        self.assertEqual([], self.tree(files | {"python/moebius/b.py": "import a\nfrom x import a\n"}))
        self.assertEqual([], self.tree(files | {"python/moebius/b.py": "if TYPE_CHECKING:\n    from .a import A\n"}))
        found = self.tree(files | {"python/moebius/b.py": "def f():\n    from .a import A\n"})
        self.assertEqual(["python: imports go in a circle: a -> b -> a"], found)
        self.assertEqual(1, len(self.tree(files | {"python/moebius/b.py": "from .v import c\n"})))

    def test_heavy_headers(self):
        json = "#include <nlohmann/json.hpp>\n"
        self.assertEqual([], self.tree({"src/base/json.cpp": json}))
        self.assertEqual(1, len(self.tree({"src/base/json.h": json})))
        self.assertEqual(1, len(self.tree({"src/base/json.cpp": json, "src/text/b.cpp": json})))

    def test_spelling_and_public_headers(self):
        self.assertEqual(1, len(self.tree({"src/base/a.cpp": '#include "a.h"\n', "src/base/a.h": ""})))
        self.assertEqual(1, len(self.tree({"include/moebius/a.h": '#include "base/a.h"\n'})))
        self.assertEqual(1, len(self.tree({"src/util/a.cpp": ""})))


class Symbols(unittest.TestCase):
    def test_rule(self):
        table = ("R", "moebius::kArmI8mm")
        self.assertEqual([], check_symbols.judge("arm_i8mm.cpp", [table]))
        self.assertEqual(1, len(check_symbols.judge("arm_i8mm.cpp", [table, ("W", "std::vector<int>::size()")])))
        self.assertEqual(1, len(check_symbols.judge("arm_i8mm.cpp", [table, ("T", "helper")])))
        self.assertEqual(1, len(check_symbols.judge("arm_i8mm.cpp", [])))

    def test_nothing_given_is_a_failure(self):
        with contextlib.redirect_stdout(io.StringIO()) as said:
            self.assertEqual(1, check_symbols.check("nm", []))
        self.assertIn("nothing was checked", said.getvalue())


class Names(unittest.TestCase):
    def test_rule(self):
        one = "namespace {\nconstexpr int kMost = 3;\nint twice(int v) { return 2 * v; }\nstruct Part {\n  int run() const;\n};\n}  // namespace\n"
        other = "namespace {\nint thrice(int v) {\n  return 3 * v;\n}\nstruct Piece {\n  int run() const;\n};\n}  // namespace\nint twice(int);\n"
        self.assertEqual([], check_names.check_folder({"a.cpp": one, "b.cpp": other}))
        self.assertEqual(3, len(check_names.check_folder({"a.cpp": one, "b.cpp": one})))

    def test_lists(self):
        text = 'set(MOEBIUS_BUNDLE_FOLDERS "^(base|apps)/")\nset(MOEBIUS_UNBUNDLED_FILES\n  apps/a.cpp\n  apps/b.cpp\n)\n'
        self.assertEqual((["base", "apps"], ["apps/a.cpp", "apps/b.cpp"]), check_names.bundled(text))

    def test_namespaces_of_tests(self):
        one = "namespace moebius::test::moe_test {\n}\n"
        self.assertEqual([], check_names.check_tests({"unit/nn/moe_test.cpp": one}))
        self.assertEqual(1, len(check_names.check_tests({"unit/nn/moe_test.cpp": one, "unit/nn/router_test.cpp": one})))

    def test_types_of_headers(self):
        one = "namespace moebius {\nclass Answer;\nstruct Answer {\n};\n}  // namespace moebius\n"
        self.assertEqual([], check_names.check_types({"a.h": one, "b.h": one.replace("Answer", "Reply")}))
        self.assertEqual([], check_names.check_types({"a.h": one, "b.h": one.replace("moebius", "moebius::jinja")}))
        self.assertEqual(1, len(check_names.check_types({"a.h": one, "b.h": one})))


class Tree(unittest.TestCase):
    def test_rule(self):
        spdx = "// " + check_tree.SPDX + "\n"
        self.assertEqual([], check_tree.check_text("src/base/a.cpp", spdx))
        self.assertEqual(1, len(check_tree.check_text("src/base/a.cpp", "int x;\n")))
        self.assertEqual(1, len(check_tree.check_text("src/base/a.cpp", spdx + "\n" * 600)))
        self.assertEqual(1, len(check_tree.check_text("src/base/a.cpp", spdx + "\nfmt::print(stderr, \"x\");\n")))
        self.assertEqual(1, len(check_tree.check_text("plugins/cuda/a.cu", "f<<<1, 2>>>(x);\n")))
        self.assertEqual(1, len(check_tree.check_text("plugins/cuda/a.cuh", spdx + "\ncheck(cudaFuncSetAttribute(f));\n")))
        self.assertEqual([], check_tree.check_text("plugins/cuda/launch.h", spdx + "\ncudaLaunchKernelEx(&c, f);\n"))
        self.assertEqual(1, len(check_tree.check_text("README.md", "see " + "/ho" + "me/me/model\n")))
        self.assertEqual(1, len(check_tree.check_text("src/base/a.cpp", spdx + "// TO" + "DO later\n")))

    def test_code_lines(self):
        text = '// a\n\nint x; // b\n/* c\n   d */\nconst char* glob = "src/*";\nauto u = R"(// e\n*/)"; /* f */ int y;\n'
        self.assertEqual(4, check_tree.code_lines(text))
        self.assertEqual(2, check_tree.code_lines("<!-- a\n b -->\n<p>\n</p>\n"))
        found = [name for name in ("src/base/a.cpp", "src/model/plan/a.h", "plugins/cuda/a.cu", "bench/a.cpp", "bench/a.py", "plugins/a.c", "tests/a.cpp")
                 if check_tree.BUDGETED.match(name)]
        self.assertEqual(5, len(found))

    def test_line_budget(self):
        budget = "# folder lines\nsrc/base 10\nbench 5\n"
        self.assertEqual([], check_tree.check_lines({"src/base": 10, "bench": 5}, budget))
        self.assertEqual(1, len(check_tree.check_lines({"src/base": 11, "bench": 5}, budget)))
        self.assertEqual(1, len(check_tree.check_lines({"src/base": 10, "bench": 5, "src/new": 1}, budget)))
        self.assertEqual(1, len(check_tree.check_lines({"src/base": 10}, budget)))


class Acceptance(unittest.TestCase):
    def test_rule(self):
        names = check_acceptance.listed("Moe.\n  Fuzz\nList/Every.\n  Kernel/0  # GetParam() = 3\n")
        self.assertEqual(["Moe.Fuzz", "List/Every.Kernel/0"], names)
        self.assertEqual([], check_acceptance.empty_filters("`Moe.*`, `List/Every.Kernel/*`, `x.md`", names))
        self.assertEqual(["Every.Kernel", "Moe.Fizz"], check_acceptance.empty_filters("`Moe.Fizz` `Every.Kernel`", names))


class Docs(unittest.TestCase):
    def test_fill(self):
        text = "a\n<!-- generated:x -->\nold\n<!-- end -->\nb\n"
        self.assertEqual(text.replace("old", "new x"), generate_docs.fill(text, lambda name: f"new {name}\n"))


class Comments(unittest.TestCase):
    def test_blocks(self):
        text = ('// SPDX-License-Identifier: x\n// Head of\n// a file.\nint a;  // trailing\n        // and more\n'
                'int b;\n// lone\nconst char* c = "// no"; /* Of\n * two */\nauto d = R"(// no)"; int e = 1\'000;  // e\n'
                '// clang-format off\n// drawn\n')
        self.assertEqual([(2, "Head of a file."), (4, "trailing and more"), (7, "lone"), (8, "Of two"), (10, "e"),
                          (12, "drawn")], check_comments.blocks(text))

    def test_rule(self):
        self.assertEqual(2, len(check_comments.without_noun("// Of these.\n\n// Often.\n\nint a;  // The other way\n")))
        lost = "// What it does.\n"
        self.assertEqual([], check_comments.check({"src/a.h": lost}, 1)[0])
        self.assertEqual(1, len(check_comments.check({"src/a.h": lost}, 0)[0]))
        for name in ("include/a.h", "src/device/device.h"):
            self.assertEqual(1, len(check_comments.check({name: lost}, 1)[0]), name)
            self.assertEqual([], check_comments.check({name: "// Names it.\n"}, 0)[0], name)


class Sentences(unittest.TestCase):
    def test_missing(self):
        source = 'fail("{}: has {:.2f} GB; "\n     "too \\"much\\"", a, b);'
        self.assertEqual([], check_sentences.missing('> ...: has ... GB; too "much"\n', [source])[1])
        self.assertEqual(["...: has too much"], check_sentences.missing("> ...: has too much\n", [source])[1])


class Links(unittest.TestCase):
    def test_pages(self):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            (root / "docs").mkdir()
            (root / "docs/a.md").write_text("# A\n## Two `words`, more\n```\n# no heading\n[x](in_code.md)\n```\n")
            (root / "docs/README.md").write_text("[a](a.md#two-words-more) [here](#top) `[x](code.md)` [web](https://example.org/x)\n# Top\n")
            self.assertEqual([], check_links.check_page(root, "docs/a.md") + check_links.check_page(root, "docs/README.md"))
            self.assertEqual(1, len(check_links.check_contents(root)))  # a.md, of which only a heading is linked
            (root / "docs/README.md").write_text("[a](a.md) [b](b.md) [c](a.md#no-heading)\n")
            self.assertEqual(2, len(check_links.check_page(root, "docs/README.md")))
            self.assertEqual([], check_links.check_contents(root))

    def test_size(self):
        self.assertEqual([], check_links.check_size("README.md", "x " * 60 + "\nx x", 62))
        self.assertEqual(1, len(check_links.check_size("README.md", "x " * 60 + "\nx x", 61)))
        self.assertEqual(1, len(check_links.check_size("README.md", "x" * 121, 1)))
        self.assertEqual([], check_links.check_size("a.md", "|" + "x" * 121 + "\n<!-- generated:x -->\n" + "x" * 121 + "\n<!-- end -->\n"))

    def test_comments_are_no_words(self):
        self.assertEqual([], check_links.check_size("a.md", "one <!-- two\nthree --> four\n", 2))
        self.assertEqual(1, len(check_links.check_size("a.md", "one two three\n", 2)))

    def test_size_of_all(self):
        pages = ["one two\n", "three <!-- four -->\n"]
        self.assertEqual([], check_links.check_total(pages, 3))
        self.assertEqual(1, len(check_links.check_total(pages, 2)))

    def test_words(self):
        found = check_links.check_words("a.md", "fine\n\nsome weights\nalone\n`weights alone`\n")
        self.assertEqual(["a.md:3: 'weights alone', better: weight-only"], found)


class Data(unittest.TestCase):
    def test_size_of_the_tree(self):
        sizes = {"tests/a": 3, "tests/b": 4, "src/a": 5}
        self.assertEqual([], check_tree.check_size(sizes, 2, 12))
        self.assertEqual(1, len(check_tree.check_size(sizes, 1, 12)))
        self.assertEqual(1, len(check_tree.check_size(sizes, 2, 11)))

    def test_packed_data_comes_back(self):
        with tempfile.TemporaryDirectory() as folder, unittest.mock.patch.object(data, "TESTS", Path(folder) / "tests"), \
                unittest.mock.patch.object(data, "MAKERS", []), contextlib.redirect_stdout(io.StringIO()):
            here = Path(folder) / "data"
            files = {"golden/a-x/w": b"1", "golden/a-y/w": b"2", "golden/b-x/deep/w": b"3", "golden/all.json": b"4", "golden/configs/c": b"5",
                     "golden-text/kind/t": b"6", "fuzz/corpus/one/s": b"7", "golden-mtp/m/w": b"8", "golden-vllm/v": b"9"}
            for name, content in files.items():
                data.write(here / name, content)
            data.pack(here)
            there = Path(folder) / "there"

            def found():
                return {p.relative_to(there).as_posix(): p.read_bytes() for p in there.rglob("*") if p.is_file() and not p.name.startswith(".")}

            data.unpack(there)
            self.assertEqual(files, found())
            kept = {p: p.read_bytes() for p in data.TESTS.rglob("*.tar.xz")}
            self.assertEqual(6, len(kept))
            data.write(here / "golden/a-x/w", b"changed")
            (here / "golden/b-x/deep/w").unlink()
            (here / "golden/b-x/deep").rmdir()
            (here / "golden/b-x").rmdir()
            data.pack(here)
            self.assertEqual(["a.tar.xz"], [p.name for p in kept if p.exists() and p.read_bytes() != kept[p]])
            data.unpack(there)
            del files["golden/b-x/deep/w"]
            self.assertEqual(files | {"golden/a-x/w": b"changed"}, found())


class Documents(unittest.TestCase):
    def test_commands_and_marks(self):
        page = ("Type `./moebius run DIR` or `moebius`, see `docs/run.md`.\n\n    ./test   # all\n\n```sh\n# why\n./a \\\n  b\nc d\n```\n"
                "<!-- not run: needs a hub -->\n\n```sh\nhf download X\n```\n<!-- not run, podman: no engine -->\n`podman run x`\n"
                "```python\nimport x\n```\n")
        items, complaints = run_documents.items_of(page, ("sh", "python"))
        self.assertEqual([], complaints)
        self.assertEqual([("./moebius run DIR", None), ("./test   # all", None), ("./a    b", None), ("c d", None), ("hf download X", "needs a hub"),
                          ("podman run x", "no engine"), ("import x\n", None)], [(item.text, item.why) for item in items])
        self.assertEqual([1, 3, 5, 5, 13, 17, 18], [item.line for item in items])

    def test_marks_that_fit_nothing(self):
        self.assertEqual(1, len(run_documents.items_of("<!-- not run: why -->\ntext\n", ("sh",))[1]))
        self.assertEqual(1, len(run_documents.items_of("<!-- not run, podman: why -->\n`podmin run x`\n", ("sh",))[1]))


class OracleOrder(unittest.TestCase):
    """bench/oracle_order.py with a tool that says how long a kernel takes."""
    TOOL = """#!{python} -IS
import json, sys
from pathlib import Path
words = sys.argv
value = lambda name: words[words.index(name) + 1] if name in words else None
line = lambda kernel, ms: print(json.dumps(dict(kernel=kernel, tokens=8, ms=ms, numerics="{numerics}" if kernel == "b/x" else "exact")))
if words[2] == "kernel":
    for kernel in ("a/x", "b/x", "generic/x"):
        line(kernel, 1)
elif value("--kernel") == "b/x":
    rounds = Path(__file__).with_name("rounds")
    rounds.write_text(rounds.read_text() + "." if rounds.exists() else ".")
    line("b/x", 9 if len(rounds.read_text()) <= {faster} else 9.9)
else:
    line("a/x", 10)
"""

    def status(self, faster, numerics="exact"):
        with tempfile.TemporaryDirectory() as folder:
            tool = Path(folder) / "tool"
            tool.write_text(self.TOOL.replace("{python}", sys.executable).replace("{faster}", str(faster)).replace("{numerics}", numerics))
            tool.chmod(0o755)
            words = ["oracle_order.py", "--tool", str(tool), "--schemes", "nvfp4", "--rows", "8"]
            with unittest.mock.patch.object(sys, "argv", words), contextlib.redirect_stdout(io.StringIO()) as said:
                return oracle_order.main(), said.getvalue()

    def test_six_of_seven_rounds(self):
        status, said = self.status(faster=6)
        self.assertEqual(1, status)
        self.assertRegex(said, r"nvfp4 +8 rows +chosen a/x +10 \(10-10\) +next b/x +9 \(9-9.9\) +BEHIND")
        self.assertEqual(0, self.status(faster=5)[0])

    def test_another_class_is_a_decision(self):
        status, said = self.status(faster=7, numerics="reordered")
        self.assertEqual(0, status)
        self.assertIn("reordered, not exact", said)


if __name__ == "__main__":
    unittest.main()
