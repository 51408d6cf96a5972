"""The context of an agent: the run and the launch for which it works, and the objects that all its parts use."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from spotrun.agent.inbox import Inbox
from spotrun.agent.logs.console import Console, LogShipper
from spotrun.agent.logs.secret_values import Secrets
from spotrun.agent.machine.gpus import Gpus
from spotrun.agent.notices import NoticeWatcher
from spotrun.agent.recorder import Recorder
from spotrun.agent.status import Heartbeat, Status
from spotrun.clock import Clock, clock_from_environment
from spotrun.clouds.registry import cloud_of
from spotrun.container.engine import FILE as CONTAINER
from spotrun.container.engine import Container
from spotrun.folder import ranks_secret
from spotrun.folder.ledger import Ledger
from spotrun.run.events import RunCreated, SetUp
from spotrun.run.gang import MemberName
from spotrun.spec.model import RunSpec
from spotrun.store.atomic_write import write_atomically
from spotrun.store.opening import open_store
from spotrun.store.port import Store


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """
    The run and the launch for which an agent works. They are read from environment variables that the instance's
    user-data sets.

    `member` is the index of this instance among the instances of its launch, and `address` is the address at which the
    other instances reach it. `member` is None if the launch has only one instance.
    """

    run_uri: str
    run_uid: str
    launch: int
    instance_id: str
    folder: Path
    member: int | None = None
    address: str = ""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Assignment:
        return cls(
            run_uri=environment["SPOTRUN_RUN"],
            run_uid=environment["SPOTRUN_RUN_UID"],
            launch=int(environment["SPOTRUN_LAUNCH"]),
            instance_id=environment["SPOTRUN_INSTANCE_ID"],
            folder=Path(environment["SPOTRUN_INSTANCE_DIR"]),
            member=int(environment["SPOTRUN_MEMBER"]) if "SPOTRUN_MEMBER" in environment else None,
            address=environment.get("SPOTRUN_MEMBER_ADDRESS", ""),
        )

    @property
    def name(self) -> MemberName:
        return MemberName(self.launch, self.member or 0)

    @property
    def work(self) -> Path:
        return self.folder / "work"

    @property
    def files_before(self) -> Path:
        """
        The file that records what the work folder contained before the script began (spotrun/folder/work_files.py).
        """
        return self.folder / "files-before.json"

    @property
    def trainer_mark(self) -> Path:
        return self.folder / "trainer.json"

    @property
    def training_mark(self) -> Path:
        """A file that exists once a training has begun in the work folder."""
        return self.folder / "training"

    @property
    def container_mark(self) -> Path:
        """The file that contains the name of this instance's container. It remains after the container has ended."""
        return self.folder / CONTAINER


@dataclass
class AgentContext:
    assignment: Assignment
    clock: Clock
    store: Store
    recorder: Recorder
    inbox: Inbox
    status: Status
    console: Console
    created: RunCreated
    spec: RunSpec
    secrets: Secrets
    booted_at: datetime
    heartbeat: Heartbeat
    shipper: LogShipper
    watcher: NoticeWatcher
    ranks_secret: str = field(repr=False)
    setup: SetUp | None = None
    container: Container | None = None

    @classmethod
    def open(cls, assignment: Assignment) -> AgentContext:
        """
        Read the ledger and make the context. To start the context's threads, call `start`.

        Raises:
            RunNotFound, StoreError: the run does not exist, or cannot be read.
        """
        clock = clock_from_environment()
        store = open_store(assignment.run_uri)
        ledger = Ledger(store, assignment.run_uid, f"agent:{assignment.name.place}", clock)
        created = ledger.refresh().created
        inbox = Inbox()
        spec = RunSpec.from_dict(created.spec)
        secrets = Secrets.of(spec, os.environ)
        status = Status(assignment.folder)
        console = Console(assignment.folder, secrets.redaction(spec, assignment.folder))
        return cls(
            assignment=assignment,
            clock=clock,
            store=store,
            recorder=Recorder(ledger, clock, inbox, console.clean),
            inbox=inbox,
            status=status,
            console=console,
            created=created,
            spec=spec,
            secrets=secrets,
            booted_at=_booted_at(assignment.folder / "booted-at", clock),
            heartbeat=Heartbeat(store, clock, assignment.name, status, console, Gpus({**os.environ, **spec.envs})),
            shipper=LogShipper(store, clock, console, assignment.name.place),
            watcher=NoticeWatcher(cloud_of(spec).notice_sources(os.environ, clock), clock, inbox, console.note),
            ranks_secret=ranks_secret.new() if assignment.member is None else ranks_secret.of_gang(store),
        )

    def start(self) -> None:
        self.recorder.start()
        self.heartbeat.start()
        self.shipper.start()
        self.watcher.start()

    def close(self) -> None:
        self.watcher.stop()
        self.shipper.stop()
        self.heartbeat.stop()
        self.recorder.stop()
        if self.container is not None:
            self.container.close()

    def note(self, text: str) -> None:
        """Write a line for users, both to the training's log and to the instance's console."""
        self.console.note(text)
        print(f"spotrun: {self.console.clean(text)}", file=sys.stderr, flush=True)


def _booted_at(path: Path, clock: Clock) -> datetime:
    """
    Return the time at which the first agent of this instance began. That agent stores it in the file `path`; later
    agents read it.
    """
    if not path.exists():
        write_atomically(path, clock.now().isoformat().encode())
    return datetime.fromisoformat(path.read_text())
