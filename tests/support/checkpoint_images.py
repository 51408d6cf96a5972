"""Checkpoint images on their own, and some written by hand; HOSTILE and COSTLY were made by an adversary."""

from __future__ import annotations

import json
import pickle
import struct

import torch

from spotrun.checkpoint import layout
from spotrun.checkpoint.snapshot import plan_image, write_header, write_pieces


def write_image(plan, arena):
    """Copy everything into `arena` (bytes, at least `plan.size_bytes`)."""
    write_header(plan, arena)
    write_pieces(plan.pieces, arena)


def image_bytes(state, meta):
    """What a trainer would write into an arena."""
    plan = plan_image(state, meta)
    arena = torch.zeros(plan.size_bytes, dtype=torch.uint8)
    write_image(plan, arena)
    return arena.numpy().tobytes()


def image_of(header, data=b"\0" * 256, magic=layout.MAGIC, size=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    head = magic + struct.pack("<Q", len(text) if size is None else size) + text
    return head.ljust(layout.aligned(len(head)), b"\0") + data


def header(tree=None, tensors=(), **more):
    return {"format": 1, "tensors": list(tensors), "tree": tree, "meta": {}} | more


def entry(**changes):
    return {"dtype": "float32", "shape": [4], "offset": 0, "size_bytes": 16} | changes


def nested(depth, inner="null"):
    return f'{{"format":1,"tensors":[],"meta":{{}},"tree":{"[" * depth}{inner}{"]" * depth}}}'.encode()


HOSTILE = {
    "empty": b"",
    "magic only": layout.MAGIC,
    "another magic": image_of(header(), magic=b"PK\x03\x04AAAA"),
    "a pickle": pickle.dumps(print),
    "header size beyond the end": image_of(header(), size=1 << 40),
    "header size of all ones": image_of(header(), size=(1 << 64) - 1),
    "header size 0": image_of(header(), size=0),
    "not JSON": image_of(b"{" * 50),
    "not UTF-8": image_of(b"\xff\xfe\xfd"),
    "JSON with NaN": image_of(b'{"format":1,"tensors":[],"meta":{},"tree":NaN}'),
    "JSON with an endless number": image_of(b'{"format":1,"tensors":[],"meta":{},"tree":' + b"9" * 10_000 + b"}"),
    "a list": image_of([]),
    "missing key": image_of({"format": 1, "tensors": [], "meta": {}}),
    "extra key": image_of(header(extra=1)),
    "format 2": image_of(header(format=2)),
    "format true": image_of(header(format=True)),
    "meta is a list": image_of(header(meta=[])),
    "tensors is a dict": image_of(header(tensors={}) | {"tensors": {}}),
    "unknown dtype": image_of(header(tensors=[entry(dtype="object")])),
    "dtype is a list": image_of(header(tensors=[entry(dtype=["float32"])])),
    "negative shape": image_of(header(tensors=[entry(shape=[-4], size_bytes=-16)])),
    "two negatives": image_of(header(tensors=[entry(shape=[-2, -2])])),
    "fractional shape": image_of(header(tensors=[entry(shape=[4.0])])),
    "boolean shape": image_of(header(tensors=[entry(shape=[True], size_bytes=4)])),
    "huge shape": image_of(header(tensors=[entry(shape=[1 << 62, 4], size_bytes=1 << 66)])),
    "many dimensions": image_of(header(tensors=[entry(shape=[1] * 1000, size_bytes=4)])),
    "huge empty tensor": image_of(header({"tensor": 0}, [entry(shape=[0] + [1 << 48] * 4, size_bytes=0)])),
    "size is not the shape's": image_of(header(tensors=[entry(size_bytes=12)])),
    "huge offset": image_of(header(tensors=[entry(offset=1 << 40)])),
    "offset beyond 64 bits": image_of(header(tensors=[entry(offset=1 << 70)])),
    "negative offset": image_of(header(tensors=[entry(offset=-64)])),
    "an empty tensor far out": image_of(header({"tensor": 5}, [entry(shape=[0], size_bytes=0, offset=1 << 40)])),
    "crooked offset": image_of(header(tensors=[entry(offset=4)])),
    "overlap": image_of(header(tensors=[entry(), entry()])),
    "partial overlap": image_of(header(tensors=[entry(shape=[32], size_bytes=128), entry(offset=64)])),
    "tensor past the end": image_of(header(tensors=[entry(offset=256)])),
    "no such tensor": image_of(header({"tensor": 3}, [entry()])),
    "tensor -1": image_of(header({"tensor": -1}, [entry()])),
    "tensor true": image_of(header({"tensor": True}, [entry(), entry(offset=64)])),
    "axes of another tensor": image_of(header({"permuted": [0, [1, 0]]}, [entry()])),
    "axes twice": image_of(header([{"permuted": [0, [0, 1]]}, {"permuted": [0, [1, 0]]}], [entry(shape=[2, 2])])),
    "axes are no numbers": image_of(header({"permuted": [0, [True]]}, [entry()])),
    "unknown kind": image_of(header({"__reduce__": ["os.system", "id"]})),
    "two kinds": image_of(header({"tuple": [], "set": []})),
    "no kind": image_of(header({})),
    "dict of scalars": image_of(header({"dict": [1, 2]})),
    "dict is a text": image_of(header({"dict": "ab"})),
    "pair of three": image_of(header({"dict": [[1, 2, 3]]})),
    "list as a key": image_of(header({"dict": [[[], 1]]})),
    "dict as a key": image_of(header({"dict": [[{"dict": []}, 1]]})),
    "dict in a set": image_of(header({"set": [{"dict": []}]})),
    "int is a list": image_of(header({"int": []})),
    "int is no hex": image_of(header({"int": "zz"})),
    "float is finite": image_of(header({"float": "1.0"})),
    "float is a word": image_of(header({"float": "x"})),
    "bytes are no base64": image_of(header({"bytes": "???"})),
    "bytes are not ASCII": image_of(header({"bytes": "é"})),
    "complex of three": image_of(header({"complex": ["1", "2", "3"]})),
    "path is a number": image_of(header({"path": 3})),
    "dtype is not one": image_of(header({"dtype": "load"})),
    "dtype is a list ": image_of(header({"dtype": []})),
    "device is a program": image_of(header({"device": "cpu; rm -rf /"})),
    "device is a number": image_of(header({"device": 3})),
    "size of texts": image_of(header({"size": ["a"]})),
    "object array": image_of(header({"array": [0, "|O8", [1]]}, [entry()])),
    "array of a wrong shape": image_of(header({"array": [0, "<f4", [5]]}, [entry()])),
    "array of a negative shape": image_of(header({"array": [0, "<f4", [-1]]}, [entry()])),
    "array without parts": image_of(header({"array": []}, [entry()])),
    "array is a number": image_of(header({"array": 7}, [entry()])),
    "array of unknown width": image_of(header({"array": [0, "<f3", [1]]}, [entry()])),
    "nested 500 deep": image_of(nested(500)),
    "nested 1,000,000 deep": image_of(nested(1_000_000)),
    "tuples nested 400 deep": image_of(
        b'{"format":1,"tensors":[],"meta":{},"tree":' + b'{"tuple":[' * 400 + b"]}" * 400 + b"}"
    ),
}

ONE_HASH = (1 << 61) - 1
"""The hashes of two whole numbers are equal if the numbers differ by a multiple of this one."""
LONG = {"int": "0x" + "f" * 20_000}


def uuid_of(n):
    return {"uuid": [f"{n:032x}"]}


COSTLY = {
    "deque of a range": header({"deque": [{"range": [0, 10**6, 1]}, None]}),
    "deque of a text": header({"deque": ["a" * 99, None]}),
    "deque of three": header({"deque": [[], None, None]}),
    "bytearray of a size": header({"bytearray": [10**6]}),
    "bytearray of a range": header({"bytearray": [{"range": [0, 256, 1]}]}),
    "bytearray of a text": header({"bytearray": ["a", "utf-32"]}),
    "items of a mapping": header({"defaultdict": ["int", {"dict": [["ab", 1]]}]}),
    "fraction with an exponent": header({"fraction": ["1e1000"]}),
    "fraction of a decimal": header({"fraction": [{"decimal": ["1e1000"]}]}),
    "fraction of long numbers": header({"fraction": [LONG, 7]}),
    "range of long numbers": header({"range": [0, LONG, 3]}),
    "decimal of parts": header({"decimal": [{"tuple": [0, {"tuple": [1]}, 10**6]}]}),
    "decimal of a number": header({"decimal": [0.1]}),
    "names that are pairs": header({"names": [[["a", 1]]]}),
    "arguments that are pairs": header({"arguments": [["ab"]]}),
    "path of two": header({"pure_path": ["a", "b"]}),
    "uuid of a number": header({"uuid": [None, None, None, None, 5]}),
    "time in a text": header({"time": [1, 2, 3, 4, "zone", 0]}),
    "date of a long number": header({"date": [LONG, 1, 1]}),
    "zone that is a number": header({"zone": [7]}),
    "one tensor for two arrays": header([{"array": [0, "<f4", [4]]}] * 2, [entry()]),
    "one tensor for an array and a scalar": header(
        [{"array": [0, "<f4", [1]]}, {"scalar": [0, "<f4", []]}], [entry(shape=[1], size_bytes=4)]
    ),
    "a decimal and a long number of one hash": header(
        {"set": [{"decimal": ["1"]}, {"int": hex(1 + (ONE_HASH << 20_000))}]}
    ),
    "a decimal and a long number of one hash in tuples": header(
        {"dict": [[{"tuple": [key]}, 0] for key in ({"decimal": ["1"]}, {"int": hex(1 + (ONE_HASH << 20_000))})]}
    ),
}
"""
Headers of images that would cost their reader more than their bytes justify. Where a number decides about the memory
or the time, it is small here, so that a reader without bounds does no harm.
"""
