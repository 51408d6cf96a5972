"""Scripts that own their loop, killed at random places: all bits are those of a run that nobody has killed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.repository import ROOT
from tests.support.trainings.agent import Agent
from tests.support.trainings.trainers import Zygote

SCRIPTS = ROOT / "tests/support/trainings/loop_scripts"
NAMES = sorted(path.stem for path in SCRIPTS.glob("*.py") if path.stem not in ("__init__", "world"))


@pytest.fixture(scope="module")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    zygote = Zygote(tmp_path_factory.mktemp("zygote"))
    yield zygote
    zygote.close()


@pytest.mark.parametrize("name", NAMES)
def test_four_kills_change_no_bit(zygote: Zygote, tmp_path: Path, name: str) -> None:
    job = {"script": str(SCRIPTS / f"{name}.py")}
    straight = Agent(zygote, job, tmp_path / "straight").run()
    agent = Agent(zygote, job, tmp_path / "killed", every_steps=1)
    kills = random.Random(name).choices(range(1, 9), k=4)
    assert agent.run([f"at:{kill}" for kill in kills]) == straight
