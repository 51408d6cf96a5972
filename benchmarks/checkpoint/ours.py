"""
spotrun itself, whole: a run in the bucket, an agent on an instance that is a folder, and the unchanged callback.

Training goes on until the cloud takes the instance, as often as the model says; each time a new instance resumes it.
The agent's time passes faster than ours, so that its 30 s between two commits are half a second.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.checkpoint.measurement import TRAINING, Begun, Iteration, Measurement, read
from benchmarks.checkpoint.memory import PeakMemory
from benchmarks.checkpoint.plan import (
    BEGUN,
    DIGESTS,
    DIGESTS_WANTED,
    EVERY_STEPS,
    MEASURED,
    PLANS,
    RESTORED,
    RESTORES,
    Burden,
)
from benchmarks.checkpoint.processes import ROOT, WITHIN_S, Failed, python_path
from spotrun.checkpoint.restore import Image, fetch
from spotrun.run.events import CheckpointCommitted
from spotrun.run.state import Commit
from spotrun.store.port import Store
from spotrun.trainer_link import Arrived, Resume
from tests.support.agent_bench import SCALE, AgentRun, Node
from tests.support.eventually import eventually
from tests.support.trainings.agent import Agent
from tests.support.trainings.trainers import Spawner

SCRIPT = "from benchmarks.checkpoint.training import main\n\nmain()\n"
NOTICE_SAVES, NOTICE_MIN_S = 3.0, 6.0
"""A notice leaves time for this many saves, each as long as the slowest so far, plus this many seconds."""
COMMITS_MIN = 2
"""Minimum commits before the machine is taken away for the first time: the first one also sends the files."""
LATE_MAX = 2
"""Maximum late last checkpoints, which a busy machine may cause. For each, one more instance is taken away."""


def measure_ours(model: str, folder: Path, uri: str, burden: Burden) -> Measurement:
    """
    Raises:
        Failed: the training ended otherwise than it was made to.
    """
    words = words_of(model, folder, burden)
    (folder / "run").mkdir()
    run = AgentRun(
        folder / "run",
        runs_uri=uri,
        train={"script": "train.py", "args": words},
        files={"train.py": SCRIPT},
        envs={"PYTHONPATH": python_path(ROOT), "OMP_NUM_THREADS": os.environ["OMP_NUM_THREADS"]},
        checkpoint={"every": f"{EVERY_STEPS} steps"},
    )
    try:
        peak_bytes = _trained(run, folder, PLANS[model].notices)
        commits = [commit.event for commit in run.state.commits]
        last = run.state.latest_commit()
        assert last is not None
        restored = [_restored(run.store, last, words, folder, folder / f"restore-{n}") for n in range(RESTORES)]
    finally:
        run.close()
    measured = read(folder / MEASURED)
    final = [commit for commit in commits if commit.final]
    first, *later = [commit.files for commit in commits if commit.files is not None]
    return Measurement(
        state_bytes=measured["state_bytes"],
        iterations=[Iteration(*one) for one in measured["iterations"]],
        saves=[(one.step, _durable_s(one)) for one in commits if not one.final and one.attempt == commits[0].attempt],
        paused=[(one.stall_s / SCALE, _durable_s(one)) for one in final],
        peak_bytes=peak_bytes,
        restore_s=median(one.seconds for one in restored),
        whole_s=median(one.whole_s for one in restored),
        restored_identical=all(one.identical for one in restored),
        begun=Begun(**read(folder / BEGUN)) if PLANS[model].notices > 1 else None,
        files_first_bytes=first.sent_bytes,
        files_later_bytes=max((files.sent_bytes for files in later), default=None),
    )


def words_of(model: str, folder: Path, burden: Burden) -> list[str]:
    """Return the arguments of its trainer."""
    words = ["--model", model, "--variant", "ours", "--folder", str(folder)]
    words += ["--attributes", str(burden.attributes), "--files", str(burden.files)]
    return [*words, "--file-bytes", str(burden.file_bytes)]


def _durable_s(commit: CheckpointCommitted) -> float:
    """Return the seconds, in our time, from the moment at which training stood still for the commit."""
    return (commit.stall_s + commit.durable_s) / SCALE


def _trained(run: AgentRun, folder: Path, notices: int) -> int:
    """Train, and return the peak memory of the first instance."""
    node = run.launch()
    with PeakMemory(node.bootstrap.pid) as memory:
        _await(run, node, lambda: (folder / MEASURED).exists() and len(run.state.commits) >= COMMITS_MIN)
        (folder / DIGESTS_WANTED).touch()
        _taken_away(run, node)
    launches = 1
    while _finals(run) < notices:
        if launches == notices + LATE_MAX:
            raise Failed(f"the last checkpoint was not durable when the instance went:\n{run.log(node)[-2000:]}")
        node = run.launch()
        launches += 1
        _await(run, node, lambda: node.status().get("phase") == "train")  # noqa: B023
        _taken_away(run, node)
    return memory.peak_bytes


def _await(run: AgentRun, node: Node, condition: Callable[[], object]) -> None:
    def look() -> object:
        if node.bootstrap.poll() is not None:
            raise Failed(f"the instance went by itself:\n{run.log(node)[-2000:]}")
        return condition()

    eventually(look, WITHIN_S)


def _taken_away(run: AgentRun, node: Node) -> None:
    node.notice(notice_s([commit.event.durable_s / SCALE for commit in run.state.commits]) * SCALE)
    node.bootstrap.wait(WITHIN_S)


def notice_s(saves_s: list[float]) -> float:
    """
    Return the seconds of a notice, after saves that took `saves_s`. Not after the first one: that sent the files as
    well, and training would go on for three times as long, to its end or until the store is full.
    """
    return NOTICE_SAVES * max(saves_s[1:]) + NOTICE_MIN_S


def _finals(run: AgentRun) -> int:
    return sum(commit.event.final for commit in run.state.commits)


class Restoring(Agent):
    """Begins to fetch when the trainer is ready for it, so that its imports are not in the figure."""

    def __init__(self, store: Store, commit: Commit, words: list[str], folder: Path) -> None:
        job = {"script": "-m", "args": [TRAINING, *words, "--restore"]}
        super().__init__(Spawner(folder), job, folder)
        self._store, self._commit = store, commit
        self.image_sent: Image | None = None

    def _send_resume(self, fit: int) -> None:  # the only fit
        self.image_sent = fetch(self._store, self._commit, self)  # closed once it trains, as by an agent

    def begins(self, image: Image, begin_bytes: int) -> None:
        where, size_bytes = self._commit.event, image.size_bytes
        where_to_begin = {"epoch": where.epoch, "step": where.step, "every_steps": None, "seed": 0, "fresh": False}
        self.link.send(Resume(size_bytes=size_bytes, here_bytes=0, **where_to_begin), [image.fd])

    def has(self, size_bytes: int) -> None:
        self.link.send(Arrived(size_bytes=size_bytes))


@dataclass(frozen=True)
class Restore:
    """
    Seconds until the first batch, and until the trainer had everything. `identical`: to the bit the state that it had
    when it was stopped.
    """

    seconds: float
    whole_s: float
    identical: bool


def _restored(store: Store, commit: Commit, words: list[str], folder: Path, own: Path) -> Restore:
    """`own`: a new folder for this one of them."""
    (folder / RESTORED).unlink(missing_ok=True)
    agent = Restoring(store, commit, words, own)
    try:
        agent.attempt()
    except BaseException:  # a Ctrl-C does not reach the trainer, which has a session of its own
        if agent.pid:
            agent.kill()
        raise
    finally:
        if agent.image_sent is not None:
            agent.image_sent.close()
    if not (folder / RESTORED).exists():
        raise Failed(f"the checkpoint was not restored:\n{agent.messages[-1]}\n{agent.log.read_text()[-2000:]}")
    restored = read(folder / RESTORED)
    wanted = read(folder / DIGESTS)[str(restored["step"])]
    return Restore(restored["seconds"], restored["whole_s"], restored["digest"] == wanted)
