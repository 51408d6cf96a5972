"""What the members of a gang make of the ledger, and its lead of the others."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from spotrun.agent.gang.gang_decisions import (
    ANOTHER_STARTS_AFTER_S,
    FIRST_WAITS_S,
    SURVIVORS_WITHIN_S,
    EndedTrainer,
    MemberAction,
    are_settled,
    cut_off_members,
    ended_trainers,
    gang_to_start,
    has_the_reason,
    missing_at_start,
    ready_members,
    silent_members,
    stands,
    stays,
)
from spotrun.agent.gang.worker_statuses import SeenStatus
from spotrun.folder.status_objects import AgentStatus, MembersTrainer
from spotrun.run import events as ev
from spotrun.run.events import Cause
from spotrun.run.gang import MemberName
from tests.support.gang_history import GangHistory
from tests.support.histories import START

STAYS_AFTER = {Cause.INTERRUPTED}
ONE, TWO, THREE = MemberName(1, 0), MemberName(1, 1), MemberName(1, 2)


def seen(since_s: float = 0.0, exit_code: int | None = None, at: datetime = START, incarnation: int = 0) -> SeenStatus:
    trainer = MembersTrainer(attempt=5, incarnation=incarnation, exit_code=exit_code, at=at, reason="why")
    return SeenStatus(AgentStatus(launch=1, phase="train", at=START, sequence=1, trainer=trainer), since_s)


def test_a_member_says_ready_once_after_each_end():
    history = GangHistory(2)
    one, two = history.ask(2)
    assert stands(history.state, one) is MemberAction.SAY_READY
    history.exist(one, two)
    history.ready(one)
    assert stands(history.state, one) is MemberAction.WAIT
    history.ready(two)
    history.start_gang([one, two])
    assert stands(history.state, one) is stands(history.state, two) is MemberAction.TRAIN
    history.end_without(two)
    assert stands(history.state, one) is MemberAction.SAY_READY


def test_members_that_are_to_replace_a_gang_say_so_while_it_trains():
    """The runner tells the gang on demand to hand over once a whole one on spot stands ready."""
    history = GangHistory(2)
    one, two = history.ask(2)
    history.exist(one, two)
    history.ready(one, two)
    trains = history.start_gang([one, two])
    newcomer, *_ = history.ask(2, for_gang=trains)
    history.exist(newcomer)
    assert stands(history.state, newcomer) is MemberAction.SAY_READY
    history.ready(newcomer)
    assert stands(history.state, newcomer) is MemberAction.WAIT
    history.end_without(two)
    assert stands(history.state, newcomer) is MemberAction.SAY_READY, "the word was of an earlier end"


@pytest.mark.parametrize("said", ["condemned", "released", "gone"])
def test_unwanted_member_leaves(said: str):
    history = GangHistory(2)
    one, two = history.ask(2)
    history.exist(one, two)
    if said == "released":
        history.released(two)
    elif said == "gone":
        history.lost(two)
    else:
        history.write(ev.InstanceCondemned(launch=1, member=1, cause=Cause.HANG))
    assert stands(history.state, two) is MemberAction.LEAVE
    assert stands(history.state, one) is MemberAction.SAY_READY


def test_member_that_hands_over_leaves_and_joins_no_other_gang():
    """Also if it is slow to power off: the gang that replaces it has begun to train by then."""
    history = GangHistory(2)
    one, two = history.training_gang()
    on_spot = history.ask(2, for_gang=history.attempt)
    history.exist(*on_spot)
    history.ready(*on_spot)
    history.write(ev.DrainRequested(attempt=history.attempt, reason="spot is back"))
    assert stands(history.state, one) is MemberAction.TRAIN
    history.drained(None)
    history.ready(*on_spot)
    assert stands(history.state, one) is stands(history.state, two) is MemberAction.LEAVE
    assert ready_members(history.state) == on_spot


def test_the_earliest_ready_member_starts_a_gang_of_the_size_of_the_job():
    history = GangHistory(2)
    names = history.ask(3)
    history.exist(*names)
    history.ready(names[2])
    assert gang_to_start(history.state, names[2], 1000.0) is None
    history.ready(names[1])
    assert ready_members(history.state) == [names[1], names[2]]
    gang = gang_to_start(history.state, names[1], 0.0)
    assert gang is not None
    assert gang.names == (names[1], names[2])
    assert gang_to_start(history.state, names[0], 1000.0) is None


def test_another_member_starts_it_after_a_while():
    history = GangHistory(2)
    one, two = history.ask(2)
    history.exist(one, two)
    history.ready(one, two)
    assert gang_to_start(history.state, two, ANOTHER_STARTS_AFTER_S - 1) is None
    assert gang_to_start(history.state, two, ANOTHER_STARTS_AFTER_S) == gang_to_start(history.state, one, 0.0)


def test_no_gang_starts_after_a_stop_request():
    history = GangHistory(2)
    one, two = history.ask(2)
    history.exist(one, two)
    history.ready(one, two)
    history.write(ev.StopRequested(by="test"))
    assert gang_to_start(history.state, one, 0.0) is None
    assert stands(history.state, one) is MemberAction.WAIT


def test_a_member_with_two_accelerators_has_two_ranks():
    history = GangHistory(2)
    one, two = history.ask(2)
    history.exist(one, two)
    history.ready(one, accelerators=2)
    history.ready(two, accelerators=2)
    gang = gang_to_start(history.state, one, 0.0)
    assert gang is not None
    assert ([seat.rank for seat in gang.members], gang.world) == ([0, 2], 4)


@pytest.mark.parametrize("cause", [*Cause])
def test_after_the_end_of_an_attempt_members_stay_if_it_was_interrupted(cause: Cause):
    history = GangHistory(2)
    history.training_gang()
    history.write(ev.AttemptEnded(attempt=history.attempt, cause=cause, last_step=3))
    attempt = history.state.attempts.values()[-1]
    assert stays(history.state, attempt) == (cause in STAYS_AFTER)


def test_members_stay_when_another_one_is_lost_by_whatever_cause():
    history = GangHistory(2)
    _, two = history.training_gang()
    history.lost(two)
    assert stays(history.state, history.state.attempts.values()[-1])


def test_trainers_are_listed_by_their_end_without_other_incarnations():
    known = {
        ONE: seen(exit_code=1, at=START + timedelta(seconds=2)),
        TWO: seen(exit_code=-9, at=START + timedelta(seconds=1)),
        THREE: seen(exit_code=1, incarnation=1),
    }
    assert [one.name for one in ended_trainers(known, 5, 0)] == [TWO, ONE]
    assert ended_trainers(known, 4, 0) == []


@pytest.mark.parametrize("first", [ONE, TWO])
def test_the_reason_is_not_that_of_a_rank_that_lost_another_one(first: MemberName):
    """Whichever of the two has come to its end first, by the clocks of two machines."""
    second = TWO if first == ONE else ONE
    lost = "RuntimeError: [pair.cc:547] Connection closed by peer [127.77.0.3]:4211 (exit code 1)"
    later = START + timedelta(seconds=1)
    ended = [EndedTrainer(first, 1, START, lost), EndedTrainer(second, 1, later, "ValueError: 7")]
    assert has_the_reason(ended).name == second
    assert has_the_reason([one._replace(reason=lost) for one in ended]).name == first
    assert has_the_reason([one._replace(reason="KeyError: 3") for one in ended]).name == first


def test_a_member_that_says_nothing_for_30_s_is_not_reached():
    known = {ONE: seen(since_s=100.0), TWO: seen(since_s=71.0)}
    assert silent_members(known, 101.0, scale=1.0) == (TWO,)
    assert silent_members(known, 101.0, scale=10.0) == ()  # ten seconds on the wall are 100 s there


def test_the_lead_waits_for_the_others_for_a_while_only():
    lives = {ONE: seen(since_s=12.0)}
    assert are_settled(lives, 1, since_s=10.0, now_s=10.0, scale=1.0)
    assert not are_settled(lives, 0, since_s=10.0, now_s=15.0, scale=1.0)
    assert are_settled(lives, 0, since_s=10.0, now_s=20.0, scale=1.0)
    unheard = {ONE: seen(since_s=9.0)}
    assert not are_settled(unheard, 0, since_s=10.0, now_s=30.0, scale=1.0)
    assert are_settled(unheard, 0, since_s=10.0, now_s=39.0, scale=1.0)


def test_the_lead_waits_longer_for_the_one_whose_loss_has_ended_its_trainer():
    alive = {ONE: seen(since_s=45.0), TWO: seen(since_s=45.0)}
    assert not are_settled(alive, 0, since_s=10.0, now_s=49.0, scale=1.0, lost=True)
    assert not are_settled(alive, 2, since_s=10.0, now_s=49.0, scale=1.0, lost=True)
    assert are_settled(alive, 0, since_s=10.0, now_s=50.0, scale=1.0, lost=True)


@pytest.mark.parametrize(
    ("unreached", "missing"),
    [
        ({ONE: (), TWO: (), THREE: ()}, ()),
        ({ONE: (TWO,), TWO: (ONE,)}, (TWO,)),
        ({ONE: (), TWO: (ONE,), THREE: ()}, (TWO,)),
        ({ONE: (THREE,), TWO: (THREE,), THREE: ()}, (THREE,)),
        ({ONE: (), TWO: (THREE,), THREE: (TWO,)}, (THREE,)),
        ({ONE: (TWO, THREE), TWO: (), THREE: ()}, (TWO, THREE)),
        ({ONE: (), TWO: (MemberName(9, 9),), THREE: ()}, ()),
    ],
)
def test_cut_off_members_follow_from_the_connections(
    unreached: dict[MemberName, tuple[MemberName, ...]], missing: tuple[MemberName, ...]
):
    """ONE leads. In the last but one case it is the lead itself that is cut off, and all others say so."""
    assert cut_off_members(unreached, ONE) == missing


def test_member_that_has_not_begun_in_time_is_missing():
    known = {ONE: seen(), TWO: SeenStatus(None, 0.0), THREE: seen(incarnation=1)}
    assert missing_at_start(known, 5, 0, since_s=59.0, scale=1.0) == ()
    assert missing_at_start(known, 5, 0, since_s=60.0, scale=1.0) == (TWO, THREE)


# -- a gang whose size may change


def elastic(size: int = 3, least: int = 2) -> GangHistory:
    return GangHistory(size, least=least)


def test_elastic_gang_starts_without_the_missing_once_its_survivors_are_ready():
    history = elastic()
    one, two, three = history.training_gang(3)
    history.lost(three)
    history.ready(one)
    assert gang_to_start(history.state, one, 0.0) is None, "the other survivor comes"
    history.ready(two)
    gang = gang_to_start(history.state, one, 0.0)
    assert gang is not None
    assert (gang.names, gang.world) == ((one, two), 2)


def test_elastic_gang_does_not_wait_long_for_a_survivor_nor_start_below_its_minimum():
    history = elastic()
    one, two, three = history.training_gang(3)
    history.end_without(three)
    history.ready(one, two)
    assert gang_to_start(history.state, one, SURVIVORS_WITHIN_S - 1) is None
    assert gang_to_start(history.state, one, SURVIVORS_WITHIN_S) is not None
    history.lost(two)
    assert gang_to_start(history.state, one, 1000.0) is None


def test_first_gang_of_an_elastic_run_waits_for_all_its_members():
    history = elastic()
    one, two, _ = names = history.ask(3)
    history.exist(*names)
    history.ready(one, two)
    assert gang_to_start(history.state, one, FIRST_WAITS_S - 1) is None
    assert gang_to_start(history.state, one, FIRST_WAITS_S) is not None


def test_members_that_regroup_stay_and_train_with_the_newcomers():
    history = elastic()
    one, two, three = history.training_gang(3)
    history.lost(three)
    history.ready(one, two)
    smaller = history.start_gang([one, two])
    (four,) = history.ask(1, for_gang=smaller)
    history.exist(four)
    history.ready(four)
    history.meet()
    history.write(ev.DrainRequested(attempt=smaller, reason="1 member is ready", regroup=True))
    assert stands(history.state, one) is MemberAction.TRAIN
    history.drained(None)
    assert stays(history.state, history.state.attempts[smaller])
    assert {stands(history.state, name) for name in (one, two, four)} == {MemberAction.SAY_READY}
    history.ready(one, two)
    assert gang_to_start(history.state, one, 0.0) is None, "the newcomer says so again"
    history.ready(four)
    found = gang_to_start(history.state, one, 0.0)
    assert found is not None
    assert found.names == (one, two, four)
