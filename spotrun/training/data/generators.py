"""
Finds and seeds the random number generators in the script's objects, such as an augmentation transform, a sampler or
a model.

The next number of such a generator depends on how many numbers this process has drawn from it before. A resumed process
has drawn fewer. So spotrun seeds each of these generators with the position in the data, like the global generators.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import numpy as np
import torch

from spotrun.training import seeds
from spotrun.training.python_state.stateful_objects import GENERATORS, load, state_of
from spotrun.training.python_state.values import Encoded

OwnGenerators = dict[str, Any]
"""Generators by their paths, such as `dataset.transform.rng`."""

NO_HOLDERS = (type, ModuleType, torch.Tensor, torch.nn.Module)
DEPTH = 5
LONG = 64
"""
Maximum length of a list whose items are searched for generators. In a list of transforms, for example, some transforms
may have a generator. A longer list is considered data and is not searched.
"""


def kept_by(**roots: object) -> OwnGenerators:
    """
    Search the attributes of `roots`, and the attributes of the objects in them, `DEPTH` levels deep. Return all random
    number generators found, except the global ones.
    """
    found: OwnGenerators = {}
    seen: set[int] = set()
    level: list[tuple[str, object]] = list(roots.items())
    for _ in range(DEPTH + 1):
        level = [(path, value) for path, value in level if id(value) not in seen]
        seen.update(id(value) for _, value in level)
        found.update((path, value) for path, value in level if isinstance(value, GENERATORS) and not _is_global(value))
        level = [inner for path, value in level for inner in _inside(path, value)]
    return found


def kept_by_modules(module: torch.nn.Module) -> OwnGenerators:
    """
    Return the random number generators that are attributes of a module or its submodules. Other objects in attributes
    are not searched: one of them may be the framework's trainer, and from there the search would reach all generators
    of the process.
    """
    return {
        f"{path}.{name}": value
        for path, part in module.named_modules()
        for name, value in vars(part).items()
        if isinstance(value, GENERATORS) and not _is_global(value)
    }


def seed(own: OwnGenerators, number: int) -> None:
    for path, generator in own.items():
        _seed(generator, seeds.derive(number, path))


def states(own: OwnGenerators) -> list[Encoded]:
    """Return the states of the generators in `own`, in the same order."""
    return [state_of(generator) for generator in own.values()]


def set_states(own: OwnGenerators, before: list[Encoded]) -> None:
    for generator, state in zip(own.values(), before, strict=True):
        load(generator, state)


def _seed(generator: Any, number: int) -> None:
    match generator:
        case torch.Generator():
            generator.manual_seed(number)
        case random.Random():
            generator.seed(number)
        case np.random.RandomState():
            generator.seed(number & 0xFFFFFFFF)
        case np.random.Generator():
            generator.bit_generator.state = type(generator.bit_generator)(number).state


def _is_global(generator: object) -> bool:
    methods: tuple[Any, ...] = (random.random, np.random.random_sample)
    return generator is torch.default_generator or any(generator is method.__self__ for method in methods)


def _inside(path: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, list | tuple) and len(value) <= LONG:
        yield from ((f"{path}[{number}]", item) for number, item in enumerate(value))
    elif isinstance(value, Mapping) and len(value) <= LONG:
        yield from ((f"{path}[{key!r}]", item) for key, item in value.items())
    elif hasattr(value, "__dict__") and not isinstance(value, NO_HOLDERS):
        yield from ((f"{path}.{name}", item) for name, item in vars(value).items())
