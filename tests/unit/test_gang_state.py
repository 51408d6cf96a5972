"""When the lead of a gang makes a checkpoint of a command's state, and how another member compares its files."""

from __future__ import annotations

import pytest

from spotrun.agent.gang_state import RESTS, RESTS_MAX, Asking, Verdict, verdict
from spotrun.folder.status_objects import StateAnswer
from spotrun.run.gang import MemberName

REST_S = 5.0
SECOND, THIRD = MemberName(1, 1), MemberName(1, 2)
LIKE = StateAnswer(word="w", count=0)
UNLIKE = StateAnswer(word="w", count=1, unlike=("out/part-1",))
FRESH = Asking(asked_s=0.0, rested_s=0.0, renewed=False, final=False)
RESTED = FRESH._replace(asked_s=RESTS * REST_S, rested_s=RESTS * REST_S)


@pytest.mark.parametrize(
    ("second", "third", "asking", "decided"),
    [
        (LIKE, LIKE, FRESH, Verdict.COMMIT),
        (LIKE, None, RESTED, Verdict.WAIT),
        (LIKE, UNLIKE, FRESH, Verdict.WAIT),
        (LIKE, UNLIKE, RESTED, Verdict.REFUSE),
        (None, UNLIKE, RESTED, Verdict.REFUSE),
        (LIKE, UNLIKE, RESTED._replace(rested_s=0.0), Verdict.WAIT),
        (LIKE, UNLIKE, RESTED._replace(rested_s=0.0, asked_s=RESTS_MAX * REST_S), Verdict.REFUSE),
        (LIKE, UNLIKE, RESTED._replace(renewed=True), Verdict.TAKE_ANOTHER),
        (LIKE, LIKE, RESTED._replace(renewed=True), Verdict.COMMIT),
        (LIKE, UNLIKE, RESTED._replace(renewed=True, final=True), Verdict.REFUSE),
    ],
)
def test_a_state_is_committed_when_no_other_member_has_other_files_and_refused_when_it_rests_without_them(
    second: StateAnswer | None, third: StateAnswer | None, asking: Asking, decided: Verdict
) -> None:
    assert verdict({SECOND: second, THIRD: third}, asking, REST_S) is decided
