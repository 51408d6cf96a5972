"""
Battery: scripts that train with the Trainer of transformers leave the files of a training in peace, wherever they are
killed.

    make battery NAME=transformers                                    each script, killed 20 times
    python -m tests.batteries.transformers_kills --only lora --kills 4 --seed 7

A moment is a batch, a step, or an event that callbacks are told of: so within evaluation, within logging, before and
after a checkpoint of the script's own. The trainer is killed at random ones, by the real agent's side of a run on the
local cloud. Then each file that was fetched is compared by its content.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import pytest
import typer

from spotrun.exactness.folders import Folder
from spotrun.run import events as ev
from tests.batteries.kill_plan import Plan, difference, files_in
from tests.support.repository import ROOT
from tests.support.sandbox import Sandbox

SCRIPTS = ROOT / "tests" / "batteries" / "of_transformers"
ENDS_WITHIN_S = 900


def moments_of(kills: int, count: int, rng: random.Random) -> list[int]:
    """By how many moments after its start each process is killed, so that all of them lie in a training of `count`."""
    places = sorted(rng.sample(range(1, count), kills))
    return [max(1, place - before) for place, before in zip(places, [0, *places], strict=False)]


def trained(sandbox: Sandbox, script: str, name: str, moments: Sequence[int]) -> tuple[Folder, int]:
    """The files of a run whose trainer was killed at these moments, and how many moments its last process had."""
    plan = Plan(sandbox.folder / f"{name}.moments", moments)
    work = sandbox.folder / f"script-{name}"
    work.mkdir()
    shutil.copy(SCRIPTS / f"{script}.py", work)
    job = sandbox.folder / f"{name}.yaml"
    job.write_text(
        f"name: {name}\nworkdir: {work}\ntrain: {{script: {script}.py}}\nenvs: {json.dumps(plan.environment)}\n"
        f"checkpoint: {{uri: '{sandbox.uri}', every: 2 steps}}\n"
        f"resources: {{cloud: local, accelerators: 'V100:1'}}\nlocal: {{time_scale: 60, boot: 20s}}\n"
        f"retry: {{max_restarts: {len(moments) + 2}}}\n"
    )
    sandbox.call("launch", job, "-y", within_s=ENDS_WITHIN_S)
    run = sandbox.run(name)
    run.ledger.refresh()
    went_on = [each.event.commit for each in run.ledger.entries if isinstance(each.event, ev.ResumedFrom)]
    assert any(went_on) or not moments, f"{name}: began anew after each of its kills"
    assert not plan.left, f"{name}: ended before it was killed at {plan.left}"
    folder = sandbox.folder / f"files-{name}"
    sandbox.call("fetch", name, "--to", folder)
    return files_in(folder), plan.moments


def verdict(script: str, kills: int, in_one_run: int, seed: int) -> str:
    """ "" if the files are the same after `kills` kills."""
    with tempfile.TemporaryDirectory(prefix="spotrun-hf-") as name, pytest.MonkeyPatch.context() as patch:
        sandbox = Sandbox(Path(name), patch)
        try:
            calm, count = trained(sandbox, script, "calm", ())
            rng = random.Random(f"{seed} {script}")
            for number in range(-(-kills // in_one_run)):
                moments = moments_of(in_one_run, count, rng)
                other, _ = trained(sandbox, script, f"killed-{number}", moments)
                if found := difference(calm, other):
                    return f"killed after {moments} of {count} moments: {found}"
        except AssertionError as error:
            return str(error)[-3000:]
        finally:
            sandbox.close()
    return ""


def main(
    only: Annotated[str, typer.Option(help="One script, or several with commas.")] = "",
    kills: Annotated[int, typer.Option(help="Of each script.")] = 20,
    in_one_run: Annotated[int, typer.Option(help="How many of them one run goes through.")] = 4,
    seed: Annotated[int, typer.Option(help="Of the moments.")] = 1,
) -> None:
    names = only.split(",") if only else sorted(path.stem for path in SCRIPTS.glob("*.py"))
    wrong = 0
    for name in names:
        began = time.monotonic()
        found = verdict(name, kills, min(kills, in_one_run), seed)
        wrong += bool(found)
        print(f"{name:20} {found or 'the same files'} ({time.monotonic() - began:.0f} s)", flush=True)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    os.environ.pop("COLUMNS", None)
    typer.run(main)
