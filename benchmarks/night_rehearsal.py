"""
Provides an AWS account with a night on this machine: instances execute their user-data, EventBridge calls the function.

    with night_rehearsal(archive, folder, monkeypatch) as rehearsal: ...

The rules are moto's, with the pattern that the function writes. Each matching event calls the function at once. A call
that finds all execution environments busy starts another one, as AWS Lambda does. Time is real.
"""

from __future__ import annotations

import io
import os
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import boto3
import pytest
from moto.events.models import events_backends
from werkzeug.wrappers import Request

from spotrun.agent.inbox import NoticeHeard
from spotrun.agent.notices import NoticeWatcher
from spotrun.clock import ScaledClock
from spotrun.clouds.aws import night_stack, nights
from spotrun.clouds.aws.night_alarm import NEWS, WARNING, name_of
from spotrun.clouds.aws.notices import Ec2Notices
from spotrun.clouds.local.config import NOTICE
from spotrun.clouds.nights import Function
from spotrun.folder.ledger import Ledger
from spotrun.instance import Instance
from spotrun.runs.open_run import OpenRun
from tests.support import called_spotrun
from tests.support.aws_templates import Template
from tests.support.ec2_machines import Identity, RoleMetadata
from tests.support.ec2_server import ACCOUNT, IMAGE_PARAMETER, REGION, TYPES
from tests.support.lambda_runtime import LambdaRuntime
from tests.support.night_account import BUCKET, STORE, NightAccount
from tests.support.played_agent import Agent
from tests.support.repository import JOBS

NIGHT = "stormy"
MINUTE_S = 60.0
_ACTION = re.compile(r"(?:^|&)Action=(\w+)")
_, REBALANCE, STATE_CHANGE = NEWS
_BIN = Path(sys.executable).parent
_CPU_GROUPS = Path("/sys/fs/cgroup/cpu")
_PERIOD_US = 20_000


class Served(NamedTuple):
    """A call that the account has answered: its caller, and its beginning and end by the monotonic clock."""

    who: str
    action: str
    began_s: float
    ended_s: float


class Called(NamedTuple):
    """A call of the function; `cold` if its execution environment was new."""

    kind: str
    began_s: float
    ended_s: float
    cold: bool


class Environments:
    """The execution environments of one function. Each gets `share` of a processor, or all it can if that is None."""

    def __init__(self, new: Callable[[Path], LambdaRuntime], folder: Path, share: float | None) -> None:
        self._new, self._folder, self._share = new, folder, share
        self._idle: list[LambdaRuntime] = []
        self._all: list[LambdaRuntime] = []
        self._lock = threading.Lock()
        self._groups: list[Path] = []
        self.called: list[Called] = []

    def call(self, event: dict[str, Any]) -> Any:
        began_s = time.monotonic()
        with self._lock:
            found = self._idle.pop() if self._idle else None
        used = found or self._another()
        try:
            return used.call(event)
        finally:
            kind = str(event.get("detail-type", event.get("kind")))
            self.called.append(Called(kind, began_s, time.monotonic(), cold=found is None))
            with self._lock:
                self._idle.append(used)

    def _another(self) -> LambdaRuntime:
        with self._lock:
            number = len(self._all)
            folder = self._folder / str(number)
            folder.mkdir(parents=True)
            if number:  # what is unpacked is the same
                for name in ("task", "client"):
                    (folder / name).symlink_to(self._folder / "0" / name)
            made = self._new(folder).__enter__()
            self._all.append(made)
        if self._share is not None:
            made.begins = self._narrowed(number)
        return made

    def _narrowed(self, number: int) -> Callable[[int], None]:
        """Limit an environment to its share by a cgroup. Lambda assigns processor time in proportion to memory."""
        group = _CPU_GROUPS / f"spotrun-{os.getpid()}-{number}"
        group.mkdir()
        self._groups.append(group)
        (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(int((self._share or 1) * _PERIOD_US)))
        return lambda pid: (group / "cgroup.procs").write_text(str(pid)) and None

    def close(self) -> None:
        for each in self._all:
            each.__exit__(None, None, None)
        for group in self._groups:
            group.rmdir()

    @property
    def log(self) -> str:
        return "".join(each.log for each in self._all)


class PlayedMachine:
    """An instance whose agent the benchmark plays."""

    def __init__(self, metadata: RoleMetadata) -> None:
        self.metadata = metadata
        metadata.start()

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        """Do nothing: the played agent ends the instance."""

    def power_off(self) -> None:
        """Do nothing: no process runs."""


class PlayedAgent(Agent):
    """A played agent that polls the metadata service for its notice, as a real agent does."""

    def __init__(self, run: OpenRun, metadata: RoleMetadata) -> None:
        super().__init__(Ledger(run.store, run.created.uid, "agent", run.clock), run.store, run.clock)  # type: ignore[arg-type]
        source = Ec2Notices(metadata.endpoint, run.clock)
        self._watcher = NoticeWatcher([source], run.clock, self, lambda _: None)  # type: ignore[arg-type]
        self._watcher.start()

    def put(self, letter: NoticeHeard) -> None:
        """Receive what the watcher sends to an agent's main loop."""
        if letter.kind == "termination" and letter.deadline_at is not None:
            self.is_told(letter.deadline_at)

    def goes(self) -> None:
        self._watcher.stop()
        self.drains("notice")


class RehearsedAccount(NightAccount):
    """
    Each environment of the function has `share` of a processor. Instances run with the priority `nice`; `played`
    instances have a metadata service and no processes.
    """

    def __init__(self, clock: ScaledClock, folder: Path, share: float | None, nice: int, *, played: bool) -> None:
        super().__init__(clock, folder)
        self._nice, self._played = nice, played
        self.environments = Environments(self._new_environment, folder / "environments", share)
        self.served: list[Served] = []
        self._with_agent: set[int] = set()
        self._is_over = threading.Event()
        self._calls: list[threading.Thread] = []

    def __exit__(self, *facts: object) -> None:
        self._is_over.set()
        for each in self._calls:
            each.join(60)
        self.environments.close()
        super().__exit__(*facts)

    def run(self, event: dict[str, Any]) -> Any:
        return self.environments.call(event)

    def _new_environment(self, folder: Path) -> LambdaRuntime:
        return self._new_function(folder)

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        began_s = time.monotonic()
        request = Request(environ)
        body = request.get_data()
        environ["wsgi.input"] = io.BytesIO(body)
        agent = request.headers.get("User-Agent", "")
        who = next((who for who in ("spotrun-night", "spotrun-run") if f"app/{who}" in agent), "")
        answer = super()._answer(environ, start_response)
        if who or self._played:
            named = _ACTION.search(body[:10_000].decode("latin-1"))
            action = f"{request.method} {request.path}" if named is None else named[1]
            self.served.append(Served(who, action, began_s, time.monotonic()))
        return answer

    def _boot(self, instance: Instance, user_data: bytes, role: str) -> None:
        """Start the instance with the priority `nice`: on Linux a process inherits the priority of the thread."""
        if self._played:
            machine = PlayedMachine(RoleMetadata(instance, Identity(role, *self.credentials), self.clock))
            self._machines[instance.instance_id] = machine  # type: ignore[assignment]
            return
        os.setpriority(os.PRIO_PROCESS, 0, self._nice)
        try:
            super()._boot(instance, user_data, role)
        finally:
            os.setpriority(os.PRIO_PROCESS, 0, 0)

    # -- EventBridge -------------------------------------------------------------------------------------------------

    def interrupt(self, instance_id: str, notice: timedelta | None = NOTICE) -> None:
        super().interrupt(instance_id, notice)
        if notice is not None:
            self._tell(REBALANCE, instance_id, {})
            self._tell(WARNING, instance_id, {"instance-action": "terminate"})

    def _end(self, instance_id: str, reason: str) -> None:
        is_news = instance_id not in self._ends
        super()._end(instance_id, reason)
        for state in ("shutting-down", "terminated") if is_news else ():
            self._tell(STATE_CHANGE, instance_id, {"state": state})

    def _tell(self, kind: str, instance_id: str, facts: dict[str, str]) -> None:
        """
        Deliver an event to the function, if the rule matches it.

        https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html shows such an event.
        """
        event = {
            "version": "0",
            "id": str(uuid.uuid4()),
            "detail-type": kind,
            "source": "aws.ec2",
            "account": ACCOUNT,
            "time": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
            "region": REGION,
            "resources": [f"arn:aws:ec2:{REGION}:{ACCOUNT}:instance/{instance_id}"],
            "detail": {"instance-id": instance_id, **facts},
        }
        rule = events_backends[ACCOUNT][REGION].event_buses["default"].rules.get(name_of(NIGHT))
        if rule is not None and rule.state == "ENABLED" and rule.event_pattern.matches_event(event):  # type: ignore[arg-type]
            self._call_soon(event)

    def agent_of(self, run: OpenRun) -> PlayedAgent | None:
        """Return an agent for the newest recorded instance, or None if that instance has one already."""
        launches = [each for each in run.ledger.refresh().launches.values() if each.recorded is not None]
        if not launches or launches[-1].number in self._with_agent:
            return None
        recorded = launches[-1].recorded
        assert recorded is not None
        self._with_agent.add(launches[-1].number)
        return PlayedAgent(run, self._machines[recorded.instance_id].metadata)

    def fire_each_minute(self) -> None:
        """Call the function each minute, while its schedule `tick` is enabled."""
        threading.Thread(target=self._fire, daemon=True).start()

    def _fire(self) -> None:
        while not self._is_over.wait(MINUTE_S):
            if self.schedule("tick", NIGHT)["State"] == "ENABLED":
                self._call_soon({"kind": "tick"})

    def _call_soon(self, event: dict[str, Any]) -> None:
        if not self._is_over.is_set():
            self._calls.append(threading.Thread(target=self.run, args=(event,), daemon=True))
            self._calls[-1].start()


class NightRehearsal:
    """An account with a job that trains until it is stopped."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, account: RehearsedAccount) -> None:
        self.account, self._folder, self._patch = account, folder, patch

    @property
    def log(self) -> str:
        return self.account.environments.log

    def install(self) -> None:
        """Call `spotrun night install`."""
        job = self._folder / "job.yaml"
        job.write_text(
            f"name: {NIGHT}\nworkdir: {JOBS}\n"
            "train: {script: quick.py, args: [--epochs, '100000', --step-s, '0.1']}\n"
            f"checkpoint: {{uri: '{STORE}', every: 30s}}\nresources: {{cloud: aws, spot_policy: spot}}\n"
            f"aws: {{instance_types: {list(TYPES)}, image_parameter: {IMAGE_PARAMETER}, "
            "launch_template: spotrun-node}\n"
        )
        with self.account.as_administrator():
            said = called_spotrun.call(self._patch, "night", "install", str(job), "--at", "22:00 UTC", "-y")
        assert said.code == 0, said.err


@contextmanager
def night_rehearsal(
    archive: bytes,
    folder: Path,
    patch: pytest.MonkeyPatch,
    share: float | None = None,
    nice: int = 0,
    *,
    played: bool = False,
) -> Iterator[NightRehearsal]:
    """Yield a rehearsal. All its processes end with the context."""
    function = Function(archive, "python{}.{}".format(*sys.version_info), "x86_64")
    with RehearsedAccount(
        ScaledClock(datetime.now(UTC), 1.0), folder / "function", share, nice, played=played
    ) as account:
        account.reach(patch)
        patch.setattr(nights, "function_of_this_installation", lambda: function)
        patch.setattr(night_stack, "POLL_S", 0.01)
        account.template = Template("account", BucketName=BUCKET, RunsPrefix="runs")
        account.furnish()
        account.deploy_region()
        with account.as_administrator():
            boto3.client("s3").create_bucket(Bucket=BUCKET)
        account.tools = {"aws": f'#!/bin/bash\nexec "{sys.executable}" -m awscli "$@"\n'}
        (folder / "home").mkdir()
        account.image = {
            "AWS_ENDPOINT_URL": account.url,
            "PATH": f"{_BIN}:{os.defpath}",
            "AWS_METADATA_SERVICE_TIMEOUT": "20",  # SDKs wait 1 s for credentials, which a busy machine may take
            "AWS_METADATA_SERVICE_NUM_ATTEMPTS": "3",
            "OMP_NUM_THREADS": "1",
            "HOME": str(folder / "home"),
        }
        yield NightRehearsal(folder, patch, account)
