"""
Accidents of a run on AWS: one call that fails in one way, once, for a while, or from then on for ever.

Whatever happens to a call, no runner ends, no instance is left, and the ledger agrees with what the account was
charged. Each accident raises an AssertionError that says what did not hold.
"""

from __future__ import annotations

from collections.abc import Callable

from botocore import exceptions as sdk

from spotrun.run.events import Cause
from tests.support.plain_aws import refusal
from tests.support.plain_aws_run import PlainAwsRun

CALLS = {
    "ec2": (
        *("describe_instances", "run_instances", "terminate_instances", "describe_images"),
        *("describe_instance_types", "describe_instance_type_offerings", "describe_spot_price_history"),
        *("describe_security_groups", "describe_subnets", "describe_spot_instance_requests"),
    ),
    "ssm": ("get_parameter",),
    "pricing": ("get_products",),
    "sts": ("get_caller_identity",),
    "iam": (
        *("create_role", "get_role", "attach_role_policy"),
        *("create_instance_profile", "add_role_to_instance_profile", "remove_role_from_instance_profile"),
        *("delete_instance_profile", "detach_role_policy", "delete_role"),
    ),
    "scheduler": ("create_schedule", "delete_schedule"),
}
"""By service, what a runner calls."""
Error = Callable[[], Exception]
HALF_A_MINUTE_S, FOR_EVER_S = 30.0, 1e9
FIRST_LOOK = "describe_instances"
"""Who may not even look is told at the first look, and has no runner."""


def fault(run: PlainAwsRun, call: str, error: Error, seconds: float) -> Callable[[str], None]:
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


def passes(run: PlainAwsRun, call: str, error: Error, seconds: float, *, new_runner: bool = False) -> None:
    """It happens while the run trains, an interruption follows, and the run completes."""
    assert run.trains_within(60)
    if new_runner:
        run.runner = run.new_runner()
    run.aws.fault = fault(run, call, error, seconds)
    run.goes_on(10)
    run.is_interrupted()
    assert run.trains_within(900), f"nothing trains: {run.ticks[-1].waiting_for}"
    run.goes_on(60)
    _completes(run, powers_off=call != "terminate_instances")
    assert len(run.aws.rows) == 2, f"{len(run.aws.rows)} instances were rented"


def stays(run: PlainAwsRun, call: str, error: Error) -> None:
    """It lasts until somebody mends it. The training needs no runner; whoever looks is told."""
    assert run.trains_within(60)
    run.aws.fault = fault(run, call, error, FOR_EVER_S)
    run.goes_on(200)
    assert run.training is not None, "the training has ended without an interruption"
    run.is_interrupted()
    run.goes_on(400)
    assert run.state.terminal is None, run.state.terminal
    assert run.training is not None or _is_told(run), "nobody is told"
    run.aws.fault = lambda _: None
    assert run.trains_within(3700), f"nothing trains: {run.ticks[-1].waiting_for}"
    _completes(run)


def is_there_from_the_start(run: PlainAwsRun, call: str, error: Error) -> None:
    """The run fails, and not its runner; or it goes without what it cannot ask for; or it says what it waits for."""
    run.aws.fault = fault(run, call, error, FOR_EVER_S)
    run.goes_on(600)
    terminal = run.state.terminal
    if terminal is None:
        assert run.training is not None or _is_told(run), "nobody is told"
        run.aws.fault = lambda _: None
        assert run.trains_within(3700), f"nothing trains: {run.ticks[-1].waiting_for}"
        _completes(run)
    else:
        assert terminal.outcome == "failed", terminal
        assert terminal.cause in (Cause.ACCESS, Cause.EXTERNAL, Cause.QUOTA), terminal
        assert "AWS" in terminal.detail, terminal
        _leaves_nothing(run)


def _completes(run: PlainAwsRun, *, powers_off: bool = True) -> None:
    """What does not power itself off, its runner ends."""
    run.completes(powers_off=powers_off)
    assert run.ends_within(120 if powers_off else 360), f"the run does not end: {run.ticks[-1].waiting_for}"
    assert run.state.terminal is not None
    assert run.state.terminal.outcome == "completed", run.state.terminal
    _leaves_nothing(run)


def _leaves_nothing(run: PlainAwsRun) -> None:
    charged, booked = run.aws.charged_usd, run.booked_usd
    assert run.books_agree(), f"${charged:.6f} was charged, and ${booked:.6f} is in the ledger"
    assert run.left_behind == []


def _is_told(run: PlainAwsRun) -> bool:
    """By the newest ticks, or by the entry that closes the newest launch."""
    closed = [launch.closed.detail for launch in run.state.launches.values() if launch.closed is not None]
    return any(tick.waiting_for for tick in run.ticks[-10:]) or any("AWS" in detail for detail in closed[-1:])


def broken(code: str, status: int = 400) -> Error:
    return lambda: refusal(code, status)
