"""A run in a cloud that is plain objects, with an agent that is played for it on each instance that it gets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Protocol

from spotrun.agent.decisions import DRAIN_WINDOW_S, STANDBY_GRACE_S
from spotrun.clock import Clock
from spotrun.clouds.cloud import Cloud
from spotrun.clouds.driver import CloudDriver
from spotrun.clouds.guards import Guards
from spotrun.clouds.identities import Identities
from spotrun.clouds.last_words import LastWords
from spotrun.errors import StoreUnavailable
from spotrun.folder.market_record import MarketRecord
from spotrun.run import events as ev
from spotrun.run.state import RunState
from spotrun.runner.runner import Runner
from spotrun.runner.tick import Tick
from tests.support.decisions import spec
from tests.support.manual_clock import AheadClock, ManualClock
from tests.support.memory_run import UID, MemoryRun, nothing
from tests.support.memory_store import MemoryStore
from tests.support.played_agent import Agent, Script
from tests.support.world.faults import Watched

BEGAN_AT = datetime(2026, 6, 1, tzinfo=UTC)
PASS_S = 5.0
SCRIPT = Script(saves_every_s=60.0, hands_over=False)
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


class Account(Protocol):
    """What a cloud has of a run, and what it charges."""

    @property
    def counts(self) -> Counter[str]:
        """How often each call was made so far."""

    @property
    def alive(self) -> list[str]:
        """The instances whose machines run."""

    @property
    def rented(self) -> list[str]:
        """The instances that there are and were."""

    @property
    def charged_usd(self) -> dict[str, float]:
        """For each instance."""

    @property
    def left(self) -> list[str]:
        """What there is of the run that costs something."""

    @property
    def identities_left(self) -> list[str]: ...

    def interrupt(self, instance_id: str) -> None:
        """The cloud takes it, with no word to it."""

    def power_off(self, instance_id: str) -> None:
        """It switches itself off."""


class Fault:
    """Calls of one kind fail for so long, and at least once. `met`: one was made."""

    def __init__(self, clock: Clock, call: str, seconds: float) -> None:
        self._clock, self._call = clock, call
        self._ends_s = clock.monotonic() + seconds
        self._is_mended = False
        self.met = False

    def holds(self, call: str) -> bool:
        """For this call, now."""
        if self._is_mended or call != self._call or (self.met and self._clock.monotonic() >= self._ends_s):
            return False
        self.met = True
        return True

    def ends(self) -> None:
        """Somebody has mended it."""
        self._is_mended = True


class Outfit(NamedTuple):
    """What a runner has of its cloud."""

    driver: CloudDriver
    guards: Guards
    identities: Identities
    cloud: Cloud | None = None
    """Whose instances say something before they have an agent."""


class _Over(Exception):
    """The time that a test gave a runner."""


class PlainRun(MemoryRun):
    """
    `ticks` are those of all its runners, whose machines have a clock that is `ahead` of the cloud's. `stored` counts
    the calls of runners to their store, by their names. A cloud gives it an `outfit` for each runner.
    """

    provider: str
    """Who is named in what a user is told."""
    first_looks: frozenset[str]
    """Who may not even look is told at the first look, and has no runner."""
    needed_to_end: frozenset[str]
    """Without these nobody can see that nothing is left, or take away the rest."""
    launch_call: str
    end_call: str
    launches_per_s: float
    """So many launches the cloud grants an account again."""

    def __init__(
        self,
        clock: LivedClock,
        account: Account,
        cloud: str,
        runs_uri: str,
        billing: ev.BillingRule,
        ahead: timedelta | None,
        spot_policy: str,
    ) -> None:
        super().__init__(clock, uid=UID, billing=billing)
        self.account = account
        self._uri, self._ahead = f"{runs_uri}/r-{UID}", ahead
        self._wanted = spec(
            resources={"cloud": cloud, "spot_policy": spot_policy},
            checkpoint={"uri": runs_uri},
            policy={"on_demand_after": "10m", "return_to_spot": False},
        )
        self._agent: Agent | None = None
        self._drained_s: float | None = None
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
        self.has_beside: Runner | None = None
        """A second runner, which acts in the same second."""

    # -- what differs between clouds ---------------------------------------------------------------------------------

    def outfit(self, clock: Clock) -> Outfit:
        raise NotImplementedError

    def fails(self, call: str, error: Any, seconds: float) -> Fault:
        """From now on for so long, and at least once, a call is answered with an error of the cloud's."""
        raise NotImplementedError

    def is_made_to(self, call: str, *, at_first: bool = False) -> None:
        """Be so that a runner makes this call at all, at its next launch or `at_first`."""

    # -- runners -----------------------------------------------------------------------------------------------------

    def new_runner(self) -> Runner:
        clock = self.clock if self._ahead is None else AheadClock(self.clock, self._ahead)
        outfit = self.outfit(clock)
        return self.runner_in(
            outfit.driver,
            self._wanted,
            self._uri,
            before=self._answer,
            clock=clock,
            market=MarketRecord(Watched(self._beside, self._answer, nothing)),
            guards=outfit.guards,
            identities=outfit.identities,
            last_words=None if outfit.cloud is None else LastWords(outfit.cloud, self.store),
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

    def is_asked(self, call: str) -> int:
        """How often the account was, so far."""
        return self.account.counts[call]

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
            if self.has_beside is not None:
                self.ticks += self.has_beside.ticks()
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

    # -- the agents --------------------------------------------------------------------------------------------------

    def _act(self) -> None:
        """The agent of the newest instance does what it would."""
        state = self.state
        lacks = self.training is None or self.is_hung
        if lacks and self.boots and state.terminal is None and self._may_take_over(state):
            there = [each for each in state.launches.values() if each.recorded is not None and each.gone is None]
            if any(each.open and each.recorded.instance_id in self.account.alive for each in there[-1:]):
                self._agent, self.is_hung = self.agent(SCRIPT), False
        if self.training is not None and not self.is_hung:
            self.training.act()

    def _may_take_over(self, state: RunState) -> bool:
        """Nothing trains, or what was asked to drain has had its time (protocol 13)."""
        current = state.current
        if current is None or current.drain is None:
            self._drained_s = None
            return current is None
        self._drained_s = self._drained_s or self.clock.monotonic()
        return self.clock.monotonic() - self._drained_s >= DRAIN_WINDOW_S + STANDBY_GRACE_S

    def boots_on(self, launch: int, instance_id: str) -> None:
        """The agent on an instance that no list has shown yet trains."""
        self._agent, self.is_hung = Agent(self.ledger(), self.store, self.clock, SCRIPT, (launch, instance_id)), False
        self._agent.takes_over()

    @property
    def training(self) -> Agent | None:
        """What trains, if its instance is there."""
        agent = self._agent
        over = agent is None or self.state.terminal is not None
        return None if over or agent.instance_id not in self.account.alive else agent

    def is_interrupted(self) -> None:
        assert self.training is not None
        self.account.interrupt(self.training.instance_id)

    def completes(self, *, powers_off: bool = True) -> None:
        assert self.training is not None
        agent = self.training
        agent.completes()
        if powers_off:
            self.account.power_off(agent.instance_id)

    def is_told_to_stop(self) -> None:
        self.ledger().append(lambda _: ev.StopRequested(by="somebody"))

    # -- the ledger --------------------------------------------------------------------------------------------------

    def _answer(self, call: str) -> None:
        self.stored[call] += 1
        if call in self.down:
            raise StoreUnavailable("connection reset")

    @property
    def booked_usd(self) -> dict[str, float]:
        return booked_usd(self.state, self.clock.now())

    def misbooked(self) -> list[str]:
        return misbooked(self.account.charged_usd, [self.state], self.clock.now())

    @property
    def left_behind(self) -> list[str]:
        """What there still is, and nobody takes away. What ends an instance goes by itself when its time has come."""
        self.clock.advance(LONGEST_LIFE_S)
        told = "spotrun reap" in (self.ticks[-1].remark or "")
        return [*self.account.left, *([] if told else self.account.identities_left)]


def misbooked(
    charged_usd: Mapping[str, float], states: Iterable[RunState], now: datetime, seconds: int = 1
) -> list[str]:
    """
    The instances that the ledgers have not at what was charged for them by now: within 1 %, or within 5 % if they ended
    while no runner was there; so many seconds are no error in any case.
    """
    booked, unseen = dict[str, float](), set[str]()
    for state in states:
        booked |= booked_usd(state, now)
        gone = (launch.gone for launch in state.launches.values())
        unseen |= {each.instance_id for each in gone if each is not None and each.bounded_by}
    found = []
    for instance_id in charged_usd.keys() | booked.keys():
        asked, told = charged_usd.get(instance_id, 0.0), booked.get(instance_id, 0.0)
        within = UNSEEN_WITHIN if instance_id in unseen else WITHIN
        if abs(told - asked) > max(within * asked, seconds * A_SECOND_USD):
            found.append(f"for {instance_id} ${asked:.6f} was charged, and ${told:.6f} is in a ledger")
    return found


def booked_usd(state: RunState, now: datetime) -> dict[str, float]:
    """What each instance has cost by now, by the ledger."""
    found = {}
    for launch in state.launches.values():
        if (known := launch.gone or launch.recorded) is not None:
            found[known.instance_id] = float(launch.meter(state.created.billing).cost_until(now))
    return found
