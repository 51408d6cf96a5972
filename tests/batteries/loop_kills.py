"""
Each script of tests/support/trainings/loop_scripts, killed 20 times at random places: all bits are those of the
straight run. `make battery NAME=loops`, five minutes.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

from tests.support.repository import ROOT
from tests.support.trainings.agent import Agent
from tests.support.trainings.trainers import Zygote

SCRIPTS = ROOT / "tests/support/trainings/loop_scripts"
KILLS = 20
FURTHEST = 8
"""A process does this many batches at most before it is killed, half of them as a rule."""


def is_exact(zygote: Zygote, name: str, folder: Path) -> bool:
    """A script may come to its end before all its kills: then it begins again."""
    job = {"script": str(SCRIPTS / f"{name}.py")} | ({"ranks": 2} if name == "two_ranks" else {})
    straight = Agent(zygote, job, folder / "straight").run()
    agent, kills, dice = Agent(zygote, job, folder / "killed", every_steps=1), 0, random.Random(name)
    exact = True
    while kills < KILLS:
        how = agent.attempt(kill=f"at:{dice.randint(1, FURTHEST)}", resume=bool(agent.image))
        kills += how == "killed"
        if how != "killed":
            exact = exact and how == "finished" and agent.result() == straight
            agent.image = b""
    exact = exact and agent.attempt() == "finished" and agent.result() == straight
    print(f"{name}: {kills} kills, {'the same bits' if exact else 'OTHER BITS: ' + str(folder)}", flush=True)
    return exact


def main() -> int:
    names = sorted(path.stem for path in SCRIPTS.glob("*.py") if path.stem not in ("__init__", "world"))
    folder = Path(tempfile.mkdtemp())
    zygote = Zygote(folder / "zygote")
    try:
        exact = [is_exact(zygote, name, folder / name) for name in names]
        return int(not all(exact))
    finally:
        zygote.close()


if __name__ == "__main__":
    sys.exit(main())
