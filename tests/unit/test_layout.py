"""
Checkpoint images: what goes in comes out, and bytes from anywhere are either read or refused as damaged.

HOSTILE are images made by an adversary; that none of their kind runs code is shown with a canary in test_hostile.py.
"""

from __future__ import annotations

import math
import random
import struct
import subprocess
import sys
import tracemalloc
from argparse import Namespace
from collections import Counter, OrderedDict, UserDict, UserList, defaultdict, deque
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from types import SimpleNamespace
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spotrun.checkpoint import layout, plain_kinds, snapshot, tree
from spotrun.checkpoint.plain_kinds import WHOLE_BITS_MAX
from spotrun.checkpoint.tree import DEPTH_MAX, Unsavable
from spotrun.errors import CheckpointDamaged
from tests.support.checkpoint_images import (
    COSTLY,
    HOSTILE,
    ONE_HASH,
    entry,
    header,
    image_bytes,
    image_of,
    uuid_of,
    write_image,
)

DTYPES = [getattr(torch, name) for name in layout.ITEM_BYTES if hasattr(torch, name)]


def round_trip(state, meta=None):
    state, got = snapshot.read_image(bytearray(image_bytes(state, meta or {})))
    assert got == (meta or {})
    return state


def same(a, b):
    """Equal in type, value and bits, down to the sign of zero and the payload of tensors."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and raw(a) == raw(b)
    if isinstance(a, np.ndarray | np.generic):
        return type(a) is type(b) and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        pairs = zip(a.items(), b.items(), strict=True)
        return len(a) == len(b) and all(same(k, m) and same(v, w) for (k, v), (m, w) in pairs)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b) or (math.isnan(a) and math.isnan(b))
    return a == b


def raw(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


@st.composite
def tensors(draw):
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    size = math.prod(shape) * torch.empty((), dtype=dtype).element_size()
    data = bytearray(draw(st.binary(min_size=size, max_size=size)))
    if dtype is torch.bool:
        data = bytearray(byte & 1 for byte in data)
    return torch.frombuffer(data, dtype=dtype).reshape(shape) if size else torch.empty(shape, dtype=dtype)


PLAIN = [
    range(3, 30, 4), slice(None, 5), bytearray(b"ab"), deque([1, [2]], maxlen=3), deque(), ..., Decimal("1.10"),
    Fraction(2, 6), UUID(int=5), Path("a/b"), PurePosixPath("a"), PureWindowsPath("c:/a"), Namespace(a=1, b=[2]),
    SimpleNamespace(x=(1,)), date(2026, 1, 2), time(3, 4, fold=1), timedelta(days=-1, microseconds=3), UTC,
    timezone(timedelta(hours=2), "there"), datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC), ZoneInfo("UTC"),
    defaultdict(int, a=1), defaultdict(None, {1: 2}), np.dtype("<f4"),
]  # fmt: skip
keys = st.one_of(
    st.text(max_size=8),
    st.integers(),
    st.booleans(),
    st.none(),
    st.binary(max_size=4),
    st.tuples(st.integers(), st.text(max_size=3)),
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(allow_nan=False),
    st.text(max_size=20),
    st.binary(max_size=20),
    st.sets(st.integers(), max_size=4),
    st.frozensets(st.text(max_size=3), max_size=4),
    st.sampled_from([torch.float32, torch.bfloat16, torch.device("cpu"), torch.device("cuda:1"), torch.Size([2, 3])]),
    st.sampled_from(
        [np.float64(0.5), np.int32(7), np.bool_(True), np.arange(6).reshape(2, 3), np.zeros((0, 3), "<f4")]
    ),
    st.sampled_from([PurePath("a/b"), Counter({3: 2, 5: 0})]),
    tensors(),
)
states = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(keys, inner, max_size=4),
        st.dictionaries(st.text(max_size=4), inner, max_size=3).map(OrderedDict),
    ),
    max_leaves=15,
)


def test_a_name_that_is_no_unicode_comes_back() -> None:
    """As the operating system gives that of a file: https://peps.python.org/pep-0383/."""
    state = {"files": ["runs/caf\udce9", 1.5, 2**70, torch.arange(3)]}
    assert same(round_trip(state), state)


@pytest.mark.exhaustive
@pytest.mark.parametrize("count", [60, pytest.param(300, marks=pytest.mark.nightly)])
def test_a_state_comes_back_bit_for_bit(count):
    @settings(max_examples=count)
    @given(states)
    def comes_back(state):
        assert same(state, round_trip(state))

    comes_back()


def test_meta_is_readable_without_the_tensors():
    meta = {"epoch": 2, "batch": 7, "step": 41, "torch": "2.13.0"}
    image = image_bytes({"w": torch.ones(1000)}, meta)
    header = layout.decode_header(image)
    assert header.meta == meta
    assert header.size_bytes == layout._parse_header(image[: header.data_start]).size_bytes == len(image)
    assert all((header.data_start + t.offset) % layout.ALIGNMENT == 0 for t in header.tensors)


def test_layout_needs_no_torch():
    code = "import sys, spotrun.checkpoint.layout; assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_lookalikes_become_the_plain_types():
    class Word(str):
        pass

    assert type(round_trip(Word("a"))) is str


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_values_of_python_come_back_as_they_were(value):
    back = round_trip({"in": [value]})["in"][0]
    assert (type(back), repr(back), back) == (type(value), repr(value), value)


def test_a_defaultdict_and_a_deque_go_on_as_they_were():
    counts = round_trip(defaultdict(list, a=[1]))
    counts["b"].append(2)
    assert counts == {"a": [1], "b": [2]}
    window = round_trip(deque([torch.ones(2), 2], maxlen=2))
    window.append(3)
    assert list(window) == [2, 3]
    with pytest.raises(Unsavable, match=r"callbacks\.mine is a defaultdict whose default comes from a function"):
        snapshot.plan_image({"callbacks": {"mine": defaultdict(lambda: 3)}}, {})


def test_tied_views_and_strided_tensors_are_saved_by_value():
    base = torch.arange(12.0).reshape(3, 4)
    state = {"every": base[:, ::2], "row": base[1], "same": base, "conj": torch.tensor([1 + 2j]).conj()}
    back = round_trip(state)
    assert all(torch.equal(state[name], back[name]) for name in state)
    assert back["every"].is_contiguous()


def test_a_tensor_keeps_the_order_of_its_axes_in_memory():
    """A matrix product of the same values in another order may give other bits."""
    images = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    state = {"t": torch.randn(65, 37).t(), "images": images, "turned": torch.randn(2, 3, 4).permute(2, 0, 1)}
    back = round_trip(state)
    assert all(torch.equal(state[name], back[name]) for name in state)
    assert [back[name].stride() for name in state] == [state[name].stride() for name in state]


def test_unsavable_value_is_named_with_its_place():
    with pytest.raises(Unsavable, match=r"callbacks\.MyCallback\.1 is a builtins\.function"):
        snapshot.plan_image({"callbacks": {"MyCallback": [0, lambda: 0]}}, {})
    with pytest.raises(Unsavable, match=r"state_dict\.w is a tensor of torch\.sparse_coo"):
        snapshot.plan_image({"state_dict": {"w": torch.ones(2, 2).to_sparse()}}, {})
    deep = []
    for _ in range(DEPTH_MAX + 5):
        deep = [deep]
    with pytest.raises(Unsavable, match="nested"):
        snapshot.plan_image(deep, {})


class Broken(dict):
    """As a configuration whose value is missing."""

    def __getitem__(self, key):
        raise LookupError(key)


HYPER_PARAMETERS = {
    "a class": (torch.nn.MSELoss, "<torch.nn.modules.loss.MSELoss>"),
    "a function": (test_layout_needs_no_torch, "<tests.unit.test_layout.test_layout_needs_no_torch>"),
    "a namespace": (Namespace(lr=0.1), {"lr": 0.1}),
    "a list of another class": (UserList([1, Namespace(a=2)]), [1, {"a": 2}]),
    "a mapping of another class": (UserDict(a=UserDict(b=1)), {"a": {"b": 1}}),
    "a value that is missing": (Broken(a=1), {"a": "<LookupError>"}),
    "a tensor": (torch.Size([2]), torch.Size([2])),
    "a default by a function": (defaultdict(lambda: 1, a=2), {"a": 2}),
}


@pytest.mark.parametrize("name", HYPER_PARAMETERS)
def test_hyper_parameters_are_plain_values_or_notes(name):
    value, note = HYPER_PARAMETERS[name]
    plan = snapshot.plan_image({"hyper_parameters": {"cfg": value}}, {}, lenient=["hyper_parameters"])
    assert layout.decode_header(plan.header).tree
    arena = torch.zeros(max(plan.size_bytes, 1), dtype=torch.uint8)
    write_image(plan, arena)
    state, _ = snapshot.read_image(bytearray(arena.numpy().tobytes()))
    assert state["hyper_parameters"]["cfg"] == note


def test_unknown_hyper_parameters_become_a_note():
    plan = snapshot.plan_image(
        {"hyper_parameters": {"loss": torch.nn.MSELoss(), "lr": 0.1}}, {}, lenient=["hyper_parameters"]
    )
    arena = torch.zeros(plan.size_bytes, dtype=torch.uint8)
    write_image(plan, arena)
    state, _ = snapshot.read_image(bytearray(arena.numpy().tobytes()))
    assert state["hyper_parameters"]["lr"] == 0.1
    assert "MSELoss" in state["hyper_parameters"]["loss"]


# --- bytes from somewhere else ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_images_are_damaged_checkpoints(name):
    with pytest.raises(CheckpointDamaged):
        snapshot.read_image(bytearray(HOSTILE[name]))


@pytest.mark.parametrize("name", COSTLY)
def test_image_that_costs_more_than_its_bytes_is_damaged(name):
    with pytest.raises(CheckpointDamaged):
        snapshot.read_image(bytearray(image_of(COSTLY[name])))


SMALLEST = [
    [], 1e9, 10**9, "", {"dict": []}, {"ordered": []}, {"counter": []}, {"tuple": []}, {"set": []}, {"frozenset": []},
    {"float": "inf"}, {"int": "1"}, {"complex": ["1", "1"]}, {"bytes": ""}, {"path": ""}, {"range": [0, 9, 1]},
    {"slice": [0, 1, 2]}, {"bytearray": [{"bytes": ""}]}, {"deque": [[], None]}, {"defaultdict": ["int", []]},
    {"datetime": [1, 1, 1, 0, 0, 0, 0, None, 0]}, {"time": [0, 0, 0, 0, None, 0]}, {"date": [1, 1, 1]},
    {"timedelta": [1, 0, 0]}, {"timezone": [{"timedelta": [0, 9, 0]}]}, {"zone": ["UTC"]}, {"decimal": ["1e999999"]},
    {"fraction": [1, 1]}, uuid_of(1), {"pure_path": [""]}, {"windows_path": [""]}, {"arguments": [{"dict": []}]},
    {"names": [{"dict": []}]}, {"ellipsis": []}, {"size": []}, {"dtype": "bool"}, {"device": "cpu"},
    {"numpy_dtype": "<f4"}, {"tensor": 0}, {"permuted": [0, [0]]}, {"object": ["", 0]}, {"stands": ["", 0]},
]  # fmt: skip


@pytest.mark.parametrize("node", SMALLEST, ids=str)
def test_the_smallest_value_of_each_kind_takes_few_times_its_bytes(node):
    image = bytearray(image_of(header([node] * 300, [entry()])))
    snapshot.read_image(image)
    tracemalloc.start()
    read = snapshot.read_image(image)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 * len(image), f"{peak / len(image)} times"
    assert len(read[0]) == 300


def test_each_kind_is_among_the_smallest():
    named = {kind for node in SMALLEST if isinstance(node, dict) for kind in node}
    kinds = {*tree.MAPPINGS, *tree._SEQUENCES, *tree._SCALARS, *plain_kinds.BY_NAME, *tree._OF_TENSORS}
    assert kinds - named == {"array", "scalar"}, "their bytes are those of a tensor, which each of them has for itself"


COLLECTIONS = {
    "dict": lambda keys: {"dict": [[key, 0] for key in keys]},
    "OrderedDict": lambda keys: {"ordered": [[key, 0] for key in keys]},
    "Counter": lambda keys: {"counter": [[key, 0] for key in keys]},
    "defaultdict": lambda keys: {"defaultdict": ["int", [{"tuple": [key, 0]} for key in keys]]},
    "set": lambda keys: {"set": [*keys]},
    "frozenset": lambda keys: {"frozenset": [*keys]},
    "set of tuples": lambda keys: {"set": [{"tuple": [key, "a"]} for key in keys]},
    "set of uuids": lambda keys: {"set": [uuid_of(key) for key in keys]},
}


@pytest.mark.parametrize("name", COLLECTIONS)
def test_time_for_keys_that_share_a_hash_is_bounded(name, monkeypatch):
    monkeypatch.setattr(plain_kinds, "_FREE_S", 0.005)
    monkeypatch.setattr(plain_kinds, "_SECONDS_PER_KEY", 0)
    image = bytearray(image_of(header(COLLECTIONS[name](range(0, 5_000 * ONE_HASH, ONE_HASH)))))
    with pytest.raises(CheckpointDamaged):
        snapshot.read_image(image)


def test_a_number_too_long_for_its_kind_is_refused_when_it_is_saved():
    longest = Fraction(1, (1 << WHOLE_BITS_MAX) - 1)
    assert same(round_trip([longest]), [longest])
    with pytest.raises(Unsavable, match="a fraction with a number of more than 14,000 bits"):
        snapshot.plan_image([longest / 2], {})


@pytest.mark.parametrize(
    ("make", "levels"), [(SimpleNamespace, 2), (lambda a: deque([a]), 2), (lambda a: defaultdict(None, a=a), 3)]
)
def test_values_as_deep_as_can_be_saved_can_be_read(make, levels):
    deep = 1
    for _ in range(DEPTH_MAX // levels):
        deep = [make(a=deep)]
    assert repr(round_trip(deep)) == repr(deep)


@pytest.mark.parametrize("error", [MemoryError, SystemError, RecursionError, OverflowError, AttributeError, OSError])
@pytest.mark.parametrize("where", ["decode_tree", "_tensor"])
def test_an_error_that_bytes_cause_is_damage(monkeypatch, where, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(snapshot, where, fail)
    with pytest.raises(CheckpointDamaged):
        snapshot.read_image(bytearray(small_image()))


def test_a_header_too_large_for_memory_is_damage(monkeypatch):
    def fail(*_, **__):
        raise MemoryError

    monkeypatch.setattr(layout.json, "loads", fail)
    with pytest.raises(CheckpointDamaged):
        layout.decode_header(small_image())


@pytest.mark.parametrize(
    "state", [5, {"dict": 5}, {"dict": [[0, {"tensor": {}}]]}, {"dict": [[0, {"tensor": -5}], [1, {"array": [[]]}]]}]
)
def test_where_a_malformed_state_begins_is_known_all_the_same(state):
    malformed = layout.decode_header(image_of(header(state, [entry()])))
    assert layout.begin_bytes(malformed) == malformed.size_bytes


def small_image():
    state = {
        "state_dict": OrderedDict(w=torch.ones(3, 5), b=torch.zeros(0)),
        "epoch": 3,
        "plain": [deque([1]), bytearray(b"x"), Fraction(1, 3)],
        "list": [1.5, float("inf"), (None, True), {"a"}, b"x", 1 << 80, torch.float16, torch.Size([1]), np.arange(3)],
    }
    return image_bytes(state, {"step": 1})


def read_or_damaged(image):
    try:
        snapshot.read_image(image)
    except CheckpointDamaged:
        return True
    return False


def test_every_bit_of_the_header_may_flip():
    image = small_image()
    data_start = layout.decode_header(image).data_start
    damaged = 0
    for bit in range(8 * data_start):
        flipped = bytearray(image)
        flipped[bit // 8] ^= 1 << bit % 8
        damaged += read_or_damaged(flipped)
    assert damaged > 4 * data_start, "most flips in the header are noticed here; the digests of its parts notice all"


def test_every_truncation_is_noticed():
    image = small_image()
    assert all(read_or_damaged(bytearray(image[:size])) for size in range(len(image)))


def test_images_cut_and_glued_at_random_are_read_or_damaged():
    source = random.Random(1)
    image = small_image()
    for _ in range(2000):
        a, b, c = (source.randrange(len(image)) for _ in range(3))
        read_or_damaged(bytearray(image[:a] + image[b:] + image[c : c + 40]))


KINDS = {*tree.MAPPINGS, *tree._SEQUENCES, *tree._SCALARS, *plain_kinds.BY_NAME, "tensor", "array", "scalar"}
kinds = st.sampled_from(sorted(KINDS | {"size", "dtype", "device", "object", "unknown"}))
nodes = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5)
    | st.sampled_from([10**6, "1e1000000", {"range": [0, 10**6, 1]}, {"bytes": "AAAA"}, ONE_HASH, 2 * ONE_HASH]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(kinds, inner, min_size=1, max_size=1)
    | st.dictionaries(kinds, inner, max_size=2),
    max_leaves=12,
)  # fmt: skip


@pytest.mark.exhaustive
@settings(max_examples=200, deadline=None)
@given(nodes)
def test_any_json_for_a_tree_is_damaged_or_read_as_something_of_its_size(node):
    image = bytearray(image_of(header(node, [entry()])))
    if not read_or_damaged(image):
        state, _ = snapshot.read_image(image)
        assert snapshot.plan_image([state], {}, standing=None).size_bytes < 10 * len(image)
