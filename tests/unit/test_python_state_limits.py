"""What an image of Python state may not do, and what no image holds: it is named, and fails no snapshot."""

from __future__ import annotations

import array
import contextlib
import enum
import itertools
import socket
import sys
import threading
import weakref
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from datetime import datetime, timedelta, tzinfo
from decimal import Decimal
from functools import partial
from pathlib import PureWindowsPath
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from spotrun.errors import CheckpointDamaged
from spotrun.training.python_state import attributes, fingerprints, graph
from spotrun.training.python_state.fingerprints import PROBE_EVERY
from spotrun.training.python_state.restoring import Restorer
from tests.support.script_process import Process, carried

# --- nothing is called


def forged(kind: str, path: str, content: Any, *, known: bool = False, at: str = "found") -> dict[str, Any]:
    holder = {"class": "a_script:Net", "whole": True, "parts": {at: ("ref", 1)}, "gone": ()}
    return {"format": 1, "objects": [("nn", "module", True, holder), (kind, path, known, content)]}


@pytest.mark.parametrize(
    "name",
    ["subprocess:Popen", "os:system", "builtins:eval", "a_script:Watched", "a_script:Mode", "a_script:nn.Linear",
     "a_script:remembered", "a_module_that_is_not_there:Class", "a_script:"],
)  # fmt: skip
def test_an_image_makes_no_instance_of_what_is_not_the_scripts(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    process = Process().begun()
    content = {"class": name, "whole": True, "parts": {"args": ["touch", "x"]}, "gone": ()}
    process.resumed(forged("object", "module.found", content))
    assert not hasattr(process.net, "found")
    assert process.script.HISTORY == []
    assert "a_module_that_is_not_there" not in sys.modules
    assert "spotrun: module.found cannot be restored" in capsys.readouterr().err


@pytest.mark.parametrize(
    "value",
    [("enum", "subprocess:Popen", "x"), ("enum", "os:system", "x"), ("factory", "eval"), ("at", "subprocess.Popen"),
     ("os.system", "true"), ("ref", 99), ("flag", "re:RegexFlag", (1 << 20_000) - 1)],
)  # fmt: skip
def test_an_image_that_refers_to_code_is_damage_or_leaves_the_place_alone(value: Any) -> None:
    process = Process(found=1).begun()
    holder = {"class": "a_script:Net", "whole": True, "parts": {"found": value}, "gone": ()}
    image = {"format": 1, "objects": [("nn", "module", True, holder)]}
    with contextlib.suppress(CheckpointDamaged):
        process.resumed(image)
    assert process.net.found == 1


def test_names_of_python_are_never_set() -> None:
    process = Process().begun()
    holder = {"class": "a_script:Net", "whole": True, "parts": {"__class__": 1, "__dict__": 2}, "gone": ()}
    process.resumed({"format": 1, "objects": [("nn", "module", True, holder)]})
    assert not {"__class__", "__dict__"} & vars(process.net).keys()


def test_an_unknown_format_is_damage() -> None:
    with pytest.raises(CheckpointDamaged, match="unknown format: 2"):
        Process().begun().resumed({"format": 2, "objects": []})


def test_a_masked_array_larger_than_its_bytes_is_damage() -> None:
    number = torch.zeros(8, dtype=torch.uint8)
    with pytest.raises(CheckpointDamaged):
        Process().begun().resumed(forged("masked", "module.found", (number, "<f8", (10**15,), None, number, False)))


@pytest.mark.parametrize("error", [MemoryError, SystemError, RecursionError, OverflowError])
def test_an_error_that_an_image_causes_is_damage(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    def fail(*_: Any) -> None:
        raise error

    process = Process().begun()
    monkeypatch.setattr(Restorer, "_load", fail)
    with pytest.raises(CheckpointDamaged):
        process.resumed({"format": 1, "objects": []})


def test_an_object_that_an_image_made_has_no_place_in_the_next_process() -> None:
    """It is put back twice: when workers start, and after the hooks of the start."""

    def begun() -> Process:
        process = Process(mode=None)
        process.net.mode = process.script.Mode.WARM
        process.state.begins()
        return process

    def change(process: Process) -> None:
        process.net.mode = process.script.Mode.COLD
        process.net.grown = [process.script.Meter(1.0), (1, [2])]

    first = begun()
    first.state.starts()
    change(first)
    image = first.image()
    for _ in range(3):
        process = begun()
        process.state.load(image, last=False)
        process.state.starts()
        image = process.resumed(image).image()
    assert process.net.mode is process.script.Mode.COLD
    assert process.net.grown == [process.script.Meter(1.0), (1, [2])]


def test_attributes_of_an_older_checkpoint_are_put_back() -> None:
    net = Process(outputs=[], last=deque(maxlen=2), count=0).net
    held = net.outputs
    values = {"outputs": [torch.ones(1)], "last": [1, 2], "count": 3}
    attributes.load(net, {"values": values, "devices": ["cpu"]})
    assert net.outputs is held
    assert (held, net.last, net.count) == ([torch.ones(1)], deque([1, 2]), 3)


# --- what cannot be carried


class Unready:
    """Of a library."""


class Zone(tzinfo):
    def utcoffset(self, _when: datetime | None) -> timedelta:
        return timedelta(0)

    dst = utcoffset


NOT_CARRIED: list[Any] = [
    lambda net: setattr(net, "late", socket.socket()),
    lambda net: setattr(net, "late", [1, threading.Lock()]),
    lambda net: setattr(net, "late", {"a": ((Unready(),),)}),
    lambda net: setattr(net, "late", np.array([Unready()])),
    lambda net: setattr(net, "late", torch.zeros(2).to_sparse()),
    lambda net: setattr(net, "late", lambda: 1),
    lambda net: setattr(net, "late", slice([])),
    lambda net: setattr(net, "late", [nn.Linear(1, 1)]),
    lambda net: setattr(net, "late", (datetime.now(Zone()),)),
    lambda net: net.held.append(Unready()),
]


@pytest.mark.parametrize("number", range(len(NOT_CARRIED)))
def test_untracked_state_is_named_once_and_fails_no_snapshot(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    process = Process(held=[]).begun()
    NOT_CARRIED[number](process.net)
    process.net.count = 3
    image = process.image()
    process.image()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith(("spotrun: module.late", "spotrun: module.held"))
    assert "has changed and is in no checkpoint" in lines[0]
    assert Process(held=[]).begun().resumed(image).net.count == 3


class Environment:
    """Of a library."""

    def __init__(self) -> None:
        self.steps = 0
        self._private = 0


class Proxy:
    """Of an object that is not there yet, as some libraries make them."""

    @property
    def __class__(self) -> Any:
        raise RuntimeError("working outside of a context")

    __dict__ = __class__


def test_a_proxy_without_its_object_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    process = Process(held=Proxy(), more=[Proxy()]).begun()
    process.script.late = Proxy()
    process.image()
    assert "a_script.late has changed and is in no checkpoint" in capsys.readouterr().err


def numbers() -> Iterator[int]:
    yield from range(9)


UNSEEN: list[Any] = [
    (numbers, next),
    (lambda: iter(range(9)), next),
    (lambda: iter([1, 2]), next),
    (itertools.count, next),
    (Environment, lambda environment: setattr(environment, "steps", 1)),
    (lambda: (Environment(), 1), lambda pair: setattr(pair[0], "steps", 1)),
    (lambda: open(__file__, "rb", buffering=0), lambda file: file.read(3)),  # noqa: SIM115
]


@pytest.mark.parametrize("number", range(len(UNSEEN)))
def test_hidden_change_is_named_once(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    make, change = UNSEEN[number]
    process = Process(held=make()).begun()
    process.image()
    assert not capsys.readouterr().err
    change(process.net.held)
    for _ in range(2 * PROBE_EVERY):
        process.image()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("spotrun: module.held")
    assert "has changed and is in no checkpoint" in line


def test_a_method_of_its_own_object_is_not_named(capsys: pytest.CaptureFixture[str]) -> None:
    process = Process().begun()
    process.net.forward = process.net.forward
    process.image()
    assert not capsys.readouterr().err


def test_library_objects_of_start_hooks_are_not_named(capsys: pytest.CaptureFixture[str]) -> None:
    process = Process().begun(lambda process: setattr(process.net, "lock", threading.Lock()))
    process.image()
    assert not capsys.readouterr().err


def test_a_table_is_not_looked_into_until_it_changes() -> None:
    def made() -> dict[str, Any]:
        return {"table": [[n] for n in range(graph.TABLE_ITEMS + 1)]}

    first = Process(**made()).begun()
    first.net.table[5].append(1)
    assert first.image()["objects"] == []
    first.net.table.append([0])
    image = first.image()
    table = Process(**made()).begun().resumed(image).net.table
    assert (table[5], table[-1]) == ([5, 1], [0])


def test_large_array_is_compared_by_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprints, "WHOLE_BYTES", 1 << 20)
    made = {"first": np.zeros(1 << 17), "second": np.zeros((1 << 17, 2))[:, 1], "third": torch.zeros(2, 1 << 18).T}
    process = Process(**made).begun()
    net = process.net
    net.first[77] = net.second[:] = net.third.data[:] = 1
    assert sorted(path for _, path, _, _ in process.image()["objects"]) == [f"module.{name}" for name in made]


def test_training_and_flags_of_the_module_itself_come_back() -> None:
    net = carried(lambda process: process.net.eval()).net
    assert not net.training


def test_too_many_objects_are_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(graph, "OBJECTS_MAX", 100)
    process = Process().begun()
    process.net.late = [[] for _ in range(200)]
    process.net.count = 1
    image = process.image()
    assert "spotrun: module.late has changed and is in no checkpoint" in capsys.readouterr().err
    assert Process().begun().resumed(image).net.count == 1


class Colour(enum.Flag):
    RED, GREEN = 1, 2


def tangled() -> Any:
    """A tuple that is a part of itself."""
    inner: list[Any] = []
    whole = (inner, 1)
    inner.append(whole)
    return whole


def deep() -> Any:
    found: Any = []
    for _ in range(1_500):
        found = [found]
    return found


WEIRD: dict[str, Any] = {
    "surrogates": {"\udc80": "\udfff"}, "sNaN": Decimal("sNaN"), "NaN": {float("nan"): float("nan")}, "long": 1 << 4000,
    "flags": Colour.RED | Colour.GREEN, "flag": {Colour.RED}, "partial": partial(print, 1), "weak": weakref.ref(Colour),
    "memory": memoryview(b"abc"), "array": array.array("d", [1.0]), "error": ValueError("a"), "type": type("A", (), {}),
    "structured": np.zeros(2, [("a", "f4"), ("b", "i8")]), "objects": np.array([object()]),
    "text": np.array(["a", "bc"]),
    "big endian": np.arange(3, dtype=">i4"), "long double": np.longdouble(1), "numpy text": np.str_("a"),
    "moment": np.datetime64("2026-01-01"), "void": np.zeros(1, [("a", "f4")])[0],
    "masked": np.ma.masked_array([1], [True]),
    "read only": np.broadcast_to(np.zeros(1), (3,)), "meta": torch.zeros(2, device="meta"),
    "bits": torch.ones(2).bool(),
    "conjugated": torch.ones(2, dtype=torch.complex64).conj(), "expanded": torch.ones(1).expand(3),
    "sparse": torch.eye(2).to_sparse(),
    "graph": torch.ones(2, requires_grad=True) * 2, "buffer": nn.Buffer(torch.ones(1)), "tangled": tangled(),
    "deep": deep(), "pair": (object(), [1]), "keys": {(1, Colour.RED): 1, object(): 2}, "none": deque(maxlen=0),
    "default": defaultdict(lambda: 1), "counter": Counter({Colour.RED: 1}), "modules": [np], "iterator": iter([1]),
    "frozen": frozenset({(1, 2), frozenset()}), "method": [].append, "view": {}.keys(), "windows": PureWindowsPath("a"),
    "huge": range(1 << 100), "size": torch.Size([1]), "not implemented": NotImplemented, "property": property(),
}  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", WEIRD)
def test_nothing_that_a_script_keeps_fails_a_snapshot_or_a_resume(name: str) -> None:
    """Known before, new, changed, and within a container."""
    with torch.inference_mode():
        inferred = torch.ones(2)
    process = Process().begun()
    vars(process.net).update(known=WEIRD[name], within=[[1, WEIRD[name]], inferred])
    process.script.late, process.net.count = {"a": WEIRD[name]}, 3
    again = Process()
    vars(again.net).update(known=WEIRD[name], late=1)
    again.begun()
    image = process.image()
    for each in (again, Process().begun()):
        each.resumed(image)
        assert each.net.count == 3
        each.image()


@pytest.mark.parametrize(("module", "named"), [("rich", False), ("rich.live", False), ("richer.live", True)])
def test_harmless_packages_are_known_by_their_whole_names(
    module: str, named: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    process = Process(shown=None).begun()
    process.net.shown = type("Display", (), {"__module__": module})()
    process.image()
    assert ("module.shown has changed and is in no checkpoint" in capsys.readouterr().err) is named


def test_container_is_named_once_however_many_of_its_items_no_checkpoint_holds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    process = Process(recent=deque(maxlen=5)).begun()
    for number in range(4):
        process.net.recent.append(process.script.Meter() if number % 2 else process.script.Watched())
        process.net.recent.append(1)
        process.image()
    said = "spotrun: module.recent has changed and is in no checkpoint: it holds a new a_script.Watched\n"
    assert capsys.readouterr().err == said
