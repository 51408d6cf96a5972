"""
Derives random seeds from a position: the run's seed, the epoch, the batch, the sample.

A random number generator that is seeded at each position draws the same numbers there, however many numbers it drew
before. So snapshots do not have to contain its state (docs/decisions/002-order-of-samples.md). Each seed is the first 8
bytes of BLAKE2b over the position's parts.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from hashlib import blake2b
from typing import Any

import numpy as np
import torch


def derive(*parts: object) -> int:
    """
    Return a 64-bit seed for `parts`. Their `repr` must be stable, so they are numbers, texts, and tuples of these.
    """
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=8).digest(), "little")


def seed_process(seed: int) -> None:
    """
    Seed the global random number generators of Python, numpy and torch, including those of all accelerators.

    On a machine without an accelerator, this avoids `torch.manual_seed`, which is slow: it records the seed and the
    whole call stack, in case an accelerator is initialized later.
    """
    if _has_accelerator():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)
    _seed_others(seed)


@cache
def _has_accelerator() -> bool:
    return torch.accelerator.is_available()


def seed_cpu(seed: int) -> None:
    """
    Seed the same generators as `seed_process`, except those of accelerators. Data loading calls this once per sample.
    """
    torch.default_generator.manual_seed(seed)
    _seed_others(seed)


def _seed_others(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)


@contextmanager
def kept() -> Iterator[None]:
    """
    After the block, restore the states of this process's global random number generators (but not those of
    accelerators).
    """
    before = state()
    try:
        yield
    finally:
        set_state(before)


GeneratorsState = tuple[Any, Any, torch.Tensor]


def state() -> GeneratorsState:
    """Return the states of this process's global random number generators, without those of accelerators."""
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def set_state(states: GeneratorsState) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
