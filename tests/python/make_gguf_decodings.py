#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints what the gguf package decodes of random blocks of each type, for tests/unit/checkpoint/formats_gguf_test.cpp.

    make_gguf_decodings.py     needs gguf (tested with 0.19.0) and numpy

A line is a row of the test's table: a type's number and name and the sha256 of the numbers (f32, little-endian) of 32 blocks. Bytes come from a linear
congruential generator that starts with the type's number; the bytes named below are masked, so that every scale is finite.
"""
import hashlib

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES

# type -> bytes of a block that are masked, with the bits that stay
HALF = 0xBF  # the upper byte of a float of 16 bits: an exponent below 16
MASKS = {2: {1: HALF}, 3: {1: HALF, 3: HALF}, 6: {1: HALF}, 7: {1: HALF, 3: HALF}, 8: {1: HALF}, 10: {81: HALF, 83: HALF}, 11: {109: HALF},
         12: {1: HALF, 3: HALF}, 13: {1: HALF, 3: HALF}, 14: {209: HALF}, 16: {1: HALF}, 17: {1: HALF}, 18: {1: HALF}, 19: {1: HALF},
         20: {1: HALF}, 21: {1: HALF}, 22: {1: HALF}, 23: {1: HALF}, 29: {55: HALF}, 34: {53: HALF}, 35: {65: HALF}, 39: {0: 0x7F},
         40: {0: 0x7F, 1: 0x7F, 2: 0x7F, 3: 0x7F}}
BLOCKS = 32


def random_bytes(seed, count):
    state, out = seed, bytearray()
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        out.append(state >> 56)
    return out


def main():
    for number, masks in MASKS.items():
        kind = gguf.GGMLQuantizationType(number)
        size = GGML_QUANT_SIZES[kind][1]
        data = random_bytes(number, BLOCKS * size)
        for block in range(BLOCKS):
            for at, bits in masks.items():
                data[block * size + at] &= bits
        numbers = gguf.dequantize(np.frombuffer(bytes(data), np.uint8).reshape(1, -1), kind)
        assert np.isfinite(numbers).all(), kind.name
        digest = hashlib.sha256((numbers.astype("<f4") + np.float32(0)).tobytes()).hexdigest()  # + 0: one zero, without sign
        print(f'    {{{number}, "{kind.name}", "{digest}"}},')


if __name__ == "__main__":
    main()
