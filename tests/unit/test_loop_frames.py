"""loop/bytecode.py: which local variables the next iteration of a loop reads, and which only hold clock readings."""

from __future__ import annotations

import dis
import sys
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from spotrun.loop.bytecode import clock_readings, read_after, rebound_in
from spotrun.loop.frames import _needed


def counter(batches: Iterable[Any]) -> None:
    step = 0
    for _ in batches:
        step += 2


def prefetch(batches: Iterable[Any]) -> None:
    x = None
    for batch in batches:
        print(x)
        x = batch


def best_of(epochs: Iterable[Any], batches: Iterable[Any]) -> None:
    best = 0.0
    for _ in epochs:
        for batch in batches:
            loss = batch
        if loss < best:
            best = loss


def summed(epochs: Iterable[Any], batches: Iterable[Any]) -> None:
    for _ in epochs:
        total = 0.0
        for batch in batches:
            total += batch
        print(total)


def reset_each_time(batches: Iterable[Any]) -> None:
    seen: list[Any] = []
    for batch in batches:
        total = 0
        for part in batch:
            total += part
        while total > 3:
            total -= 1
        seen.append(total)
    print(total)


def set_at_first(batches: Iterable[Any]) -> None:
    for number, batch in enumerate(batches):
        if number == 0:
            base = batch
        print(batch / base)


def best_is_read_afterwards(epochs: Iterable[Any], batches: Iterable[Any]) -> Any:
    best, seen = None, []
    for epoch in epochs:
        for batch in batches:
            loss = batch
        if loss < epoch:
            best = loss
        seen += [loss]
    return best, loss, seen


def in_a_while(batches: Iterable[Any]) -> None:
    number, it = 0, iter(batches)
    while number < 3:
        next(it)
        number += 1


@pytest.mark.parametrize(
    ("function", "at", "names"),
    [
        (counter, 0, {"step"}),
        (prefetch, 0, {"x"}),
        (best_of, 0, {"best"}),
        (best_of, 1, {"best"}),
        (summed, 0, set()),
        (summed, 1, {"total"}),
        (reset_each_time, 0, set()),
        (set_at_first, 0, {"base"}),
        (best_is_read_afterwards, 1, {"best", "seen"}),
        (in_a_while, None, {"number"}),
    ],
)
def test_locals_that_the_next_iteration_reads(function: Callable[..., None], at: int | None, names: set[str]) -> None:
    """`at` is the number of the `for` that requests its next item; None: the place of a call within a `while`."""
    code = function.__code__
    instructions = list(dis.get_instructions(code))
    loops = [one.offset for one in instructions if one.opname == "FOR_ITER"]
    calls = [one.offset for one in instructions if one.opname == "CALL"]
    found = rebound_in(code, 0, calls[-1] if at is None else loops[at])
    assert set(found) == names
    assert all(code.co_firstlineno < one.line < code.co_firstlineno + 12 for one in found.values())


def test_a_long_loop_is_read_like_a_short_one() -> None:
    """Its jumps are so far that an instruction of their own carries a part of the distance."""
    lines = ["def long(batches):", "    step = 0", "    for batch in batches:", "        step += 2"]
    lines += ["        unused = batch * 2 + 1; unused = unused * unused - batch"] * 40
    names: dict[str, Any] = {}
    exec("\n".join([*lines, "    return step"]), names)
    code = names["long"].__code__
    (loop,) = [one.offset for one in dis.get_instructions(code) if one.opname == "FOR_ITER"]
    assert any(one.opname == "EXTENDED_ARG" for one in dis.get_instructions(code))
    assert set(rebound_in(code, loop, loop)) == set(read_after(code, loop)) == {"step"}


def test_changes_in_place_are_told_apart() -> None:
    code = best_is_read_afterwards.__code__
    first = next(one.offset for one in dis.get_instructions(code) if one.opname == "FOR_ITER")
    found = read_after(code, first)
    assert {name: one.in_place for name, one in found.items()} == {"best": False, "loss": False, "seen": True}


def test_loops_around_that_of_the_epochs_do_not_count() -> None:
    code = best_of.__code__
    inner = [one.offset for one in dis.get_instructions(code) if one.opname == "FOR_ITER"][1]
    assert rebound_in(code, inner, inner) == {}


def timed(batches: Iterable[Any], time_of: Callable[[], float]) -> None:
    began = last = time.time()
    first, other = perf_counter(), time_of()
    day = datetime.now()
    for _ in batches:
        now = time.monotonic()
        took = now - last
        last = now
        other = time_of()
        day = datetime.now()
    print(began, first, other, day, took)


def test_clock_readings_are_known_by_the_function_called() -> None:
    names = {name: globals().get(name) for name in timed.__code__.co_names}
    assert clock_readings(timed.__code__, names) == {"began", "last", "now", "day"}
    assert clock_readings(timed.__code__, names | {"time": counter, "datetime": "a text"}) == frozenset()


def test_data_that_nothing_reads_any_more_is_no_state() -> None:
    """An earlier loop has left it, which a resumed process does not repeat."""

    def script() -> set[str]:
        _left, kept, trainer = {"x": [1.0, torch.zeros(2)]}, [3], SimpleNamespace(steps=1)
        train = trainer.__repr__
        found = set(_needed(sys._getframe()))
        print(kept, train())
        return found

    assert script() == {"kept", "trainer", "train"}
