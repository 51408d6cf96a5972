"""When a drained instance waits for the cloud to take it (protocol 15)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from spotrun.agent.attempt_end import idle_until
from spotrun.run.billing import LOCAL_RULE
from spotrun.run.events import BillingRule
from tests.support.histories import AWS_RULE

BORN = datetime(2026, 11, 22, tzinfo=UTC)


@pytest.mark.parametrize(
    ("rule", "taken_after_min", "waits"),
    [
        (AWS_RULE, 10, True),
        (AWS_RULE, 59.9, True),
        (AWS_RULE, 60, False),
        (AWS_RULE, 300, False),
        (LOCAL_RULE, 2, False),
    ],
)
def test_n10_it_waits_where_being_taken_is_free(rule: BillingRule, taken_after_min: float, waits: bool) -> None:
    deadline_at = BORN + timedelta(minutes=taken_after_min)
    assert idle_until(rule, BORN, deadline_at) == (deadline_at + timedelta(minutes=3) if waits else None)


def test_instance_without_notices_is_not_left_idle() -> None:
    assert idle_until(AWS_RULE, BORN, None) is None
