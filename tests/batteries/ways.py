"""
Battery: six kinds of public scripts, whose trainer, agent and instance are killed: the bits of a training in peace, and
how many steps were done twice. Into the table of docs/exactness-measured.md.

    make battery NAME=ways                                         what is not measured yet, two scripts at once
    python -m tests.batteries.ways --only fabric --from-start            this one alone, from the beginning
    python -m tests.batteries.ways --only fabric --from-start --kills 2  with as many kills of each kind

The scripts are in tests/batteries/of_ways, each written anew after a pattern of public projects. A moment is a batch, a
step, or an event of callbacks, and each process of a run on the local cloud has one at which one of these is killed:
itself, its agent, its instance without a word, or its instance with a notice. Compared are the files that were fetched,
by their content, and the tensors of the last checkpoint.

What was measured is kept in build/ways: who comes again goes on where the last one ended, within a script too.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple

import pytest
import typer

from spotrun.clouds.registry import cloud_named
from spotrun.exactness.folders import Folder
from spotrun.run import events as ev
from tests.batteries.kill_plan import Plan, Reached, difference, files_in, tensors_of
from tests.batteries.way_rows import NOTICE, PAGE, SCRIPTS, WAYS, Kill, Seen, keep, known, unseen, verdict, with_rows
from tests.support.eventually import eventually
from tests.support.process_signals import send_signal
from tests.support.repository import ROOT
from tests.support.sandbox import Sandbox

RESULTS = ROOT / "build" / "ways"
SHORT_IMPORTS = ROOT / "tests" / "support" / "jobs" / "fast_imports.py"
KILLS, IN_ONE_RUN = 20, 8
AT_ONCE = 2
FURTHEST = 14
"""A process has this many moments at most before something is killed, half of them as a rule."""
SCALE = 60
NOTICED_FOR = timedelta(minutes=60)
"""A minute of this machine's time, as it may have much other work."""
NOTICED_MAX = 1
"""So many steps may be done again after a notice."""
COMES_WITHIN_S, ENDS_WITHIN_S = 300, 3600
LOOKS_EVERY_S = 0.02
CALM = "calm"


class Trained(NamedTuple):
    """What a run gives. `steps` were done in all, those that were done twice included."""

    files: Folder
    tensors: dict[str, bytes]
    steps: int
    kills: list[Kill]


class Stood(NamedTuple):
    """The process `pid` was there when something was killed, after `resumes` resumes of the run."""

    reached: Reached
    resumes: int


def drawn(left: Mapping[str, int], rng: random.Random) -> list[str]:
    """The kills of one run, as its plan has them, of those that are left."""
    victims = [victim for victim, count in left.items() for _ in range(count)]
    rng.shuffle(victims)
    return [f"{rng.randint(1, FURTHEST)} {victim}" for victim in victims[:IN_ONE_RUN]]


def trained(sandbox: Sandbox, way: str, name: str, kills: Sequence[str] = ()) -> Trained:
    """A run through these kills, as far as it comes to them before its end."""
    plan = Plan(sandbox.folder / f"{name}.moments", kills)
    runner = sandbox.start("launch", job(sandbox, way, name, plan), "-y")
    stood = []
    for reached in stops(runner, plan):
        before = stood[-1].resumes if stood else 0
        stood.append(Stood(reached, eventually(partial(resumed_after, sandbox, name, before), COMES_WITHIN_S)))
        kill(sandbox, name, reached)
        plan.release()
    output, _ = runner.communicate(timeout=COMES_WITHIN_S)
    assert runner.returncode == 0, f"exit code {runner.returncode}: {output[-3000:]}"
    sandbox.call("fetch", name, "--to", sandbox.folder / f"files-{name}")
    steps, begun = plan.steps, resumes(sandbox, name)
    files = files_in(sandbox.folder / f"files-{name}")
    return Trained(files, tensors_of(sandbox.run(name)), len(steps), [redone(each, steps, begun) for each in stood])


def job(sandbox: Sandbox, way: str, name: str, plan: Plan) -> Path:
    path = sandbox.folder / f"{name}.yaml"
    job = {
        "name": name,
        "workdir": str(SCRIPTS / way),
        "train": WAYS[way].train,
        "envs": plan.environment | ({"SHORT_IMPORTS": str(SHORT_IMPORTS)} if WAYS[way].short_imports else {}),
        "checkpoint": {"uri": sandbox.uri, "every": "2 steps"},
        "resources": {"cloud": "local", "accelerators": "V100:1", "spot_policy": "spot"},
        "local": {"time_scale": SCALE, "boot": "20s"},
        "retry": {"max_restarts": 100},
    }
    path.write_text(json.dumps(job))
    return path


def stops(runner: subprocess.Popen[str], plan: Plan) -> Iterator[Reached]:
    """Each process that stands at its moment, until the run is over. Whoever takes one releases it."""
    give_up_at = time.monotonic() + ENDS_WITHIN_S
    while runner.poll() is None:
        assert time.monotonic() < give_up_at, "the run does not come to its end"
        if (reached := plan.reached) is not None:
            yield reached
        time.sleep(LOOKS_EVERY_S)


def kill(sandbox: Sandbox, name: str, reached: Reached) -> None:
    """
    It is done, or a notice is known to the agent, when this returns. A trainer ends itself when it is released. One
    whose agent was killed would train on until the next agent ends it: all its steps, as they take milliseconds here.
    """
    if reached.victim == "agent":
        send_signal(sandbox, "agent")
        eventually(lambda: not Path(f"/proc/{reached.pid}").exists(), COMES_WITHIN_S)
    elif reached.victim == "instance":
        send_signal(sandbox, "instance")
    elif reached.victim == "notice":
        before = len(seen(sandbox, name, ev.NoticeSeen))
        current = sandbox.state(name).current
        assert current is not None
        cloud_named("local").account(()).driver.interrupt(current.instance_id, NOTICED_FOR)
        eventually(lambda: len(seen(sandbox, name, ev.NoticeSeen)) > before, COMES_WITHIN_S)


def seen(sandbox: Sandbox, name: str, kind: type[ev.Event]) -> list[ev.Event]:
    run = sandbox.run(name)
    run.ledger.refresh()
    return [entry.event for entry in run.ledger.entries if isinstance(entry.event, kind)]


def resumes(sandbox: Sandbox, name: str) -> list[int]:
    """The step at which each trainer of the run began."""
    return [event.step for event in seen(sandbox, name, ev.ResumedFrom) if isinstance(event, ev.ResumedFrom)]


def resumed_after(sandbox: Sandbox, name: str, before: int) -> int:
    """How many trainers there were, once the ledger has more than `before`; 0 until then. An agent writes as it can."""
    count = len(resumes(sandbox, name))
    return count if count > before else 0


def redone(stood: Stood, steps: Sequence[int], begun: Sequence[int]) -> Kill:
    """None were, if nothing began after it: its process had done the last step."""
    done = begun[stood.resumes - 1] + steps.count(stood.reached.pid)
    again = begun[stood.resumes] if stood.resumes < len(begun) else done
    return Kill(stood.reached.victim, done - again)


def measured(name: str, before: Seen, kills: int, seed: int) -> Iterator[Seen]:
    """What is known after each run, until each was killed that often or something is wrong."""
    with tempfile.TemporaryDirectory(prefix="spotrun-ways-") as folder, pytest.MonkeyPatch.context() as patch:
        sandbox, known = Sandbox(Path(folder), patch), before
        try:
            calm = trained(sandbox, name, CALM)
            while left := known.left(kills):
                number = len(known.kills)
                plan = drawn(left, random.Random(f"{seed} {name} {number}"))
                other = trained(sandbox, name, f"killed-{number}", plan)
                known = Seen(
                    before.sha256,
                    calm.steps,
                    len(calm.files.paths),
                    len(calm.tensors),
                    (*known.kills, *other.kills),
                    wrong(calm, other, plan),
                )
                yield known
                if known.wrong:
                    return
        finally:
            sandbox.close()


def wrong(calm: Trained, other: Trained, plan: Sequence[str]) -> str:
    """What is not as it has to be after the kills of `plan`; "" if nothing is."""
    found = difference(calm.files, other.files)
    if not found and calm.tensors != other.tensors:
        names = sorted(name for name, _ in calm.tensors.items() ^ other.tensors.items())
        found = f"tensors of the last checkpoint: {', '.join(dict.fromkeys(names))}"
    if not found and calm.steps + sum(kill.redone for kill in other.kills) != other.steps:
        found = f"{other.steps} steps were done, and {other.kills} do not say why"
    if not found and max([kill.redone for kill in other.kills if kill.victim == NOTICE], default=0) > NOTICED_MAX:
        found = f"more than a step was done again after a notice: {other.kills}"
    return found and f"{found} (killed after {', '.join(plan)})"


def measure(name: str, kills: int, seed: int) -> None:
    """What is missing of one script."""
    began, before = time.monotonic(), known(RESULTS)[name]
    for each in measured(name, before, kills, seed) if before.left(kills) else ():
        keep(RESULTS, name, each)
        took = time.monotonic() - began
        print(f"{name:14} {took:5.0f} s  {len(each.kills) - len(before.kills)} kills, {verdict(each)}", flush=True)


def measure_beside_others(name: str, kills: int, seed: int) -> None:
    """In a process of its own, as each sandbox changes the environment of its process."""
    words = ["--only", name, "--kills", str(kills), "--seed", str(seed)]
    subprocess.run([sys.executable, "-m", "tests.batteries.ways", *words], check=False)


def main(
    only: Annotated[list[str] | None, typer.Option("--only", metavar="NAME", help="This script.")] = None,
    anew: Annotated[bool, typer.Option("--from-start", help="Forget what was measured of them.")] = False,
    kills: Annotated[int, typer.Option(help="Of the trainer, of its agent, and of its instance.")] = KILLS,
    seed: Annotated[int, typer.Option(help="Of the moments.")] = 1,
) -> None:
    names = only or list(WAYS)
    for name in names if anew else ():
        keep(RESULTS, name, unseen(name))
    if len(names) == 1:
        measure(names[0], kills, seed)
    else:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda name: measure_beside_others(name, kills, seed), names))
    results = known(RESULTS)
    PAGE.write_text(with_rows(PAGE.read_text(), results))
    sys.exit(any(results[name].wrong or results[name].left(kills) for name in names))


if __name__ == "__main__":
    os.environ.pop("COLUMNS", None)
    typer.run(main)
