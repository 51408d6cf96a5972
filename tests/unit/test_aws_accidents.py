"""
Each call that a runner makes to AWS, with each kind of error: once, for half a minute, and from then on for ever.

What a runner reads around a run may make its view poorer, and may never end it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from botocore import exceptions as sdk

from spotrun.errors import AccessDenied
from spotrun.run.events import Cause
from tests.support.plain_aws import refusal
from tests.support.plain_aws_run import PlainAwsRun

CALLS = (
    *("describe_instances", "run_instances", "terminate_instances", "describe_images"),
    *("describe_instance_types", "describe_instance_type_offerings", "describe_spot_price_history"),
    *("describe_security_groups", "describe_subnets", "describe_spot_instance_requests"),
    *("get_parameter", "get_products", "get_caller_identity"),
    *("create_role", "get_role", "attach_role_policy", "create_instance_profile", "add_role_to_instance_profile"),
    *("remove_role_from_instance_profile", "delete_instance_profile", "detach_role_policy", "delete_role"),
    *("create_schedule", "delete_schedule"),
)
ERRORS: dict[str, Callable[[], Exception]] = {  # one for each way in which errors are met
    "broken": lambda: refusal("InternalError", 500),
    "denied": lambda: refusal("UnauthorizedOperation", 403),
    "unknown caller": lambda: refusal("InvalidClientTokenId", 403),
    "expired": lambda: refusal("ExpiredToken", 400),
    "unheard of": lambda: refusal("NeverHeardOf", 400),
    "hangs": lambda: sdk.ReadTimeoutError(endpoint_url="https://aws"),
    "nameless": lambda: RuntimeError("of the SDK"),
}
NOBODY = ("denied", "unknown caller")
HALF_A_MINUTE_S = 30.0


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> PlainAwsRun:
    return PlainAwsRun(monkeypatch)


def fault(run: PlainAwsRun, call: str, error: Callable[[], Exception], seconds: float) -> Callable[[str], None]:
    """The call fails for so long, and at least once. What hangs takes the caller's time."""
    ends_s, met = run.clock.monotonic() + seconds, []

    def strike(operation: str) -> None:
        if operation != call or (met and run.clock.monotonic() >= ends_s):
            return
        met.append(operation)
        if isinstance(made := error(), sdk.ReadTimeoutError):
            run.clock.advance(run.aws.calls[-1][1].read_s)
        raise made

    return strike


def is_told(run: PlainAwsRun) -> bool:
    """By the newest ticks, or by the entry that closes the newest launch."""
    closed = [launch.closed.detail for launch in run.state.launches.values() if launch.closed is not None]
    return any(tick.waiting_for for tick in run.ticks[-10:]) or any("AWS" in detail for detail in closed[-1:])


@pytest.mark.exhaustive
@pytest.mark.parametrize("how", ["once", "half a minute", "half a minute, for a new runner"])
@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("call", CALLS)
def test_an_error_that_passes_ends_nothing(run: PlainAwsRun, call: str, kind: str, how: str) -> None:
    assert run.trains_within(60)
    if "new" in how:
        if call == "describe_instances" and kind in NOBODY:
            return  # it is told at its first look
        run.runner = run.new_runner()
    run.aws.fault = fault(run, call, ERRORS[kind], 0.0 if how == "once" else HALF_A_MINUTE_S)
    run.goes_on(10)
    run.is_interrupted()
    assert run.trains_within(900), run.ticks[-1].waiting_for
    run.goes_on(60)
    run.completes()
    assert run.ends_within(120)
    assert run.state.terminal is not None
    assert run.state.terminal.outcome == "completed"
    assert (run.aws.alive, len(run.aws.rows)) == ([], 2)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("call", CALLS)
def test_an_error_that_stays_ends_no_runner_and_no_training_and_is_told(run: PlainAwsRun, call: str, kind: str) -> None:
    assert run.trains_within(60)
    run.aws.fault = fault(run, call, ERRORS[kind], 1e9)
    run.goes_on(200)
    assert run.training is not None, "it needs no runner"
    run.is_interrupted()
    run.goes_on(400)
    assert run.state.terminal is None
    assert run.training is not None or is_told(run)
    run.aws.fault = lambda _: None
    assert run.trains_within(3700)
    run.completes()
    assert run.ends_within(120)
    assert run.aws.alive == []


@pytest.mark.parametrize("call", CALLS)
def test_an_account_that_forbids_a_call_from_the_start_on_says_so(run: PlainAwsRun, call: str) -> None:
    """It is the run that fails, not its runner; or the run goes without what it may not ask for."""
    if call == "describe_instances":
        return  # it is told at the first look
    run.aws.fault = fault(run, call, ERRORS["denied"], 1e9)
    run.goes_on(600)
    terminal = run.state.terminal
    if terminal is not None:
        assert (terminal.outcome, terminal.cause) == ("failed", Cause.ACCESS)
        assert "UnauthorizedOperation" in terminal.detail
        assert run.aws.alive == []
    else:
        assert run.training is not None or "UnauthorizedOperation" in (run.ticks[-1].waiting_for or "")


@pytest.mark.parametrize("kind", NOBODY)
def test_who_may_not_even_look_is_told_at_the_first_look(run: PlainAwsRun, kind: str) -> None:
    run.aws.fault = fault(run, "describe_instances", ERRORS[kind], 1e9)
    with pytest.raises(AccessDenied) as raised:
        run.goes_on(10)
    assert raised.value.hint
