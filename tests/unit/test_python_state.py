"""Python state of a script: what has changed is carried, in place, and nothing that an image names is called."""

from __future__ import annotations

import argparse
import contextlib
import copy
import itertools
import random
import socket
import sys
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, IterableDataset, Subset

from spotrun.checkpoint.snapshot import read_image
from spotrun.errors import CheckpointDamaged
from spotrun.training.framework import Framework
from spotrun.training.python_state import attributes, fingerprints, graph
from spotrun.training.python_state.fingerprints import PROBE_EVERY
from spotrun.training.python_state.script import Script
from spotrun.training.python_state.state import PythonState
from tests.support.checkpoint_images import image_bytes

SCRIPT = """
import collections, dataclasses, enum
import torch
from torch import nn

STEPS = 0
HISTORY = []

class Mode(enum.Enum):
    WARM, COLD = 1, 2

@dataclasses.dataclass
class Meter:
    total: float = 0.0
    seen: list = dataclasses.field(default_factory=list)

class Pair(collections.namedtuple("Pair", "a b")):
    __slots__ = ()

class Watched:
    def __del__(self):
        HISTORY.append("a Watched is gone")

class Net(nn.Module):
    best = 0.0
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.dropout = nn.Dropout(0.1)

def remembered(x, cache={}):
    cache[x] = cache.get(x, 0) + 1
"""


class Process:
    """One process of a script, whose module is `net`; `made` is what the script puts into attributes of it."""

    def __init__(self, **made: Any) -> None:
        self.script: Any = ModuleType("a_script")
        self.script.__file__ = "/work/a_script.py"
        sys.modules["a_script"] = self.script
        exec(SCRIPT, vars(self.script))
        self.net: Any = self.script.Net()
        vars(self.net).update(made)
        self.optimizers: list[Any] = []
        self.loggers: list[Any] = []
        self.module, self.rank = self.net, 0
        self.own_attributes = frozenset({"training"})
        self.callbacks: dict[str, object] = {}
        modules = {"a_script": self.script}
        self.state = PythonState(cast("Framework", self), Script(["/work"], modules))

    def roots(self) -> dict[str, object]:
        return self.callbacks

    def begun(self, *start_hooks: Any) -> Process:
        self.state.begins()
        for hook in start_hooks:
            hook(self)
        self.state.starts()
        return self

    def image(self) -> Any:
        """As a checkpoint gives it back."""
        return read_image(bytearray(image_bytes({"python": self.state.dump()}, {})))[0]["python"]

    def resumed(self, image: Any) -> Process:
        self.state.load(image, last=True)
        return self


@pytest.fixture(autouse=True)
def _no_script() -> Iterator[None]:
    yield
    sys.modules.pop("a_script", None)


def carried(change: Any, made: Any = dict, *start_hooks: Any) -> Process:
    """A process that has resumed from one in which `change(process)` ran; `made()` gives both their attributes."""
    first = Process(**made()).begun(*start_hooks)
    change(first)
    image = first.image()
    return Process(**made()).begun(*start_hooks).resumed(image)


def test_a_script_that_changes_nothing_has_an_empty_image() -> None:
    assert Process(a=[1], b=np.zeros(3), c=torch.zeros(3)).begun().image()["objects"] == []


PLAIN = [
    None, True, 3, -(1 << 70), 0.1, float("inf"), 1 + 2j, "a text\udc80", b"\x00\xff", (1, ("a", None)), range(1, 9, 2),
    slice(1, None, 2), ..., date(2026, 1, 2), datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC), datetime(1, 1, 1, fold=1),
    timedelta(days=-1, microseconds=1),
    datetime(2026, 7, 1, tzinfo=ZoneInfo("Europe/Paris")),
    time(1, 2, tzinfo=timezone(timedelta(hours=1))), Decimal("1.10"), Fraction(2, 6), UUID(int=7), Path("a/b"),
    np.float32(0.1), np.int8(-3), np.bool_(True), torch.bfloat16, torch.Size([2, 3]), torch.device("cpu"),
]  # fmt: skip


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_values_come_back_as_they_were(value: Any) -> None:
    def change(process: Process) -> None:
        process.net._private = value
        process.net.listed = [value, {"key": value}]

    net = carried(change).net
    for found in (net._private, net.listed[0], net.listed[1]["key"]):
        assert type(found) is type(value)
        assert found == value


def seven() -> int:
    return 7


HELD: list[tuple[Any, Any]] = [
    (list, lambda held: held.extend([1, "a", [2]])),
    (list, lambda held: held.extend(float(n) / 3 for n in range(200))),
    (list, lambda held: held.extend(range(1 << 62, (1 << 62) + 200))),
    (dict, lambda held: held.update({1: "a", (2, "b"): {}})),
    (set, lambda held: held.update({1, "a", (2, 3)})),
    (OrderedDict, lambda held: held.update(b=1, a=2)),
    (Counter, lambda held: held.update("hello")),
    (lambda: defaultdict(seven), lambda held: held["a"]),
    (lambda: deque(range(3), maxlen=3), lambda held: held.append((4, 0.5))),
    (bytearray, lambda held: held.extend(b"abc")),
    (lambda: np.zeros((2, 3)), lambda held: held.__setitem__((1, 2), 5.0)),
    (lambda: np.zeros((), "datetime64[s]"), lambda held: held.fill(np.datetime64("2026-01-01"))),
    (lambda: np.zeros(1 << 17)[::2], lambda held: held.__setitem__(77, 1.0)),
    (lambda: torch.zeros(2, 3), lambda held: held[1].add_(2)),
    (lambda: torch.zeros(1 << 17), lambda held: held.data.__setitem__(9, 1.0)),
    (lambda: torch.zeros(3, requires_grad=True), lambda held: held.data.add_(1)),
    (lambda: SimpleNamespace(a=[]), lambda held: held.a.append(1)),
    (lambda: argparse.Namespace(lr=1), lambda held: vars(held).update(lr=2)),
]


@pytest.mark.parametrize("number", range(len(HELD)))
def test_what_the_script_has_made_is_filled_where_it_stands(number: int) -> None:
    make, change = HELD[number]
    first = Process(held=make()).begun()
    change(first.net.held)
    second = Process(held=make())
    held_elsewhere = second.net.held
    second.begun().resumed(first.image())
    assert second.net.held is held_elsewhere
    assert repr(held_elsewhere) == repr(first.net.held)


def test_instances_enums_and_namedtuples_of_the_script_come_back() -> None:
    def change(process: Process) -> None:
        script, net = process.script, process.net
        net.meter.total = 2.5
        net.meter.seen.append(net.meter)
        net.grown = [script.Meter(1.0, [net.meter]), script.Meter()]
        net.mode = script.Mode.COLD
        net.pair = script.Pair(1, [2])
        net.now = (script.Mode.COLD, {script.Mode.WARM: 1})

    first = Process().begun(lambda process: setattr(process.net, "meter", process.script.Meter()))
    change(first)
    second = Process().begun(lambda process: setattr(process.net, "meter", process.script.Meter()))
    meter = second.net.meter
    net, script = second.resumed(first.image()).net, second.script
    assert net.meter is meter
    assert (meter.total, meter.seen[0]) == (2.5, meter)
    assert [type(each) for each in net.grown] == [script.Meter] * 2
    assert net.grown[0].seen[0] is meter
    assert net.mode is script.Mode.COLD
    assert net.pair == script.Pair(1, [2])
    assert type(net.pair) is script.Pair
    assert net.now == (script.Mode.COLD, {script.Mode.WARM: 1})


def test_globals_classes_functions_and_default_arguments_come_back() -> None:
    def change(process: Process) -> None:
        script = process.script
        script.STEPS, script.LATE, script.Net.best = 3, [1], 0.5
        script.HISTORY.append(1)
        script.remembered.calls = 4
        script.remembered("a")

    script = carried(change).script
    assert (script.STEPS, script.LATE, script.Net.best, script.HISTORY) == (3, [1], 0.5, [1])
    assert script.remembered.calls == 4
    assert script.remembered.__defaults__ == ({"a": 1},)


def test_flags_of_modules_and_plain_attributes_of_library_modules_come_back() -> None:
    def change(process: Process) -> None:
        net = process.net
        net.dropout.p = 0.7
        net.layer.eval()
        net.layer.bias.requires_grad_(False)

    net = carried(change).net
    assert net.dropout.p == 0.7
    assert (net.training, net.layer.training) == (True, False)
    assert (net.layer.weight.requires_grad, net.layer.bias.requires_grad) == (True, False)


class OfALibrary(nn.Module):
    """Makes its mask when it is first asked."""

    def __init__(self) -> None:
        super().__init__()
        self.mask: torch.Tensor | None = None


def test_what_a_library_module_makes_later_is_left_to_it() -> None:
    def change(process: Process) -> None:
        process.net.library.mask = torch.ones(2)
        process.net.library.eval()

    first, second = Process(), Process()
    for process in (first, second):
        process.net.library = OfALibrary()
        process.begun()
    change(first)
    second.resumed(first.image())
    assert second.net.library.mask is None
    assert not second.net.library.training


def test_an_attribute_that_is_gone_stays_gone() -> None:
    assert not hasattr(carried(lambda process: delattr(process.net, "a"), lambda: {"a": 1}).net, "a")


def test_what_hooks_at_the_start_make_anew_is_filled_too() -> None:
    def hook(process: Process) -> None:
        process.net.outputs = []
        process.net.push = process.net.outputs.append

    net = carried(lambda process: process.net.push(1), dict, hook).net
    assert net.outputs == [1]
    net.push(2)
    assert net.outputs == [1, 2]


def test_a_container_that_was_replaced_is_another_one() -> None:
    """The old one is as it was for whoever else holds it."""

    def change(process: Process) -> None:
        process.net.held = [2]

    first = Process(held=[1]).begun()
    change(first)
    second = Process(held=[1])
    old = second.net.held
    second.begun().resumed(first.image())
    assert (old, second.net.held) == ([1], [2])


def test_a_scheduler_and_a_module_that_nobody_trains_come_back() -> None:
    def made() -> dict[str, Any]:
        layer = nn.Linear(2, 2)
        nn.init.zeros_(layer.weight)
        optimizer = SGD(layer.parameters(), lr=1.0, momentum=0.5)
        return {"ema": [layer], "schedule": StepLR(optimizer, 1), "_optimizer": optimizer}

    def change(process: Process) -> None:
        net = process.net
        net.ema[0].weight.data.add_(3)
        net._optimizer.step()
        net.schedule.step()
        net.schedule.step()

    net = carried(change, made).net
    assert net.schedule.last_epoch == 2
    assert net._optimizer.param_groups[0]["lr"] == pytest.approx(0.01)
    assert (net.ema[0].weight == 3).all()


def test_a_dataset_of_the_script_is_found_behind_those_of_libraries() -> None:
    class Data:
        def __init__(self) -> None:
            self.epoch, self.calls = 0, Counter[int]()

        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            return index

    Data.__module__ = "a_script"

    def process() -> tuple[Process, Data]:
        made, data = Process(), Data()
        made.script.Data = Data
        made.state.begins()
        made.state.reads(DataLoader(cast("Any", Subset(cast("Any", data), [0, 1]))), "train", 0)
        return made, data

    first, data = process()
    first.state.starts()
    data.epoch, data.calls[3] = 2, 5
    image = first.image()
    second, again = process()
    second.state.load(image, last=False)
    assert (again.epoch, again.calls) == (2, {3: 5})


def test_a_stream_is_left_to_its_place_in_the_data() -> None:
    class Stream(IterableDataset[int]):
        passes = 0

        def __iter__(self) -> Iterator[int]:
            self.passes += 1
            return iter(range(3))

    Stream.__module__ = "a_script"
    process = Process(stream=Stream())
    process.script.Stream = Stream
    process.state.begins()
    process.state.reads(DataLoader(process.net.stream), "train", 0)
    process.state.starts()
    list(process.net.stream)
    assert process.image()["objects"] == []


GENERATORS: list[Any] = [
    (lambda: random.Random(1), lambda generator: generator.gauss(0, 1)),
    (lambda: np.random.RandomState(1), lambda generator: generator.randn()),
    (lambda: np.random.default_rng(1), lambda generator: generator.integers(9)),
    (lambda: np.random.Generator(np.random.MT19937(1)), lambda generator: generator.random()),
    (lambda: torch.Generator().manual_seed(1), lambda generator: torch.rand(1, generator=generator).item()),
]


@pytest.mark.parametrize("number", range(len(GENERATORS)))
def test_a_generator_goes_on(number: int) -> None:
    make, draw = GENERATORS[number]
    first = Process(generator=make()).begun()
    assert first.image()["objects"] == []
    draw(first.net.generator)
    image = first.image()
    second = Process(generator=make()).begun().resumed(image)
    assert draw(second.net.generator) == draw(first.net.generator)


def test_python_and_libraries_are_no_script_wherever_they_lie() -> None:
    own = Script(["/"]).modules
    assert __name__ in own
    assert not {"os", "random", "torch", "numpy", "pytest", "spotrun"} & own.keys()
    assert __name__ not in Script(["/nowhere"]).modules


# --- sharing and cycles


@st.composite
def webs(draw: st.DrawFn) -> list[Any]:
    """Containers that hold each other and plain values in any way."""
    made: list[Any] = [
        kind() for kind in draw(st.lists(st.sampled_from([list, dict, deque, OrderedDict]), min_size=1, max_size=5))
    ]
    plain = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text("ab", max_size=3))
    for holder in list(made):
        for _ in range(draw(st.integers(0, 4))):
            part = draw(st.one_of(plain, st.sampled_from(made)))
            if draw(st.booleans()):
                part = (part, draw(plain))
                made.append(part)
            if isinstance(holder, dict):
                holder[draw(st.one_of(plain, st.tuples(plain, plain)))] = part
            else:
                holder.append(part)
    return made


def shape(value: Any, seen: dict[int, int] | None = None) -> Any:
    """Equal for two webs only if what is shared in one is shared in the other."""
    seen = {} if seen is None else seen
    if isinstance(value, list | deque | dict):
        if id(value) in seen:
            return ("again", seen[id(value)])
        seen[id(value)] = len(seen)
        parts = value.items() if isinstance(value, dict) else value
        return (type(value).__name__, [shape(part, seen) for part in parts])
    if isinstance(value, tuple):
        return ("tuple", [shape(part, seen) for part in value])
    return (type(value).__name__, repr(value))


@given(web=webs(), known=st.integers(0, 3))
def test_sharing_and_cycles_are_kept(web: list[Any], known: int) -> None:
    first = Process(held=[[] for _ in range(known)]).begun()
    expected = copy.deepcopy(web)
    for holder in first.net.held:
        holder.append(web)
    first.net.web = web
    second = Process(held=[[] for _ in range(known)])
    held = second.net.held
    second.begun().resumed(first.image())
    assert shape(second.net.web) == shape(expected)
    assert all(holder[0] is second.net.web for holder in held)


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
    assert "spotrun: module.found cannot be as it was before" in capsys.readouterr().err


@pytest.mark.parametrize(
    "value",
    [("enum", "subprocess:Popen", "x"), ("enum", "os:system", "x"), ("factory", "eval"), ("at", "subprocess.Popen"),
     ("os.system", "true"), ("ref", 99)],
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
    with pytest.raises(CheckpointDamaged, match="unknown format 2"):
        Process().begun().resumed({"format": 2, "objects": []})


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
def test_what_cannot_be_carried_is_named_once_and_fails_no_snapshot(
    number: int, capsys: pytest.CaptureFixture[str]
) -> None:
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
def test_what_changes_out_of_sight_is_named_once(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    make, change = UNSEEN[number]
    process = Process(held=make()).begun()
    process.image()
    assert not capsys.readouterr().err
    change(process.net.held)
    for _ in range(2 * PROBE_EVERY):
        process.state.dump()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("spotrun: module.held")
    assert "has changed and is in no checkpoint" in line


def test_a_method_of_its_own_object_is_not_named(capsys: pytest.CaptureFixture[str]) -> None:
    process = Process().begun()
    process.net.forward = process.net.forward
    process.image()
    assert not capsys.readouterr().err


def test_what_start_hooks_make_of_a_library_is_not_named(capsys: pytest.CaptureFixture[str]) -> None:
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


def test_what_is_too_large_to_be_compared_is_compared_by_samples(monkeypatch: pytest.MonkeyPatch) -> None:
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
