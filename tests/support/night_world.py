"""
Nights in virtual time: a plain AWS account, EventBridge as it says that it calls, and the function of a night as AWS
runs it. Nobody's laptop is there.

    world = NightWorld(monkeypatch, tmp_path)
    world.install(at="22:00", zone="Europe/Berlin")
    world.passes(days=7)

The function, its runner, driver, guards, identities and alarm are the real ones. An agent is played on each instance.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from msgspec.structs import replace

from spotrun.address import BucketAddress
from spotrun.boot import upload
from spotrun.boot.wheel import Wheel
from spotrun.clouds.aws.calls import Region
from spotrun.clouds.aws.cloud import Aws
from spotrun.clouds.aws.night_alarm import BEGIN, BEGIN_AGAIN, TICK, WARNING, AwsAlarm, name_of
from spotrun.clouds.aws.nights import FUNCTION_S, expression, expression_again
from spotrun.clouds.nights import Alarm
from spotrun.errors import SpotrunError, StoreError
from spotrun.folder.ledger import Ledger
from spotrun.folder.night import Night, Pin, pin_for
from spotrun.folder.night_record import BegunNight, NightRecord
from spotrun.folder.run_calls import Calls, read_calls
from spotrun.night.counts import CallCounter
from spotrun.night.function import Answer, Attendant
from spotrun.run.state import RunState
from spotrun.runner import creation
from spotrun.runs import open_run as runs
from spotrun.spec.model import RunSpec
from spotrun.store import opening, s3
from spotrun.store.port import StoredObject
from spotrun.store.request_counts import RequestCounts
from tests.support.memory_store import MemoryStore
from tests.support.plain_aws import REGION, TYPE, PlainAws, refusal
from tests.support.plain_run import Account, LivedClock, misbooked
from tests.support.played_agent import Agent, Script
from tests.support.world.faults import Killed

STORE = "s3://bucket/runs"
NAME = "resnet50"
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
MINUTE_S = 60.0
BOOTS_S, SAVES_EVERY_S = 180.0, 600.0
RETRIED_AFTER_MIN = (1, 3)
"""https://docs.aws.amazon.com/lambda/latest/dg/invocation-async-error-handling.html"""
GIVEN_UP_AFTER_MIN = 10
"""MaximumEventAgeInSeconds in night.yaml."""
LASTS_S, STARTS_S = 0.5, 6.0
"""What a call of the function takes, and the start of an environment. Its own clock tells that; this world's stands."""


class WorldClock(LivedClock):
    """The clock of everybody; a run that begins has its epoch now."""

    @property
    def epoch(self) -> datetime:
        return self.now()


class Bucket:
    """What lies under a prefix of a store that is plain objects. `before` is asked ahead of each call."""

    def __init__(self, inner: MemoryStore, place: BucketAddress, before: Callable[[str], None]) -> None:
        self.uri = str(place)
        self._inner, self._before = inner, before
        self._root = f"{place.prefix}/"

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self._before("put_if_absent")
        return self._inner.put_if_absent(self._root + key, data)

    def put(self, key: str, data: bytes | memoryview) -> bool:
        self._before("put")
        return self._inner.put(self._root + key, data)

    def put_status(self, key: str, data: bytes) -> None:
        self._before("put_status")
        self._inner.put_status(self._root + key, data)

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        self._before("get")
        return self._inner.get(self._root + key, start, size)

    def list(self, prefix: str, after: str = "") -> list[StoredObject]:
        self._before("list")
        found = self._inner.list(self._root + prefix, self._root + after if after else "")
        return [replace(each, key=each.key.removeprefix(self._root)) for each in found]

    def folders(self) -> tuple[str, ...]:
        self._before("list")
        below = (key.removeprefix(self._root) for key in [*self._inner.objects] if key.startswith(self._root))
        return tuple(sorted({key.split("/")[0] for key in below if "/" in key}))

    def delete(self, key: str) -> None:
        self._before("delete")
        self._inner.delete(self._root + key)


class CallingAws(PlainAws):
    """The same account with EventBridge: one schedule that is switched, and one rule that is written."""

    def __init__(self, clock: WorldClock) -> None:
        super().__init__(clock)
        self.minutes = "DISABLED"
        self.due = dict.fromkeys((BEGIN, BEGIN_AGAIN), "ENABLED")
        self.listens = False
        self.pattern = ""

    def answer(self, operation: str, asked: dict[str, Any], patience: Any, region: str) -> Any:
        own = {"get_schedule": self._schedule, "update_schedule": self._switched, "put_rule": self._listened}
        if operation not in own:
            return super().answer(operation, asked, patience, region)
        self.calls.append((operation, patience))
        self.fault(operation)
        return own[operation](asked)

    def _schedule(self, asked: dict[str, Any]) -> dict[str, Any]:
        assert asked["GroupName"] == name_of(NAME)
        return {
            **asked,
            "State": {TICK: self.minutes, **self.due}[asked["Name"]],
            "ScheduleExpression": "rate(1 minute)",
            "FlexibleTimeWindow": {"Mode": "OFF"},
            "Target": {"Arn": "arn", "RoleArn": "role"},
            "CreationDate": self.clock.now(),
        }

    def _switched(self, asked: dict[str, Any]) -> dict[str, Any]:
        assert asked["ScheduleExpression"] == "rate(1 minute)"
        assert "CreationDate" not in asked
        assert asked["State"] in ("ENABLED", "DISABLED")
        self.minutes = asked["State"]
        return {"ScheduleArn": "arn"}

    def _listened(self, asked: dict[str, Any]) -> dict[str, Any]:
        self.listens, self.pattern = asked["State"] == "ENABLED", asked["EventPattern"]
        return {"RuleArn": "arn"}


class Call:
    """One call of the function that is due, and how often it has failed."""

    def __init__(self, at: datetime, event: dict[str, Any], tries: int = 0) -> None:
        self.at, self.event, self.tries = at, event, tries
        self.first_at = at


class NightWorld:
    """
    On AWS. `work_hours` is how long a training takes without interruptions. `answers` are those of all calls that came
    to an end; `said` what went wrong in the others. `asked` counts the requests of the function to the store.
    """

    store, cloud, region = STORE, "aws", REGION
    where: Mapping[str, Any] = {
        "aws": {"regions": [REGION], "instance_types": [TYPE], "image_parameter": "/spotrun/image"}
    }
    """What the job says of it."""
    memory_mb = 256
    """Of the function."""
    account: Account
    """What it has of the runs, and what it charges."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, folder: Path, start: datetime, work_hours: float = 6.0, seed: int = 0
    ) -> None:
        self.clock = WorldClock(start)
        self.clock.others = self._agents_act
        self.random = random.Random(seed)
        self.work = timedelta(hours=work_hours)
        self._objects = MemoryStore(self.clock)
        self.folder = folder
        self.asked: Counter[str] = Counter()
        self.answers: list[Answer] = []
        self.said: list[str] = []
        self.invoked = self.most_alive = 0
        self.denied = False
        """Nobody may do anything in this account just now."""
        self.throttled = False
        self.kill_in: int | None = None
        """The function is killed at its call of that number from now on."""
        self.hang_in: int | None = None
        """The same, and it is killed only when its time is over."""
        self.beside_in: int | None = None
        """A second copy of the call runs from its beginning to its end at that call."""
        self._calls: list[Call] = []
        self._attendant: Attendant | None = None
        self._counter = CallCounter(self.store, self.memory_mb, STARTS_S, self.clock, self._asked_so_far)
        self._is_inside = False
        self._event: dict[str, Any] = {}
        self._agents: dict[str, Agent] = {}
        self.scripts: dict[str, Script] = {}
        """Of the agents of each run, by its uid: its training takes as long as `work` was when it began."""
        self._ledgers: dict[str, Ledger] = {}
        self._removed = False
        self._begun: list[BegunNight] = []
        self._read_begun = 0
        self._pin: Pin | None = None
        self._open_account(monkeypatch)
        monkeypatch.setattr(runs, "ScaledClock", lambda *_: self.clock)
        monkeypatch.setattr(creation, "_try_out", lambda _: None)
        monkeypatch.setattr(upload, "own_wheel", lambda: Wheel("spotrun-0-py3-none-any.whl", b"a wheel"))

    # -- what differs between clouds ---------------------------------------------------------------------------------

    def _open_account(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.account = self.aws = CallingAws(self.clock)
        self.aws.fault = lambda operation: self._meet("aws", operation)
        self.aws.reach(monkeypatch)
        monkeypatch.setattr(s3, "S3Store", self._opened)
        monkeypatch.setattr(Aws, "clock", lambda *_: self.clock)
        monkeypatch.setattr(Aws, "_require", lambda *_: None)

    def new_alarm(self) -> Alarm:
        return AwsAlarm(Region(REGION, self.clock), NAME)

    @property
    def is_called_each_minute(self) -> bool:
        return self.aws.minutes == "ENABLED"

    @property
    def is_told_of_instances(self) -> bool:
        """Whether what happens to an instance calls the function."""
        return self.aws.listens

    def _as_it_is_made(self) -> None:
        """The call of each minute, after the night was installed anew."""
        self.aws.minutes = "DISABLED"

    def _goes(self) -> None:
        """All that calls is removed."""
        self.aws.minutes, self.aws.listens = "DISABLED", False

    def _denial(self, operation: str) -> Exception:
        return refusal("AccessDenied" if operation not in ("describe_instances",) else "UnauthorizedOperation", 403)

    def _retried_after_min(self, event: Mapping[str, Any]) -> Sequence[int]:
        return RETRIED_AFTER_MIN

    def _fires(self, moment: datetime) -> Iterator[dict[str, Any]]:
        """The calls for a night that are due in this minute."""
        for kind, each in (("begin", expression(self.night)), ("again", expression_again(self.night))):
            if fires(each, self.night.zone, moment):
                yield {"kind": kind, "due": f"{moment:%Y-%m-%dT%H:%M:%SZ}"}

    def _is_spot(self, instance_id: str) -> bool:
        return self.aws.charges[instance_id].is_spot

    def _is_heard_of(self, instance_id: str) -> bool:
        return self.aws.listens and instance_id in self.aws.pattern

    # -- the user ----------------------------------------------------------------------------------------------------

    def install(self, at: str = "22:00", zone: str = "Europe/Berlin", days: tuple[str, ...] = DAYS, **job: Any) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "train.py").write_text("print('hello')\n")
        spec = RunSpec.model_validate(
            {
                "name": NAME,
                "workdir": str(self.folder),
                "train": {"script": "train.py"},
                "resources": {"cloud": self.cloud, "spot_policy": "auto"},
                **self.where,
                "checkpoint": {"uri": self.store},
                "policy": {"on_demand_after": "10m", "return_to_spot": False, "deadline": "8h"},
                "budget": {"max_usd": "15"},
                **job,
            }
        )
        record = NightRecord(self.store, NAME)
        winter = datetime(2026, 1, 1, tzinfo=ZoneInfo(zone)).utcoffset()
        assert winter is not None
        self.night = Night(
            name=NAME,
            spec=spec.model_copy(update={"workdir": "/"}).to_dict(),
            workdir_sha256=record.upload(self.folder),
            at=at,
            zone=zone,
            days=days,
            winter_offset_s=int(winter.total_seconds()),
            cloud=self.cloud,
            region=self.region,
            installed_at=self.clock.now(),
            spotrun="0",
        )
        self._pin = pin_for(self.night, self._pin)
        self._attendant = None
        record.install(self.night)

    @property
    def pin(self) -> Pin:
        """That of the function, once the night is installed."""
        assert self._pin is not None
        return self._pin

    def forget_pin(self) -> None:
        """The function was deleted by hand, or is of a spotrun that pinned nothing."""
        self._pin = None

    def is_removed(self) -> None:
        """The stack is deleted: nobody calls the function any more."""
        self._removed = True
        self._goes()

    def is_deployed_anew(self) -> None:
        """Another version: all that was in memory is gone, and CloudFormation has put the schedule as it was made."""
        self._attendant = None
        self._as_it_is_made()
        self.invoke({"kind": "look"})

    def delete(self, uid: str) -> None:
        """`spotrun rm`."""
        for key in [key for key in self._objects.objects if key.startswith(f"runs/{NAME}-{uid}/")]:
            del self._objects.objects[key]

    # -- time --------------------------------------------------------------------------------------------------------

    def passes(self, minutes: float, each_minute: Callable[[], None] = lambda: None) -> None:
        for _ in range(int(minutes)):
            self._agents_act()
            self._schedules_fire()
            each_minute()
            for call in [each for each in self._calls if each.at <= self.clock.now()]:
                self._calls.remove(call)
                self._deliver(call)
            self._require_no_more_than_needed()
            self.clock.advance(MINUTE_S - self.clock.monotonic() % MINUTE_S)

    def _require_no_more_than_needed(self) -> None:
        """One run at a time, on one instance; one more may stand by to take over from it."""
        states = [state for state in map(self.state, self._lately) if state.terminal is None]
        assert len(states) <= 1, [state.created.uid for state in states]
        takes_over = any(
            state.current is not None and (state.current.notice or state.current.drain or state.pending_launch)
            for state in states
        )
        self.most_alive = max(self.most_alive, len(self.account.alive) - takes_over)

    def is_quiet_until(self, moment: datetime) -> None:
        """Nothing is due before: the minutes of a day are not gone through one by one."""
        assert not self.is_attended or self._removed
        self.clock.advance((moment - self.clock.now()).total_seconds())

    def next_due(self) -> datetime:
        """The next minute in which a schedule for a night fires."""
        moment = self.clock.now()
        while not any(self._fires(moment)):
            moment += timedelta(minutes=1)
        return moment

    @property
    def is_attended(self) -> bool:
        """Whether something is going on: a run that is open, or calls that are due."""
        return self.is_called_each_minute or bool(self._calls)

    def _schedules_fire(self) -> None:
        now = self.clock.now()
        if self._removed:
            return
        self._calls += [Call(now, event) for event in self._fires(now)]
        if self.is_called_each_minute:
            self._calls.append(Call(now, {"kind": "tick"}))

    # -- the function ------------------------------------------------------------------------------------------------

    def is_cold(self) -> None:
        """AWS has taken the function from where it was."""
        self._attendant = None

    def _deliver(self, call: Call) -> None:
        now = self.clock.now()
        if now - call.first_at > timedelta(minutes=GIVEN_UP_AFTER_MIN):
            return
        if self.throttled:
            call.at = now + timedelta(minutes=1)
            self._calls.append(call)
            return
        retried = self._retried_after_min(call.event)
        if not self.invoke(call.event) and call.tries < len(retried):
            call.at = now + timedelta(minutes=retried[call.tries])
            call.tries += 1
            self._calls.append(call)

    def invoke(self, event: dict[str, Any], attendant: Attendant | None = None) -> bool:
        """Whether it came to an end that AWS takes for one."""
        self.invoked += 1
        if self._attendant is None:
            self._attendant = self._new_attendant()
            self._counter = CallCounter(self.store, self.memory_mb, STARTS_S, self.clock, self._asked_so_far)
        was_inside, self._is_inside, self._event = self._is_inside, True, event
        try:
            answer = (attendant or self._attendant).answer(event)
            self.answers.append(answer)
            if attendant is None:
                self._counter.count(event, answer, LASTS_S, 0)
        except (SpotrunError, Killed) as error:
            self.said.append(f"{event.get('kind')}: {type(error).__name__}: {error}")
            self._attendant = None
            return False
        finally:
            self._is_inside = was_inside
        return True

    def _new_attendant(self) -> Attendant:
        return Attendant(self.store, NAME, self.pin, self.new_alarm(), self.clock)

    def _asked_so_far(self) -> RequestCounts:
        asked = self.asked
        return RequestCounts(asked["get"], sum(asked[each] for each in ("list", "put", "put_if_absent", "put_status")))

    def calls(self, uid: str) -> Calls:
        """What the function has counted for a run."""
        found = read_calls(opening.open_store(f"{self.store}/{NAME}-{uid}"))
        assert found is not None
        return found

    def _meet(self, port: str, operation: str) -> None:
        """What happens at a call that the function makes."""
        if not self._is_inside:
            return
        if port == "store":
            self.asked[operation] += 1
        if self.denied:
            if port == "store":
                raise StoreError(f"{operation}: AccessDenied")
            raise self._denial(operation)
        if self.kill_in is not None:
            self.kill_in -= 1
            if self.kill_in < 0:
                self.kill_in = None
                raise Killed
        if self.hang_in is not None:
            self.hang_in -= 1
            if self.hang_in < 0:
                self.hang_in = None
                self.clock.advance(FUNCTION_S)
                raise Killed
        if self.beside_in is not None:
            self.beside_in -= 1
            if self.beside_in < 0:
                self.beside_in = None
                self.invoke(self._event, self._new_attendant())

    def _opened(self, place: BucketAddress) -> Bucket:
        return Bucket(self._objects, place, lambda operation: self._meet("store", operation))

    # -- what EC2 tells ----------------------------------------------------------------------------------------------

    def is_interrupted(self, *, with_notice: bool = True) -> bool:
        """EC2 takes an instance that trains; the rule calls the function. False if none trains on spot."""
        training = self.training
        if training is None or not self._is_spot(training.instance_id):
            return False
        if with_notice:
            if self._is_heard_of(training.instance_id):
                event = {"detail-type": WARNING, "detail": {"instance-id": training.instance_id}}
                self._calls.append(Call(self.clock.now(), event))
            training.is_told_to_go()
        else:
            self._end(training.instance_id)
        return True

    def _end(self, instance_id: str) -> None:
        self.account.interrupt(instance_id)
        if self._is_heard_of(instance_id):
            detail = {"instance-id": instance_id, "state": "terminated"}
            self._calls.append(
                Call(self.clock.now(), {"detail-type": "EC2 Instance State-change Notification", "detail": detail})
            )

    # -- the agents --------------------------------------------------------------------------------------------------

    def _agents_act(self) -> None:
        inside, self._is_inside = self._is_inside, False
        try:
            for uid in self._lately:
                self._agents_of(uid)
        finally:
            self._is_inside = inside

    def _agents_of(self, uid: str) -> None:
        """Each does what is due. How much work is left, it knows by the step of the newest checkpoint."""
        ledger = self.ledger(uid)
        if ledger is None:
            return
        state = ledger.refresh()
        script = self.scripts.setdefault(uid, Script(BOOTS_S, SAVES_EVERY_S, int(self.work.total_seconds())))
        for launch in state.launches.values() if state.terminal is None else ():
            if launch.recorded is None or launch.recorded.instance_id not in self.account.alive or not launch.open:
                continue
            named = launch.number, launch.recorded.instance_id
            store = opening.open_store(f"{self.store}/{self.folder_of(uid)}")
            agent = self._agents.setdefault(named[1], Agent(ledger, store, self.clock, script, named))
            if not agent.act():
                self.account.power_off(agent.instance_id)

    @property
    def training(self) -> Agent | None:
        return next(
            (each for each in self._agents.values() if each.attempt and each.instance_id in self.account.alive), None
        )

    # -- what became of it -------------------------------------------------------------------------------------------

    def nights(self) -> list[BegunNight]:
        """All that began, in order."""
        inside, self._is_inside = self._is_inside, False
        record = NightRecord(self.store, NAME, self.pin)
        while f"runs/nights/{NAME}/begun/{self._read_begun:08d}.json" in self._objects.objects:
            if (found := record.numbered(self._read_begun)) is not None:
                self._begun.append(found.begun)
            self._read_begun += 1
        self._is_inside = inside
        return [*self._begun]

    @property
    def _lately(self) -> list[str]:
        """The runs of the last nights: no other one goes on."""
        runs = dict.fromkeys(each.run for each in self.nights()[-3:])
        return [uid for uid in runs if self.ledger(uid) is not None]

    def uids(self) -> list[str]:
        """Of the runs that there are."""
        names = {key.split("/")[1] for key in self._objects.objects if key.startswith(f"runs/{NAME}-")}
        there = self._objects.objects
        return sorted(name.rpartition("-")[2] for name in names if f"runs/{name}/ledger/00000000.json" in there)

    def folder_of(self, uid: str) -> str:
        return f"{NAME}-{uid}"

    def ledger(self, uid: str) -> Ledger | None:
        if uid not in self._ledgers:
            store = opening.open_store(f"{self.store}/{self.folder_of(uid)}")
            if f"runs/{self.folder_of(uid)}/ledger/00000000.json" not in self._objects.objects:
                return None
            self._ledgers[uid] = Ledger(store, uid, "agent", self.clock, retry_for_s=0)
        return self._ledgers[uid]

    def state(self, uid: str) -> RunState:
        inside, self._is_inside = self._is_inside, False
        found = self.ledger(uid)
        assert found is not None
        state = found.refresh()
        self._is_inside = inside
        return state

    def misbooked(self) -> list[str]:
        states = map(self.state, self.uids())
        return misbooked(self.account.charged_usd, states, self.clock.now(), seconds=2)


def fires(cron: str, zone: str, moment: datetime) -> bool:
    """
    Whether a schedule of EventBridge fires in this minute. A time that does not exist that night is left out, and one
    that comes twice fires once: https://docs.aws.amazon.com/scheduler/latest/UserGuide/schedule-types.html
    """
    minutes, hours, _, _, days, _ = cron.removeprefix("cron(").removesuffix(")").split()
    local = moment.astimezone(ZoneInfo(zone))
    if local.fold or f"{local:%a}".upper() not in days.split(","):
        return False
    return local.hour == int(hours) and local.minute in {int(each) for each in minutes.split(",")}


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def require_one_clean_night(world: NightWorld) -> None:
    """It began once, its run is complete, nothing is left and nothing is called."""
    begun = world.nights()
    assert len(begun) == 1
    assert world.uids() == [begun[0].run]
    terminal = world.state(begun[0].run).terminal
    assert terminal is not None
    assert terminal.outcome == "completed"
    assert world.most_alive == 1
    assert world.misbooked() == []
    assert (world.account.left, world.account.identities_left) == ([], [])
    assert (world.is_called_each_minute, world.is_told_of_instances) == (False, False)
