# SPDX-License-Identifier: Apache-2.0
"""Makes the broken safetensors files of build/data/negative/safetensors and the seeds of build/data/fuzz/corpus/safetensors.

Standard library only; the output depends on nothing but this file, so a second run changes nothing. What each file is
refused for is stated in tests/unit/checkpoint/safetensors_negative_test.cpp. Cases that need a large file are made by the tests themselves.

    make_negative.py [DATA]          default: build/data
"""
import json
import pathlib
import struct
import sys

DATA = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[2] / "build/data"
NEGATIVE = DATA / "negative/safetensors"
CORPUS = DATA / "fuzz/corpus/safetensors"


def raw(header, data=b"", length=None):
    """A file from header bytes; `length` overrides the stored header length."""
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def made(entries, data=b""):
    return raw(json.dumps(entries).encode(), data)


def tensor(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


EIGHT = bytes(range(8))
negative = {
    # A.3, in its order
    "empty": b"",
    "seven_bytes": b"\x10\0\0\0\0\0\0",
    "length_above_cap": raw(b"{}", length=100_000_001),
    "length_near_2_64": raw(b"{}", length=2**64 - 1),
    "length_wraps_with_8": raw(b"{}", length=2**64 - 8),
    "length_beyond_file": raw(b"{}", length=3),
    "invalid_utf8": raw(b'{"a\xff":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', EIGHT),
    "overlong_utf8": raw(b'{"__metadata__":{"a":"\xc0\xaf"}}'),
    "not_json": raw(b"hello, world"),
    "header_is_array": raw(b"[]"),
    "header_is_number": raw(b"12345678"),
    "header_cut": raw(b'{"a":{"dtype":"F32"'),
    "two_objects": raw(b"{}{}"),
    "zero_bytes_after_object": raw(b"{}\0\0\0\0\0\0"),
    "byte_order_mark": raw(b"\xef\xbb\xbf{}"),
    "deep_json": raw(b'{"a":{"x":' + b"[" * 500 + b"]" * 500 + b"}}"),
    "negative_dimension": made({"a": tensor(shape=(-1,))}, EIGHT),
    "negative_offset": made({"a": tensor(offsets=(-8, 0))}, EIGHT),
    "float_dimension": raw(b'{"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}}', EIGHT),
    "exponent_dimension": raw(b'{"a":{"dtype":"F32","shape":[2e0],"data_offsets":[0,8]}}', EIGHT),
    "dimension_beyond_64_bits": raw(b'{"a":{"dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,8]}}', EIGHT),
    "string_dimension": raw(b'{"a":{"dtype":"F32","shape":["2"],"data_offsets":[0,8]}}', EIGHT),
    "nested_shape": raw(b'{"a":{"dtype":"F32","shape":[[2]],"data_offsets":[0,8]}}', EIGHT),
    "shape_is_number": raw(b'{"a":{"dtype":"F32","shape":2,"data_offsets":[0,8]}}', EIGHT),
    "shape_is_null": raw(b'{"a":{"dtype":"F32","shape":null,"data_offsets":[0,8]}}', EIGHT),
    "one_offset": made({"a": tensor(offsets=(0,))}, EIGHT),
    "three_offsets": made({"a": tensor(offsets=(0, 8, 8))}, EIGHT),
    "offsets_are_object": raw(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":{}}}', EIGHT),
    "dtype_is_number": raw(b'{"a":{"dtype":32,"shape":[2],"data_offsets":[0,8]}}', EIGHT),
    "dtype_missing": raw(b'{"a":{"shape":[2],"data_offsets":[0,8]}}', EIGHT),
    "shape_missing": raw(b'{"a":{"dtype":"F32","data_offsets":[0,8]}}', EIGHT),
    "offsets_missing": raw(b'{"a":{"dtype":"F32","shape":[2]}}', EIGHT),
    "dtype_unknown": made({"model.w": tensor(dtype="F9_E9M9")}, EIGHT),
    "entry_is_string": raw(b'{"a":"b"}'),
    "entry_is_null": raw(b'{"a":null}'),
    "dtype_twice": raw(b'{"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}', EIGHT),
    "metadata_twice": raw(b'{"__metadata__":{},"__metadata__":{}}'),
    "metadata_is_number": raw(b'{"__metadata__":1}'),
    "metadata_value_is_number": raw(b'{"__metadata__":{"a":1}}'),
    "metadata_value_is_object": raw(b'{"__metadata__":{"a":{}}}'),
    "hole_at_start": made({"a": tensor(offsets=(4, 12))}, bytes(12)),
    "hole_between": made({"a": tensor(), "b": tensor(offsets=(12, 20))}, bytes(20)),
    "overlap": made({"a": tensor(), "b": tensor(offsets=(4, 12))}, bytes(12)),
    "same_bytes_twice": made({"a": tensor(), "b": tensor()}, EIGHT),
    "end_before_begin": made({"a": tensor(), "b": tensor(offsets=(8, 0))}, EIGHT),
    "shape_product_wraps_to_zero": made({"a": tensor(dtype="U8", shape=(2**32, 2**32), offsets=(0, 0))}),
    "shape_product_wraps_to_four": made({"a": tensor(dtype="U8", shape=(2**62 + 1, 4), offsets=(0, 4))}, bytes(4)),
    "overflow_before_zero": made({"a": tensor(dtype="U8", shape=(2**63, 4, 0), offsets=(0, 0))}),
    "bits_overflow": made({"a": tensor(dtype="F64", shape=(2**58,), offsets=(0, 0))}),
    "half_a_byte": made({"a": tensor(dtype="F4", shape=(3,), offsets=(0, 2))}, bytes(2)),
    "six_bits": made({"a": tensor(dtype="F6_E2M3", shape=(3,), offsets=(0, 3))}, bytes(3)),
    "shape_smaller_than_offsets": made({"a": tensor(shape=(1,))}, EIGHT),
    "shape_larger_than_offsets": made({"a": tensor(shape=(3,))}, EIGHT),
    "scalar_of_8_bytes": made({"a": tensor(shape=())}, EIGHT),
    "truncated_data": made({"a": tensor()}, EIGHT[:5]),
    "offsets_near_2_64": made({"a": tensor(dtype="U8", shape=(2**61 - 8,), offsets=(0, 2**61 - 8))}, EIGHT),
    "trailing_bytes": made({"a": tensor()}, EIGHT + b"PK\3\4"),
    "data_without_tensors": raw(b"{}", EIGHT),
    # A.4
    "name_twice": raw(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}', bytes(16)),
    "name_twice_escaped": raw(b'{"ab":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"\\u0061b":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}', bytes(16)),
    "name_with_nul": raw(b'{"a\\u0000b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', EIGHT),
    "name_with_escape_character": raw(b'{"a\\u001b[31m":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', EIGHT),
    "name_with_delete": made({"a\x7f": tensor()}, EIGHT),
    "name_too_long": made({"n" * 1025: tensor()}, EIGHT),
    "lone_surrogate": raw(b'{"\\ud800":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', EIGHT),
    "rank_too_high": made({"a": tensor(shape=(1,) * 64 + (2,))}, EIGHT),
}

DTYPES = {"BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64, "F16": 16, "BF16": 16,
          "F32": 32, "F64": 64, "C64": 64, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F8_E8M0": 8,
          "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4}


def all_dtypes():
    entries, at = {"__metadata__": {"format": "pt"}}, 0
    for name, bits in DTYPES.items():
        entries["t." + name] = tensor(name, (2, 4), (at, at + bits))
        at += bits
    return made(entries, bytes(at))


seeds = {
    "all_dtypes": all_dtypes(),
    "no_tensors": raw(b"{}"),
    "padded_in_front": raw(b"   {}   "),
    "scalar_and_empty": made({"s": tensor(shape=(), offsets=(0, 4)), "e": tensor(shape=(0, 7), offsets=(4, 4))}, bytes(4)),
    "extra_members": raw(b'{"a":{"x":[1,{"y":[]}],"dtype":"F32","shape":[2],"data_offsets":[0,8],"z":null}}', EIGHT),
    "escaped_name": raw(b'{"\\u00e9\\"\\\\":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', EIGHT),
    "metadata_null": raw(b'{"__metadata__":null}'),
    "index": json.dumps({"metadata": {"total_size": 8}, "weight_map": {"a": "model-00001-of-00002.safetensors", "b": "x.safetensors"}}).encode(),
    "index_traversal": json.dumps({"weight_map": {"a": "../x.safetensors"}}).encode(),
}


def write(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.safetensors"):
        old.unlink()
    for name, content in files.items():
        (folder / f"{name}.safetensors").write_bytes(content)


write(NEGATIVE, negative)
write(CORPUS, {**seeds, **{f"bad_{k}": v for k, v in negative.items() if len(v) < 600}})
print(f"{len(negative)} broken files, {len(list(CORPUS.iterdir()))} seeds")
