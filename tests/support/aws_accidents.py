"""
Accidents of a run on AWS: one call that fails in one way, once, for a while, or from then on for ever.

Whatever happens to a call, no runner ends, no instance is left, and the ledger agrees with what the account was
charged. Each accident tells whether the call was made at all while it failed, and raises an AssertionError that says
what did not hold.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from botocore import exceptions as sdk
from botocore.retries.standard import ThrottledRetryableChecker, TransientRetryableChecker
from msgspec.structs import replace

from spotrun.errors import AccessDenied
from spotrun.run.events import Cause
from tests.support.plain_aws import CONFIG, refusal
from tests.support.plain_aws_run import PASS_S, PlainAwsRun

CALLS = {
    "ec2": (
        *("describe_instances", "run_instances", "terminate_instances", "describe_images"),
        *("describe_instance_types", "describe_instance_type_offerings", "describe_spot_price_history"),
        *("describe_security_groups", "describe_subnets", "describe_spot_instance_requests"),
        "describe_launch_template_versions",
    ),
    "ssm": ("get_parameter",),
    "pricing": ("get_products",),
    "sts": ("get_caller_identity",),
    "iam": (
        *("create_role", "get_role", "attach_role_policy"),
        *("create_instance_profile", "get_instance_profile"),
        *("add_role_to_instance_profile", "remove_role_from_instance_profile"),
        *("delete_instance_profile", "detach_role_policy", "delete_role"),
    ),
    "scheduler": ("create_schedule", "delete_schedule"),
    "service-quotas": ("get_service_quota",),
}
"""By service, what a runner calls."""
OF_OTHERS = {"ProvisionedThroughputExceededException", "TransactionInProgressException", "LimitExceededException"}
"""Codes of services that a run does not call."""
ASKED_AGAIN = {
    *ThrottledRetryableChecker._THROTTLED_ERROR_CODES,
    *TransientRetryableChecker._TRANSIENT_ERROR_CODES,
} - OF_OTHERS
"""After these the SDK itself would ask again: they pass, whatever their status is."""
Error = Callable[[], Exception]
HALF_A_MINUTE_S, FOR_EVER_S = 30.0, 1e9
NOTICE_S, NOTICE_PASS_S = 120.0, 2.0
RUN_INSTANCES_PER_S = 2
"""So many EC2 grants an account again: https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html"""
WEEK_S, HEARTBEATS_APART_S = 7 * 86_400.0, 600.0
FIRST_LOOK = "describe_instances"
"""Who may not even look is told at the first look, and has no runner."""


def new_run(monkeypatch: pytest.MonkeyPatch) -> PlainAwsRun:
    """One that makes all these calls: its account demands a launch template."""
    return PlainAwsRun(monkeypatch, config=replace(CONFIG, launch_template="spotrun-node"))


class Fault:
    """The call fails for so long, and at least once. What hangs takes the caller's time. `met`: it was called."""

    def __init__(self, run: PlainAwsRun, call: str, error: Error, seconds: float) -> None:
        self._run, self._call, self._error = run, call, error
        self._ends_s = run.clock.monotonic() + seconds
        self.met = False

    def __call__(self, operation: str) -> None:
        clock, aws = self._run.clock, self._run.aws
        if operation != self._call or (self.met and clock.monotonic() >= self._ends_s):
            return
        self.met = True
        if isinstance(made := self._error(), sdk.ReadTimeoutError):
            clock.advance(aws.calls[-1][1].read_s)
        raise made

    def ends(self) -> None:
        """Somebody has mended it."""
        self._run.aws.fault = lambda _: None


def happens(run: PlainAwsRun, call: str, error: Error, seconds: float) -> Fault:
    run.aws.fault = fault = Fault(run, call, error, seconds)
    return fault


# -- what passes -----------------------------------------------------------------------------------------------------


def passes(run: PlainAwsRun, call: str, error: Error, seconds: float) -> bool:
    """It happens while the run trains, an interruption follows, and the run completes."""
    _trains(run, call)
    fault = happens(run, call, error, seconds)
    _goes_on_elsewhere(run, call)
    return fault.met


def passes_for_a_new_runner(run: PlainAwsRun, call: str, error: Error, seconds: float) -> bool:
    """The same, and it is the first thing that a runner meets that takes over from another."""
    _trains(run, call)
    run.runner = run.new_runner()
    fault = happens(run, call, error, seconds)
    if not _is_refused_at_its_first_look(run, call):
        _goes_on_elsewhere(run, call)
    return fault.met


def passes_in_a_notice(run: PlainAwsRun, call: str, error: Error, seconds: float) -> bool:
    """It happens as AWS says that it takes the instance, which costs some calls."""
    _trains(run, call)
    assert run.training is not None
    run.training.is_told_to_go()
    fault = happens(run, call, error, seconds)
    asked = run.is_asked("run_instances")
    run.goes_on(NOTICE_S, NOTICE_PASS_S)
    calls = run.is_asked("run_instances") - asked
    assert calls <= RUN_INSTANCES_PER_S * HALF_A_MINUTE_S, f"RunInstances was asked {calls} times for one instance"
    run.is_interrupted()
    assert run.trains_within(900), f"nothing trains: {run.ticks[-1].waiting_for}"
    _completes_beside(run, call)
    return fault.met


def passes_after_a_week(run: PlainAwsRun, call: str, error: Error, seconds: float) -> bool:
    """Nobody was there for a week, in which the instance has trained to its end. The next runner meets the fault."""
    _trains(run, call)
    run.goes_on(60)
    run.is_alone(WEEK_S, HEARTBEATS_APART_S)
    fault = happens(run, call, error, seconds)
    if not _is_refused_at_its_first_look(run, call):
        assert run.trains_within(1800), f"nothing trains: {run.ticks[-1].waiting_for}"
        _completes_beside(run, call)
    return fault.met


def _is_refused_at_its_first_look(run: PlainAwsRun, call: str) -> bool:
    """Whether the new runner may not even look. It says what to do about it, and what trains goes on without it."""
    try:
        run.goes_on(PASS_S)
    except AccessDenied as refused:
        if call != FIRST_LOOK or not refused.hint:
            raise AssertionError(f"the runner has ended: {refused.one_line}") from refused
        return True
    return False


def _goes_on_elsewhere(run: PlainAwsRun, call: str) -> None:
    run.goes_on(10)
    run.is_interrupted()
    assert run.trains_within(900), f"nothing trains: {run.ticks[-1].waiting_for}"
    _completes_beside(run, call)


def _completes_beside(run: PlainAwsRun, call: str) -> None:
    """The second instance completes what the first has begun, and there is no third."""
    run.goes_on(60)
    _completes(run, powers_off=call != "terminate_instances")
    assert len(run.aws.rows) == 2, f"{len(run.aws.rows)} instances were rented"


# -- what stays ------------------------------------------------------------------------------------------------------


def stays(run: PlainAwsRun, call: str, error: Error) -> bool:
    """It lasts until somebody mends it. The training needs no runner; whoever looks is told."""
    _trains(run, call)
    fault = happens(run, call, error, FOR_EVER_S)
    run.goes_on(200)
    assert run.training is not None, "the training has ended without an interruption"
    run.is_interrupted()
    run.goes_on(400)
    assert run.state.terminal is None, run.state.terminal
    assert run.training is not None or _is_told(run), "nobody is told"
    fault.ends()
    assert run.trains_within(3700), f"nothing trains: {run.ticks[-1].waiting_for}"
    _completes(run)
    return fault.met


def is_never_mended(run: PlainAwsRun, call: str, error: Error) -> bool:
    """The run completes beside it. Its runner ends too, unless it cannot see that nothing is left."""
    _trains(run, call)
    fault = happens(run, call, error, FOR_EVER_S)
    run.goes_on(120)
    run.completes()
    if run.ends_within(600):
        _is_complete(run)
    else:
        assert call == FIRST_LOOK, f"the run does not end: {run.ticks[-1].waiting_for}"
        assert run.aws.alive == []
        assert _is_told(run), "nobody is told"
        fault.ends()
        assert run.ends_within(120)
        _is_complete(run)
    return fault.met


def is_there_from_the_start(run: PlainAwsRun, call: str, error: Error, *, by_itself: bool) -> bool:
    """
    The run fails, and not its runner; or it goes without what it cannot ask for; or it says what it waits for.

    What passes `by_itself` fails no run.
    """
    _fills_a_quota(run, call, "us-east-1a")
    fault = happens(run, call, error, FOR_EVER_S)
    if _is_refused_at_its_first_look(run, call):
        return True
    run.goes_on(600)
    terminal = run.state.terminal
    if terminal is None:
        assert run.training is not None or _is_told(run), "nobody is told"
        fault.ends()
        assert run.trains_within(3700), f"nothing trains: {run.ticks[-1].waiting_for}"
        _completes(run)
    else:
        assert not by_itself, terminal
        assert terminal.outcome == "failed", terminal
        assert terminal.cause in (Cause.ACCESS, Cause.EXTERNAL), terminal
        assert "AWS" in terminal.detail or "try: " in terminal.detail, terminal
        _leaves_nothing(run)
    return fault.met


# -- what all have in common -----------------------------------------------------------------------------------------


def _trains(run: PlainAwsRun, call: str) -> None:
    assert run.trains_within(60)
    _fills_a_quota(run, call, "us-east-1b")


def _fills_a_quota(run: PlainAwsRun, call: str, zone: str) -> None:
    """A runner looks quotas up when EC2 names one."""
    if call == "get_service_quota":
        run.aws.full_zone = zone


def _completes(run: PlainAwsRun, *, powers_off: bool = True) -> None:
    """What does not power itself off, its runner ends."""
    run.completes(powers_off=powers_off)
    assert run.ends_within(120 if powers_off else 360), f"the run does not end: {run.ticks[-1].waiting_for}"
    _is_complete(run)


def _is_complete(run: PlainAwsRun) -> None:
    assert run.state.terminal is not None
    assert run.state.terminal.outcome == "completed", run.state.terminal
    _leaves_nothing(run)


def _leaves_nothing(run: PlainAwsRun) -> None:
    assert [*run.misbooked()] == []
    assert run.left_behind == []


def _is_told(run: PlainAwsRun) -> bool:
    """By the newest ticks, or by the entry that closes the newest launch."""
    closed = [launch.closed.detail for launch in run.state.launches.values() if launch.closed is not None]
    return any(tick.waiting_for for tick in run.ticks[-10:]) or any("AWS" in detail for detail in closed[-1:])


def broken(code: str, status: int = 400) -> Error:
    return lambda: refusal(code, status)
