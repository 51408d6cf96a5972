"""
Battery: the trainings of tests/batteries/chaos.py in a container, through the same SIGKILLs, compared bit by bit with
the one that nothing disturbs and that has none; and whether a container is left.

    make battery NAME=containers                                       6 trainings with the engine of this machine
    python -m tests.batteries.containers --trainings 1 --seed SEED     one of them again
    python -m tests.batteries.containers --trainings 2 --members 2     of gangs, each member in a container of its own

The image is made of this machine's own Python (tests/support/container_image.py), and nothing is pulled. It takes root,
and docker or podman that runs containers here.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from spotrun.container.engine import LABEL, Engine, find_engine
from spotrun.spec.image import PREFIX
from tests.batteries import chaos
from tests.support.container_image import TRAINING, imported
from tests.support.sandbox import Sandbox

SHARED = Path("/dev/shm")
"""Where a training in a container, which sees its work folder and no other, can write down its steps."""


class InContainer(chaos.Size):
    image: str = ""

    def job(self, sandbox: Sandbox, name: str, step_s: float) -> Path:
        path = super().job(sandbox, name, step_s)
        path.write_text(path.read_text().replace("resources: {", f"resources: {{image_id: '{self.image}', "))
        return path


def one(folder: Path, seed: int, wanted: chaos.Straight, image: str, engine: Engine, members: int = 1) -> chaos.Outcome:
    """One training through the kills of `seed`. A container that is left makes it wrong."""
    size = InContainer(members)
    object.__setattr__(size, "image", image)
    with tempfile.TemporaryDirectory(prefix="spotrun-containers-", dir=SHARED) as shared:

        def work(sandbox: Sandbox) -> chaos.Outcome:
            sandbox.trace = Path(shared, "trace.txt")
            return chaos.disturbed(sandbox, seed, wanted, size)

        outcome = chaos.in_place(folder, "", work)
    shutil.rmtree(folder)
    left = containers(engine)
    return chaos.replace(outcome, wrong=(*outcome.wrong, *(f"the container {name} is left" for name in left)))


def containers(engine: Engine) -> list[str]:
    """Of spotrun, running or not."""
    command = [engine.path, "ps", "--all", "--filter", f"label={LABEL}", "--format", "{{.Names}}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def main(
    trainings: Annotated[int, typer.Option(help="How many of them.")] = 6,
    seed: Annotated[int, typer.Option(help="Of the first training; the next one has the next.")] = 1,
    members: Annotated[int, typer.Option(min=1, help="Instances that train together.")] = 1,
) -> None:
    outcomes: list[chaos.Outcome] = []
    engine = find_engine()
    with tempfile.TemporaryDirectory(prefix="spotrun-containers-") as name, imported(engine, TRAINING) as image:
        wanted = chaos.undisturbed(Path(name, "calm"), chaos.Size(members))
        for number in range(seed, seed + trainings):
            outcomes.append(one(Path(name, str(number)), number, wanted, PREFIX + image, engine, members))
            print(f"{len(outcomes):3}/{trainings}  {chaos._line(outcomes[-1])}", flush=True)
    kills = Counter(kill.target for outcome in outcomes for kill in outcome.kills)
    same = sum(not outcome.wrong for outcome in outcomes)
    print(
        f"{engine.name}: {same} of {len(outcomes)} bit-identical to a training in no container, after {kills.total()}"
    )
    print("SIGKILLs:", ", ".join(f"{count} {victim}" for victim, count in kills.most_common()))
    sys.exit(same < len(outcomes))


if __name__ == "__main__":
    typer.run(main)
