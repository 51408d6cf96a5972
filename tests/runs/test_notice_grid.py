"""
What survives an instance that is taken at the end of its notice: checkpoints of several sizes, over lines of several
speeds, with notices of 30 and of 120 s. Whatever is left of the instance at the deadline is killed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from itertools import combinations, product
from pathlib import Path

import pytest

from spotrun.checkpoint import layout
from spotrun.checkpoint.restore import newest_readable
from spotrun.run import events as ev
from tests.support.agent_bench import AgentRun, Node
from tests.support.eventually import eventually
from tests.support.fault_proxy import FaultProxy, Narrow
from tests.support.object_stores import RunningServer

SCALE = 4.0
MB = 1_000_000
SIZES_MB = (5, 20)
RATES_MB_PER_S = (2.5, 1 / 8)
"""Of run time, as all durations here: a checkpoint takes 2, 8, 40 or 160 s."""
NOTICES_S = (30, 120)


@dataclass(frozen=True)
class Cell:
    size_mb: float
    mb_per_s: float
    notice_s: float

    @property
    def save_s(self) -> float:
        return self.size_mb / self.mb_per_s

    @property
    def fits(self) -> bool | None:
        """Whether a final snapshot after the notice does; None where it hangs on how busy the machine is."""
        if self.save_s >= self.notice_s:
            return False
        return True if self.save_s < 0.1 * self.notice_s and self.notice_s >= 120 else None


@dataclass(frozen=True)
class Outcome:
    """`end` is the last that the ledger heard of the attempt; steps: the last one done, and the one restored."""

    cell: Cell
    end: ev.AttemptDrained | ev.AttemptEnded | None
    trained: int
    durable: int


CELLS = [Cell(*values) for values in product(SIZES_MB, RATES_MB_PER_S, NOTICES_S)]
PAIRWISE = [Cell(5, 2.5, 120), Cell(5, 1 / 8, 30), Cell(20, 2.5, 30), Cell(20, 1 / 8, 120)]
"""Each two values of two of the three are together in one of these."""


@pytest.mark.parametrize(
    "cells", [pytest.param(PAIRWISE, id="pairwise"), pytest.param(CELLS, id="all", marks=pytest.mark.nightly)]
)
def test_the_step_that_survives_is_the_one_that_was_told(
    cells: list[Cell], tmp_path: Path, servers: Callable[[str], RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = servers("s3")
    with ExitStack() as stack, ThreadPoolExecutor(len(cells)) as pool:
        runs = [_started(stack, server, monkeypatch, tmp_path / str(n), cell) for n, cell in enumerate(cells)]
        outcomes = list(pool.map(_taken_away, cells, *zip(*runs, strict=True)))
    for outcome in outcomes:
        _check(outcome)


def _started(
    stack: ExitStack, server: RunningServer, monkeypatch: pytest.MonkeyPatch, folder: Path, cell: Cell
) -> tuple[AgentRun, Node]:
    line = stack.enter_context(FaultProxy(server.endpoint, Narrow(cell.mb_per_s * MB * SCALE)))
    server.reach(monkeypatch, line.url)
    folder.mkdir()
    job = {"steps": 1_000_000, "epoch_steps": 1_000_000, "step_s": 0.1, "payload_bytes": int(cell.size_mb * MB)}
    run = AgentRun(folder, job, runs_uri=server.new_prefix(), scale=SCALE)
    stack.callback(run.close)
    return run, run.launch()


def _taken_away(cell: Cell, run: AgentRun, node: Node) -> Outcome:
    """With notice while a checkpoint is being sent that is not the first: what saves take has been measured."""
    for sent in range(2):
        eventually(lambda: node.status().get("upload") is not None, 120)
        if not sent:
            eventually(lambda: node.status().get("upload") is None, 120)
    deadline = run.clock.now() + timedelta(seconds=cell.notice_s)
    node.notice(cell.notice_s)
    eventually(lambda: run.clock.now() >= deadline, 120)
    node.close()
    state = run.state
    ends = [entry.event for entry in run.ledger.entries if isinstance(entry.event, ev.AttemptDrained | ev.AttemptEnded)]
    image = newest_readable(run.store, state.restore_candidates()).image
    with os.fdopen(image.fd, "rb") as file:
        durable = layout.decode_header(file.read()).meta["step"]
    return Outcome(cell, ends[-1] if ends else None, max(step for _, step in run.steps_done()), durable)


def _check(outcome: Outcome) -> None:
    drained = isinstance(outcome.end, ev.AttemptDrained)
    assert outcome.cell.fits in (drained, None), outcome
    if drained:
        assert outcome.durable == outcome.trained, f"a step was lost though there was time: {outcome}"
        return
    assert isinstance(outcome.end, ev.AttemptEnded), outcome
    assert f"step {outcome.durable:,} survives" in outcome.end.detail, outcome
    assert outcome.durable < outcome.trained, outcome


def test_the_grid_has_all_kinds() -> None:
    assert {(cell.notice_s, cell.fits) for cell in CELLS} == {
        (30, None),
        (30, False),
        (120, True),
        (120, None),
        (120, False),
    }
    assert {cell.fits for cell in PAIRWISE} == {True, False, None}
    for one, other in combinations(("size_mb", "mb_per_s", "notice_s"), 2):
        assert len({(getattr(cell, one), getattr(cell, other)) for cell in PAIRWISE}) == 4
