"""Objects that no image holds, and settings of the process: a change that can be seen is named, once."""

from __future__ import annotations

import array
import ctypes
import functools
import itertools
import math
import multiprocessing
import os
import random
import re
import socket
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from spotrun.training.python_state import inspection, untracked
from spotrun.training.python_state.fingerprints import PROBE_EVERY
from spotrun.training.python_state.outside import UNKNOWN, seen_of
from spotrun.training.python_state.untracked import UntrackedObjects
from tests.support.script_process import Process


class Library:
    """An object of a library, with these attributes."""

    def __init__(self, **made: Any) -> None:
        vars(self).update(made)


class Slotted:
    __slots__ = ("steps",)

    def __init__(self) -> None:
        self.steps = 0


class Position:
    """An iterator of a library."""

    def __init__(self) -> None:
        self._at = 0

    def __iter__(self) -> Position:
        return self

    def __next__(self) -> int:
        self._at += 1
        return self._at


def wrapped(**made: Any) -> Library:
    return Library(env=Library(inner=[Library(**made)]))


def inner(wrapper: Library) -> Any:
    return vars(wrapper)["env"].inner[0]


def pairs(numbers: Iterator[int]) -> Iterator[tuple[int, object]]:
    for number in numbers:
        yield (number, object())


class Part:
    """Something that others hold weakly; `LIVING` keeps these alive."""


LIVING = [Part(), Part()]


def held_weakly(kind: Any) -> Any:
    made = kind()
    for number, part in enumerate(LIVING):
        if kind is WeakSet:
            made.add(part)
        else:
            made.update({number: part} if kind is WeakValueDictionary else {part: number})
    return made


def until_then() -> Any:
    """A reference to what only a list keeps alive."""
    LIVING.append(Part())
    return weakref.ref(LIVING[-1])


def pipe() -> Any:
    reading, writing = os.pipe()
    return Library(reading=os.fdopen(reading, "rb", buffering=0), writing=os.fdopen(writing, "wb", buffering=0))


def connections() -> Any:
    return Library(ends=multiprocessing.Pipe(duplex=False))


CHANGES: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "an environment in wrappers": (lambda: wrapped(steps=0), lambda env: setattr(inner(env), "steps", 1)),
    "its state is a tuple": (lambda: wrapped(state=(0.0, 1.0)), lambda env: setattr(inner(env), "state", (0.5, 1.0))),
    "its state is an array": (lambda: wrapped(state=np.zeros(4)), lambda env: inner(env).state.fill(1)),
    "its state is an array of its own class": (
        lambda: wrapped(state=np.ma.masked_array([1.0], [True])),
        lambda env: inner(env).state.data.fill(2),
    ),
    "its numbers are numpy's": (lambda: wrapped(t=np.int64(1)), lambda env: setattr(inner(env), "t", np.int64(2))),
    "slots": (lambda: wrapped(held=Slotted()), lambda env: setattr(inner(env).held, "steps", 1)),
    "its private generator": (lambda: wrapped(_rng=np.random.default_rng(1)), lambda env: inner(env)._rng.random()),
    "its private Python generator": (lambda: wrapped(_rng=random.Random(1)), lambda env: inner(env)._rng.random()),
    "a buffer": (lambda: array.array("d", [1.0]), lambda held: held.__setitem__(0, 2.0)),
    "an array of C": (lambda: (ctypes.c_int * 3)(), lambda held: held.__setitem__(0, 2)),
    "a cycle": (lambda: itertools.cycle(iter([1, 2, 3])), next),
    "an enumeration": (lambda: enumerate(iter([1, 2])), next),
    "a zip": (lambda: zip(iter([1, 2]), range(9), strict=False), next),
    "a map": (lambda: map(str, iter([1, 2])), next),
    "a slice": (lambda: itertools.islice(iter([1, 2]), 2), next),
    "a generator over an iterator": (lambda: pairs(iter([1, 2, 3])), next),
    "a generator expression": (lambda: (object() for _ in iter([1, 2])), next),
    "an iterator of a library": (lambda: Library(source=Position()), lambda held: next(held.source)),
    "a variable of a context": (lambda: ContextVar("level", default=0), lambda held: held.set(1)),
    "a pipe": (pipe, lambda held: held.writing.write(b"a")),
    "weak values": (lambda: held_weakly(WeakValueDictionary), lambda held: held.update({0: LIVING[1]})),
    "weak keys": (lambda: held_weakly(WeakKeyDictionary), lambda held: held.update({LIVING[0]: 7})),
    "weak keys, none at first": (WeakKeyDictionary, lambda held: held.update({LIVING[0]: 7})),
    "a weak set, empty at first": (WeakSet, lambda held: held.add(LIVING[0])),
    "a weak set": (lambda: held_weakly(WeakSet), lambda held: held.discard(LIVING[0])),
    "a weak reference": (until_then, lambda held: LIVING.pop()),
    "a connection": (connections, lambda held: held.ends[1].send(1)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_hidden_change_is_named_once(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    make, change = CHANGES[name]
    held = make()
    if name == "a generator over an iterator":
        next(held)  # from then on it stands at the same place
    process = Process(held=held).begun()
    process.image()
    assert not capsys.readouterr().err
    change(held)
    for _ in range(2 * PROBE_EVERY):
        process.image()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("spotrun: module.held")
    assert "has changed and is in no checkpoint" in line


HARMLESS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "a private counter": (lambda: wrapped(_calls=0), lambda held: setattr(inner(held), "_calls", 1)),
    "a cache": (lambda: wrapped(cache={}), lambda held: inner(held).cache.update(a=1)),
    "a warning that was given": (lambda: wrapped(warned=False), lambda held: setattr(inner(held), "warned", True)),
    "a name": (lambda: wrapped(mode="a"), lambda held: setattr(inner(held), "mode", "b")),
    "a view of the weights": (
        lambda: wrapped(weights=[torch.nn.Parameter(torch.zeros(2))]),
        lambda held: inner(held).weights[0].data.add_(1),
    ),
    "an optimizer": (
        lambda: wrapped(optimizer=torch.optim.SGD([torch.zeros(1)], 0.1)),
        lambda held: vars(inner(held).optimizer).update(last_epoch=3),
    ),
    "the standard output": (lambda: sys.__stdout__, lambda out: (out.write(""), out.flush())),
    "many parts": (lambda: wrapped(parts=[0] * (inspection.LONG + 1)), lambda held: inner(held).parts.append(1)),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_notes_of_libraries_are_not_named(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    make, change = HARMLESS[name]
    process = Process(held=make()).begun()
    process.image()
    change(process.net.held)
    for _ in range(PROBE_EVERY + 1):
        process.image()
    assert not capsys.readouterr().err


def test_an_object_of_the_script_within_one_of_a_library_is_carried_or_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = Process()
    meter, other = first.script.Meter(), first.script.Meter()
    vars(first.net).update(meter=meter, held=Library(meter=meter))
    first.begun().image()
    meter.total = 1.0
    first.state._dumps = 0
    first.image()
    assert not capsys.readouterr().err
    vars(first.net).update(alone=Library(meter=other))
    first.begun()
    other.total = 1.0
    first.image()
    assert "module.alone has changed" in capsys.readouterr().err


def test_connection_with_uncounted_traffic_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    ours, theirs = socket.socketpair()
    process = Process(held=Library(link=ours), other=socket.socket()).begun()
    process.image()
    assert capsys.readouterr().err == (
        f"spotrun: module.held has changed and is in no checkpoint: {Library.__module__}.Library\n"
    )
    assert seen_of(ours, "") is UNKNOWN
    theirs.close()
    ours.close()
    assert seen_of(ours, "") is None


def test_the_bytes_of_a_connection_are_counted() -> None:
    with socket.socket() as listening, socket.socket() as ours:
        listening.bind(("127.0.0.1", 0))
        listening.listen(1)
        ours.connect(listening.getsockname())
        theirs, _ = listening.accept()
        with theirs:
            seen = [seen_of(ours, "")]
            theirs.sendall(b"abc")
            ours.recv(3)
            seen.append(seen_of(ours, ""))
            assert seen[1] == seen_of(ours, "")
    assert seen[1][1] == seen[0][1] + 3


def test_a_file_of_the_work_folder_is_in_checkpoints(tmp_path: Any) -> None:
    with open(tmp_path / "log", "w") as log, open(tmp_path / "log") as reading, tempfile.TemporaryFile() as other:
        assert seen_of(log, str(tmp_path)) is None
        assert seen_of(reading, str(tmp_path)) == seen_of(other, str(tmp_path)) == 0


def test_a_transform_of_a_data_set_may_note_what_it_did_last(capsys: pytest.CaptureFixture[str]) -> None:
    held = wrapped(state=np.zeros(2))
    looked = UntrackedObjects([("data[0].transform", "", held)])
    inner(held).state.fill(1)
    assert list(looked.changed()) == []


def test_one_look_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untracked, "FACTS_MAX", 50)
    held = [wrapped(**{f"n{number}": 0 for number in range(60)}) for _ in range(3)]
    looked = UntrackedObjects((f"held[{number}]", "", one) for number, one in enumerate(held))
    for one in held:
        inner(one).n1 = 1
    assert [lost.path for lost in looked.changed()] == ["held[0]"]


# --- what functions keep, and what torch calls


def test_filled_cache_of_the_script_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    process = Process()
    process.script.noise = functools.lru_cache(process.script.remembered)
    process.script.imported = functools.lru_cache(math.factorial)
    process.script.noise(1)
    process.begun().image()
    process.script.noise(1)
    process.script.imported(1)
    process.image()
    assert not capsys.readouterr().err
    process.script.noise(2)
    process.image()
    process.image()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("spotrun: a_script.noise has changed and is in no checkpoint: ")


def doubled(*args: Any) -> None:
    """A hook."""


HOOKS: dict[str, tuple[Callable[[Process], Any], str]] = {
    "of a module": (lambda process: process.net.layer.register_forward_hook(doubled), "module.layer._forward_hooks"),
    "of the whole": (lambda process: process.net.register_full_backward_hook(doubled), "module._backward_hooks"),
    "of a gradient": (
        lambda process: process.net.layer.bias.register_hook(doubled),
        "module.layer.bias._backward_hooks",
    ),
    "of all modules": (
        lambda process: torch.nn.modules.module.register_module_forward_hook(doubled),
        "torch.nn.modules.module._global_forward_hooks",
    ),
    "of an optimizer": (
        lambda process: process.optimizers[0].register_step_post_hook(doubled),
        "optimizers[0]._optimizer_step_post_hooks",
    ),
}


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_that_comes_or_goes_late_is_named(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    register, place = HOOKS[name]
    process = Process()
    process.optimizers = [torch.optim.SGD(process.net.parameters(), 0.1)]
    process.begun().image()
    register(process).remove()
    process.image()
    assert not capsys.readouterr().err
    handle = register(process)
    process.image()
    process.image()
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"spotrun: {place} has changed and is in no checkpoint: hooks that torch holds: doubled"
    handle.remove()


def test_a_hook_of_the_start_that_goes_is_named_and_one_that_is_exchanged_for_its_like_is_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    process = Process()
    handle = process.net.layer.register_forward_hook(doubled)
    process.begun().image()
    handle.remove()
    handle = process.net.layer.register_forward_hook(doubled)
    process.image()
    assert not capsys.readouterr().err
    handle.remove()
    process.image()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("spotrun: module.layer._forward_hooks has changed")


# --- the process


SETTINGS: dict[str, tuple[Callable[[], object], str]] = {
    "a variable that is new": (lambda: os.environ.update(STAGE="2"), "os.environ['STAGE']"),
    "a variable that is gone": (lambda: os.environ.pop("THERE_BEFORE"), "os.environ['THERE_BEFORE']"),
    "the type of numbers": (lambda: torch.set_default_dtype(torch.float64), "torch.get_default_dtype()"),
    "what numpy does with errors": (lambda: np.seterr(all="raise"), "numpy.geterr()"),
    "the folder": (lambda: os.chdir("/"), "os.getcwd()"),
}


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("THERE_BEFORE", "a secret")
    monkeypatch.delenv("STAGE", raising=False)
    monkeypatch.chdir(os.getcwd())
    before, errors = torch.get_default_dtype(), np.geterr()
    yield
    torch.set_default_dtype(before)
    np.seterr(**errors)
    with suppress(KeyError):
        del os.environ["STAGE"]


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_of_the_process_that_changes_is_named(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    change, place = SETTINGS[name]
    process = Process().begun()
    process.image()
    change()
    process.image()
    process.image()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"spotrun: {place} has changed and is in no checkpoint: ")
    assert "a secret" not in line


@pytest.mark.usefixtures("restored")
def test_variables_that_start_hooks_or_libraries_set_are_not_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    process = Process().begun(lambda _: os.environ.update(STAGE="2"))
    monkeypatch.setenv("WANDB_SERVICE", "1")
    process.image()
    assert not capsys.readouterr().err


def test_sampler_of_a_loader_that_is_read_after_the_start_is_not_named(capsys: pytest.CaptureFixture[str]) -> None:
    """As in a loop of one's own, whose script calls `sampler.set_epoch`; what else has changed is named."""
    data = TensorDataset(torch.zeros(4))
    sampler = DistributedSampler(data, num_replicas=1, rank=0)
    process = Process(sampler=sampler, other=Library(count=0))
    process.script.wrapper = Library(held=[sampler])
    process.begun()
    sampler.set_epoch(1)
    process.net.other.count += 1
    process.state.reads(DataLoader(data, sampler=sampler), "train", 0)
    sampler.set_epoch(2)
    process.image()
    assert re.findall(r"(\S+) has changed", capsys.readouterr().err) == ["module.other"]
