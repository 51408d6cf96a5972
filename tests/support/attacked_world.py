"""A simulated world in which a node was taken over: whatever it writes, the owner's money and word are safe."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from random import Random

from spotrun.folder.ledger import key_of
from spotrun.instance import Instance
from spotrun.run import events as ev
from spotrun.run.billing import hourly
from spotrun.run.owners import is_of_owner
from tests.support.small_worlds import CHANGING, market, spec
from tests.support.world import SimulatedWorld, Training
from tests.support.world.attacker import WRITER, Attacker

ATTACKED_FOR_S = 3 * 3600.0
ENDS_WITHIN_S = 2 * 3600.0
BUDGET_USD = Decimal(6)


class AttackedWorld:
    """An hour's work with a budget; the owner asks for a stop at a random moment of three hours."""

    def __init__(self, seed: int, *, owned: bool = True, budget_usd: Decimal = BUDGET_USD) -> None:
        job = spec(deadline=None).model_dump(mode="json") | {"budget": {"max_usd": str(budget_usd)}}
        self._world = SimulatedWorld(
            type(spec()).model_validate(job),
            Training(steps=3600),
            market(*CHANGING, tick_s=601.5),
            seed=seed,
            idle_s=30.0,
            owned=owned,
        )
        self._random = Random(seed)
        self._attacker = Attacker(self._world.store, self._random)
        self._budget_usd = budget_usd
        self._stopped_at: int | None = None

    def attack(self) -> None:
        """
        Raises:
            AssertionError: the attacker has spent, ended or undone what is the owner's.
        """
        stop_s = self._random.uniform(0, ATTACKED_FOR_S)
        self._attack_until(stop_s)
        self._stop()
        self._attack_until(stop_s + ENDS_WITHIN_S)
        self._check()

    @property
    def charged_usd(self) -> Decimal:
        """What the cloud charges for all instances by now."""
        now = self._world.clock.now()
        return sum((_charged(each, now) for each in self._world.cloud.all), Decimal(0))

    def _attack_until(self, moment_s: float) -> None:
        world = self._world
        while not world.done and world.clock.monotonic() < moment_s:
            world.step(moment_s)
            state = world.state
            self._attacker.copy(world.store.objects[key_of(state.next_number - 1)])
            if state.attempts and self._random.random() < 0.3:
                self._attacker.act(state, world.clock.now())

    def _stop(self) -> None:
        ledger = self._world.ledger("owner")
        if ledger.refresh().terminal is None and not ledger.state.stop_requested:
            entry = ledger.append(lambda _: ev.StopRequested(by="the owner"))
            self._stopped_at = None if entry is None else entry.number

    def _check(self) -> None:
        world = self._world
        state = world.state
        voids = {void.number for void in state.voids}
        assert self.charged_usd <= self._budget_usd, f"${self.charged_usd} of ${self._budget_usd}"
        launches = [launch.intent for launch in state.launches.values()]
        assert len(world.cloud.all) <= len(launches), "an instance that no launch asked for"
        assert state.terminal is not None, "a stop was undone"
        assert not world.cloud.alive, "an instance was left"
        for entry in world.entries:
            if is_of_owner(entry.event) and entry.number not in voids:
                assert entry.writer != WRITER, f"the node has written {ev.kind(entry.event)}"


def _charged(instance: Instance, now: datetime) -> Decimal:
    if instance.billed_from is None:
        return Decimal(0)
    return hourly(instance.offering.price_usd_per_hour, (instance.ended_at or now) - instance.billed_from)
