"""
Zombies (battery T5): an agent that slept through its own succession wakes up in the middle of whatever it did.

Simulated here: the real saver and ledger, asleep at a random call of the store. Real processes below.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spotrun.agent.files.commit_files import CommitFiles
from spotrun.agent.files.content_store import ContentStore
from spotrun.agent.inbox import Inbox
from spotrun.agent.recorder import Recorder
from spotrun.agent.saver import Worker
from spotrun.agent.snapshots.arenas import overlapping
from spotrun.agent.snapshots.snapshot import Snapshot
from spotrun.agent.status import Status
from spotrun.checkpoint import layout
from spotrun.checkpoint.restore import verify
from spotrun.checkpoint.upload import UploadControl
from spotrun.clock import system_clock
from spotrun.errors import CheckpointDamaged
from spotrun.folder.ledger import Ledger
from spotrun.run import events as ev
from spotrun.spec.model import CheckpointSpec
from spotrun.trainer_link import SnapshotTaken
from tests.support.agent_bench import AgentRun, Node
from tests.support.eventually import eventually
from tests.support.histories import FREE_STORAGE, History
from tests.support.memory_store import MemoryStore
from tests.support.object_stores import RunningServer
from tests.support.played_agent import Agent as PlayedAgent
from tests.support.world.faults import Watched

KEEP = CheckpointSpec(keep_last=2)
PAYLOAD = layout.place([("uint8", (300,))])


class Agent:
    """An agent's saving half, on a store that may put it to sleep."""

    def __init__(self, folder: Path, store: Any, writer: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        clock, inbox = system_clock(), Inbox()
        self.ledger = Ledger(store, "0123456789", writer, clock)
        self.ledger.refresh()
        self._recorder = Recorder(self.ledger, clock, inbox, str)
        self._recorder.start()
        node: Any = SimpleNamespace(store=store, recorder=self._recorder)
        files = CommitFiles(node, ContentStore(node))
        self._worker = Worker(store, self._recorder, clock, Status(folder), inbox, KEEP, files)
        self._sequence = count()

    def commit(self, attempt: int, step: int) -> None:
        arena, other = overlapping(0, 4096)
        other.close()
        header = layout.encode_header(PAYLOAD, None, {"step": step, "spotrun": "test"})
        size_bytes = len(header) + PAYLOAD[-1].size_bytes
        os.pwrite(arena.fd, header + bytes([step % 256]) * (size_bytes - len(header)), 0)
        taken = SnapshotTaken(
            arena=0,
            size_bytes=size_bytes,
            epoch=0,
            batch=step,
            step=step,
            stall_s=0,
            finite=True,
            final=False,
            epoch_ended=False,
        )
        snapshot = Snapshot(attempt, 0, next(self._sequence), arena, taken, datetime.now(UTC), 0.0, 0.0, "interval")
        self._worker.save(snapshot, UploadControl(), None)
        arena.close()

    def close(self) -> None:
        self._recorder.stop()


def begun() -> tuple[MemoryStore, History, int, int]:
    """A run whose first attempt trains, with a standby behind it: the store, attempt and the standby's launch."""
    history = History(FREE_STORAGE)
    first = history.launch()
    history.record(first)
    attempt = history.start(first)
    history.resume()
    history.training()
    standby = history.launch()
    history.record(standby)
    store = MemoryStore()
    history.put_into(store)
    return store, history, attempt, standby


def succeed(folder: Path, store: MemoryStore, standby: int, commits: int) -> None:
    """The standby takes over, and commits so often, retiring and sweeping as it goes."""
    agent = Agent(folder, store, "agent-b")
    try:
        played = PlayedAgent(agent.ledger, store, system_clock(), instance=(standby, f"i-{standby}"))
        attempt = played.takes_over()
        for number in range(commits):
            agent.commit(attempt, played.step + 1 + number)
    finally:
        agent.close()


class Asleep:
    """Lets `meanwhile` happen once, before or after call number `at` of a store."""

    def __init__(self, at: int, before: bool, meanwhile: Callable[[], None]) -> None:
        self._at, self._before, self._meanwhile = at, before, meanwhile
        self._calls = 0
        self._lock = threading.RLock()
        self.armed = self.slept = False

    def before(self, name: str) -> None:
        with self._lock:
            self._calls += self.armed
            if self._before:
                self._sleep()

    def after(self, name: str) -> None:
        with self._lock:
            if not self._before:
                self._sleep()

    def _sleep(self) -> None:
        if self._calls >= self._at and not self.slept:
            self.slept = True
            self._meanwhile()


@pytest.mark.parametrize("count", [100, pytest.param(500, marks=pytest.mark.nightly)])
def test_no_zombie_commits_or_destroys_anything(tmp_path: Path, count: int) -> None:
    amid_work = sum(zombie(tmp_path / str(seed), random.Random(seed), seed) for seed in range(count))
    assert amid_work > 0.7 * count


def zombie(folder: Path, rng: random.Random, seed: int) -> bool:
    """Whether it fell asleep in the middle of a save; else it sleeps between two."""
    store, _, attempt, standby = begun()
    commits_before, commits_after = rng.randrange(4), rng.randrange(1, 5)
    asleep = Asleep(
        at=rng.randrange(1, 9 + 10 * commits_before),
        before=rng.random() < 0.5,
        meanwhile=lambda: succeed(folder / "b", store, standby, commits_after),
    )
    agent = Agent(folder / "a", Watched(store, asleep.before, asleep.after), "agent-a")
    asleep.armed = True
    for step in range(1, commits_before + 3):
        agent.commit(attempt, step)
    agent.close()
    if not asleep.slept:
        succeed(folder / "b", store, standby, commits_after)
        agent = Agent(folder / "a", store, "agent-a")
        agent.commit(attempt, 99)
        agent.close()
    check(store, attempt, f"seed {seed}")
    return asleep.slept


def check(store: MemoryStore, zombie_attempt: int, seed: str) -> None:
    ledger = Ledger(store, "0123456789", "test", system_clock())
    state = ledger.refresh()
    current = state.current_attempt
    assert current is not None, seed
    assert current != zombie_attempt, seed
    stale = [commit for commit in state.commits if commit.event.attempt == zombie_attempt and commit.number > current]
    assert stale == [], f"{seed}: a zombie committed"
    candidates = state.restore_candidates()
    assert candidates, seed
    for commit in candidates:
        verify(store, commit, retry_for_s=0.1)


# -- real processes, on a real S3 server ---------------------------------------------------------------------------

ENDLESS = {"steps": 1_000_000, "epoch_steps": 1000, "step_s": 0.02}
MOMENTS = ("training", "uploading")
ASLEEP = (("agent",), ("agent", "trainer"), ("trainer", "agent"))
"""In the order in which they wake up. Without its agent a trainer can write nothing."""
SEED = 10
"""Its first three zombies are one of each in `ASLEEP`, and of both `MOMENTS`."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("seed", "in_a_row"),
    [(SEED, 3), pytest.param(0, 5, marks=pytest.mark.nightly), pytest.param(1, 5, marks=pytest.mark.nightly)],
)
def test_stopped_agents_and_trainers_that_wake_up_commit_nothing(
    tmp_path: Path, seed: int, in_a_row: int, servers: Callable[[str], RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = servers("s3")
    server.reach(monkeypatch)
    run = AgentRun(tmp_path, ENDLESS, runs_uri=server.new_prefix())
    try:
        node = run.launch()
        for moment, asleep in drawn(random.Random(seed), in_a_row):
            node = succeeded(run, node, moment, asleep)
        for commit in run.state.restore_candidates():
            try:
                verify(run.store, commit)
            except CheckpointDamaged:  # the last agent goes on meanwhile, and retires what it has better ones of
                assert run.state.is_retired(commit.number)
    finally:
        run.close()


def drawn(rng: random.Random, count: int) -> list[tuple[str, tuple[str, ...]]]:
    return [(rng.choice(MOMENTS), rng.choice(ASLEEP)) for _ in range(count)]


def test_three_zombies_are_one_of_each_kind() -> None:
    moments, asleep = zip(*drawn(random.Random(SEED), 3), strict=True)
    assert (set(moments), set(asleep)) == (set(MOMENTS), set(ASLEEP))


def succeeded(run: AgentRun, node: Node, moment: str, asleep: tuple[str, ...]) -> Node:
    """Stop a node's processes, let another take over and commit, wake them up; the other node."""
    attempt = eventually(lambda: commits_of(run, run.state.current_attempt) and run.state.current_attempt)
    if moment == "uploading":
        eventually(lambda: node.status().get("upload"))
    sleepers = [node.agent_pid() if name == "agent" else node.trainer_pid() for name in asleep]
    for pid in sleepers:
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
    run.write(ev.DrainRequested(attempt=attempt, reason="test"))
    successor = run.launch()
    eventually(lambda: run.state.current_attempt != attempt and commits_of(run, run.state.current_attempt))
    taken_over = run.state.current_attempt
    for pid in sleepers:
        with contextlib.suppress(ProcessLookupError):  # its agent, awake again, may have ended a trainer already
            os.kill(pid, signal.SIGCONT)
    node.powers_off()
    assert [number for number in commits_of(run, attempt) if number > taken_over] == [], "a zombie committed"
    return successor


def commits_of(run: AgentRun, attempt: int | None) -> list[int]:
    return [commit.number for commit in run.state.commits if commit.event.attempt == attempt]
