"""Scripts that own their loop, killed at random places: all bits are those of a run that nobody has killed."""

from __future__ import annotations

import ast
import fcntl
import random
import signal
from pathlib import Path

import pytest

from spotrun.trainer_link import SEED, NotCarried, SnapshotTaken
from tests.support.repository import ROOT
from tests.support.trainings.agent import Agent
from tests.support.trainings.trainers import Zygote

SCRIPTS = ROOT / "tests/support/trainings/loop_scripts"
LONG = ("compiled", "tar_shards")
"""`make test` has enough of their kind; torch.compile alone takes seconds."""
NAMES = sorted(path.stem for path in SCRIPTS.glob("*.py") if path.stem not in ("__init__", "world"))


OF_THE_TEST = {"os.environ['LOOP_SCRIPT_TICKS']"}
"""What `tick` changes, which no checkpoint may hold."""
NAMED = {"tqdm_around": {"main().bar"}, "counted_stream": {"data[0]"}}
"""
What else is named, although the bits are equal: a bar's own count, and the batches of a stream that is read again with
a collate function that has counted meanwhile.
"""


def job_of(name: str) -> dict[str, object]:
    return {"script": str(SCRIPTS / f"{name}.py")} | ({"ranks": 2} if name == "two_ranks" else {})


def _pattern(name: str) -> str:
    """Return the first sentence of a script's docstring."""
    text = " ".join((ast.get_docstring(ast.parse((SCRIPTS / f"{name}.py").read_text())) or "").split())
    return text[:1].lower() + text[1:].partition(". ")[0].removesuffix(".")


@pytest.mark.pattern("exact", "own loop", of="name", texts={name: _pattern(name) for name in NAMES})
@pytest.mark.parametrize("count", [1, pytest.param(4, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.nightly] * (n in LONG)) for n in NAMES])
def test_kills_change_no_bit(zygote: Zygote, tmp_path: Path, name: str, count: int) -> None:
    job = job_of(name)
    straight = Agent(zygote, job, tmp_path / "straight").run()
    agent = Agent(zygote, job, tmp_path / "killed", every_steps=1)
    kills = random.Random(name).choices(range(1, 9), k=4)
    kills = kills if count == len(kills) else [max(kills)]
    assert agent.run([f"at:{kill}" for kill in kills]) == straight
    named = {place for message in agent.told(NotCarried) for place, _ in message.places}
    assert named - OF_THE_TEST <= NAMED.get(name, set())


@pytest.mark.parametrize("name", ["with_accelerate", "with_fabric"])
def test_a_logger_that_only_the_launcher_holds_keeps_its_rows(zygote: Zygote, tmp_path: Path, name: str) -> None:
    straight = Agent(zygote, job_of(name), tmp_path / "straight").run()
    at_steps = {1: 1, 2: 3}  # by attempt: within the first epoch, and at its end or later

    def kill(agent: Agent, message: object) -> None:
        if isinstance(message, SnapshotTaken) and message.step >= at_steps[agent.attempts]:
            agent.kill()

    agent = Agent(zygote, job_of(name), tmp_path / "killed", every_steps=1, on_message=kill)
    for _ in at_steps:
        assert agent.attempt() == "killed", agent.log.read_text()[-3000:]
    agent.on_message = None
    assert agent.run() == straight


@pytest.mark.parametrize("name", ["accumulation", "generated", "twice", "with_accelerate"])
def test_without_an_agent_a_script_trains_alike(zygote: Zygote, tmp_path: Path, name: str) -> None:
    straight = Agent(zygote, job_of(name), tmp_path / "straight", seed=SEED).run()
    alone = zygote.alone(job_of(name), tmp_path / "alone")
    assert {**alone, "trace": straight["trace"]} == straight
    assert sorted(path.name for path in (tmp_path / "alone").iterdir()) == ["log", "result.json"]


def attempt(zygote: Zygote, job: dict[str, object], folder: Path) -> int:
    """How a training without an agent ends."""
    paths = {"trace": str(folder / "trace"), "result": str(folder / "result.json")}
    return zygote.end(zygote.start(job | paths, None, folder / "log"))


@pytest.mark.parametrize("name", ["accumulation", "twice"])
def test_without_an_agent_a_script_goes_on_in_its_own_folder(zygote: Zygote, tmp_path: Path, name: str) -> None:
    """`twice` has two fits, and is killed in each. Another user has put a link where it writes its first snapshot."""
    straight = zygote.alone(job_of(name), tmp_path / "straight")
    (local := tmp_path / "local").mkdir()
    (victim := tmp_path / "victim").write_text("mine")
    (local / "fit-1.new").symlink_to(victim)
    job = job_of(name) | {"local": str(local)}
    for kill in (5, 9, 14):
        assert attempt(zygote, job | {"kill": f"at:{kill}"}, tmp_path) == -signal.SIGKILL, (
            tmp_path / "log"
        ).read_text()
    assert zygote.alone(job, tmp_path) == straight
    assert zygote.alone(job | {"kill": "at:1"}, tmp_path) == straight, "it had ended, and does no step"
    assert {path.name for path in local.iterdir()} <= {"lock", "fit-1", "fit-2", "fit-1.new"}
    assert victim.read_text() == "mine"


def test_two_trainings_are_not_saved_in_one_folder(zygote: Zygote, tmp_path: Path) -> None:
    with open(tmp_path / "lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert attempt(zygote, job_of("twice") | {"local": str(tmp_path)}, tmp_path) == 1
    assert f"another training is saved in {tmp_path}" in (tmp_path / "log").read_text()
    assert not (tmp_path / "fit-1").exists()
