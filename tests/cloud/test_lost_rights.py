"""A run whose account loses the right to launch: few requests, and no long wait once it has the right again."""

from __future__ import annotations

import pytest

from tests.support import aws_accidents, gcp_accidents
from tests.support.accidents import FOR_EVER_S
from tests.support.plain_aws_run import PlainAwsRun
from tests.support.plain_gcp_run import PlainGcpRun
from tests.support.plain_run import PlainRun

TEN_MINUTES_S = 600.0
RUNS = {
    "aws": (PlainAwsRun, aws_accidents.broken("UnauthorizedOperation", 403)),
    "gcp": (PlainGcpRun, gcp_accidents.HTTP["403 forbidden"]),
}


@pytest.mark.parametrize("cloud", RUNS)
def test_run_that_lost_the_right_to_launch_asks_its_pools_in_turns(cloud: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made, denial = RUNS[cloud]
    run: PlainRun = made(monkeypatch)  # type: ignore[operator]
    assert run.trains_within(60)
    fault = run.fails(run.launch_call, denial, FOR_EVER_S)
    run.is_interrupted()
    before = len(run.state.launches)
    run.goes_on(TEN_MINUTES_S)
    denied = list(run.state.launches.values())[before:]
    pools = {launch.intent.offering.pool for launch in denied}
    assert len(denied) <= len(pools) + 5
    assert "it is denied" in (run.ticks[-1].waiting_for or "")
    fault.ends()
    assert run.trains_within(150)
