#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the include rule: folders of src/ have levels, and includes only go down (ARCHITECTURE.md).

    check_includes.py ROOT      prints one line per violation; exit status 1 if there is any

Besides the levels: instruction-set files of kernels/ see plain headers only, only kernels/ and runtime/ (which asks the CPU and
measures it) hold assembly or intrinsics, the public headers see only themselves, and each
heavy third-party header belongs to one translation unit. Modules of the Python package import each other in no circle.
"""
import ast
import re
import sys
from pathlib import Path

# folder -> folders it may include besides itself and base/
ALLOWED = {
    "base": set(),
    "runtime": set(),
    "quant": set(),
    "gguf": set(),
    "text": {"gguf"},
    "checkpoint": {"gguf", "quant", "runtime"},
    "kernels": {"quant", "runtime"},
    "nn": {"kernels", "quant", "runtime"},
    # device/ joins files to layers (layer_loader), so it also asks the oracle and handles weight views; no ISA file.
    "device": {"nn", "kernels", "quant", "checkpoint", "runtime"},
    # model/ knows devices by their waist: no kernel, and besides (WAIST) no thread pool and no address of a row.
    "model": {"device", "nn", "quant", "checkpoint", "text", "gguf", "runtime"},
    # engine/ batches requests and keeps prompts: of a model it knows the backend alone (ENGINE_SEES).
    "engine": {"model", "device", "nn", "text", "runtime"},
    # quantize/ makes folders: it writes what checkpoint/ reads.
    "quantize": {"engine", "model", "device", "nn", "kernels", "quant", "checkpoint", "text", "gguf", "runtime"},
    "report": {"device", "engine", "model", "nn", "kernels", "checkpoint", "text", "quant", "gguf", "runtime"},
    # api/ implements the public headers (include/moebius).
    "api": {"quantize", "report", "device", "engine", "model", "nn", "kernels", "checkpoint", "text", "quant", "gguf", "runtime"},
    "serve": {"engine", "model", "text", "runtime"},
    "bench": {"apps", "report", "device", "engine", "model", "nn", "kernels", "checkpoint", "text", "quant", "runtime"},
    "apps": {"quantize", "serve", "report", "device", "engine", "model", "nn", "kernels", "checkpoint", "text", "quant", "gguf", "runtime"},
}

# Folders within a folder, likewise: what each may include of its neighbours. Files on top of the folder are seen by all of
# them; on top of model/ they see none.
INNER = {
    "kernels": {"generic": set(), "arm": set(), "x86": set()},
    "model": {"arch": set(), "graph": set(), "plan": {"arch"}, "load": {"arch", "graph", "plan"},
              "run": {"graph", "plan", "load"},
              "ranks": {"arch", "graph", "plan", "load", "run"}},
}

# Above device/ its folders are not seen, only device/*.h: nobody there knows a family of devices. The files that run or
# measure layers without a model, with the reason:
SINGLE_LAYERS = "single layers on rows in the caller's memory: no queue, and no step"
MEASURES = "measures kernels and layers of one device"
BELOW_WAIST = {
    "api/api.h": SINGLE_LAYERS,
    "api/build.cpp": SINGLE_LAYERS,
    "apps/apply.cpp": SINGLE_LAYERS,
    "apps/verify.cpp": SINGLE_LAYERS,
    "bench/bench_cuda.cpp": MEASURES,
    "bench/bench_linear.cpp": MEASURES,
    "bench/bench_moe.cpp": MEASURES,
    "bench/bench_synthetic.h": MEASURES,
}

# What the engine knows of model/.
ENGINE_SEES = {"model/backend.h"}

# Units compiled with instruction-set flags. What they include must define no function that could be
# merged with a copy from a unit compiled for every CPU.
ISA_FILE = re.compile(r"^(arm|x86)_\w+\.(cpp|h)$")
ISA_ALLOWED = {"kernels/attend.h", "kernels/kernel.h", "kernels/unpack.h", "kernels/prepared_rows.h",
               "kernels/row_functions.h", "quant/quant_matrix.h", "quant/activation.h", "base/numeric.h", "base/math_functions.h"}  # plain data, declarations, or always inlined
# Headers shared by kernel units, free of external functions by their own rule (held by the symbol check).
ISA_SHARED = re.compile(r"^kernels/(isa_|arm/|x86/)\w*\.h$")

# Headers that the build makes.
GENERATED = {"kernels/arm/arm_i8mm_asm.h"}

# Outside these folders code is portable.
MACHINE_FOLDERS = {"kernels", "runtime"}
MACHINE_CODE = re.compile(r"\basm\b\s*(volatile\b\s*)?\(|[<\"](immintrin|x86intrin|arm_neon|arm_sve)\.h[>\"]")

# Above the device waist rows have names and places, not addresses, and work is given to devices, not to threads.
WAIST_FOLDER = "model"
WAIST = re.compile(r"\bfloat\s*(const\s*)?\*|#include \"runtime/thread_pool\.h\"")

# A heavy header may be included by one .cpp file and by no header.
HEAVY = {
    "nlohmann": re.compile(r"^nlohmann/"),
    "pcre2": re.compile(r"^pcre2\.h$"),
    "asio": re.compile(r"^boost/(asio|system)/"),
    "beast": re.compile(r"^boost/(?!asio/|system/)"),
    "oniguruma": re.compile(r"^oniguruma\.h$"),
    "utf8proc": re.compile(r"^utf8proc\.h$"),
    "libedit": re.compile(r"^(histedit\.h$|editline/)"),
}
THIRD_PARTY = {"fmt", "nlohmann", "pcre2.h", "boost", "oniguruma.h", "utf8proc.h", "histedit.h", "editline"}

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.M)


def includes(path):
    """(line number, '<' or '"', name) of every include of a file."""
    text = path.read_text(encoding="utf-8")
    for m in INCLUDE.finditer(text):
        yield text.count("\n", 0, m.start()) + 1, m.group(1), m.group(2)


def check_source(rel, line, name, src):
    """A quoted include of a file below src/; returns a complaint or None."""
    folder = rel.parts[0] if len(rel.parts) > 1 else ""
    if name.startswith("moebius/"):
        return None
    target = name.split("/")[0]
    if "/" not in name or target not in ALLOWED:
        return f'"{name}" is not written from src/ (expected "folder/file.h")'
    if name not in GENERATED and not (src / name).is_file():
        return f'"{name}" does not exist below src/'
    inner = INNER.get(folder, {})
    here, there = (parts[1] if len(parts) > 2 else None for parts in (rel.parts, name.split("/")))
    if target == folder and inner and here and there and there != here and there not in inner.get(here, ()):
        return f'"{name}": {folder}/{here}/ may not include {folder}/{there}/'
    if folder == target == WAIST_FOLDER and here is None and there:
        return f'"{name}": files on top of {folder}/ may not include its folders'
    if folder == "kernels" and ISA_FILE.match(rel.name):
        if name not in ISA_ALLOWED and not ISA_SHARED.match(name):
            return f'"{name}": instruction-set files include only {", ".join(sorted(ISA_ALLOWED))} and shared kernel headers'
        return None
    if target in (folder, "base"):
        return None
    if target == "device" and there and str(rel) not in BELOW_WAIST:
        return f'"{name}": above device/ only device/*.h is seen'
    if folder == "engine" and target == "model" and name not in ENGINE_SEES:
        return f'"{name}": of model/ the engine knows {", ".join(sorted(ENGINE_SEES))} only'
    if target not in ALLOWED.get(folder, ()):
        return f'"{name}": {folder or "src"}/ may not include {target}/'
    if target == "kernels" and ISA_FILE.match(Path(name).name):
        return f'"{name}": only kernels/ knows instruction sets'
    return None


def imports_of(name, text, modules):
    """Modules of the package that a module imports, anywhere in it but for type checkers only."""
    package = name if any(m.startswith(f"{name}.") for m in modules) else name.rpartition(".")[0]
    found = set()

    def visit(node):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        if isinstance(node, ast.ImportFrom) and node.level > 0:
            parts = package.split(".") if package else []
            base = parts[:len(parts) - (node.level - 1)] + (node.module.split(".") if node.module else [])
            for alias in node.names:
                inner = ".".join(base + [alias.name])
                found.add(inner if inner in modules else ".".join(base))
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(text))
    return {m for m in found if m in modules and m not in ("", name)}


def python_circles(files):
    """Complaints, given {module: text} of a package; its own __init__ (module ""), which imports late, is no part of a circle."""
    graph = {name: imports_of(name, text, files) for name, text in files.items() if name}
    complaints, done = [], set()

    def walk(name, way):
        if name in way:
            complaints.append("python: imports go in a circle: " + " -> ".join(way[way.index(name):] + [name]))
            return
        if name in done:
            return
        for other in sorted(graph[name]):
            walk(other, way + [name])
        done.add(name)

    for name in sorted(graph):
        walk(name, [])
    return complaints


def python_files(package):
    names = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text(encoding="utf-8")
    return names


def check_tree(root):
    complaints, heavy = [], {}
    src = root / "src"
    files = sorted(p for p in src.rglob("*") if p.suffix in (".h", ".cpp")) if src.is_dir() else []
    for path in files:
        rel = path.relative_to(src)
        if len(rel.parts) > 1 and rel.parts[0] not in ALLOWED:
            complaints.append(f"src/{rel}: folder {rel.parts[0]}/ has no level")
            continue
        if len(rel.parts) > 2 and rel.parts[1] not in INNER.get(rel.parts[0], {rel.parts[1]}):
            complaints.append(f"src/{rel}: folder {rel.parts[0]}/{rel.parts[1]}/ has no level")
            continue
        if rel.parts[0] not in MACHINE_FOLDERS:
            text = path.read_text(encoding="utf-8")
            for m in MACHINE_CODE.finditer(text):
                complaints.append(f"src/{rel}:{text.count(chr(10), 0, m.start()) + 1}: only kernels/ knows instruction sets: {m.group(0)}")
        if rel.parts[0] == WAIST_FOLDER:
            text = path.read_text(encoding="utf-8")
            for m in WAIST.finditer(text):
                complaints.append(f"src/{rel}:{text.count(chr(10), 0, m.start()) + 1}: only devices know addresses and threads: {m.group(0)}")
        for line, quote, name in includes(path):
            where = f"src/{rel}:{line}"
            if quote == '"':
                complaint = check_source(rel, line, name, src)
                if complaint:
                    complaints.append(f"{where}: {complaint}")
            for label, pattern in HEAVY.items():
                if pattern.match(name):
                    heavy.setdefault(label, set()).add(f"src/{rel}")
                    if path.suffix == ".h":
                        complaints.append(f"{where}: {label} is a heavy header; include it in one .cpp file, not in a header")
            if len(rel.parts) > 1 and rel.parts[0] == "kernels" and ISA_FILE.match(rel.name) and name.split("/")[0] in THIRD_PARTY:
                complaints.append(f"{where}: <{name}>: instruction-set files use no third-party header")
    for label, users in sorted(heavy.items()):
        if len(users) > 1:
            complaints.append(f"{label} is included by {len(users)} files, expected one: {', '.join(sorted(users))}")
    api = root / "include"
    for path in sorted(api.rglob("*.h*")) if api.is_dir() else []:
        for line, quote, name in includes(path):
            if (quote == '"' and not name.startswith("moebius/")) or name.split("/")[0] in THIRD_PARTY:
                complaints.append(f"{path.relative_to(root)}:{line}: public headers include only the standard library and moebius/: {name}")
    complaints += python_circles(python_files(root / "python/moebius"))
    return len(files), complaints


def main():
    count, complaints = check_tree(Path(sys.argv[1]))
    for complaint in complaints:
        print(complaint)
    print(f"{count} files, {len(complaints)} violations of the include rule")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
