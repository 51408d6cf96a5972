"""
Publishes the agent's state: in `status.json` on the instance's disk, after each change; and in the agent's status
object in the store, every few seconds.
"""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import asdict, replace

from spotrun.agent.logs.clean_texts import cleaned
from spotrun.agent.logs.console import Console
from spotrun.agent.machine.gpus import Gpus
from spotrun.agent.machine.usage import DataWait, Machine
from spotrun.clock import Clock
from spotrun.errors import unless_no_room
from spotrun.folder.status_objects import BEAT_EVERY_MIN_S, BEAT_EVERY_S, AgentStatus, Busy, agent_key, write_status
from spotrun.run.gang import MemberName
from spotrun.store.atomic_write import write_atomically
from spotrun.store.port import Store
from spotrun.trainer_link import Progress


class Upload(msgspec.Struct, frozen=True):
    sent_bytes: int
    size_bytes: int


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The content of status.json. Epochs count from 0."""

    phase: str = "boot"
    attempt: int | None = None
    epoch: int = 0
    batch: int = 0
    batches: int = 0
    step: int = 0
    upload: Upload | None = None


class Status:
    """The state of this agent, as users and runners see it. Any thread can call `change`."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "status.json"
        self._lock = threading.Lock()
        self.node = NodeStatus()
        self.facts: dict[str, Any] = {}
        """Further fields of the status object: epochs, metrics, step_s, stall_s, commit_s."""
        self.data_wait = DataWait()

    def change(self, **changes: Any) -> None:
        with self._lock:
            self.node = replace(self.node, **changes)
            with unless_no_room():  # only users of the instance read the file; the agent keeps the state in memory
                write_atomically(self._path, msgspec.json.encode(self.node))

    def progress(self, at: Progress) -> None:
        self.facts |= {"epochs": at.epochs, "metrics": at.metrics}
        self.change(epoch=at.epoch, batch=at.batch, batches=at.batches, step=at.step)


class Heartbeat:
    """A thread that overwrites the agent's status object at intervals, even if nothing has changed."""

    def __init__(
        self, store: Store, clock: Clock, name: MemberName, status: Status, console: Console, gpus: Gpus
    ) -> None:
        self._store = store
        self._clock = clock
        self._name = name
        self._status = status
        self._console = console
        self._machine = Machine()
        self._gpus = gpus
        self._sequence = 0
        self._stop = threading.Event()
        self._now = threading.Event()
        self._thread = threading.Thread(target=self._work, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._gpus.start()
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and write the last status."""
        self._gpus.stop()
        self._stop.set()
        self._now.set()
        self._thread.join(5)
        self._beat()

    def beat_now(self) -> None:
        """Write the status object now, before the next heartbeat is due."""
        self._now.set()

    def _work(self) -> None:
        every_s = max(BEAT_EVERY_MIN_S, BEAT_EVERY_S / self._clock.scale)
        while not self._stop.is_set():
            self._now.wait(every_s * random.uniform(1.0, 1.2))
            self._now.clear()
            if not self._stop.is_set():
                self._beat()

    def _beat(self) -> None:
        self._sequence += 1
        node = asdict(self._status.node)
        del node["upload"]
        usage = self._machine.usage(self._gpus.newest, trains=node["phase"] == "train")
        trained = self._status.data_wait.trained
        used = replace(self._machine.used, waited=Busy(busy_s=trained.waited_s, of_s=trained.seconds))
        status = AgentStatus(
            launch=self._name.launch,
            member=self._name.member,
            at=self._clock.now(),
            sequence=self._sequence,
            console_tail=self._console.tail(),
            usage=usage,
            used=used.times(self._clock.scale),
            trained=trained.times(self._clock.scale),
            **node,
            **self._status.facts,
        )
        write_status(self._store, agent_key(self._name.launch, self._name.member), cleaned(status, self._console.clean))
