"""When the lead of a gang makes a checkpoint of a command's state, and how another member compares its files."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from spotrun.agent.gang_state import RESTS, RESTS_MAX, Asking, MemberAnswer, Verdict, heard_in, verdict
from spotrun.folder.status_objects import AgentStatus, MembersTrainer, StateAnswer, StateAsked

REST_S = 5.0
LIKE = StateAnswer(word="w", count=0)
UNLIKE = StateAnswer(word="w", count=1, unlike=("out/part-1",), rests=True)
CHANGES = StateAnswer(word="w", count=1, unlike=("out/part-1",))
FRESH = Asking(asked_s=0.0)
RESTED = Asking(asked_s=RESTS * REST_S)
LONG = Asking(asked_s=RESTS_MAX * REST_S)


@pytest.mark.parametrize(
    ("second", "third", "asking", "decided"),
    [
        (LIKE, LIKE, FRESH, Verdict.COMMIT),
        (LIKE, None, RESTED, Verdict.WAIT),
        (LIKE, UNLIKE, FRESH, Verdict.WAIT),
        (LIKE, UNLIKE, RESTED, Verdict.STORE),
        (UNLIKE, UNLIKE, RESTED, Verdict.STORE),
        (None, UNLIKE, RESTED, Verdict.WAIT),
        (CHANGES, UNLIKE, RESTED, Verdict.WAIT),
        (LIKE, CHANGES, LONG, Verdict.GIVE_UP),
        (LIKE, UNLIKE, LONG, Verdict.STORE),
        (LIKE, UNLIKE, RESTED._replace(renewed=True), Verdict.TAKE_ANOTHER),
        (LIKE, LIKE, RESTED._replace(renewed=True), Verdict.COMMIT),
        (LIKE, UNLIKE, RESTED._replace(renewed=True, final=True), Verdict.STORE),
    ],
)
def test_a_state_is_committed_when_no_other_member_has_other_files_and_joined_when_all_of_them_rest(
    second: StateAnswer | None, third: StateAnswer | None, asking: Asking, decided: Verdict
) -> None:
    assert verdict([MemberAnswer(second), MemberAnswer(third)], asking, REST_S) is decided


@pytest.mark.parametrize(
    ("heard", "asking", "decided"),
    [
        (MemberAnswer(UNLIKE), RESTED._replace(ended=True), Verdict.TAKE_ANOTHER),
        (MemberAnswer(LIKE), RESTED._replace(ended=True), Verdict.COMMIT),
        (MemberAnswer(None), FRESH._replace(ended=True), Verdict.WAIT),
        (MemberAnswer(None), RESTED._replace(ended=True), Verdict.TAKE_ANOTHER),
        (MemberAnswer(UNLIKE, failed=True), RESTED, Verdict.TAKE_ANOTHER),
        (MemberAnswer(None, failed=True), FRESH, Verdict.TAKE_ANOTHER),
        (MemberAnswer(LIKE, failed=True), FRESH, Verdict.COMMIT),
        (MemberAnswer(UNLIKE), RESTED._replace(ended=True, final=True), Verdict.STORE),
    ],
)
def test_a_command_that_has_ended_in_the_middle_of_its_work_is_no_reason_to_refuse_its_files(
    heard: MemberAnswer, asking: Asking, decided: Verdict
) -> None:
    assert verdict([heard], asking, REST_S) is decided


@pytest.mark.parametrize(("incarnation", "failed"), [(0, False), (1, True)])
def test_the_failure_of_an_earlier_command_is_not_that_of_the_one_which_the_lead_asks_about(
    incarnation: int, failed: bool
) -> None:
    asked = StateAsked(attempt=4, incarnation=1, word="w", key="k", blake3="")
    trainer = MembersTrainer(attempt=4, incarnation=incarnation, exit_code=3)
    at = datetime(2026, 11, 28, tzinfo=UTC)
    status = AgentStatus(launch=1, phase="exited", at=at, sequence=1, trainer=trainer)
    assert heard_in(status, asked) == MemberAnswer(None, failed)
