"""
A cloud without machines: a CloudDriver over a market, and over the time of a clock.

It is a function of time: each question sees what has happened by now. What a real cloud would do to an instance
(boot it, bill it, tell it that it will be taken, take it, end it at its time-to-live) is worked out when it is asked.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import inf

from msgspec.structs import replace

from spotrun.clock import Clock
from spotrun.clouds.regions import regions_of
from spotrun.errors import CloudError, CloudUnavailable, InsufficientCapacity, LaunchTokenSpent
from spotrun.instance import EndedBy, Instance, InstanceState, LaunchRequest, PriceSegment
from spotrun.offering import CapacityType, Offering, Pool
from tests.support.world.market import SimulatedMarket
from tests.support.world.rng import Range, Rng
from tests.support.world.timings import Timings


@dataclass
class Machine:
    """
    An instance and its fate, in seconds since the world began. It has a `place` in its pool. `told_s` is when its
    notice comes, `recommended_s` when it is told that it might be taken, and `recommended` whether it was.
    """

    request: LaunchRequest
    place: int
    instance: Instance
    listed_s: float
    running_s: float
    dies_s: float
    taken_s: float
    told_s: float
    recommended_s: float = inf
    recommended: bool = False
    prices_until_s: float = inf

    @property
    def ends_s(self) -> float:
        return min(self.dies_s, self.taken_s)

    def next_s(self) -> float:
        """When something becomes of it that others may see."""
        pending = self.instance.state is InstanceState.PENDING
        told = self.instance.notice_deadline is not None
        news_s = (inf if told else self.told_s, inf if self.recommended else self.recommended_s)
        return min(self.ends_s, self.running_s if pending else inf, *news_s)


@dataclass
class SimulatedCloud:
    """
    Rents out instances that are records; any number of runners may share it. See CloudDriver for what its verbs do.

    `hidden_s`: for how long after its launch an instance is not listed yet. `down`: no call is answered;
    `down_in`: none about these regions. `changes` counts what became of instances.
    """

    clock: Clock
    market: SimulatedMarket
    timings: Timings = field(default_factory=Timings)
    rng: Rng = field(default_factory=lambda: Rng(0))
    hidden_s: Range = (0.0, 0.0)
    name: str = "local"
    rations_calls: bool = False
    down: bool = False
    down_in: set[str] = field(default_factory=set)
    changes: int = 0
    launches: list[LaunchRequest] = field(default_factory=list)
    terminations: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._began_s, self._began_at = self.clock.monotonic(), self.clock.now()
        self._machines: dict[str, Machine] = {}
        self._of_token: dict[str, list[Machine]] = {}
        self._made = 0
        self._living: dict[str, Machine] = {}
        self._lock = threading.RLock()

    # -- the five verbs

    @property
    def remarks(self) -> tuple[str, ...]:
        return tuple(f"{region} does not answer" for region in sorted(self.down_in))

    def offerings(self, must_see: Collection[str] | None = None) -> list[Offering]:
        self._answer(must_see)
        return [each for each in self.market.offerings(self.now_s) if each.region not in self.down_in]

    def launch(self, request: LaunchRequest) -> Instance:
        self._answer([request.offering.region])
        with self._lock:
            self.launches.append(request)
            self.settle()
            known = self._of_token.get(request.token)
            if known is not None:
                return _again(known, request)
            pool, now_s = request.offering.pool, self.now_s
            if pool not in {offering.pool for offering in self.market.offerings(now_s)}:
                raise CloudError(f"nobody rents out {request.offering}")
            places = self._free(request, now_s) if self.market.has(pool, now_s) else []
            if len(places) < (request.count or 1):
                raise InsufficientCapacity(f"no capacity for {request.offering}")
            self._of_token[request.token] = [self._start(request, *each, now_s) for each in enumerate(places)]
            return self._of_token[request.token][0].instance

    def describe(self, instance_id: str) -> Instance | None:
        self._answer()
        with self._lock:
            found = self._machines.get(instance_id)
            return None if found is None or found.listed_s > self.now_s else self.seen(instance_id)

    def instances(self, run_uid: str | None = None, must_see: Collection[str] | None = None) -> list[Instance]:
        self._answer(must_see)
        with self._lock:
            self.settle()
            now_s = self.now_s
            return [
                machine.instance
                for machine in self._machines.values()
                if machine.listed_s <= now_s and run_uid in (None, machine.instance.run_uid)
                if machine.instance.offering.region not in self.down_in
            ]

    def spot_history(self, offering: Offering, since: datetime) -> Sequence[PriceSegment]:
        return ()

    def terminate(self, instance_id: str) -> None:
        self._answer()
        with self._lock:
            self.terminations.append(instance_id)
            if instance_id in self._machines:
                self.end(instance_id, EndedBy.USER)

    def _answer(self, must_see: Collection[str] | None = None) -> None:
        if self.down:
            raise CloudUnavailable("the cloud does not answer")
        needed = regions_of(must_see, self.down_in)
        for region in sorted(self.down_in if needed is None else needed):
            raise CloudUnavailable(f"{region} does not answer")

    # -- the hand of the market, and what an instance knows of itself

    @property
    def now_s(self) -> float:
        return self.clock.monotonic() - self._began_s

    @property
    def all(self) -> list[Instance]:
        self.settle()
        return [machine.instance for machine in self._machines.values()]

    @property
    def alive(self) -> list[Instance]:
        self.settle()
        return [machine.instance for machine in self._living.values()]

    def seen(self, instance_id: str) -> Instance:
        """An instance as it is by now, listed or not: what its own metadata service knows."""
        self.settle()
        return self._machines[instance_id].instance

    def recommends_rebalance(self, instance_id: str) -> bool:
        """Whether an instance was told by now that it might be taken."""
        self.settle()
        return self._machines[instance_id].recommended

    def ordinal(self, instance_id: str) -> int:
        """How many instances were launched before this one."""
        return list(self._machines).index(instance_id)

    def end(self, instance_id: str, by: EndedBy) -> None:
        """End an instance now, unless it has ended."""
        with self._lock:
            self.settle()
            if instance_id in self._living:
                self._end(self._living[instance_id], self.now_s, by)

    def forget(self, instance_id: str) -> None:
        """List an instance no longer, as clouds do some time after its end."""
        self._machines.pop(instance_id)

    def notice(self, instance_id: str, after_s: float) -> None:
        """Announce to an instance that it will be taken after this many seconds, and take it then."""
        machine = self._machines[instance_id]
        machine.told_s, machine.taken_s = self.now_s, self.now_s + after_s
        self.settle()

    def recommend(self, instance_id: str) -> None:
        """Tell an instance that it might be taken."""
        self._machines[instance_id].recommended_s = self.now_s
        self.settle()

    def repriced(self, pool: Pool) -> None:
        """From now on the market has another price for a pool, for what runs in it too."""
        with self._lock:
            self.settle()
            for machine in self._living.values():
                if machine.request.offering.pool == pool and machine.instance.state is InstanceState.RUNNING:
                    machine.prices_until_s = self.now_s
            self.settle()

    # -- how time passes in it

    def next_s(self) -> float:
        """When the next thing happens to an instance if nobody acts, in seconds since the world began."""
        return min((machine.next_s() for machine in self._living.values()), default=inf)

    def settle(self) -> None:
        """Let happen what was to happen by now."""
        with self._lock:
            now_s = self.now_s
            for machine in list(self._living.values()):
                if machine.prices_until_s <= now_s:
                    self._charge(machine, now_s)
                if machine.next_s() <= now_s:
                    self._pass(machine, now_s)

    def _free(self, request: LaunchRequest, now_s: float) -> list[int]:
        """As many places of its pool as are asked for, if there are; where they are counted, anyone of them."""
        pool, count = request.offering.pool, request.count or 1
        taken = {each.place for each in self._living.values() if each.request.offering.pool == pool}
        room = self.market.room(pool, now_s)
        places = (place for place in range(int(min(room, len(taken) + count))) if place not in taken)
        free = [place for place in places if self._told_s(request, place, now_s) > now_s]
        if room < inf:
            free.sort(key=lambda place: self.rng.between((0.0, 1.0), "place", request.token, place))
        return free[:count]

    def _start(self, request: LaunchRequest, member: int, place: int, now_s: float) -> Machine:
        who = (request.token, member) if member else (request.token,)
        pending_s = self.rng.between(self.timings.pending_s, "pending", *who)
        machine = Machine(
            request=request,
            place=place,
            instance=Instance(
                instance_id=f"i-{self._made:05d}",
                token=request.token,
                run_uid=request.run_uid,
                launch=request.launch,
                offering=request.offering,
                state=InstanceState.PENDING,
                launched_at=self._at(now_s),
                member=member,
                address="" if request.count is None else f"127.77.{self._made // 256}.{self._made % 256}",
            ),
            listed_s=now_s + self.rng.between(self.hidden_s, "hidden", *who),
            running_s=now_s + pending_s,
            dies_s=now_s + request.time_to_live.total_seconds(),
            taken_s=self.market.taken_s(request.offering.pool, now_s, place),
            told_s=self._told_s(request, place, now_s),
            recommended_s=self._recommended_s(request, now_s),
        )
        self._machines[machine.instance.instance_id] = self._living[machine.instance.instance_id] = machine
        self._made += 1
        self.changes += 1
        return machine

    def _told_s(self, request: LaunchRequest, place: int, now_s: float) -> float:
        """When the next loss of a place in a pool is announced to its instance."""
        pool = request.offering.pool
        return self.timings.told_s(self.rng, pool, self.market.taken_s(pool, now_s, place))

    def _recommended_s(self, request: LaunchRequest, now_s: float) -> float:
        pool = request.offering.pool
        if pool.capacity_type is not CapacityType.SPOT:
            return inf
        taken_s = self.market.taken_s(pool, now_s)
        return self.timings.recommended_s(self.rng, pool, taken_s, now_s, request.token)

    def _pass(self, machine: Machine, now_s: float) -> None:
        self.changes += 1
        boots = machine.instance.state is InstanceState.PENDING
        if boots and machine.running_s <= now_s and machine.running_s < machine.ends_s:
            self._run(machine)
        machine.recommended = machine.recommended or machine.recommended_s <= now_s
        if machine.told_s <= now_s and machine.instance.notice_deadline is None:
            machine.instance = replace(machine.instance, notice_deadline=self._at(machine.taken_s))
        if machine.ends_s <= now_s:
            by_market = machine.taken_s <= machine.dies_s
            self._end(machine, machine.ends_s, EndedBy.CLOUD if by_market else EndedBy.TIME_TO_LIVE)

    def _run(self, machine: Machine) -> None:
        since, pool = self._at(machine.running_s), machine.request.offering.pool
        price = PriceSegment(since=since, usd_per_hour=self.market.price(pool, machine.running_s))
        machine.instance = replace(machine.instance, state=InstanceState.RUNNING, billed_from=since, prices=(price,))
        machine.prices_until_s = self.market.price_may_change_s(machine.running_s)

    def _charge(self, machine: Machine, now_s: float) -> None:
        """The meter goes on at the prices since it was last looked at."""
        while (at_s := machine.prices_until_s) <= min(now_s, machine.ends_s):
            price = self.market.price(machine.request.offering.pool, at_s)
            if price != machine.instance.prices[-1].usd_per_hour and at_s < machine.ends_s:
                segment = PriceSegment(since=self._at(at_s), usd_per_hour=price)
                machine.instance = replace(machine.instance, prices=(*machine.instance.prices, segment))
            machine.prices_until_s = self.market.price_may_change_s(at_s)

    def _end(self, machine: Machine, at_s: float, by: EndedBy) -> None:
        self.changes += 1
        machine.instance = replace(
            machine.instance, state=InstanceState.TERMINATED, ended_at=self._at(at_s), ended_by=by
        )
        del self._living[machine.instance.instance_id]

    def _at(self, moment_s: float) -> datetime:
        return self._began_at + timedelta(seconds=moment_s)


def _again(known: list[Machine], request: LaunchRequest) -> Instance:
    first = known[0]
    if (first.request.offering.pool, first.request.count) != (request.offering.pool, request.count):
        raise CloudError(f"token {request.token} was used for another request")
    if not any(machine.instance.alive for machine in known):
        raise LaunchTokenSpent(f"the instance of {request.token} is gone")
    return first.instance
