# SPDX-License-Identifier: Apache-2.0
"""What a folder is, and one linear and one mixture of experts of it on arrays:  layers.py FOLDER"""
import array
import sys

import moebius


def rows(count, columns):
    """A float32 array of the standard library; numpy, torch and DLPack arrays are taken as well."""
    values = array.array("f", [((i * 37) % 101) / 50 - 1 for i in range(count * columns)])
    return memoryview(values).cast("B").cast("f", [count, columns])


folder = moebius.Folder(sys.argv[1])
print(folder.architecture, "on", moebius.cpu().model)
linear = folder.linear(next(m.name for m in folder.modules if m.kind == "linear" and m.supported), dtype="f32")
y = linear(rows(2, linear.inputs))
print(f"{linear.name}: {linear.inputs} to {linear.outputs} by {linear.kernel}, y[0] starts with {y.tolist()[0][:3]}")
moe = folder.moe(folder.moe_blocks[0], dtype="f32")
y, ids, weights = moe(rows(2, moe.hidden), routing=True)
print(f"{moe.name}: {moe.slots} of {moe.experts} experts, the first row goes to {ids.tolist()[0]} with {weights.tolist()[0]}")
