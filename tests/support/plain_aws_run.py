"""A run on an AWS account that is plain objects, with an agent that is played for it on each instance that it gets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from spotrun.clouds.aws.calls import Region
from spotrun.clouds.aws.config import AwsConfig
from spotrun.clouds.aws.driver import AwsDriver
from spotrun.clouds.aws.guard import AwsGuards
from spotrun.clouds.aws.run_role import RunRoles
from spotrun.errors import StoreUnavailable
from spotrun.folder.ledger import Ledger, key_of
from spotrun.folder.market_record import MarketRecord
from spotrun.run import events as ev
from spotrun.run.state import RunState
from spotrun.runner import Runner, Tick
from tests.support.decisions import spec
from tests.support.histories import AWS_RULE, History
from tests.support.manual_clock import AheadClock, ManualClock
from tests.support.memory_store import MemoryStore
from tests.support.plain_aws import CONFIG, INTERRUPTED, POWERED_OFF, REGION, PlainAws
from tests.support.played_agent import Agent
from tests.support.played_run import nothing
from tests.support.world.faults import Watched

UID = "fedcba9876"
URI = f"s3://bucket/runs/r-{UID}"
PASS_S, SAVES_EVERY_S = 5.0, 60.0
LONGEST_LIFE_S = 3 * 86_400.0
WITHIN, UNSEEN_WITHIN = 0.01, 0.05
A_SECOND_USD = 1.1 / 3600
"""EC2 tells of ends to the second; on demand, with disk and address, that costs this much."""


class LivedClock(ManualClock):
    """While somebody sleeps, the others act."""

    def __init__(self, start: datetime) -> None:
        super().__init__(start)
        self.others: Callable[[], None] = lambda: None

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.others()


class _Over(Exception):
    """The time that a test gave a runner."""


class PlainAwsRun:
    """
    `ticks` are those of all its runners, whose machines have a clock that is `ahead` of AWS's. `stored` counts the
    calls of runners to their store, by their names.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        ahead: timedelta | None = None,
        spot_policy: str = "auto",
        config: AwsConfig = CONFIG,
    ) -> None:
        self.clock = LivedClock(datetime(2026, 6, 1, tzinfo=UTC))
        self.aws = PlainAws(self.clock)
        self.aws.tells_time = ahead is not None
        self._ahead, self._spot_policy = ahead, spot_policy
        self._config = config
        self.aws.reach(monkeypatch)
        self._store = MemoryStore(self.clock)
        created = History(uid=UID, billing=AWS_RULE, clock_epoch=self.clock.now()).entries[0]
        self._store.put(key_of(0), ev.encode_entry(replace(created, at=self.clock.now())))
        self._watching = self._ledger()
        self._agent: Agent | None = None
        self._saved_s = 0.0
        self.ticks: list[Tick] = []
        self.is_hung = False
        """What trains writes nothing more, while its instance goes on."""
        self.boots = True
        """Whether instances get an agent."""
        self.down: set[str] = set()
        """The calls of the store that are not answered to runners."""
        self.stored: Counter[str] = Counter()
        self._beside = MemoryStore(self.clock)
        self.runner = self.new_runner()

    def new_runner(self) -> Runner:
        store = Watched(self._store, self._answer, nothing)
        policy = {"on_demand_after": "10m", "return_to_spot": False}
        resources = {"cloud": "aws", "spot_policy": self._spot_policy}
        wanted = spec(resources=resources, checkpoint={"uri": "s3://bucket/runs"}, policy=policy)
        clock = self.clock if self._ahead is None else AheadClock(self.clock, self._ahead)
        return Runner(
            Ledger(store, UID, "test", clock, retry_for_s=0),
            store,
            AwsDriver(self._config, clock),
            clock,
            wanted,
            URI,
            MarketRecord(Watched(self._beside, self._answer, nothing)),
            guards=AwsGuards([REGION], clock),
            identities=RunRoles(Region(REGION, clock), clock),
        )

    def goes_on(self, seconds: float, pass_s: float = PASS_S) -> None:
        for _ in self._passes(seconds, pass_s):
            if self.ticks[-1].done:
                return

    def is_attended(self, seconds: float) -> None:
        """The same at the runner's own pace: the agents act whenever it sleeps."""
        ends_s = self.clock.monotonic() + seconds

        def watch(tick: Tick) -> None:
            self.ticks.append(tick)
            if self.clock.monotonic() >= ends_s:
                raise _Over

        self.clock.others = self._act
        with suppress(_Over):
            self.runner.run(watch)
        self.clock.others = lambda: None

    def is_asked(self, operation: str) -> int:
        """How often the account was, so far."""
        return sum(name == operation for name, _ in self.aws.calls)

    def trains_within(self, seconds: float) -> bool:
        """Let it go on until something trains."""
        return any(self.training is not None for _ in self._passes(seconds))

    def ends_within(self, seconds: float) -> bool:
        """Let it go on until it is done, and nothing of it is left running."""
        return any(self.ticks[-1].done for _ in self._passes(seconds))

    def _passes(self, seconds: float, pass_s: float = PASS_S) -> Iterator[None]:
        ends_s = self.clock.monotonic() + seconds
        while self.clock.monotonic() < ends_s:
            self.ticks += self.runner.ticks()
            self._act()
            yield
            self.clock.advance(pass_s)

    def is_alone(self, seconds: float, every_s: float) -> None:
        """No runner is there. What trains goes on, and speaks so often."""
        ends_s = self.clock.monotonic() + seconds
        while not self.is_hung and self.training is not None and self.clock.monotonic() < ends_s:
            self.training.trains_on()
            self.clock.advance(every_s)
        self.clock.pass_to(ends_s)
        self.runner = self.new_runner()

    def _act(self) -> None:
        """The agents do what they would."""
        state = self.state
        if self.training is None:
            recorded = [each for each in state.launches.values() if each.recorded is not None and each.gone is None]
            boots = any(each.recorded.instance_id in self.aws.alive for each in recorded)
            if boots and self.boots and state.current is None and state.terminal is None:
                self._agent, self.is_hung = Agent(self._ledger(), self._store, self.clock), False
        if self.training is None or self.is_hung:
            return
        self.training.beats()
        if self.clock.monotonic() - self._saved_s >= SAVES_EVERY_S:
            self._saved_s = self.clock.monotonic()
            self.training.trains_on()

    @property
    def training(self) -> Agent | None:
        """What trains, if its instance is there."""
        agent = self._agent
        over = agent is None or self.state.terminal is not None
        return None if over or agent.instance_id not in self.aws.alive else agent

    def is_interrupted(self) -> None:
        assert self.training is not None
        self.aws.end(self.training.instance_id, INTERRUPTED)

    def completes(self, *, powers_off: bool = True) -> None:
        assert self.training is not None
        agent = self.training
        agent.completes()
        if powers_off:
            self.aws.end(agent.instance_id, POWERED_OFF)

    def is_told_to_stop(self) -> None:
        self._ledger().append(lambda _: ev.StopRequested(by="somebody"))

    def _answer(self, call: str) -> None:
        self.stored[call] += 1
        if call in self.down:
            raise StoreUnavailable("connection reset")

    def _ledger(self) -> Ledger:
        return Ledger(self._store, UID, "test", self.clock, retry_for_s=0)

    @property
    def entries(self) -> list[ev.Entry]:
        found = (ev.decode_entry(self._store.get(key_of(number))) for number in range(self.state.next_number))
        return [entry for entry in found if entry is not None]

    @property
    def state(self) -> RunState:
        return self._watching.refresh()

    @property
    def booked_usd(self) -> dict[str, float]:
        """What each instance has cost so far, by the ledger."""
        rule, found = self.state.created.billing, {}
        for launch in self.state.launches.values():
            if (known := launch.gone or launch.recorded) is not None:
                found[known.instance_id] = float(launch.meter(rule).cost_until(self.clock.now()))
        return found

    def misbooked(self) -> Iterator[str]:
        """
        The instances that the ledger has not at what was charged for them, within 1 %; within 5 % if they ended while
        no runner was there.
        """
        unseen = {each.gone.instance_id for each in self.state.launches.values() if each.gone and each.gone.bounded_by}
        charged, booked = self.aws.charged_usd, self.booked_usd
        for instance_id in charged.keys() | booked.keys():
            asked, told = charged.get(instance_id, 0.0), booked.get(instance_id, 0.0)
            within = UNSEEN_WITHIN if instance_id in unseen else WITHIN
            if abs(told - asked) > max(within * asked, A_SECOND_USD):
                yield f"for {instance_id} ${asked:.6f} was charged, and ${told:.6f} is in the ledger"

    @property
    def left_behind(self) -> list[str]:
        """What there still is, and nobody takes away. A guard goes by itself when its time has come."""
        self.clock.advance(LONGEST_LIFE_S)
        told = "spotrun reap" in (self.ticks[-1].remark or "")
        roles = [] if told else [*self.aws.roles, *self.aws.profiles]
        return [*self.aws.alive, *self.aws.schedules, *roles]
