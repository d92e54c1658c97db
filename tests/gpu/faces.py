#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python and C faces of layers on a CUDA device: memory of the device, streams, captured graphs, routing on the device.

    MOEBIUS_LIBRARY=libmoebius.so PYTHONPATH=python faces.py GOLDEN [--emulated] [--every N]
                                       one line per thing that is wrong, then a summary; 77: no device

The first linear and the first MoE block of every golden folder, on the device and by the reference kernel of the CPU. These small layers
have plain CUDA kernels, so y, ids and weights must be equal, byte by byte; also when a graph that captured the call is replayed, and when the
stream has grown its memory meanwhile. Needs the driver alone (libcuda.so.1); with torch its operators too. --emulated: with a plugin that
computes on the host (tests/gpu/emulated_plugin.cpp), in memory of the host.
"""
import ctypes
import math
import random
import struct
import sys
from pathlib import Path

import moebius
from moebius import _abi

ROWS = (1, 9, 40)
REPLAYS = 20


class Driver:
    """The few functions of the CUDA driver that a caller of layers needs."""

    def __init__(self):
        self.cu = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        self.stream, self.other = ctypes.c_void_p(), ctypes.c_void_p()
        for stream in (self.stream, self.other):
            self.call("cuStreamCreate", ctypes.byref(stream), 1)  # does not wait for the default stream

    def call(self, name, *arguments):
        result = getattr(self.cu, name)(*arguments)
        if result:
            raise RuntimeError(f"{name}: error {result}")

    def wait(self):
        self.call("cuStreamSynchronize", self.stream)

    def capture(self, run):
        """A graph of what run() queues on the stream."""
        graph, ready = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuStreamBeginCapture_v2", self.stream, 0)
        try:
            run()
        finally:
            self.call("cuStreamEndCapture", self.stream, ctypes.byref(graph))
        self.call("cuGraphInstantiateWithFlags", ctypes.byref(ready), graph, ctypes.c_uint64(0))
        self.call("cuGraphDestroy", graph)
        return ready


class Host:
    """The same without a device."""

    stream = other = ctypes.c_void_p()

    def __init__(self):
        self.memory = {}
        self.cu = self

    def call(self, name, *arguments):
        if name == "cuMemAlloc_v2":
            kept = ctypes.create_string_buffer(arguments[1].value)
            arguments[0]._obj.value = ctypes.addressof(kept)
            self.memory[ctypes.addressof(kept)] = kept
        elif name == "cuMemcpyHtoD_v2":
            ctypes.memmove(arguments[0].value, arguments[1], arguments[2].value)
        elif name == "cuMemcpyDtoH_v2":
            ctypes.memmove(arguments[0], arguments[1].value, arguments[2].value)
        elif name == "cuGraphLaunch":
            arguments[0]()

    def cuMemFree_v2(self, address):
        self.memory.pop(address.value, None)

    def wait(self):
        pass

    def capture(self, run):
        return run


class Array:
    """Rows on the device, as libraries show them."""

    def __init__(self, driver, typestr, shape, data=None):
        self.driver, self.bytes = driver, int(typestr[2:]) * math.prod(shape)
        self.address = ctypes.c_uint64()
        driver.call("cuMemAlloc_v2", ctypes.byref(self.address), ctypes.c_size_t(max(1, self.bytes)))
        self.__cuda_array_interface__ = {"typestr": typestr, "shape": shape, "strides": None, "data": (self.address.value, False), "version": 3}
        self.fill(data if data is not None else b"\xff" * self.bytes)  # NaN

    def fill(self, data):
        if data:
            self.driver.call("cuMemcpyHtoD_v2", self.address, data, ctypes.c_size_t(len(data)))

    def read(self):
        out = ctypes.create_string_buffer(max(1, self.bytes))
        if self.bytes:
            self.driver.call("cuMemcpyDtoH_v2", out, self.address, ctypes.c_size_t(self.bytes))
        return out.raw[:self.bytes]

    def __del__(self):
        self.driver.cu.cuMemFree_v2(self.address)


def bf16_bytes(count, source):
    packed = struct.pack(f"<{count}f", *(source.gauss(0, 1) for _ in range(count)))
    return b"".join(packed[4 * i + 2:4 * i + 4] for i in range(count))


def host(data, typestr, shape):
    class Rows:
        __array_interface__ = {"typestr": typestr, "shape": shape, "strides": None, "data": (ctypes.addressof(data), False), "version": 3}
        kept = data
    return Rows()


def buffer(data):
    return (ctypes.c_char * max(1, len(data))).from_buffer_copy(data or b"\0")


class Judge:
    def __init__(self, driver):
        self.driver, self.checks, self.wrong, self.refused = driver, 0, [], []

    def same(self, got, expected, what):
        self.checks += 1
        if got != expected:
            step = 4
            differ = sum(got[i:i + step] != expected[i:i + step] for i in range(0, len(expected), step))
            self.wrong.append(f"{what}: {differ} of {len(expected) // step} numbers differ")

    def replayed(self, run, outputs, what):
        """run() again inside a graph, while the stream's own memory may grow: the same bytes each time."""
        d = self.driver
        expected = [o.read() for o in outputs]
        ready = d.capture(run)
        for i in range(REPLAYS):
            if i in (0, REPLAYS - 1):
                for o in outputs:
                    o.fill(b"\xff" * o.bytes)
            d.call("cuGraphLaunch", ready, d.stream)
            d.wait()
            if i in (0, REPLAYS - 1):
                for o, e in zip(outputs, expected):
                    self.same(o.read(), e, f"{what}, replay {i}")
        d.call("cuGraphExecDestroy", ready)

    def linear(self, folder, name, source):
        cpu, gpu = folder.linear(name, kernel="reference", threads=2), folder.linear(name, device="cuda", kernel="cuda_plain")
        if gpu.device != "cuda" or (gpu.inputs, gpu.outputs) != (cpu.inputs, cpu.outputs):
            self.wrong.append(f"{name}: is on {gpu.device}, {gpu.outputs} x {gpu.inputs}")
        for T in ROWS:
            data = bf16_bytes(T * cpu.inputs, source)
            x, y = Array(self.driver, "<V2", (T, cpu.inputs), data), Array(self.driver, "<f4", (T, cpu.outputs))
            x.dtype = type("BF16", (), {"name": "bfloat16"})
            expected = buffer(b"\0" * 4 * T * cpu.outputs)
            cpu(bf16_rows(data, (T, cpu.inputs)), out=host(expected, "<f4", (T, cpu.outputs)))
            run = lambda: gpu(x, out=y, stream=self.driver.stream.value)
            run()
            self.driver.wait()
            self.same(y.read(), bytes(expected), f"{name} T={T}")
            if T == ROWS[1]:
                self.replayed(run, [y], f"{name} T={T}")
        through = buffer(b"\0" * 4 * gpu.outputs)  # arrays of the host are copied
        data = bf16_bytes(gpu.inputs, source)
        gpu(bf16_rows(data, (1, gpu.inputs)), out=host(through, "<f4", (1, gpu.outputs)))
        expected = buffer(b"\0" * 4 * gpu.outputs)
        cpu(bf16_rows(data, (1, gpu.inputs)), out=host(expected, "<f4", (1, gpu.outputs)))
        self.same(bytes(through), bytes(expected), f"{name} from the host")

    def block(self, folder, name, scope, source):
        """Whole blocks with their router; experts with logits, some of them broken, and with ids."""
        options = {"scope": scope}
        cpu = folder.moe(name, kernel="reference", threads=2, **options)
        gpu = folder.moe(name, device="cuda", kernel="cuda_plain", **options)
        H, slots, d = cpu.hidden, cpu.slots, self.driver
        lib, pointer = moebius.layers.lib, gpu._pointer
        for T in ROWS:
            data = bf16_bytes(T * H, source)
            x, y = Array(d, "<V2", (T, H), data), Array(d, "<f4", (T, H))
            ids, weights = Array(d, "<i4", (T, slots)), Array(d, "<f4", (T, slots))
            a = _abi.moebius_input(ctypes.sizeof(_abi.moebius_input), x.address.value, _abi.MOEBIUS_BF16, T, H, H)
            b = _abi.moebius_output(ctypes.sizeof(_abi.moebius_output), y.address.value, _abi.MOEBIUS_F32, T, H, H)
            chosen = (ctypes.cast(ids.address.value, ctypes.POINTER(ctypes.c_int32)), ctypes.cast(weights.address.value, ctypes.POINTER(ctypes.c_float)))
            expected = buffer(b"\0" * 4 * T * H)
            out = host(expected, "<f4", (T, H))
            what = f"{name} {scope} T={T}"
            if scope == "block":
                _, e_ids, e_weights = cpu(bf16_rows(data, (T, H)), out=out, routing=True)
                run = lambda: self.must(lib.moebius_moe_launch(pointer, ctypes.byref(a), ctypes.byref(b), *chosen, d.stream))
            else:
                n = gpu.experts
                numbers = [source.gauss(0, 3) for _ in range(T * n)]
                for t in range(3, T, 4):
                    numbers[t * n + t % n] = (math.nan, math.inf, -math.inf)[t % 3]
                raw = buffer(struct.pack(f"<{len(numbers)}f", *numbers))
                logits = Array(d, "<f4", (T, n), bytes(raw))
                l = _abi.moebius_input(ctypes.sizeof(_abi.moebius_input), logits.address.value, _abi.MOEBIUS_F32, T, n, n)
                if len(self.zero_experts(folder)):
                    return  # logits have more columns there
                _, e_ids, e_weights = cpu.run_logits(bf16_rows(data, (T, H)), host(raw, "<f4", (T, n)), out=out, routing=True)
                run = lambda: self.must(lib.moebius_moe_launch_logits(pointer, ctypes.byref(a), ctypes.byref(l), ctypes.byref(b), *chosen, d.stream))
            run()
            d.wait()
            self.same(ids.read(), bytes(e_ids), f"{what} ids")
            self.same(weights.read(), bytes(e_weights), f"{what} weights")
            self.same(y.read(), bytes(expected), what)
            if T == ROWS[1]:
                self.replayed(run, [y, ids, weights], what)
            if scope == "experts":
                given = [source.randrange(-1, n) for _ in range(T * 2)]
                w = [source.random() for _ in range(T * 2)]
                h_ids, h_w = buffer(struct.pack(f"<{2 * T}i", *given)), buffer(struct.pack(f"<{2 * T}f", *w))
                d_ids, d_w = Array(d, "<i4", (T, 2), bytes(h_ids)), Array(d, "<f4", (T, 2), bytes(h_w))
                cpu.run_ids(bf16_rows(data, (T, H)), host(h_ids, "<i4", (T, 2)), host(h_w, "<f4", (T, 2)), out=out)
                x.dtype = type("BF16", (), {"name": "bfloat16"})
                gpu.run_ids(x, d_ids, d_w, out=y, stream=d.stream.value)
                d.wait()
                self.same(y.read(), bytes(expected), f"{what} ids of the caller")

    @staticmethod
    def zero_experts(folder):
        return [n for n in (folder.architecture,) if "Longcat" in n]

    def must(self, status):
        if status:
            raise moebius.layers.check.__globals__["last_error"]()


def bf16_rows(data, shape):
    class Rows:
        kept = buffer(data)
        dtype = type("BF16", (), {"name": "bfloat16"})
        __array_interface__ = {"typestr": "<V2", "shape": shape, "strides": None, "data": (ctypes.addressof(kept), False), "version": 3}
    return Rows()


def with_torch(judge, folder, source):
    try:
        import torch
        import moebius.torch as operators
    except ImportError:
        return "skipped: torch is not there"
    if not torch.cuda.is_available():
        return "skipped: torch sees no device"
    name = folder.moe_blocks[0]
    cpu, gpu = (operators.MoeModule(folder.moe(name, scope="experts", **o)) for o in ({"kernel": "reference"}, {"device": "cuda", "kernel": "cuda_plain"}))
    x = torch.randn(9, gpu.layer.hidden).to(torch.bfloat16)
    logits = torch.randn(9, gpu.layer.experts)
    expected = cpu(x, logits)
    xs, ls = x.cuda(), logits.cuda()
    y = gpu.cuda()(xs, ls)
    judge.same(y.cpu().view(torch.int16).numpy().tobytes(), expected.view(torch.int16).numpy().tobytes(), "torch operator")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        z = gpu(xs, ls)
    graph.replay()
    judge.same(z.cpu().view(torch.int16).numpy().tobytes(), expected.view(torch.int16).numpy().tobytes(), "torch operator in a graph")
    return "run"


def main():
    folders = sorted(p.parent for p in Path(sys.argv[1]).glob("*/config.json"))
    every = int(sys.argv[sys.argv.index("--every") + 1]) if "--every" in sys.argv else 1
    folders = folders[::every]
    source = random.Random(3)
    first = moebius.Folder(str(next(p.parent for p in sorted(Path(sys.argv[1]).glob("qwen3moe*/config.json")))))
    module = next(m.name for m in first.modules if m.kind == "linear")
    try:
        first.linear(module, device="cuda")
    except moebius.Error as e:
        print(f"faces: skipped: {e}")
        return 77
    judge = Judge(Host() if "--emulated" in sys.argv else Driver())
    for path in folders:
        try:
            folder = moebius.Folder(str(path))
            module = next((m.name for m in folder.modules if m.kind == "linear" and m.supported), None)
            if module:
                judge.linear(folder, module, source)
            for scope in ("block", "experts") if folder.moe_blocks else ():
                try:
                    folder.moe(folder.moe_blocks[0], scope=scope, kernel="reference", threads=2)(bf16_rows(b"", (0, 1)))
                except moebius.Error as e:
                    if "shape" not in str(e) and "without their router" not in str(e):
                        continue  # the CPU cannot run it either
                judge.block(folder, folder.moe_blocks[0], scope, source)
        except moebius.Error as e:
            # A block whose experts hang on the token's id takes rows alone on neither device.
            (judge.refused if "on the CPU" in str(e) or "by token id" in str(e) else judge.wrong).append(f"{path.name}: {e}")
    words = with_torch(judge, first, source)
    for line in judge.wrong[:40]:
        print(f"WRONG {line}")
    for line in judge.refused[:10]:
        print(f"refused {line}")
    print(f"faces: {len(folders)} folders, {judge.checks} checks, {len(judge.wrong)} wrong, {len(judge.refused)} refused in words; torch: {words}")
    return 1 if judge.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
