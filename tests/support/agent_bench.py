"""A run with a hand-written ledger, and real agents on instances that are a folder and a metadata server."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from msgspec import UNSET

from spotrun.clock import ScaledClock
from spotrun.clouds.local.metadata import MetadataService
from spotrun.clouds.local.processes import carrying, kill_all
from spotrun.folder import workdir
from spotrun.folder.ledger import Ledger
from spotrun.instance import Instance, InstanceState
from spotrun.run import events as ev
from spotrun.run.billing import LOCAL_RULE
from spotrun.run.state import RunState
from spotrun.spec.model import RunSpec
from spotrun.store.opening import open_store
from tests.support.eventually import eventually
from tests.support.histories import FREE_STORAGE, History, gone, intended, offering
from tests.support.own_networks import Networks

UID = "0123456789"
SCALE = 60.0
E = TypeVar("E", bound=ev.Event)


class AgentRun:
    """
    One run. `job` goes to played_trainer.py; `spec` are more keys of the spec. Time passes `scale` times as fast.

    The run is below `runs_uri`; below `folder` unless told otherwise. Member N of its launch is in the Nth of
    `networks`, if there are any.
    """

    def __init__(
        self,
        folder: Path,
        job: dict[str, Any] | None = None,
        *,
        runs_uri: str | None = None,
        scale: float = SCALE,
        billing: ev.BillingRule = LOCAL_RULE,
        networks: Networks | None = None,
        accelerators: str = "",
        **spec: Any,
    ) -> None:
        self.folder = folder
        self.trace = folder / "trace"
        self.networks = networks
        self.accelerators = accelerators
        self.clock = ScaledClock(datetime.now(UTC), scale)
        self.store = open_store(f"{runs_uri or folder / 'runs'}/demo-{UID}")
        self.ledger = Ledger(self.store, UID, "test", self.clock)
        self.nodes: list[Node] = []
        work = folder / "source"
        work.mkdir()
        shutil.copy(Path(__file__).parent / "played_trainer.py", work)
        text = json.dumps({"steps": 60, "epoch_steps": 30, "trace": str(self.trace)} | (job or {}))
        train = {"script": "played_trainer.py", "args": [text]}
        keys = {"name": "demo", "workdir": str(work), "train": train, "checkpoint": {"every": "30s"}} | spec
        for name, script in keys.pop("files", {}).items():
            (work / name).write_text(script)
        resolved = RunSpec.from_dict(keys)
        created = History(
            FREE_STORAGE,
            ledger_version=ev.version_for(resolved.num_nodes, elastic=resolved.elastic is not None),
            spec=resolved.to_dict(),
            spec_sha256=resolved.spec_sha256,
            workdir_sha256=workdir.upload(self.store, work),
            clock_epoch=self.clock.epoch,
            time_scale=scale,
            billing=billing,
        )
        self.ledger.create(created.state.created)

    def write(self, event: ev.AnyEvent) -> int:
        entry = self.ledger.append(lambda _: event)
        assert entry is not None
        return entry.number

    def launch(self) -> Node:
        """Intend a launch, a standby where an attempt is current, and boot its instance."""
        node = Node(self, self._intend(standby_for=self.state.current_attempt))
        self.nodes.append(node)
        return node

    def launch_members(self, count: int) -> list[Node]:
        """Those of a gang, or of what it has lost."""
        attempts = self.state.attempts.values()
        number = self._intend(count=count, for_gang=attempts[-1].number if attempts else None)
        nodes = [Node(self, number, member) for member in range(count)]
        self.nodes += nodes
        return nodes

    def _intend(self, **fields: Any) -> int:
        return self.write(intended(offering(accelerators=self.accelerators), self.clock.now(), "1", **fields))

    def lost(self, node: Node) -> None:
        """The runner has read that the cloud took it."""
        at = self.clock.now()
        member = UNSET if node.member is None else node.member
        self.write(gone(node.launch, at, member=member, instance_id=node.instance_id, billed_from=at))

    @property
    def state(self) -> RunState:
        return self.ledger.refresh()

    def seen(self, kind: type[E]) -> list[E]:
        """The accepted events of that kind."""
        state = self.state
        voids = {void.number for void in state.voids}
        return [e.event for e in self.ledger.entries if isinstance(e.event, kind) and e.number not in voids]

    def wait_for(self, kind: type[E], count: int = 1, within_s: float = 60.0) -> E:
        def found() -> E | None:
            seen = self.seen(kind)
            return seen[count - 1] if len(seen) >= count else None

        event = eventually(found, within_s)
        assert event is not None
        return event

    def steps_done(self) -> list[tuple[int, int]]:
        """(process, step) of every step, in the order in which they were done."""
        if not self.trace.exists():
            return []
        return [(int(pid), int(step)) for pid, step in map(str.split, self.trace.read_text().splitlines())]

    def log(self, node: Node) -> str:
        chunks = self.store.list(f"logs/{node.place.removesuffix('.0')}/")
        return b"".join(self.store.get(chunk.key) for chunk in chunks).decode()

    def close(self) -> None:
        for node in self.nodes:
            node.close()


Start = Callable[..., AgentRun]
"""What begins one: with the job of its trainer, and keys of the spec."""


class Node:
    """An instance: its folder, its metadata, and a bootstrap that runs. Of a gang it is a `member`."""

    def __init__(self, run: AgentRun, launch: int, member: int | None = None) -> None:
        self.run = run
        self.launch = launch
        self.member = member
        self.place = str(launch) if member is None else f"{launch}.{member}"
        self.instance_id = f"i-{os.getpid()}-{id(run)}-{self.place}"
        self.folder = run.folder / f"instance-{self.place}"
        self.folder.mkdir()
        instance = Instance(
            instance_id=self.instance_id,
            token="t",
            run_uid=UID,
            launch=launch,
            offering=offering(accelerators=run.accelerators),
            state=InstanceState.RUNNING,
            launched_at=run.clock.now(),
        )
        self.metadata = MetadataService(instance, run.clock)
        self.metadata.start()
        if run.networks is not None:
            run.networks.lead_out(member or 0, int(self.metadata.endpoint.rstrip("/").rpartition(":")[2]))
        self.console = self.folder / "console.log"
        self.boot()

    def boot(self) -> None:
        environment = {
            **os.environ,
            **self.run.clock.environment(),
            "SPOTRUN_RUN": self.run.store.uri,
            "SPOTRUN_RUN_UID": UID,
            "SPOTRUN_LAUNCH": str(self.launch),
            "SPOTRUN_INSTANCE_ID": self.instance_id,
            "SPOTRUN_INSTANCE_DIR": str(self.folder),
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": self.metadata.endpoint,
            "OMP_NUM_THREADS": "1",
            **({} if self.member is None else self._of_member()),
        }
        inside = [] if self.run.networks is None else self.run.networks.prefix(self.member or 0)
        with self.console.open("ab") as console:
            self.bootstrap = subprocess.Popen(
                [*inside, sys.executable, "-P", "-m", "spotrun.agent.bootstrap"],
                env=environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
            )

    def _of_member(self) -> dict[str, str]:
        networks, address = self.run.networks, f"127.77.{self.launch % 256}.{self.member}"
        return {
            "SPOTRUN_MEMBER": str(self.member),
            "SPOTRUN_MEMBER_ADDRESS": address if networks is None else networks.address(self.member or 0),
            "GLOO_SOCKET_IFNAME": "lo" if networks is None else "eth0",
        }

    def is_taken(self) -> None:
        """It and all that it ran are gone."""
        self.bootstrap.send_signal(signal.SIGKILL)
        self.bootstrap.wait(10)
        kill_all(lambda: carrying("SPOTRUN_INSTANCE_ID", self.instance_id))

    def powers_off(self, within_s: float = 60.0) -> None:
        try:
            assert self.bootstrap.wait(within_s) == 0, self.console.read_text()
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still on:\n{self.console.read_text()}") from None
        assert not carrying("SPOTRUN_INSTANCE_ID", self.instance_id), "processes are left"

    def agent_pid(self) -> int | None:
        children = Path(f"/proc/{self.bootstrap.pid}/task/{self.bootstrap.pid}/children").read_text().split()
        return int(children[0]) if children else None

    def trainer_pid(self) -> int:
        return json.loads((self.folder / "trainer.json").read_text())["pid"]

    def status(self) -> dict[str, Any]:
        path = self.folder / "status.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def notice(self, seconds: float) -> None:
        """The cloud takes the instance after so much run time."""
        self.metadata.give_notice(self.run.clock.now() + timedelta(seconds=seconds))

    def close(self) -> None:
        if self.bootstrap.poll() is None:
            self.bootstrap.send_signal(signal.SIGKILL)
            self.bootstrap.wait(10)
        kill_all(lambda: carrying("SPOTRUN_INSTANCE_ID", self.instance_id))
        self.metadata._server.shutdown()
        self.metadata._server.server_close()
