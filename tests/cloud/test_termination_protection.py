"""A hung instance that its cloud refuses to end, because a user has protected it: the run goes on elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from spotrun.run.events import Cause
from tests.support import aws_accidents
from tests.support.accidents import FOR_EVER_S
from tests.support.gce_answers import Refusal
from tests.support.plain_aws_run import PlainAwsRun
from tests.support.plain_gcp_run import PlainGcpRun
from tests.support.plain_run import PlainRun

RUNS: dict[str, tuple[type[PlainRun], Any]] = {
    "aws": (PlainAwsRun, aws_accidents.broken("OperationNotPermitted")),
    "gcp": (PlainGcpRun, Refusal(400, "invalid", "Resource is protected against deletion.")),
}


@pytest.mark.parametrize("cloud", RUNS)
def test_run_goes_on_elsewhere_if_its_cloud_refuses_to_end_a_hung_instance(
    cloud: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, refusal = RUNS[cloud]
    run = made(monkeypatch)  # type: ignore[call-arg, arg-type]
    run.fails(run.end_call, refusal, FOR_EVER_S)
    assert run.trains_within(60)
    (hung,) = run.account.alive
    run.is_hung = True
    run.goes_on(14 * 60)
    assert run.training is not None
    assert run.training.instance_id != hung
    assert hung in run.account.alive
    assert f"{hung} cannot be ended" in (run.ticks[-1].remark or "")
    first, _ = run.state.attempts.values()
    assert first.end is not None
    assert first.end.cause is Cause.HANG
