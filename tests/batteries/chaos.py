"""
Battery: real trainings under many SIGKILLs, each compared bit by bit with the one that nothing disturbed.

    make battery NAME=chaos                                       200 trainings on a real S3 server
    python -m tests.batteries.chaos --trainings 1 --seed SEED     one of them again
    python -m tests.batteries.chaos --members 3 --trainings 40    of gangs, any member of which may be hit

Half of the kills wait until a checkpoint is being sent. Whether they hit it then is looked up, and counted. A kill
counts if its victim lived until then. At the end the checkpoints that are still stored are read: each must be of one
snapshot, in what all processes share and in what each has for itself.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
import pytest
import typer

from spotrun.run.events import ResumedFrom
from spotrun.runs.open_run import OpenRun
from tests.batteries.torn import torn_in
from tests.support.audit import Harm, harm, instance_dollars, one_attempt_at_a_time, samples_are_whole
from tests.support.object_stores import FakeGcs, SeaweedFS, running
from tests.support.process_signals import Uploads, send_signal
from tests.support.sandbox import Sandbox, final_tensors

SAMPLES, BATCH = 96, 8
SCALE = 60
KILLS_MAX = 20
VICTIMS = ("trainer", "trainer", "agent", "agent", "instance", "instance", "runner")
LOOK_EVERY_S = 0.01
"""An upload lasts a tenth of a second."""
LINES_BYTES = 400
"""Of a trace, in which its last line is whole."""
RUN_WITHIN_S = 1800
"""Of a busy machine. A training of a gang through 13 kills took ten minutes beside a load of 15 on two cores."""
PROGRAM = "quick.py"
CHAOS_STEP_S = 0.02
KEPT = 12
"""Checkpoints that are left to be read at the end."""


@dataclass(frozen=True)
class Size:
    """
    Of the trainings of this battery: on one instance, or on the `members` of a gang, which share an epoch's samples and
    train for more epochs: there is time for more kills.
    """

    members: int = 1

    @property
    def epochs(self) -> int:
        return 12 if self.members == 1 else 16 * self.members

    @property
    def kills_min(self) -> int:
        return 5 if self.members == 1 else 13

    @property
    def steps(self) -> int:
        return self.epochs * (SAMPLES // BATCH // self.members)

    def job(self, sandbox: Sandbox, name: str, step_s: float) -> Path:
        nodes = "" if self.members == 1 else f"num_nodes: {self.members}\n"
        path = sandbox.job(
            name,
            args=f"--epochs, '{self.epochs}', --step-s, '{step_s}'",
            scale=SCALE,
            program=PROGRAM,
            extra=f"retry: {{max_restarts: 40}}\n{nodes}",
        )
        path.write_text(path.read_text().replace("every: 30s", f"every: 30s, keep_last: {KEPT}"))
        return path


ALONE = Size()


@dataclass(frozen=True)
class Kill:
    """
    Of `target`, once step `step` was trained, and `in_upload` only while a checkpoint is being sent.

    Of a kill that was done, `in_upload` says whether one was being sent when it hit.
    """

    step: int
    target: str
    in_upload: bool


@dataclass(frozen=True)
class Straight:
    """What a training gives that nothing disturbs."""

    trace: dict[int, set[str]]
    tensors: dict[int, bytes]


@dataclass(frozen=True)
class Outcome:
    """
    `lost` counts commits that could not be read back, and `read` those that were read at the end, of which `torn` are
    not of one snapshot; `wrong` names what is not as it has to be.
    """

    seed: int
    kills: tuple[Kill, ...]
    harm: Harm
    lost: int
    read: int
    torn: int
    seconds: float
    wrong: tuple[str, ...]


def plan(seed: int, size: Size = ALONE) -> list[Kill]:
    """
    5 to 20 kills (13 to 20 of a gang), few more often than many, at rising steps, every other one in an upload.
    """
    rng = random.Random(seed)
    count = size.kills_min + int((KILLS_MAX - size.kills_min + 1) * rng.random() ** 6)
    steps = sorted(rng.sample(range(4, size.steps - size.steps // 6), count))
    return [Kill(step, rng.choice(VICTIMS), number % 2 == 0) for number, step in enumerate(steps)]


def straight(sandbox: Sandbox, size: Size = ALONE) -> Straight:
    sandbox.call("launch", size.job(sandbox, "calm", step_s=0.0), "-y", within_s=RUN_WITHIN_S)
    trace = sandbox.trace_by_step()
    assert samples_are_whole(trace, size.epochs, SAMPLES, size.members)
    return Straight(trace, final_tensors(sandbox.run("calm")))


def disturbed(sandbox: Sandbox, seed: int, wanted: Straight, size: Size = ALONE) -> Outcome:
    """One training through the kills of `seed`, compared with `wanted`."""
    began = time.monotonic()
    name = f"chaos-{seed}"
    job = size.job(sandbox, name, CHAOS_STEP_S)
    runner, kills = _through_kills(sandbox, name, sandbox.start("launch", job, "-y"), seed, size)
    output, _ = runner.communicate(timeout=RUN_WITHIN_S)
    wrong = [] if runner.returncode == 0 else [f"exit code {runner.returncode}: {output[-500:]}"]
    wrong += _differences(sandbox, name, wanted) if not wrong else []
    wrong += [] if len(kills) >= size.kills_min else [f"only {len(kills)} kills"]
    found = harm(sandbox.trace.read_text().splitlines(), wanted.trace, SAMPLES, size.members)
    run = sandbox.run(name)
    stored = [*run.ledger.refresh().usable_commits()]
    torn = [reason for commit in stored if (reason := torn_in(run.store, commit, size.members))]
    wrong += torn
    seconds = time.monotonic() - began
    lost = _unreadable_commits(run)
    return Outcome(seed, tuple(kills), found, lost, len(stored), len(torn), seconds, tuple(wrong))


def _through_kills(
    sandbox: Sandbox, name: str, runner: subprocess.Popen[str], seed: int, size: Size
) -> tuple[subprocess.Popen[str], list[Kill]]:
    """The runner after the last of them, and the kills that there was time for."""
    uploads, done, rng = Uploads(sandbox), [], random.Random(f"members {seed}")
    for kill in plan(seed, size):
        if not _reached(sandbox, runner, uploads, kill):
            break
        if kill.target == "runner":
            runner.send_signal(signal.SIGKILL)
            lived = True  # `_reached` has just seen it
        else:
            lived = send_signal(sandbox, kill.target, pick=rng.choice)
        if lived:
            done.append(replace(kill, in_upload=uploads.under_way()))
        uploads.settle()
        if kill.target == "runner":
            runner = sandbox.start("resume", name)
    return runner, done


def _unreadable_commits(run: OpenRun) -> int:
    return sum(len(entry.event.skipped) for entry in run.ledger.entries if isinstance(entry.event, ResumedFrom))


def _reached(sandbox: Sandbox, runner: subprocess.Popen[str], uploads: Uploads, kill: Kill) -> bool:
    """Wait for the moment of a kill; False when the run is over before it."""
    give_up_at = time.monotonic() + RUN_WITHIN_S
    while runner.poll() is None:
        assert time.monotonic() < give_up_at, f"step {kill.step} is not reached"
        if trained(sandbox.trace) >= kill.step and (not kill.in_upload or uploads.under_way()):
            return True
        time.sleep(LOOK_EVERY_S)
    return False


def trained(trace: Path) -> int:
    """The newest step in the trace, cheaply; after a resume an older one than was trained before."""
    try:
        with trace.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LINES_BYTES))
            return int(file.read().splitlines()[-1].split()[0])
    except (OSError, IndexError, ValueError):
        return -1


def _differences(sandbox: Sandbox, name: str, wanted: Straight) -> list[str]:
    run = sandbox.run(name)
    checks = {
        "samples, losses or learning rates": lambda: sandbox.trace_by_step() == wanted.trace,
        "final weights or optimizer": lambda: final_tensors(run) == wanted.tensors,
        "two attempts at a time": lambda: one_attempt_at_a_time(sandbox.state(name)),
        "dollars": lambda: _equal_to_a_micro(*instance_dollars(sandbox, name)),
        "a process was left running": lambda: sandbox.left_running() == [],
    }
    return [what for what, holds in checks.items() if not holds()]


def _equal_to_a_micro(one: Fraction, other: Fraction) -> bool:
    return abs(one - other) < Fraction(1, 10**6)


# -- the battery -----------------------------------------------------------------------------------------------------


Result = TypeVar("Result")


def in_place(folder: Path, uri: str, work: Callable[[Sandbox], Result]) -> Result:
    """What `work` gives in a sandbox of its own, whose runs lie at `uri` (in `folder` where that is empty)."""
    with pytest.MonkeyPatch.context() as patch:
        folder.mkdir(parents=True)
        sandbox = Sandbox(folder, patch, uri)
        try:
            return work(sandbox)
        finally:
            sandbox.close()


def undisturbed(folder: Path, size: Size = ALONE) -> Straight:
    return in_place(folder, "", lambda sandbox: straight(sandbox, size))


def one(folder: Path, uri: str, seed: int, wanted: Straight, size: Size = ALONE) -> Outcome:
    outcome = in_place(folder, uri, lambda sandbox: disturbed(sandbox, seed, wanted, size))
    shutil.rmtree(folder)
    return outcome


class Kind(StrEnum):
    """Where the runs lie."""

    LOCAL = "local"
    S3 = "s3"
    GS = "gs"


def main(
    trainings: Annotated[int, typer.Option(help="How many of them.")] = 200,
    seed: Annotated[int, typer.Option(help="Of the first training; the next one has the next.")] = 1,
    jobs: Annotated[int, typer.Option(help="How many side by side.")] = 2,
    members: Annotated[int, typer.Option(min=1, help="Instances that train together.")] = 1,
    store: Annotated[Kind, typer.Option(help="Where the runs lie: SeaweedFS, fake-gcs-server, or a folder.")] = Kind.S3,
    json_to: Annotated[Path | None, typer.Option("--json", help="Write the figures there too.")] = None,
) -> None:
    began = time.monotonic()
    outcomes: list[Outcome] = []
    try:
        for outcome in _battery(range(seed, seed + trainings), jobs, store, Size(members)):
            outcomes.append(outcome)
            print(f"{len(outcomes):3}/{trainings}  {_line(outcome)}", flush=True)
    finally:  # after a Ctrl-C too
        print(summary(outcomes, time.monotonic() - began, Size(members)))
        if json_to is not None:
            json_to.write_bytes(msgspec.json.format(msgspec.json.encode(outcomes)))
    sys.exit(any(outcome.wrong for outcome in outcomes))


def _battery(seeds: range, jobs: int, store: Kind, size: Size) -> Iterator[Outcome]:
    """Each as it comes."""
    with tempfile.TemporaryDirectory(prefix="spotrun-chaos-") as name, stores(store) as new_uri:
        folder = Path(name)
        wanted = undisturbed(folder / "calm", size)
        tasks = (partial(one, folder / str(seed), new_uri(), seed, wanted, size) for seed in seeds)
        yield from side_by_side(jobs, tasks)


def side_by_side(jobs: int, tasks: Iterable[Callable[[], Result]]) -> Iterator[Result]:
    """What each gives, as it comes. None waits inside of the pool, where it would begin after a Ctrl-C."""
    waiting = iter(tasks)
    under_way: set[Future[Result]] = set()
    with ProcessPoolExecutor(jobs) as pool:
        while True:
            under_way |= {pool.submit(task) for task in itertools.islice(waiting, jobs - len(under_way))}
            if not under_way:
                return
            done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
            yield from (task.result() for task in done)


@contextlib.contextmanager
def stores(kind: Kind) -> Iterator[Callable[[], str]]:
    """Gives addresses of empty stores of runs, an empty one where the folder of a sandbox will do."""
    if kind is Kind.LOCAL:
        yield lambda: ""
        return
    with running(SeaweedFS() if kind is Kind.S3 else FakeGcs()) as server:
        os.environ.update(server.environment)
        yield server.new_prefix


def _line(outcome: Outcome) -> str:
    verdict = "bit-identical" if not outcome.wrong else f"DIFFERS: {', '.join(outcome.wrong)}"
    in_upload = sum(kill.in_upload for kill in outcome.kills)
    kills = f"{len(outcome.kills):2} kills, {in_upload:2} in uploads"
    return f"seed {outcome.seed:4}  {kills}  {outcome.harm.redone:4} steps redone  {outcome.seconds:5.0f} s  {verdict}"


def summary(outcomes: list[Outcome], seconds: float, size: Size = ALONE) -> str:
    kills = [kill for outcome in outcomes for kill in outcome.kills]
    victims = ", ".join(f"{count} {target}" for target, count in Counter(kill.target for kill in kills).most_common())
    in_upload = sum(kill.in_upload for kill in kills)
    rows = {
        "bit-identical": f"{sum(not outcome.wrong for outcome in outcomes)} of {len(outcomes)} trainings",
        "SIGKILLs": f"{len(kills)}: {victims}",
        "while a checkpoint was sent": f"{in_upload} ({in_upload / max(1, len(kills)):.0%})",
        "checkpoints read, and torn": f"{sum(each.read for each in outcomes)}, {sum(each.torn for each in outcomes)}",
        "commits that could not be read": str(sum(outcome.lost for outcome in outcomes)),
        "steps done once more": f"{sum(outcome.harm.redone for outcome in outcomes)} of {size.steps * len(outcomes)}",
        "took": f"{seconds:.0f} s",
    }
    return "\n".join(f"{name + ':':32} {figure}" for name, figure in rows.items())


if __name__ == "__main__":
    typer.run(main)
