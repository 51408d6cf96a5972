"""
A whole run without machines: the real runner, ledger and policy over a simulated cloud, simulated agents, and time that
passes from one event to the next.

One seed is one world. Everything that happens in it happens at moments that the world passes through in order: first
the cloud, then the agents, then the runner. So the same seed gives the same trace, entry by entry.
"""

from __future__ import annotations

from functools import partial
from math import ceil, inf

from msgspec.structs import replace

from spotrun.clock import ScaledClock
from spotrun.clouds.registry import cloud_of
from spotrun.folder.ledger import Ledger, first_object, key_of
from spotrun.forecast.baselines import COMPARED
from spotrun.instance import InstanceState
from spotrun.policy import decide
from spotrun.policy.patience import TICK_S, TICK_SYSTEM_MIN_S, look_s
from spotrun.run.events import Entry
from spotrun.run.state import RunState
from spotrun.runner.creation import run_created
from spotrun.runner.runner import Runner
from spotrun.runner.tick import Tick
from spotrun.spec.model import RunSpec
from spotrun.store.port import Store
from tests.support.manual_clock import ManualClock
from tests.support.memory_store import MemoryStore
from tests.support.owners_key import OwnersKey
from tests.support.world.agent import SimulatedAgent
from tests.support.world.cloud import SimulatedCloud
from tests.support.world.faults import NO_FAULTS, BadLines, Faults, Killed
from tests.support.world.market import SimulatedMarket
from tests.support.world.member import SimulatedMember
from tests.support.world.result import RunResult, result_of
from tests.support.world.rng import Rng
from tests.support.world.setup_cache import SimulatedSetupCache
from tests.support.world.surroundings import Surroundings
from tests.support.world.timings import Starts, Timings, Training

ROUNDING_S = 1e-6


class SimulatedWorld:
    """
    One run of `training` under `spec`, in `market`.

    The runner ticks every `tick_s`, soon after an agent has written, and again at once while it writes, as a real one
    does; policy is told when it ticks more seldom than that. A tick that would find nothing changed but the time, after
    one that did nothing, is left out for up to `idle_s`. This makes long quiet stretches cheap. It delays by at most
    `idle_s` what the runner does for the time alone: ask again a pool that rested, go back to spot, leave for the
    deadline.

    The run has a key if `owned`: then an agent cannot speak for its runner.

    `starts` tells how long each instance boots and sets up anew, where others are to meet the same; else `timings` do.
    The bucket of `checkpoint.uri` is in `bucket_region`, as far as that is known.
    """

    def __init__(
        self,
        spec: RunSpec,
        training: Training,
        market: SimulatedMarket,
        *,
        seed: int = 0,
        timings: Timings | None = None,
        starts: Starts | None = None,
        faults: Faults = NO_FAULTS,
        tick_s: float = TICK_S,
        idle_s: float = 0.0,
        bucket_region: str = "",
        owned: bool = False,
    ) -> None:
        self.seed = seed
        self._owner = OwnersKey(seed) if owned else None
        self.clock = ManualClock()
        self.store = MemoryStore(self.clock)
        timings, rng = timings or Timings(), Rng(seed)
        self.cloud = SimulatedCloud(
            self.clock, market, timings, rng, hidden_s=faults.hidden_s, name=spec.resources.cloud
        )
        self.spec, self._faults, self._rng = spec, faults, rng
        self._tick_s, self._idle_s = tick_s, idle_s
        self._time_scale = 1.0 if tick_s <= TICK_S else tick_s / TICK_SYSTEM_MIN_S
        self._lines = BadLines(faults, rng, self.clock)
        self.uid = f"{seed % 16**10:010x}"
        self._ledger = Ledger(self.store, self.uid, "world", self.clock, retry_for_s=0, readers=1)
        self._create(bucket_region)
        self._surroundings = Surroundings(
            clock=self.clock,
            cloud=self.cloud,
            store=self.store,
            line=self._lines.of_agent(self.store),
            spec=spec,
            training=training,
            timings=timings,
            starts=starts,
            rng=rng,
            setup_cache=SimulatedSetupCache(self.cloud),
            first=self._first,
            began_at=self.clock.now(),
        )
        self._agents: dict[str, SimulatedAgent] = {}
        self._frozen: set[str] = set()
        self._runner = self._new_runner()
        self._runners = 1
        self._last: Tick | None = None
        self._acted = False
        self._ticked_s = self._free_s = -inf
        self._changes_seen = -1

    def _create(self, bucket_region: str) -> None:
        clock = ScaledClock(self.clock.now(), self._time_scale)
        created = run_created(self.spec, cloud_of(self.spec), self.uid, "", clock, bucket_region)
        if self._owner is not None:
            created = replace(created, public_key=self._owner.public)
        self._ledger.create(created)
        self._first = first_object(self.store)

    def _new_runner(self) -> Runner:
        store, cloud = self._lines.of_runner(self.store, self.cloud)
        ledger = self.ledger("runner", store)
        return Runner(
            ledger, store, cloud, self.clock, self.spec, self.store.uri, decide=partial(decide, strategies=COMPARED)
        )

    def ledger(self, writer: str, store: Store | None = None) -> Ledger:
        """The owner's view of the ledger."""
        return Ledger(
            store or self.store,
            self.uid,
            writer,
            self.clock,
            retry_for_s=0,
            readers=1,
            first=self._first,
            sign=self._owner,
        )

    # -- what others see -----------------------------------------------------------------------------------------------

    @property
    def state(self) -> RunState:
        return self._ledger.refresh()

    @property
    def entries(self) -> list[Entry]:
        """The ledger, as it is."""
        self._ledger.refresh()
        return self._ledger.entries

    @property
    def done(self) -> bool:
        """The run has ended and nothing of it is left running."""
        return self._last is not None and self._last.done

    @property
    def result(self) -> RunResult:
        """What has become of the run by now."""
        return result_of(self.seed, self.state, self._ledger.entries, self.cloud.all, self.clock.now())

    def freeze(self, instance_id: str) -> None:
        """From now on nothing moves on an instance. Its meter runs."""
        self._frozen.add(instance_id)

    def wake(self) -> None:
        """Somebody has carried on the run after its end: a runner looks at it again."""
        self._last, self._free_s = None, self.clock.monotonic()

    # -- how time passes -----------------------------------------------------------------------------------------------

    def run(self, within_s: float) -> RunResult:
        """Runs until the run has ended and nothing of it is left running, or for `within_s` seconds."""
        while not self.done and self.clock.monotonic() < within_s:
            self.step(within_s)
        return self.result

    def step(self, within_s: float = inf) -> None:
        """Pass to the next moment at which anything happens, and let it happen."""
        awake = self._awake()
        self.clock.pass_to(min(self._next_s(), within_s))
        if self.cloud.next_s() <= self.clock.monotonic():
            self._beat(awake)  # heartbeats are frequent: the last one is fresh, whatever becomes of an instance now
        for agent in self._awake():
            if agent.due_s <= self.clock.monotonic():
                agent.act()
        if self._tick_due_s() <= self.clock.monotonic():
            self._tick()

    def _next_s(self) -> float:
        return min([self.cloud.next_s(), self._tick_due_s(), *(agent.due_s for agent in self._awake())])

    def _awake(self) -> list[SimulatedAgent]:
        """The agents of the instances that run, in the order of their launches."""
        alive = (each for each in self.cloud.alive if each.instance_id not in self._frozen)
        running = [each for each in alive if each.state is InstanceState.RUNNING]
        for instance in running:
            if instance.instance_id not in self._agents:
                kind = SimulatedAgent if self.spec.num_nodes == 1 else SimulatedMember
                self._agents[instance.instance_id] = kind(self._surroundings, instance)
        return [self._agents[instance.instance_id] for instance in running]

    @staticmethod
    def _beat(agents: list[SimulatedAgent]) -> None:
        for agent in agents:
            agent.beat()

    # -- the runner ----------------------------------------------------------------------------------------------------

    def _tick_due_s(self) -> float:
        """The next tick on its grid, or a later one if the next would see nothing new; the next look after an entry."""
        if self._last is None:
            return self._free_s
        if key_of(self._last.state.next_number) in self.store.objects:
            return self._on_grid(min(self._tick_s, look_s(self._time_scale)))
        return self._on_grid(self._tick_s) if self._news() else self._ticked_s + max(self._tick_s, self._idle_s)

    def _on_grid(self, every_s: float) -> float:
        """The first moment from now on that is a multiple of `every_s` after the last tick."""
        passed_s = self.clock.monotonic() - self._ticked_s
        return self._ticked_s + max(1, ceil(passed_s / every_s - ROUNDING_S)) * every_s

    def _news(self) -> bool:
        return self._idle_s <= self._tick_s or self._acted or self.cloud.changes != self._changes_seen

    def _tick(self) -> None:
        self._beat(self._awake())
        self._ticked_s, self._changes_seen = self.clock.monotonic(), self.cloud.changes
        try:
            ticks = list(self._runner.ticks())
            self._last, self._acted = ticks[-1], any(map(_acts, ticks))
        except Killed:
            self._runners += 1
            back_s = self._rng.between(self._faults.runner_back_s, "runner back", self._runners)
            self._last, self._free_s = None, self._ticked_s + back_s
            self._runner = self._new_runner()


def _acts(tick: Tick) -> bool:
    """Whether a tick did more than wait for capacity. If it was blind, there may be news."""
    return tick.blind is not None or len(tick.actions) > (tick.waiting_for is not None)
