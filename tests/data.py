#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tests' data: archives in git, folders in build/data.

    data.py unpack [DATA]     makes DATA (default: build/data) from tests/; does nothing where it is up to date. The build calls it
    data.py pack [DATA]       takes what makers changed in DATA back into tests/: archives, and the loose files beside them

An archive tests/PLACE/NAME.tar.xz holds files below PLACE: checkpoints of a family (golden/FAMILY.tar.xz has golden/FAMILY-*), texts of
a kind (golden-text/KIND.tar.xz), the corpus of a fuzz target (fuzz/corpus/TARGET.tar.xz). Bad input (DATA/negative) is in no archive: its
makers, tests/python/make_negative*.py, write it when DATA is made. Equal contents give equal archives.
"""
import fcntl
import hashlib
import io
import json
import lzma
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

TESTS = Path(__file__).resolve().parent
PLACES = ("golden", "golden-text", "fuzz/corpus", ".")
WHOLE = ("golden-blocks", "golden-embed", "golden-mtp", "golden-vllm")  # folders with one archive, beside them
LOOSE = ("golden",)  # folders of files that are not in archives
MAKERS = sorted((TESTS / "python").glob("make_negative*.py"))


def digest(paths):
    """A hash of the contents of files."""
    found = hashlib.sha256()
    for path in paths:
        found.update(path.read_bytes())
    return found.hexdigest()


def archives():
    """Every archive of tests/, with the place that its names begin at."""
    return [(path, place) for place in PLACES for path in sorted((TESTS / place).glob("*.tar.xz"))]


def loose_files(root):
    """Files that lie outside archives, relative to `root`; of golden only those beside and not within checkpoints."""
    found = [path for place in LOOSE for path in (root / place).rglob("*") if path.is_file() and not path.name.endswith(".tar.xz")]
    names = sorted(path.relative_to(root).as_posix() for path in found)
    return [name for name in names if not name.startswith("golden/") or name.count("/") == 1 or name.startswith("golden/configs/")]


def read_archive(path):
    """{name: bytes} of an archive."""
    with tarfile.open(path, "r:xz") as tar:
        files = {member.name: tar.extractfile(member).read() for member in tar if member.isfile()}
    for name in files:
        if name.startswith("/") or ".." in name.split("/"):
            sys.exit(f"{path}: {name} leads out of the folder")
    return files


def archive_of(files):
    """The bytes of the archive that holds {name: bytes}."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted(files):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(files[name]), 0o644
            tar.addfile(member, io.BytesIO(files[name]))
    # Most bytes are numbers of two bytes, which these settings pack a sixteenth smaller than the usual ones.
    return lzma.compress(out.getvalue(), filters=[{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 1, "lp": 1, "pb": 1}])


def write(path, content):
    """Writes a file unless it has this content."""
    if path.is_file() and path.read_bytes() == content:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return True


def clear(data, names):
    """Removes files, and folders that are empty then."""
    for name in names:
        (data / name).unlink(missing_ok=True)
    for folder in sorted({parent for name in names for parent in (data / name).parents if data in parent.parents}, reverse=True):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def unpack(data):
    """Makes the folder; what has not changed since the last time stays."""
    data.mkdir(parents=True, exist_ok=True)
    with open(data / ".lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        manifest = data / ".manifest.json"
        before = json.loads(manifest.read_text()) if manifest.exists() else {}
        after = {}
        for path, place in archives():
            key = path.relative_to(TESTS).as_posix()
            mark = digest([path])
            after[key] = before.get(key, {})
            if after[key].get("digest") != mark:
                files = {(Path(place) / name).as_posix(): content for name, content in read_archive(path).items()}
                clear(data, set(after[key].get("files", [])) - files.keys())
                for name, content in files.items():
                    write(data / name, content)
                after[key] = {"digest": mark, "files": sorted(files)}
        loose = loose_files(TESTS)
        for name in loose:
            write(data / name, (TESTS / name).read_bytes())
        after["loose"] = {"files": loose}
        made = digest(MAKERS)
        after["negative"] = {"digest": made, "files": []}
        if before.get("negative", {}).get("digest") != made:
            shutil.rmtree(data / "negative", ignore_errors=True)
            for maker in MAKERS:
                subprocess.run([sys.executable, "-B", maker, data], check=True, stdout=subprocess.DEVNULL)
        for key in before.keys() - after.keys() | {"loose"} & before.keys():
            clear(data, set(before[key]["files"]) - {name for entry in after.values() for name in entry["files"]})
        text = json.dumps(after)
        if before != after:
            manifest.with_suffix(".next").write_text(text)
            os.replace(manifest.with_suffix(".next"), manifest)


def groups(data):
    """{archive: {name: bytes}} of the folder's contents."""
    found = {}

    def add(archive, place, folder):
        files = found.setdefault(archive, {})
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                files[path.relative_to(data / place).as_posix()] = path.read_bytes()

    for folder in sorted((data / "golden").iterdir()):
        if folder.is_dir() and folder.name != "configs":
            add(f"golden/{folder.name.split('-')[0]}.tar.xz", "golden", folder)
    for place in ("golden-text", "fuzz/corpus"):
        for folder in sorted((data / place).iterdir()):
            add(f"{place}/{folder.name}.tar.xz", place, folder)
    for name in (n for n in WHOLE if (data / n).is_dir()):
        add(f"{name}.tar.xz", ".", data / name)
    return found


def pack(data):
    """Writes archives whose contents changed, and loose files."""
    found = groups(data)
    changed = []
    for name, files in found.items():
        path = TESTS / name
        if not path.exists() or read_archive(path) != files:
            write(path, archive_of(files))
            changed.append(name)
    for path, _ in archives():
        if path.relative_to(TESTS).as_posix() not in found:
            path.unlink()
            changed.append(path.relative_to(TESTS).as_posix())
    changed += [name for name in loose_files(data) if write(TESTS / name, (data / name).read_bytes())]
    print("\n".join(changed) if changed else "nothing changed")


def main():
    if len(sys.argv) not in (2, 3) or sys.argv[1] not in ("pack", "unpack"):
        sys.exit(__doc__)
    data = Path(sys.argv[2]).resolve() if len(sys.argv) == 3 else TESTS.parent / "build/data"
    (pack if sys.argv[1] == "pack" else unpack)(data)


if __name__ == "__main__":
    main()
