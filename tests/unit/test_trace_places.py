"""Python objects by places: two that differ have other texts, and what cannot be looked into is named."""

from __future__ import annotations

import array
import collections
import contextvars
import copy
import dataclasses
import enum
import functools
import io
import itertools
import random
import sys
import threading
import types
import weakref
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

from spotrun.training.python_state.script import Script
from spotrun.training.trace.places import Places

SCRIPT = Script((), {__name__: sys.modules[__name__]})


@pytest.fixture(autouse=True, scope="module")
def _this_module_is_the_script() -> None:
    SCRIPT._own, SCRIPT._seen = {__name__: sys.modules[__name__]}, 1


def ordered(names: str) -> collections.OrderedDict[str, int]:
    """In this order, which is not the one in which they came."""
    made = collections.OrderedDict(a=1, b=2)
    for name in names:
        made.move_to_end(name)
    return made


class Mode(enum.Enum):
    ONE = 1
    TWO = 2


@dataclasses.dataclass
class Meter:
    total: Any = 0


class Slotted:
    __slots__ = ("value",)


class Words(dict):  # type: ignore[type-arg]
    pass


class Read(Dataset[Any]):
    def __init__(self, count: int) -> None:
        self.count = count


def slotted(number: int) -> Slotted:
    made = Slotted()
    made.value = number
    return made


def closure(number: int) -> Callable[[], int]:
    return lambda: number


def advanced(iterator: Any, number: int) -> Any:
    for _ in range(number):
        next(iterator)
    return iterator


def endless() -> Any:
    number = 0
    while True:
        number += 1
        yield number


def local(number: int) -> threading.local:
    made = threading.local()
    made.value = [number]
    return made


def cached(number: int) -> Any:
    double = functools.lru_cache(closure)
    for each in range(number):
        double(each)
    return double


def written(number: int) -> io.StringIO:
    text = io.StringIO()
    text.write("x" * number)
    return text


def module(number: int) -> nn.Module:
    made = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5), nn.BatchNorm1d(2))
    nn.init.constant_(made[0].weight, float(number))
    nn.init.zeros_(made[0].bias)
    return made


def changed(number: int, change: Callable[[nn.Module], object]) -> nn.Module:
    made = module(0)
    if number:
        change(made)
    return made


def attributed(number: int) -> Words:
    made = Words(a=1)
    made.count = number  # type: ignore[attr-defined]
    return made


def with_attribute(number: int) -> Callable[[], int]:
    made = closure(0)
    made.calls = number  # type: ignore[attr-defined]
    return made


def cycle(number: int) -> list[Any]:
    made: list[Any] = [number]
    made.append(made)
    return made


KINDS: dict[str, Callable[[int], Any]] = {
    "number": lambda n: n,
    "kind of number": lambda n: [1, 1.0, True][n % 3],
    "zero": lambda n: [0.0, -0.0][n % 2],
    "text": lambda n: "x" * n,
    "long text": lambda n: "x" * 500 + str(n),
    "decimal": lambda n: Decimal(n),
    "enum": lambda n: list(Mode)[n % 2],
    "list": lambda n: [1, [2, n]],
    "long list": lambda n: [0] * 400 + [n],
    "table": lambda n: [{"a": number} for number in range(1100)] + [{"a": n}],
    "tuple": lambda n: (1, [n]),
    "set": lambda n: {1, "a", n + 2},
    "dict": lambda n: {"a": {1: n}},
    "order of an OrderedDict": lambda n: ordered("ab" if n % 2 else "ba"),
    "order of a dict": lambda n: {"a": 1, "b": 2} if n % 2 else {"b": 2, "a": 1},
    "key": lambda n: {(1, n): 2},
    "default": lambda n: collections.defaultdict(list, a=[n]),
    "counter": lambda n: collections.Counter("a" * n),
    "deque": lambda n: collections.deque([n], 3),
    "own dict": attributed,
    "array": lambda n: np.array([n, 1.0]),
    "objects": lambda n: np.array([n, "a"], dtype=object),
    "packed": lambda n: array.array("d", [n]),
    "bytes": lambda n: bytearray([n]),
    "tensor": lambda n: torch.tensor([float(n)]),
    "kind of tensor": lambda n: torch.zeros(2, dtype=[torch.float32, torch.int32][n % 2]),
    "sparse": lambda n: torch.eye(3).to_sparse() * n,
    "parameter": lambda n: nn.Parameter(torch.tensor(float(n))),
    "model": module,
    "flag": lambda n: changed(n, lambda made: made[0].weight.requires_grad_(False)),
    "mode of a part": lambda n: changed(n, lambda made: made[1].eval()),
    "rate of a part": lambda n: changed(n, lambda made: setattr(made[1], "p", 0.25)),
    "statistics": lambda n: changed(n, lambda made: made[2].running_mean.add_(1)),
    "instance": lambda n: Meter([Meter(n)]),
    "slots": slotted,
    "namespace": lambda n: types.SimpleNamespace(a=n),
    "bound": lambda n: Meter(n).__eq__,
    "partial": lambda n: functools.partial(max, n),
    "closure": closure,
    "attribute of a function": with_attribute,
    "iterator": lambda n: advanced(iter([1] * 20), n),
    "count": lambda n: itertools.count(n),
    "pairs": lambda n: advanced(enumerate([1] * 20), n),
    "generator": lambda n: advanced(endless(), n),
    "local": local,
    "cache": cached,
    "stream": written,
    "chain": lambda n: collections.ChainMap({"a": n}),
    "random": lambda n: random.Random(n),
    "generator of numpy": lambda n: np.random.default_rng(n),
    "generator of torch": lambda n: torch.Generator().manual_seed(n),
    "optimizer": lambda n: torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=n + 1),
    "data": lambda n: DataLoader(Subset(Read(n), [0])),
    "cycle": cycle,
    "weak": lambda n: weakref.ref(Meter),
    "proxy": lambda n: types.MappingProxyType({"a": n}),
    "property": lambda n: property(closure(n)),
    "context": lambda n: contextvars.ContextVar("own", default=n),
}


def look(value: object) -> Places:
    places = Places(SCRIPT)
    places.add("there", value)
    return places


@pytest.mark.exhaustive
@settings(max_examples=20, deadline=None)
@given(st.integers(0, 5), st.integers(0, 5))
@pytest.mark.parametrize("kind", KINDS)
def test_different_values_differ_or_are_named_and_equal_ones_match(kind: str, one: int, other: int) -> None:
    make = KINDS[kind]
    first, again, second = look([make(one)]), look([make(one)]), look([make(other)])
    assert first.found == again.found
    assert first.unread == again.unread
    alike = {
        "kind of number": 3,
        "zero": 2,
        "enum": 2,
        "order of a dict": 2,
        "order of an OrderedDict": 2,
        "kind of tensor": 2,
    }.get(kind)
    differs = one != other if alike is None else one % alike != other % alike
    if kind in ("flag", "mode of a part", "rate of a part", "statistics"):
        differs = bool(one) != bool(other)
    if kind == "set":
        differs = {1, one + 2} != {1, other + 2}
    assert (first.found != second.found) == differs or "there[0]" in first.unread


UNREAD = {"weak", "context", "cache"}


@pytest.mark.parametrize("kind", sorted(UNREAD))
def test_unreadable_object_is_named(kind: str) -> None:
    assert [*look([KINDS[kind](1)]).unread] == ["there[0]"]


def test_no_kind_but_those_is_left_unread() -> None:
    unread = {kind for kind, make in KINDS.items() if look([make(1)]).unread}
    assert unread == UNREAD


class Unwilling:
    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("not now")


def test_object_that_raises_is_named_and_the_rest_is_read() -> None:
    places = look([Unwilling(), torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]), 3])
    assert {*places.unread} == {"there[0]", "there[1]"}
    assert places.found["there[2]"] == "3"


def test_a_place_is_named_as_the_script_would_reach_it() -> None:
    value = {"meters": [Meter(1), Meter(2)], 3: {"a": (torch.zeros(1), [4])}}
    found = look(value).found
    assert found["there['meters'][1].total"] == "2"
    assert found["there[3]['a'][1][0]"] == "4"


def test_the_members_of_a_set_have_a_place_of_their_own() -> None:
    found = look([{(1, "a"), (2, "b")}, {3}, set()]).found
    assert [found[f"there[{number}]"] for number in range(3)] == ["set of 2", "set of 1", "set of 0"]
    assert len({found[f"there[{number}], its members"] for number in range(3)}) == 3
    assert look([{(2, "b"), (1, "a")}, {3}, set()]).found == found


@pytest.mark.parametrize(
    "make", [np.array, torch.tensor, lambda rows: np.array(rows * 9), lambda rows: np.array([tuple(rows[0])], "f8,f8")]
)
def test_a_time_in_an_array_is_in_other_places_than_its_other_columns(make: Callable[[Any], Any]) -> None:
    one, again, other = (
        look([make([[at, 1.0], [at, loss]])]).found for at, loss in ((1.0, 2.0), (3.0, 2.0), (4.0, 9.0))
    )
    varying = {place for place in one if one[place] != again[place]}
    assert varying
    assert varying < one.keys()
    if len(make([[1.0, 1.0]])) > 1 or "f0" not in str(one):
        assert {place for place in one if one[place] != other[place]} > varying


def test_shared_object_differs_from_two_equal_ones() -> None:
    shared = [1]
    assert look([shared, shared]).found != look([[1], [1]]).found
    assert look([shared, shared]).found["there[1]"] == "the same as there[0]"


def test_looking_changes_nothing() -> None:
    generator, numbers, again = endless(), itertools.count(), random.Random(1)
    stops = copy.copy(again)
    look([generator, numbers, again, iter([1, 2])])
    assert (next(generator), next(numbers), again.random()) == (1, 0, stops.random())


def test_local_variables_of_the_scripts_functions_that_run_are_places() -> None:
    history = [1, 2]
    places = Places(SCRIPT)
    places.frames()
    name = "test_local_variables_of_the_scripts_functions_that_run_are_places"
    assert places.found[f"{name}().history[1]"] == "2"
    assert history


def test_objects_in_stops_are_not_looked_into() -> None:
    own, other = [1], [2]
    places = Places(SCRIPT, [own])
    places.add("there", [own, other])
    assert "there[0]" not in places.found
    assert places.found["there[1][0]"] == "2"


def test_the_scripts_modules_are_known_when_python_has_forgotten_the_file_of_main() -> None:
    main = types.ModuleType("__main__")
    main.__file__ = __file__
    modules = {"__main__": main}
    script = Script([str(Path(__file__).parent)], modules)
    assert [*script.modules] == ["__main__"]
    del main.__file__
    modules["more"] = types.ModuleType("more")
    assert [*script.modules] == ["__main__"]
