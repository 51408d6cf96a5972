"""
Exhaustive checking of the rules of gangs (protocol 32 to 48) in small worlds, with the real fold.

All worlds that members, agents, trainers and runners can come to are visited, with losses, freezes and members that
are cut off from the others. For each rule that the model covers a test takes it away, and the history that it closes
is found. What the fold keeps is taken out of the fold.
"""

from __future__ import annotations

import random
from itertools import pairwise
from typing import NamedTuple

import pytest

from spotrun.run import events as ev
from spotrun.run import gang_rules, preconditions
from tests.support.gang_moves import check_rest, faults, moves
from tests.support.gang_world import Bounds, Broken, World, begin, shape

WALKS = [100, pytest.param(300, marks=pytest.mark.nightly)]
STEPS = 200


class Found(NamedTuple):
    """How many worlds there are, in how many nobody has anything to do any more, and in how many a gang trains."""

    worlds: int
    rests: int
    training: int


def explore(bounds: Bounds) -> Found:
    """
    All worlds within the bounds, those first that are near.

    Raises:
        Broken: one of them breaks the rules; its notes say how it came about.
    """
    first = begin(bounds)
    came_by: dict[object, tuple[object, str]] = {shape(first): (None, "")}
    waiting = [(shape(first), first)]
    rests = training = 0
    for key, world in waiting:
        try:
            found = next_worlds(world, bounds)
        except Broken as broken:
            broken.add_note(" / ".join(history(came_by, key)))
            raise
        rests += not found
        training += world.place is not None and world.trains(world.place)
        for label, following in [*found, *faults(world, bounds)]:
            after = shape(following)
            if after not in came_by:
                came_by[after] = (key, label)
                waiting.append((after, following))
    return Found(len(waiting), rests, training)


def next_worlds(world: World, bounds: Bounds) -> list[tuple[str, World]]:
    found = list(moves(world, bounds))
    if not found:
        check_rest(world, bounds)
    return found


def history(came_by: dict[object, tuple[object, str]], key: object) -> list[str]:
    labels: list[str] = []
    while (before := came_by[key])[0] is not None:
        labels.append(before[1])
        key = before[0]
    return labels[::-1]


def walk(bounds: Bounds, rng: random.Random) -> World:
    """One history at random, until nobody has anything to do. A fault, or a runner that gives up, is one step in 20."""
    world = begin(bounds)
    for _ in range(STEPS):
        found, accidents = next_worlds(world, bounds), list(faults(world, bounds))
        patient = [move for move in found if not move[0].endswith("is closed")]
        likely, unlikely = patient or found, accidents + found
        if not unlikely:
            break
        _, world = rng.choice(unlikely if not likely or rng.random() < 0.05 else likely)
    return world


EXHAUSTIVE = {
    "3 members, 2 attempts": Bounds(),
    "2 members, 3 attempts of one": Bounds(size=1, members=2, members_max=2, attempts=3),
    "2 members, 2 faults": Bounds(members=2, members_max=2, faults=2),
    "2 incarnations, 2 snapshots": Bounds(members=2, members_max=2, attempts=1, incarnations=2, snapshots=2),
    "2 attempts, 2 snapshots": Bounds(members=2, members_max=2, snapshots=2),
    "elastic, 2 members, 2 attempts": Bounds(members=2, members_max=2, least=1),
}


NIGHTLY = {"elastic, 2 members, 2 attempts", "3 members, 2 attempts", "2 members, 2 faults", "2 attempts, 2 snapshots"}


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] * (name in NIGHTLY)) for name in EXHAUSTIVE]
)
def test_every_history_of_a_small_gang_keeps_the_rules(name: str) -> None:
    found = explore(EXHAUSTIVE[name])
    print(f"{found.worlds:,} worlds, {found.rests:,} of them at rest, a gang trains in {found.training:,}")
    assert found.worlds > 3000
    assert found.rests > 100
    assert found.training > 10


@pytest.mark.exhaustive
@pytest.mark.parametrize("walks", WALKS)
def test_longer_histories_of_larger_gangs_keep_the_rules(walks: int) -> None:
    bounds = Bounds(3, members=3, members_max=5, attempts=3, incarnations=2, snapshots=2, faults=4)
    ended = [walk(bounds, random.Random(seed)) for seed in range(walks)]
    attempts = [len(world.run.attempts) for world in ended]
    commits = [len(world.run.commits) for world in ended]
    print(f"{walks} histories with {sum(attempts)} attempts and {sum(commits)} commits")
    assert max(attempts) == 3
    assert max(commits) > 2


@pytest.mark.exhaustive
@pytest.mark.parametrize("walks", WALKS)
def test_histories_of_gangs_that_shrink_and_grow_keep_the_rules(walks: int) -> None:
    bounds = Bounds(3, members=3, members_max=5, attempts=5, snapshots=1, faults=4, least=1)
    ended = [walk(bounds, random.Random(seed)) for seed in range(walks)]
    sizes = [tuple(len(each.names) for each in world.run.attempts.values()) for world in ended]
    assert any(before > after for found in sizes for before, after in pairwise(found))
    assert any(before < after for found in sizes for before, after in pairwise(found))


@pytest.mark.exhaustive
def test_worlds_of_one_shape_go_on_alike() -> None:
    """Else the model would leave out histories."""
    bounds = Bounds(size=1, members=2, members_max=2)
    first = begin(bounds)
    known, waiting = {shape(first): labels(first, bounds)}, [first]
    alike = 0
    for world in waiting:
        for _, following in [*moves(world, bounds), *faults(world, bounds)]:
            if (key := shape(following)) not in known:
                known[key] = labels(following, bounds)
                waiting.append(following)
            else:
                alike += 1
                assert labels(following, bounds) == known[key]
    assert alike > len(known)


def labels(world: World, bounds: Bounds) -> list[str]:
    return [label for label, _ in [*moves(world, bounds), *faults(world, bounds)]]


def without(monkeypatch: pytest.MonkeyPatch, *checks: str) -> None:
    """The fold no longer keeps these."""
    for check in checks:
        monkeypatch.setattr(gang_rules, check, lambda *_: None)


SMALL = Bounds(members=2, members_max=2)
ONE_GANG = SMALL._replace(attempts=1, faults=0, snapshots=3)


def test_rule_32_else_a_second_gang_forms_from_standbys_and_both_train(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "check_one_is_current")
    with pytest.raises(Broken, match="two gangs train, and nobody has ended the first one"):
        explore(Bounds(size=1, members=2, members_max=2, faults=0))


def test_rule_32_else_a_gang_waits_for_a_member_of_its_predecessor(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "check_not_let_go")
    with pytest.raises(Broken, match="a gang waits for 0, which has to end"):
        explore(SMALL)


@pytest.mark.exhaustive
def test_rule_33_else_a_gang_begins_while_an_old_trainer_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "check_after_the_end", "check_left", "check_words")
    with pytest.raises(Broken, match=r"a gang begins while the old trainer of \d is there"):
        explore(Bounds())


@pytest.mark.exhaustive
def test_rule_33_is_kept_by_agents_too() -> None:
    with pytest.raises(Broken, match=r"a gang begins while the old trainer of \d is there"):
        explore(Bounds(without=frozenset({33})))


def test_rule_34_else_a_member_that_never_began_is_billed_for_ever() -> None:
    with pytest.raises(Broken, match="1 is billed for ever") as broken:
        explore(Bounds(without=frozenset({34})))
    assert "(0, 1) begin" in broken.value.__notes__[0]


def test_rule_35_else_a_gang_waits_for_a_member_that_has_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "check_wanted")
    with pytest.raises(Broken, match="a gang waits for 0, which has to end"):
        explore(SMALL)


LATE = [
    *("0 is ready", "1 is ready", "(0, 1) begin", "0 says where they meet", "1 begins a trainer", "0 freezes"),
    *("1 ends the attempt", "2 is ready", "0 wakes", "0 is ready", "(0, 2) begin", "0 says where they meet"),
    "0 begins a trainer",
]
"""What the search below finds: one that was frozen meets a trainer that its gang has left behind."""


def test_rule_37_keeps_a_late_member_from_the_place_of_its_successor(monkeypatch: pytest.MonkeyPatch) -> None:
    assert follow(LATE, Bounds())
    without(monkeypatch, "check_new_place")
    with pytest.raises(Broken, match="do a step together, and are not of one gang"):
        follow(LATE, Bounds(without=frozenset({37})))


def follow(steps: list[str], bounds: Bounds) -> list[tuple[str, World]]:
    """What can happen after these steps."""
    world = begin(bounds)
    for step in steps:
        world = dict([*next_worlds(world, bounds), *faults(world, bounds)])[step]
    return next_worlds(world, bounds)


@pytest.mark.nightly
@pytest.mark.exhaustive
def test_rule_37_else_a_late_member_takes_the_place_of_its_successor(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "check_new_place")
    with pytest.raises(Broken, match="do a step together, and are not of one gang"):
        explore(Bounds(without=frozenset({37})))


def test_rule_39_else_a_member_that_is_cut_off_holds_the_gang_for_ever() -> None:
    with pytest.raises(Broken, match="is billed for ever") as broken:
        explore(SMALL._replace(without=frozenset({39})))
    assert "is cut off" in broken.value.__notes__[0]


def test_rule_40_else_a_shard_lies_under_the_number_of_another_snapshot() -> None:
    with pytest.raises(Broken, match="0 stores snapshot 2 under the number 1"):
        explore(ONE_GANG._replace(without=frozenset({40})))


@pytest.mark.exhaustive
def test_rule_41_else_a_committed_shard_is_overwritten() -> None:
    with pytest.raises(Broken, match="a committed shard is overwritten"):
        explore(EXHAUSTIVE["2 incarnations, 2 snapshots"]._replace(without=frozenset({41})))


def test_rule_42_else_a_commit_names_what_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "check_shards")
    with pytest.raises(Broken, match="0 commits what is not there"):
        explore(ONE_GANG)


def test_rule_43_else_an_old_snapshot_is_committed_behind_a_newer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "check_newest")
    with pytest.raises(Broken, match="0 commits an old snapshot behind a newer one"):
        explore(ONE_GANG)


@pytest.mark.exhaustive
def test_rule_43_else_the_lead_of_two_gangs_commits_for_the_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """One snapshot for each trainer: what is old is of an earlier gang."""
    without(monkeypatch, "check_newest")
    monkeypatch.setitem(preconditions.CHECKS, ev.CheckpointCommitted, lambda *_: None)
    with pytest.raises(Broken, match="0 commits an old snapshot behind a newer one") as broken:
        explore(SMALL._replace(snapshots=1))
    assert broken.value.__notes__[0].count(" begin /") == 2


@pytest.mark.exhaustive
def test_rule_45_else_a_standby_that_came_too_late_is_billed_for_ever() -> None:
    with pytest.raises(Broken, match="2 is billed for ever"):
        explore(Bounds(without=frozenset({45})))


def test_rule_45_what_is_named_first_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A runner that has not read the newest entries would release a member that trains."""
    without(monkeypatch, "check_unused")
    with pytest.raises(Broken, match="trains, and is released"):
        explore(SMALL)


def test_rule_46_else_a_launch_is_closed_whose_members_stand_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "check_never_ready")
    with pytest.raises(Broken, match="is closed, and members of it stand ready"):
        explore(SMALL)
