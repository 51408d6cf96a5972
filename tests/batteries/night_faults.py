"""Many nights in a row, with what may happen to the function, to the account and to the instances at random moments."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.night_world import NightWorld

OPERATIONS_OF_A_BEGIN = 70
DEADLINE = timedelta(hours=8)
LIVES_MAX = timedelta(days=3)
CALLED_FOR_MIN = 190
"""The last call for a night comes an hour and three quarters after its time, and later where the clock is put back."""


class Results(NamedTuple):
    """What became of all nights. `trouble` has a sentence for each promise that was not kept."""

    nights: int
    runs: int
    carried: int
    completed: int
    faults: Counter[str]
    calls: int
    asked: Counter[str]
    hours: float
    trouble: list[str]


def live(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    nights: int,
    seed: int,
    start: datetime,
    at: str = "22:00",
    share: float = 1.0,
    of: type[NightWorld] = NightWorld,
) -> Results:
    """`share` of the nights have something happen to them, most of these several things."""
    world = of(monkeypatch, folder, start, seed=seed)
    world.install(at=at, budget={"max_usd": "60"})
    dice, faults, trouble, hours = random.Random(seed), Counter[str](), [], 0.0
    begun_before = 0
    for number in range(nights):
        due = world.next_due()
        if not world.is_attended:
            world.is_quiet_until(due)
        agenda = _agenda(dice, faults, world) if dice.random() < share else {}
        is_long = dice.random() < 0.05 * share
        world.work = timedelta(hours=30.0 if is_long else dice.uniform(1.0, 4.0))
        faults["still going when the next is due"] += is_long
        began = world.clock.now()
        _lives_through(world, agenda, until=due + timedelta(hours=20))
        hours += (world.clock.now() - began) / timedelta(hours=1)
        evenings = [each.due for each in world.nights()[begun_before:]]
        if len(evenings) != len(set(evenings)) or len(evenings) != 1:
            trouble.append(f"night {number} of seed {seed} began {len(evenings)} times: {evenings}")
        begun_before = len(world.nights())
    _lives_through(world, {}, until=world.clock.now() + LIVES_MAX)
    trouble += [f"seed {seed}: {line}" for line in _broken(world)]
    states = [world.state(uid) for uid in world.uids()]
    return Results(
        nights=len(world.nights()),
        runs=len(states),
        carried=sum(each.carried for each in world.nights()),
        completed=sum(each.terminal is not None and each.terminal.outcome == "completed" for each in states),
        faults=faults,
        calls=world.invoked,
        asked=world.asked,
        hours=hours,
        trouble=trouble,
    )


def _lives_through(world: NightWorld, agenda: dict[int, list[Callable[[], object]]], until: datetime) -> None:
    """Minute by minute while something is going on; what the agenda has for a minute happens in it."""
    minute = 0
    last = max(agenda, default=0)
    while world.clock.now() < until and (minute <= max(last, CALLED_FOR_MIN) or world.is_attended):
        for act in agenda.get(minute, ()):
            act()
        world.passes(1)
        minute += 1
    world.denied = world.throttled = False


def _agenda(dice: random.Random, faults: Counter[str], world: NightWorld) -> dict[int, list[Callable[[], object]]]:
    found: dict[int, list[Callable[[], object]]] = {}

    def plan(minute: int, act: Callable[[], object]) -> None:
        found.setdefault(minute, []).append(act)

    def when() -> int:
        """At the very beginning, or at any time of the night."""
        return dice.choice((0, 0, dice.randrange(1, 10), dice.randrange(10, 240)))

    def lasts(name: str, minutes: int) -> None:
        began = when()
        plan(began, lambda: setattr(world, name, True))
        plan(began + minutes, lambda: setattr(world, name, False))

    for _ in range(dice.randrange(1, 5)):
        kind = dice.choice((*KINDS,))
        faults[kind] += 1
        operation = dice.randrange(dice.choice((5, OPERATIONS_OF_A_BEGIN)))
        match kind:
            case "killed":
                plan(when(), lambda operation=operation: setattr(world, "kill_in", operation))
            case "timed out":
                plan(when(), lambda operation=operation: setattr(world, "hang_in", operation))
            case "run twice at once":
                plan(when(), lambda operation=operation: setattr(world, "beside_in", operation))
            case "throttled":
                lasts("throttled", dice.randrange(2, 60))
            case "permissions lost":
                lasts("denied", 60)
            case "deployed anew":
                plan(when(), world.is_deployed_anew)
            case "cold":
                plan(when(), world.is_cold)
            case "interrupted":
                plan(dice.randrange(5, 240), world.is_interrupted)
            case "taken without a notice":
                plan(dice.randrange(5, 240), lambda: world.is_interrupted(with_notice=False))
    return found


KINDS = (
    *("killed", "timed out", "run twice at once", "throttled", "permissions lost", "deployed anew", "cold"),
    *("interrupted", "taken without a notice"),
)


def _broken(world: NightWorld) -> list[str]:
    """The promises that were not kept, once all is over."""
    found = [f"{uid} never ended" for uid in world.uids() if world.state(uid).terminal is None]
    found += [f"{uid} was recorded, and not created" for uid in {e.run for e in world.nights()} - {*world.uids()}]
    if world.most_alive > 1:
        found.append(f"{world.most_alive} instances at once")
    if world.is_called_each_minute or world.is_told_of_instances:
        found.append("the function is called although nothing runs")
    found += world.misbooked()
    for uid in world.uids():
        terminal, created = world.state(uid).terminal, world.state(uid).created
        assert created.deadline_at is not None
        if world.scripts[uid].steps <= 4 * 3600 and (terminal is None or terminal.at > created.deadline_at):
            found.append(f"{uid} missed its deadline")
    found += [f"{uid} is of no night" for uid in {*world.uids()} - {each.run for each in world.nights()}]
    world.clock.advance(LIVES_MAX.total_seconds())
    found += [f"{left} is left" for left in (*world.account.left, *world.account.identities_left)]
    return found
