"""
Each call that a runner makes to AWS, with each kind of error: once, for half a minute, and from then on for ever.
`make test` has each call with each kind in one of these three, and `make nightly` in each.

What a runner reads around a run may make its view poorer, and may never end it. `make battery NAME=accidents` goes
through all codes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from botocore import exceptions as sdk
from msgspec.structs import replace

from spotrun.clouds.patience import ASIDE
from spotrun.errors import AccessDenied
from spotrun.offering import CapacityType
from spotrun.run.events import Cause
from tests.support import accidents, aws_accidents
from tests.support.accidents import FOR_EVER_S, HALF_A_MINUTE_S
from tests.support.aws_accidents import broken
from tests.support.plain_aws import CONFIG, REGION, refusal
from tests.support.plain_aws_run import Error, PlainAwsRun
from tests.support.plain_run import PASS_S

CALLS = tuple(call for calls in aws_accidents.CALLS.values() for call in calls)
ERRORS: dict[str, Error] = {  # one for each way in which errors are met
    "broken": broken("InternalError", 500),
    "denied": broken("UnauthorizedOperation", 403),
    "unknown caller": broken("InvalidClientTokenId", 403),
    "expired": broken("ExpiredToken"),
    "unheard of": broken("NeverHeardOf"),
    "hangs": lambda: sdk.ReadTimeoutError(endpoint_url="https://aws"),
    "nameless": lambda: RuntimeError("of the SDK"),
}
ELSEWHERE = "us-west-2"
NOBODY = ("denied", "unknown caller")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> PlainAwsRun:
    return aws_accidents.new_run(monkeypatch)


WAYS = (
    accidents.passes,
    accidents.passes_for_a_new_runner,
    accidents.passes_in_a_notice,
    accidents.passes_after_a_week,
)
ONCE, FOR_A_WHILE, FOR_EVER = range(3)


def each_pair(how_long: int) -> list[Any]:
    """
    Each call with each kind of error; a third of them in `make test`. The other two thirds have their turn there in the
    other two tests, so that there each call, and each kind, meets each of the three.
    """
    return [
        pytest.param(call, kind, id=f"{call}-{kind}", marks=[pytest.mark.nightly] * ((at + number) % 3 != how_long))
        for at, call in enumerate(CALLS)
        for number, kind in enumerate(ERRORS)
    ]


HOWS = [
    pytest.param(WAYS[at % len(WAYS)], *pair.values, id=f"{WAYS[at % len(WAYS)].__name__}-{pair.id}", marks=pair.marks)
    for at, pair in enumerate(each_pair(FOR_A_WHILE))
]
"""The battery has all of them in each way."""


@pytest.mark.exhaustive
@pytest.mark.parametrize(("call", "kind"), each_pair(ONCE))
def test_an_error_that_comes_once_ends_nothing(run: PlainAwsRun, call: str, kind: str) -> None:
    accidents.passes(run, call, ERRORS[kind], 0.0)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("way", "call", "kind"), HOWS)
def test_an_error_that_passes_ends_nothing(
    run: PlainAwsRun, way: Callable[[PlainAwsRun, str, Error, float], bool], call: str, kind: str
) -> None:
    way(run, call, ERRORS[kind], HALF_A_MINUTE_S)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("call", "kind"), each_pair(FOR_EVER))
def test_lasting_error_ends_no_runner_and_no_training_and_is_reported(run: PlainAwsRun, call: str, kind: str) -> None:
    accidents.stays(run, call, ERRORS[kind])


@pytest.mark.exhaustive
@pytest.mark.parametrize("call", CALLS)
def test_run_completes_despite_a_lasting_error(run: PlainAwsRun, call: str) -> None:
    accidents.is_never_mended(run, call, ERRORS["denied"])


@pytest.mark.exhaustive
@pytest.mark.parametrize("call", CALLS)
def test_an_account_that_forbids_a_call_from_the_start_on_says_so(run: PlainAwsRun, call: str) -> None:
    """It is the run that fails, not its runner; or the run goes without what it may not ask for."""
    accidents.is_there_from_the_start(run, call, ERRORS["denied"], by_itself=False)
    terminal = run.state.terminal
    if terminal is not None and terminal.outcome == "failed":
        assert terminal.cause is Cause.ACCESS
        assert "UnauthorizedOperation" in terminal.detail


@pytest.mark.parametrize("kind", NOBODY)
def test_missing_right_to_list_is_reported_at_the_first_listing(run: PlainAwsRun, kind: str) -> None:
    run.fails("describe_instances", ERRORS[kind], FOR_EVER_S)
    with pytest.raises(AccessDenied) as raised:
        run.goes_on(10)
    assert raised.value.hint


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("run_instances", lambda: refusal("InvalidParameterValue", words="Invalid IAM Instance Profile name")),
        ("run_instances", broken("UnauthorizedOperation", 403)),
        ("attach_role_policy", broken("AccessDenied", 403)),
        ("create_role", broken("ServiceFailure", 500)),
    ],
    ids=["not known yet", "not allowed yet", "no policy yet", "not made yet"],
)
def test_p14_a_role_that_settles_late_costs_time_and_no_launch(run: PlainAwsRun, call: str, error: Error) -> None:
    run.fails(call, error, 150)
    run.goes_on(140)
    assert "AWS refused" in (run.ticks[-1].waiting_for or "")
    assert run.trains_within(30)
    (launch,) = run.state.launches.values()
    assert launch.intent.offering.capacity_type is CapacityType.SPOT


def test_p29_a_region_that_hangs_and_has_nothing_of_the_run_holds_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    run = PlainAwsRun(monkeypatch, config=replace(CONFIG, regions=(ELSEWHERE, REGION)))
    assert run.trains_within(60)
    run.aws.hanging.add(ELSEWHERE)
    began_s, passes_s = run.clock.monotonic(), []
    while run.clock.monotonic() - began_s < 1800:
        before_s = run.clock.monotonic()
        run.goes_on(PASS_S, PASS_S)
        passes_s.append(run.clock.monotonic() - before_s - PASS_S)
    assert max(passes_s) <= ASIDE.read_s
    assert sum(passes_s) <= 0.05 * 1800
    assert f"{ELSEWHERE} is left out" in (run.ticks[-1].remark or "")


@pytest.mark.parametrize("call", ["create_schedule", "get_caller_identity"])
def test_a_side_call_that_hangs_holds_no_pass(run: PlainAwsRun, call: str) -> None:
    """A guard is armed beside the run, and its runner has to see a notice meanwhile."""
    run.fails("create_schedule", ERRORS["denied"], HALF_A_MINUTE_S)
    assert run.trains_within(60)
    run.fails(call, ERRORS["hangs"], FOR_EVER_S)
    run.runner, passes_s = run.new_runner(), []
    for _ in range(240):
        before_s = run.clock.monotonic()
        run.goes_on(PASS_S, PASS_S)
        passes_s.append(run.clock.monotonic() - before_s - PASS_S)
    assert 0 < max(passes_s) <= ASIDE.connect_s + ASIDE.read_s
    assert sum(passes_s) <= 0.05 * 240 * PASS_S
    assert run.training is not None


def test_p14_an_outage_of_iam_is_no_lack_of_spot(run: PlainAwsRun) -> None:
    fault = run.fails("create_role", ERRORS["broken"], FOR_EVER_S)
    run.goes_on(1200)
    assert "InternalError" in (run.ticks[-1].waiting_for or "")
    fault.ends()
    assert run.trains_within(60)
    types = {launch.intent.offering.capacity_type for launch in run.state.launches.values()}
    assert types == {CapacityType.SPOT}


@pytest.mark.parametrize("call", ["delete_role", "delete_instance_profile"])
def test_identity_that_iam_still_shows_after_a_404_is_reported_as_left(run: PlainAwsRun, call: str) -> None:
    accidents.passes(run, call, broken("NoSuchEntity", 404), 0.0)
    assert "spotrun reap" in (run.ticks[-1].remark or "")
    assert run.aws.roles != []


def test_missing_credentials_are_reported_without_advice_on_policies(run: PlainAwsRun) -> None:
    run.fails("create_role", sdk.NoCredentialsError, FOR_EVER_S)
    run.goes_on(10)
    assert run.state.terminal is not None
    assert "aws sso login" in run.state.terminal.detail
    assert "policy" not in run.state.terminal.detail


def test_profile_refused_its_role_is_reported_in_the_words_of_iam(run: PlainAwsRun) -> None:
    run.fails("add_role_to_instance_profile", broken("LimitExceeded", 409), FOR_EVER_S)
    run.goes_on(10)
    assert "LimitExceeded: by the test" in (run.ticks[-1].waiting_for or "")


def test_instance_that_cannot_be_terminated_is_ended_by_its_guard_and_billed_until_then(run: PlainAwsRun) -> None:
    assert run.trains_within(60)
    assert run.training is not None
    run.aws.frozen.add(run.training.instance_id)
    run.fails("terminate_instances", ERRORS["denied"], FOR_EVER_S)
    run.completes(powers_off=False)
    run.goes_on(400)
    assert not run.ticks[-1].done
    (guard,) = run.aws.schedules.values()
    run.clock.advance((guard.at - run.clock.now()).total_seconds())
    assert run.ends_within(60)
    assert run.misbooked() == []
    assert run.left_behind == []


def test_a_run_makes_each_of_these_calls_and_no_others(run: PlainAwsRun) -> None:
    assert run.trains_within(60)
    run.aws.full_zone = "us-east-1b"
    run.runner = run.new_runner()
    accidents.passes_in_a_notice(run, "terminate_instances", ERRORS["broken"], 0.0)
    assert {call for call, _ in run.aws.calls} == {*CALLS}
