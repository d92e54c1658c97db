#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Installs the packages into bare systems and uses them there: the tool, and a program in C with the library.

    packages.py debian        the .deb and the .tar.gz of build/release in a bare Debian 12
    packages.py ubuntu        the .tar.gz in a bare Ubuntu 24.04: of build/release on x86-64; elsewhere that of build/cross-x86_64, under
                              qemu (of other architectures Ubuntu's archive has no packages)
    packages.py container     the steps of the Containerfile, in bare systems in place of images

Bare systems are made by debootstrap and kept in build/roots. Needs root; exit status 77, with the reason, where something to test with is
missing. Mirrors: MOEBIUS_DEBIAN_MIRROR, MOEBIUS_UBUNTU_MIRROR. Where CMAKE_CXX_COMPILER_LAUNCHER is ccache, the container's build uses the
same cache.
"""
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROMPT = ["run", "-p", "It was a dark", "-n", "8", "--quiet"]
SAMPLER = ["bench", "sampler", "--vocab", "1000", "--batches", "1", "--threads", "1", "--seconds", "0", "--json"]
SYSTEMS = {  # name -> suite, mirror, components
    "debian": ("bookworm", os.environ.get("MOEBIUS_DEBIAN_MIRROR", "http://deb.debian.org/debian"), "main"),
    "ubuntu": ("noble", os.environ.get("MOEBIUS_UBUNTU_MIRROR", "http://archive.ubuntu.com/ubuntu"), "main,universe"),
}
ARCHES = {"aarch64": "arm64", "x86_64": "amd64"}
HERE = platform.machine()


class Skipped(Exception):
    """What is missing to test with, in words."""


def call(command, **options):
    """Runs a command; what it printed. Ends the test, with the output, where it fails."""
    run = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", **options)
    if run.returncode != 0:
        sys.exit(f"{run.stdout[-3000:]}\nfailed with {run.returncode}: {shlex.join(str(word) for word in command)}")
    return run.stdout


def expect(condition, what):
    """Ends the test unless a condition holds."""
    if not condition:
        sys.exit(f"failed: {what}")


def bare_system(name, machine):
    """The folder of a bare system, made when it is first asked for."""
    suite, mirror, components = SYSTEMS[name]
    arch = ARCHES[machine]
    folder = ROOT / "build/roots" / f"{suite}-{arch}"
    if (folder / "complete").exists():
        return folder
    if shutil.which("debootstrap") is None:
        raise Skipped("debootstrap is not installed")
    try:
        urllib.request.urlopen(f"{mirror}/dists/{suite}/main/binary-{arch}/Packages.gz", timeout=30).close()
    except OSError as e:
        raise Skipped(f"no packages of {suite} for {arch} at {mirror} ({e})") from None
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    options = ["--variant=minbase", f"--arch={arch}", f"--components={components}"]
    if machine != HERE:
        options.append("--foreign")  # unpacked, and not set up: enough for programs that an emulator starts
    keyring = Path("/usr/share/keyrings") / f"{name}-archive-keyring.gpg"
    if not keyring.exists():
        print(f"{keyring} is missing: packages of {suite} are not checked against it")
        options.append("--no-check-gpg")
    scripts = Path("/usr/share/debootstrap/scripts")
    script = scripts / suite if (scripts / suite).exists() else scripts / {"debian": "sid", "ubuntu": "gutsy"}[name]  # for releases newer than it
    call(["debootstrap", *options, suite, folder, mirror, script])
    if machine != HERE:
        for deb in sorted((folder / "var/cache/apt/archives").glob("*.deb")):
            call(["sh", "-c", 'dpkg-deb --fsys-tarfile "$0" | tar -C "$1" --keep-directory-symlink -xf -', deb, folder])
    (folder / "complete").touch()
    return folder


class System:
    """A copy of a bare system for one test; commands run inside, with a /proc of their own."""

    def __init__(self, folder, machine=HERE):
        self.temporary = tempfile.mkdtemp(prefix="moebius-root.")
        self.path = Path(self.temporary) / "root"
        call(["cp", "-a", "--reflink=auto", folder, self.path])
        self.emulator = []
        if machine != HERE:
            program = shutil.which(f"qemu-{machine}-static")
            if program is None:
                raise Skipped(f"qemu-{machine}-static is not installed")
            shutil.copy(program, self.path / "emulator")
            proc = self.path / "proc"
            if proc.is_symlink():  # debootstrap's for a system that is not set up
                proc.unlink()
                proc.mkdir()
            self.emulator = ["/emulator", "-cpu", "max"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        call(["rm", "-rf", "--one-file-system", self.temporary])

    def run(self, command, user="root", folder="/", cache=None, **environment):
        mounts = []
        if cache:
            (self.path / "ccache").mkdir(exist_ok=True)
            mounts = ["sh", "-c", 'mount --bind "$0" "$1" && shift && exec "$@"', cache, self.path / "ccache"]
        words = ["unshare", "--mount", "--pid", "--fork", f"--mount-proc={self.path}/proc", *mounts, "chroot", f"--userspec={user}", self.path,
                 "/usr/bin/env", "-i", "-C", folder, "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                 "HOME=/root", "DEBIAN_FRONTEND=noninteractive", *(f"{name}={value}" for name, value in environment.items())]
        if self.emulator:  # the chroot's own programs cannot run
            words = ["unshare", "--mount", "--pid", "--fork", f"--mount-proc={self.path}/proc", "chroot", self.path, *self.emulator]
            for name, value in environment.items():
                words += ["-E", f"{name}={value}"]
        return call([*words, *command])


def packages_of(build, kinds):
    """The packages of a build folder, made now."""
    if not (build / "moebius").exists():
        raise Skipped(f"{build.relative_to(ROOT)} is not built")
    folder = build / "packages"
    shutil.rmtree(folder, ignore_errors=True)
    call(["cmake", "--build", build, "--target", "moebius_cli", "moebius_bench", "moebius_shared", "moebius_shell_files"])
    call(["cpack", "-G", kinds], cwd=build)
    return folder


def only(folder, pattern):
    """The one file of that name."""
    found = sorted(folder.glob(pattern))
    expect(len(found) == 1, f"{folder} has {len(found)} files {pattern}")
    return found[0]


def c_program(compiler, tree, work):
    """tests/consumer/main.c, linked with the shared library of an installed tree."""
    program = work / "consumer_c"
    call([compiler, ROOT / "tests/consumer/main.c", "-I", tree / "include", "-L", tree / "lib", "-lmoebius", "-o", program,
          "-Wl,--unresolved-symbols=ignore-in-shared-libs"])
    return program


def use(system, tool, tree, said, **environment):
    """Both faces: the tool finds its model and says what the build's own says; the C program runs a layer."""
    model = f"{tree}/share/moebius/models/moebius-tiny-w4a8"
    expect(system.run([tool, *PROMPT]) == said, f"{tool} says something else than the tool that was built")
    if not system.emulator:  # which would not start the second program
        expect('"bench":"sampler"' in system.run([tool, *SAMPLER]).replace(" ", ""), f"{tool} bench does not measure")
    answer = system.run(["/consumer_c", model], **environment)
    expect(re.fullmatch(r"moebius \S+: 8 experts of Qwen3MoeForCausalLM\n", answer), answer)


def missing_libraries(system, files):
    """Libraries that the dynamic linker of the system does not find."""
    return [line for file in files for line in system.run(["ldd", file]).splitlines() if "not found" in line]


def test_deb(packages, said):
    """apt installs moebius into a bare Debian, with what it depends on; it runs, and goes without a trace."""
    with System(bare_system("debian", HERE)) as system:
        tree = system.path.parent / "tree"
        for deb in packages.glob("*.deb"):
            shutil.copy(deb, system.path / "tmp")
        for name in ("moebius_*.deb", "libmoebius-dev_*.deb"):
            call(["dpkg-deb", "-x", only(packages, name), tree])
        shutil.copy(c_program("cc", tree / "usr", system.path.parent), system.path)
        system.run(["apt-get", "update"])
        system.run(["sh", "-c", "apt-get install -y --no-install-recommends /tmp/moebius_*.deb"])
        expect(not missing_libraries(system, ["/usr/bin/moebius", "/usr/lib/libmoebius.so.1"]), "libraries are missing")
        use(system, "moebius", "/usr", said)
        expect("Apache" in system.run(["cat", "/usr/share/doc/moebius/copyright"]), "the package has no copyright file")
        system.run(["sh", "-c", "apt-get install -s /tmp/*.deb"])  # what the others depend on exists
        system.run(["apt-get", "install", "-y", "--no-install-recommends", "systemd"])
        system.run(["systemd-analyze", "verify", "/lib/systemd/system/moebius.service"])
        system.run(["dpkg", "--purge", "moebius"])
        left = [str(p) for p in (system.path / "usr").rglob("*moebius*")]
        expect(not left, f"dpkg --purge leaves {left}")
    print("the .deb in a bare Debian 12: passed")


def test_archive(name, machine, packages, compiler, said):
    """The archive runs in a bare system, where it was unpacked and after it was moved."""
    archive = only(packages, "*.tar.gz")
    with System(bare_system(name, machine), machine) as system:
        for folder in ("opt", "srv"):
            (system.path / folder).mkdir(exist_ok=True)  # Ubuntu's scripts make them, which do not run on another machine
        call(["tar", "xzf", archive, "-C", system.path / "opt"])
        tree = only(system.path / "opt", "moebius-*")
        shutil.copy(c_program(compiler, tree, system.path.parent), system.path)
        if machine == HERE:
            carried = {path.name.split(".so")[0] for path in (tree / "lib/moebius").glob("lib*.so.*")}
            licences = list((tree / "share/doc/moebius/licenses").iterdir())
            expect(len(carried) == len(licences) >= 5, f"the archive carries {sorted(carried)} with the terms of {sorted(licences)}")
        for place in (f"/opt/{tree.name}", "/srv/moved to here"):
            if place != f"/opt/{tree.name}":
                tree = tree.rename(f"{system.path}{place}")
            use(system, f"{place}/bin/moebius", place, said, LD_LIBRARY_PATH=f"{place}/lib")
    print(f"the .tar.gz in a bare {name} ({machine}), and moved there: passed")


def read_containerfile(arguments):
    """Stages of the Containerfile: (base, name, instructions); an instruction is (word, rest)."""
    text = re.sub(r"\\\n", " ", (ROOT / "Containerfile").read_text(encoding="utf-8"))
    values, stages = {}, []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        word, _, rest = line.partition(" ")
        rest = re.sub(r"\$\{(\w+)\}", lambda m: values.get(m[1], m[0]), rest) if word == "FROM" else rest
        if word == "ARG":
            name, _, value = rest.partition("=")
            values[name] = arguments.get(name, value)
        elif word == "FROM":
            base, _, name = rest.partition(" AS ")
            stages.append((base, name, []))
        else:
            stages[-1][2].append((word, rest))
    return stages


def copy_context(sources, to, ignored):
    """COPY of files of the clone, without what .dockerignore names."""
    for source in sources:
        path = ROOT / source
        if path.is_dir():
            call(["tar", "-C", path, *(f"--exclude=./{name.strip('/')}" for name in ignored), "-cf", to.parent / "context.tar", "."])
            call(["tar", "-C", to, "-xf", to.parent / "context.tar"])
        else:
            shutil.copy(path, to)


def compiler_cache(system, folder):
    """What a build in the system needs to share the compiler cache of this one: arguments of run."""
    if os.environ.get("CMAKE_CXX_COMPILER_LAUNCHER") != "ccache":
        return {}
    if not (system.path / "usr/bin/ccache").exists():
        system.run(["apt-get", "install", "-y", "--no-install-recommends", "ccache"])
    copied = {name: os.environ[name] for name in ("CI", "CMAKE_CXX_COMPILER_LAUNCHER", "CMAKE_C_COMPILER_LAUNCHER") if name in os.environ}
    return {"cache": call(["ccache", "-k", "cache_dir"]).strip(), "CCACHE_DIR": "/ccache", "CCACHE_BASEDIR": folder, **copied}


def test_container():
    """The steps of the Containerfile, one after another; then the entry point says what the tool says."""
    images = {"debian:12-slim": "debian"}
    ignored = (ROOT / ".dockerignore").read_text().split()
    built = {}
    try:
        for base, name, steps in read_containerfile({}):
            expect(base in images, f"no bare system stands for {base}")
            system = built[name] = System(bare_system(images[base], HERE))
            folder, user, entry, default = "/", "root", [], []
            for word, rest in steps:
                print(f"  {word} {rest}", flush=True)
                words = shlex.split(rest)
                if word == "RUN":
                    cache = compiler_cache(system, folder) if rest.startswith("cmake ") else {}
                    system.run(["sh", "-c", rest], user, folder, **cache)
                elif word == "WORKDIR":
                    folder = rest
                    (system.path / folder.strip("/")).mkdir(parents=True, exist_ok=True)
                elif word == "COPY":
                    target = system.path / folder.strip("/") / words[-1] if not words[-1].startswith("/") else system.path / words[-1].strip("/")
                    target.mkdir(parents=True, exist_ok=True)
                    if words[0].startswith("--from="):
                        other = built[words[0].removeprefix("--from=")].path
                        for pattern in words[1:-1]:
                            shutil.copy(only(other, pattern.strip("/")), target)
                    else:
                        copy_context(words[:-1], target, ignored)
                elif word == "USER":
                    user = rest
                elif word == "ENTRYPOINT":
                    entry = [w.strip('",[]') for w in words]
                elif word == "CMD":
                    default = [w.strip('",[]') for w in words]
                else:
                    expect(word == "EXPOSE", f"{word} is not understood")
        expect(entry and default and user != "root", "the image has no entry point, no command, or runs as root")
        print(system.run([*entry, *PROMPT], user, folder), end="")
        expect("serve" in system.run([*entry, *default], user, folder), "the image's command shows no help")
        expect(not (system.path / "src").exists(), "the image has the sources")
    finally:
        for system in built.values():
            system.__exit__()
    print("the steps of the Containerfile: passed")


def main():
    wanted = sys.argv[1:] or ["debian", "ubuntu", "container"]
    if unknown := [name for name in wanted if name not in ("debian", "ubuntu", "container")]:
        sys.exit(f"unknown: {' '.join(unknown)}\n{__doc__}")
    try:
        if os.geteuid() != 0:
            raise Skipped("needs root")
        if HERE not in ARCHES:
            raise Skipped(f"no list of architectures has {HERE}")
        release = ROOT / "build/release"
        said = call([release / "moebius", *PROMPT]) if set(wanted) & {"debian", "ubuntu"} else ""
        if "debian" in wanted:
            packages = packages_of(release, "DEB;TGZ")
            test_deb(packages, said)
            test_archive("debian", HERE, packages, "cc", said)
        if "ubuntu" in wanted:
            native = HERE == "x86_64"
            packages = packages_of(release if native else ROOT / "build/cross-x86_64", "TGZ")
            test_archive("ubuntu", "x86_64", packages, "cc" if native else "x86_64-linux-gnu-gcc", said)
        if "container" in wanted:
            test_container()
    except Skipped as e:
        print(f"skipped: {e}")
        sys.exit(77)


if __name__ == "__main__":
    main()
