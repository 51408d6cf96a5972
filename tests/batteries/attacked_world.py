"""
A simulated world in which a node was taken over: whatever it writes, the owner's money and word are safe, and so is all
that belongs to another run.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from random import Random

from msgspec.structs import replace

from spotrun.account.summary import summarise
from spotrun.folder import keys
from spotrun.folder.final_status import run_status
from spotrun.folder.ledger import key_of
from spotrun.instance import Instance, LaunchRequest
from spotrun.policy.lives import TIME_TO_LIVE
from spotrun.run import events as ev
from spotrun.run.billing import hourly
from spotrun.run.entry_bytes import encode_entry
from spotrun.run.owners import is_of_owner
from tests.batteries.attacker import WRITER, Attacker
from tests.batteries.node_bucket import RUNS, NodeBucket
from tests.support.histories import History
from tests.support.launch_requests import requested
from tests.support.memory_store import MemoryStore
from tests.support.small_worlds import CHANGING, DEAR, ZONES, market, spec
from tests.support.world import SimulatedWorld, Training

ATTACKED_FOR_S = 3 * 3600.0
ENDS_WITHIN_S = 2 * 3600.0
BUDGET_USD = Decimal(6)
ANOTHER = "ffffffffff"
OFFERED = {replace(each, price_usd_per_hour=Decimal(0)) for each in (*ZONES.values(), *DEAR)}
"""What the market has, whatever it costs at the moment."""


class AttackedWorld:
    """
    An hour's work with a budget, in some worlds with a deadline; the owner asks for a stop at a random moment of three
    hours. Beside it is another run, with an instance, which nobody takes care of. `size` instances train together.
    """

    def __init__(self, seed: int, *, owned: bool = True, budget_usd: Decimal = BUDGET_USD, size: int = 1) -> None:
        deadline = ("2h", None, None)[seed % 3]
        job = spec(deadline=deadline).model_dump(mode="json") | {"budget": {"max_usd": str(budget_usd)}}
        self._world = SimulatedWorld(
            type(spec()).model_validate(job).model_copy(update={"num_nodes": size}),
            Training(steps=3600),
            market(*CHANGING, tick_s=601.5),
            seed=seed,
            idle_s=30.0,
            owned=owned,
        )
        self._random = Random(seed)
        folder, another = f"demo-{self._world.uid}", f"demo-{ANOTHER}"
        self._others = _objects_of_others(another, self._world.state.created)
        self._untouched = dict(self._others.objects)
        self._victim = self._launch_for_another()
        bucket = NodeBucket(self._world.store, self._others, folder, self._world.uid)
        self._attacker = Attacker(bucket, self._random, folder, another)
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
        """What the cloud charges for all instances of the run by now."""
        now = self._world.clock.now()
        return sum((_charged(each, now) for each in self._instances), Decimal(0))

    @property
    def _instances(self) -> list[Instance]:
        return [each for each in self._world.cloud.all if each.run_uid == self._world.uid]

    def _launch_for_another(self) -> Instance:
        return self._world.cloud.launch(requested(DEAR[0], run_uid=ANOTHER, time_to_live=timedelta(days=2)))

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
        asked = sum(intent.instances for intent in launches)
        assert len(self._instances) <= asked, "an instance that no launch asked for"
        assert state.terminal is not None, "a stop was undone"
        assert not any(each.alive for each in self._instances), "an instance was left"
        assert set(world.cloud.terminations) <= {each.instance_id for each in self._instances}, "a stranger was ended"
        assert self._others.objects == self._untouched, "something of another run was changed"
        for request in world.cloud.launches:
            if request.run_uid == world.uid:
                self._check_settings(request)
        run_status(state, summarise(state, world.clock.now()), world.clock.now())
        for entry in world.entries:
            if is_of_owner(entry.event) and entry.number not in voids:
                assert entry.writer != WRITER, f"the node has written {ev.kind(entry.event)}"

    def _check_settings(self, request: LaunchRequest) -> None:
        assert replace(request.offering, price_usd_per_hour=Decimal(0)) in OFFERED, "nobody offers that"
        assert request.time_to_live <= TIME_TO_LIVE, "it would live longer than any"
        created = self._world.state.created
        cap = created.price_cap_usd_per_hour
        assert (request.run_uid, request.price_cap_usd_per_hour) == (created.uid, cap), "a setting was changed"


def _objects_of_others(folder: str, attacked: ev.RunCreated) -> MemoryStore:
    """Another run that trains, and the keys of both."""
    history, store = History(uid=ANOTHER, spec=spec().to_dict()), MemoryStore()
    history.running()
    for entry in history.entries:
        store.put(f"{RUNS}/{folder}/{key_of(entry.number)}", encode_entry(entry))
    for created in (history.state.created, attacked):
        store.put(f"{RUNS}/{keys.key_of(created.uid, created.public_key)}", b"a key")
    return store


def _charged(instance: Instance, now: datetime) -> Decimal:
    if instance.billed_from is None:
        return Decimal(0)
    return hourly(instance.offering.price_usd_per_hour, (instance.ended_at or now) - instance.billed_from)
