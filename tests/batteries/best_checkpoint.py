"""
Battery: the files that a training leaves are those of one in peace, at whatever step it is killed.

    make battery NAME=best                                           20 random steps on each of two clouds
    python -m tests.batteries.best_checkpoint --cloud local --steps 5 --seed 7

tests/support/jobs/filed.py keeps the two best checkpoints and the last one, an average of its weights and logs, ends
early, and tests the best one. It waits at each step that was drawn until it is killed there: its process, or, without a
notice, its instance. A run is killed at several of them. Then each file that was fetched is compared by its content.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import re
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import pytest
import typer

from spotrun.exactness.folders import Folder, first_difference, names_of
from spotrun.run import events as ev
from tests.support.aws_sandbox import Aws, aws_sandbox
from tests.support.eventually import eventually
from tests.support.object_stores import SeaweedFS, running
from tests.support.process_signals import processes_of, send_signal
from tests.support.repository import ROOT
from tests.support.sandbox import Sandbox

EPOCHS, PATIENCE, STEP_S = 16, 3, 0.05
SCALE = 60
VICTIMS = ("trainer", "instance")
REACHED_WITHIN_S, ENDS_WITHIN_S = 300, 600
PROGRAM, RESULTS = "filed.py", "results.json"
RETRY = "retry: {max_restarts: 40}\n"
CALM = "calm"
MUST_BE_THERE = (RESULTS, "average.pt", "own.pt", "kept/last.ckpt", "training.log")
_WORK_FOLDER = re.compile(r"/[^\s\"']*/work(?=/|$)")


class Cloud(StrEnum):
    LOCAL = "local"
    AWS = "aws"


@dataclass(frozen=True)
class Killed:
    """After which step, what, and the step of the checkpoint that training went on from; None where it began anew."""

    step: int
    target: str
    resumed_at: int | None


@dataclass(frozen=True)
class Outcome:
    """One run. `wrong` is what is not as in the training that nothing disturbed, with the place; "" if nothing is."""

    cloud: Cloud
    kills: tuple[Killed, ...]
    files: int
    seconds: float
    wrong: str


class Place:
    """A cloud with its sandbox, and how to give it a job and take an instance from it."""

    def __init__(self, cloud: Cloud, sandbox: Sandbox) -> None:
        self.cloud = cloud
        self.sandbox = sandbox

    def job(self, name: str, *more: str) -> Path:
        words = ("--epochs", str(EPOCHS), "--patience", str(PATIENCE), "--step-s", str(STEP_S), *more)
        args = ", ".join(f"'{word}'" for word in words)
        if isinstance(self.sandbox, Aws):
            return self.sandbox.job_on_aws(name, args, program=PROGRAM, extra=RETRY)
        return self.sandbox.job(name, args=args, program=PROGRAM, extra=RETRY, scale=SCALE)

    def kill(self, name: str, target: str) -> None:
        if target == "instance" and isinstance(self.sandbox, Aws):
            current = self.sandbox.state(name).current
            assert current is not None
            self.sandbox.account.interrupt(current.instance_id, notice=None)
        else:
            send_signal(self.sandbox, target, signal.SIGKILL)

    def files_of(self, name: str) -> Folder:
        folder = self.sandbox.folder / f"files-{name}"
        self.sandbox.call("fetch", name, "--to", folder)
        paths = (path for path in folder.rglob("*") if path.is_file())
        return Folder(folder, frozenset(path.relative_to(folder).as_posix() for path in paths))


def killed(place: Place, number: int, kills: list[tuple[int, str]], calm: Folder) -> Outcome:
    """One run that is killed after each of these steps, and its files compared with those of the calm one."""
    began, name = time.monotonic(), f"killed-{number}"
    hold = place.sandbox.folder / f"hold-{number}"
    hold.mkdir()
    for step, _ in kills:
        (hold / str(step)).touch()
    runner = place.sandbox.start("launch", place.job(name, "--hold", str(hold)), "-y")
    for step, target in kills:
        reached = (hold / str(step)).with_suffix(".reached")
        eventually(lambda at=reached: at.exists() or runner.poll() is not None, within_s=REACHED_WITHIN_S)
        if not reached.exists():
            break
        (hold / str(step)).unlink()
        before = set(processes_of(place.sandbox, "trainer"))
        place.kill(name, target)
        eventually(lambda old=before: not old & set(processes_of(place.sandbox, "trainer")), REACHED_WITHIN_S)
    output, _ = runner.communicate(timeout=ENDS_WITHIN_S)
    undone = [step for step, _ in kills if not (hold / f"{step}.reached").exists()]
    wrong = f"exit code {runner.returncode}: {output[-800:]}" if runner.returncode else ""
    wrong = wrong or (f"steps {undone} were not reached" if undone else "")
    files = place.files_of(name) if not wrong else calm
    wrong = wrong or difference(calm, files)
    return Outcome(place.cloud, resumed(place, name, kills), len(files.paths), time.monotonic() - began, wrong)


def resumed(place: Place, name: str, kills: list[tuple[int, str]]) -> tuple[Killed, ...]:
    """The kills, each with where the next trainer went on."""
    run = place.sandbox.run(name)
    state = run.ledger.refresh()
    steps = []
    for entry in run.ledger.entries:
        if isinstance(entry.event, ev.ResumedFrom):
            commit = None if entry.event.commit is None else state.commit(entry.event.commit)
            steps.append(None if commit is None else commit.event.step)
    after = [*steps[1:], *[None] * len(kills)]
    return tuple(Killed(step, target, at) for (step, target), at in zip(kills, after, strict=False))


def difference(calm: Folder, other: Folder) -> str:
    """What differs first, and where; "" if nothing does."""
    found = first_difference(calm, other, names_of(calm.paths | other.paths), without_work_folder)
    if found is None:
        return ""
    return f"{found.path}, {found.where}: {found.straight[:200]} in peace, {found.interrupted[:200]} after kills"


def without_work_folder(text: str) -> str:
    """Each instance of some clouds has another one."""
    return _WORK_FOLDER.sub("<work>", text)


def drawn(seed: int, cloud: Cloud, last: int, steps: int, kills: int) -> list[list[tuple[int, str]]]:
    """`steps` random steps before `last`, with what is killed there; at most `kills` of them in each run."""
    rng = random.Random(f"{seed} {cloud}")
    chosen = sorted(rng.sample(range(1, last), steps))
    runs = -(-steps // kills)
    return [[(step, rng.choice(VICTIMS)) for step in chosen[first::runs]] for first in range(runs)]


@contextlib.contextmanager
def opened(cloud: Cloud) -> Iterator[Place]:
    """A cloud that is on this machine. Nothing of it is left running."""
    with tempfile.TemporaryDirectory(prefix="spotrun-best-") as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name)
        if cloud is Cloud.AWS:
            patch.setenv("MOTO_AMIS_PATH", str(ROOT / "tests" / "support" / "ec2_images.json"))
            with running(SeaweedFS()) as s3, aws_sandbox(folder, patch, s3) as sandbox:
                yield Place(cloud, sandbox)
            return
        sandbox = Sandbox(folder, patch)
        try:
            yield Place(cloud, sandbox)
        finally:
            sandbox.close()


def battery(cloud: Cloud, steps: int, kills: int, seed: int, tell: Callable[[str], None]) -> Iterator[Outcome]:
    """Each as it comes."""
    with opened(cloud) as place:
        tell(f"{cloud}: a training that nothing disturbs")
        place.sandbox.call("launch", place.job(CALM), "-y", within_s=ENDS_WITHIN_S)
        calm = place.files_of(CALM)
        if lost := [name for name in MUST_BE_THERE if name not in calm.paths]:
            raise AssertionError(f"the training in peace has not left {lost}, only {sorted(calm.paths)}")
        last = json.loads((calm.root / RESULTS).read_text())["steps"]
        tell(f"{cloud}: it has done {last} steps and left {len(calm.paths)} files")
        for number, planned in enumerate(drawn(seed, cloud, last, steps, kills)):
            tell(f"{cloud}: to be killed after steps {', '.join(f'{step} ({what})' for step, what in planned)}")
            yield killed(place, number, planned, calm)


def main(
    steps: Annotated[int, typer.Option(help="At how many steps a training is killed, on each cloud.")] = 20,
    cloud: Annotated[Cloud | None, typer.Option(help="One of them only.")] = None,
    seed: Annotated[int, typer.Option(help="Of the steps and of what is killed there.")] = 1,
    kills: Annotated[int, typer.Option(help="In one run.")] = 5,
) -> None:
    began = time.monotonic()
    outcomes: list[Outcome] = []
    try:
        for each in [cloud] if cloud else list(Cloud):
            for outcome in battery(each, steps, kills, seed, lambda text: print(f"... {text}", flush=True)):
                outcomes.append(outcome)
                print(rows(outcome), flush=True)
    finally:  # after a Ctrl-C too
        print(summary(outcomes, time.monotonic() - began))
    sys.exit(any(outcome.wrong for outcome in outcomes))


def rows(outcome: Outcome) -> str:
    verdict = f"{outcome.files} files equal" if not outcome.wrong else f"DIFFERS: {outcome.wrong}"
    lines = [_row(outcome.cloud, kill, verdict) for kill in outcome.kills]
    return "\n".join(lines or [f"{outcome.cloud:5}  {verdict}"])


def _row(cloud: Cloud, kill: Killed, verdict: str) -> str:
    on = "from the start" if kill.resumed_at is None else f"from step {kill.resumed_at:3}"
    return f"{cloud:5}  step {kill.step:3}  {kill.target:8}  {on:14}  {verdict}"


def summary(outcomes: list[Outcome], seconds: float) -> str:
    lines = []
    for cloud in Cloud:
        mine = [outcome for outcome in outcomes if outcome.cloud is cloud]
        equal = sum(len(outcome.kills) for outcome in mine if not outcome.wrong)
        if mine:
            lines.append(f"{cloud}: files equal after {equal} of {sum(len(each.kills) for each in mine)} kills")
    return "\n".join([*lines, f"took {seconds:.0f} s"])


if __name__ == "__main__":
    # Whoever starts this in the background of a script has it ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.pop("COLUMNS", None)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", "Tried to parse AWS")
    typer.run(main)
