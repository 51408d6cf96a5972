"""
Accidents of a run in a cloud: one call that fails in one way, once, for a while, or from then on for ever.

Whatever happens to a call, no runner ends, no instance is left, and the ledger agrees with what the account was
charged. Each accident tells whether the call was made at all while it failed, and raises an AssertionError that says
what did not hold. `error` is one of the run's cloud.
"""

from __future__ import annotations

from typing import Any

from spotrun.errors import AccessDenied
from spotrun.run.events import Cause
from tests.support.plain_run import PASS_S, PlainRun

HALF_A_MINUTE_S, FOR_EVER_S = 30.0, 1e9
NOTICE_S, NOTICE_PASS_S = 120.0, 2.0
WEEK_S, HEARTBEATS_APART_S = 7 * 86_400.0, 600.0


# -- what passes -----------------------------------------------------------------------------------------------------


def passes(run: PlainRun, call: str, error: Any, seconds: float) -> bool:
    """It happens while the run trains, an interruption follows, and the run completes."""
    _trains(run, call)
    fault = run.fails(call, error, seconds)
    _goes_on_elsewhere(run, call)
    return fault.met


def passes_for_a_new_runner(run: PlainRun, call: str, error: Any, seconds: float) -> bool:
    """The same, and it is the first thing that a runner meets that takes over from another."""
    _trains(run, call)
    run.runner = run.new_runner()
    fault = run.fails(call, error, seconds)
    if not _is_refused_at_its_first_look(run, call):
        _goes_on_elsewhere(run, call)
    return fault.met


def passes_in_a_notice(run: PlainRun, call: str, error: Any, seconds: float) -> bool:
    """It happens as the cloud says that it takes the instance, which costs some calls."""
    _trains(run, call)
    assert run.training is not None
    run.training.is_told_to_go()
    fault = run.fails(call, error, seconds)
    asked = run.is_asked(run.launch_call)
    run.goes_on(NOTICE_S, NOTICE_PASS_S)
    calls = run.is_asked(run.launch_call) - asked
    assert calls <= run.launches_per_s * HALF_A_MINUTE_S, f"{run.launch_call} was asked {calls} times for one instance"
    run.is_interrupted()
    assert run.trains_within(900), f"nothing trains: {run.ticks[-1].waiting_for}"
    _completes_beside(run, call)
    return fault.met


def passes_after_a_week(run: PlainRun, call: str, error: Any, seconds: float) -> bool:
    """Nobody was there for a week, in which the instance has trained to its end. The next runner meets the fault."""
    _trains(run, call)
    run.goes_on(60)
    run.is_alone(WEEK_S, HEARTBEATS_APART_S)
    fault = run.fails(call, error, seconds)
    if not _is_refused_at_its_first_look(run, call):
        assert run.trains_within(1800), f"nothing trains: {run.ticks[-1].waiting_for}"
        _completes_beside(run, call)
    return fault.met


def _is_refused_at_its_first_look(run: PlainRun, call: str) -> bool:
    """Whether the new runner may not even look. It says what to do about it, and what trains goes on without it."""
    try:
        run.goes_on(PASS_S)
    except AccessDenied as refused:
        if call not in run.first_looks or not refused.hint:
            raise AssertionError(f"the runner has ended: {refused.one_line}") from refused
        return True
    return False


def _goes_on_elsewhere(run: PlainRun, call: str) -> None:
    run.goes_on(10)
    run.is_interrupted()
    assert run.trains_within(900), f"nothing trains: {run.ticks[-1].waiting_for}"
    _completes_beside(run, call)


def _completes_beside(run: PlainRun, call: str) -> None:
    """The second instance completes what the first has begun, and there is no third."""
    run.goes_on(60)
    _completes(run, powers_off=call != run.end_call)
    rented = len(run.account.rented)
    assert rented == 2, f"{rented} instances were rented"


# -- what stays ------------------------------------------------------------------------------------------------------


def stays(run: PlainRun, call: str, error: Any) -> bool:
    """It lasts until somebody mends it. The training needs no runner; whoever looks is told."""
    _trains(run, call)
    fault = run.fails(call, error, FOR_EVER_S)
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


def is_never_mended(run: PlainRun, call: str, error: Any) -> bool:
    """The run completes beside it. Its runner ends too, unless it cannot see that nothing is left."""
    _trains(run, call)
    fault = run.fails(call, error, FOR_EVER_S)
    run.goes_on(120)
    run.completes()
    if run.ends_within(600):
        _is_complete(run)
    else:
        assert call in run.needed_to_end, f"the run does not end: {run.ticks[-1].waiting_for}"
        assert run.account.alive == []
        assert _is_told(run) or run.ticks[-1].remark, "nobody is told"
        fault.ends()
        assert run.ends_within(120)
        _is_complete(run)
    return fault.met


def is_there_from_the_start(run: PlainRun, call: str, error: Any, *, by_itself: bool) -> bool:
    """
    The run fails, and not its runner; or it goes without what it cannot ask for; or it says what it waits for.

    What passes `by_itself` fails no run.
    """
    run.is_made_to(call, at_first=True)
    fault = run.fails(call, error, FOR_EVER_S)
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
        assert run.provider in terminal.detail or "try: " in terminal.detail, terminal
        _leaves_nothing(run)
    return fault.met


# -- what all have in common -----------------------------------------------------------------------------------------


def _trains(run: PlainRun, call: str) -> None:
    assert run.trains_within(60)
    run.is_made_to(call)


def _completes(run: PlainRun, *, powers_off: bool = True) -> None:
    """What does not power itself off, its runner ends."""
    run.completes(powers_off=powers_off)
    assert run.ends_within(120 if powers_off else 360), f"the run does not end: {run.ticks[-1].waiting_for}"
    _is_complete(run)


def _is_complete(run: PlainRun) -> None:
    assert run.state.terminal is not None
    assert run.state.terminal.outcome == "completed", run.state.terminal
    _leaves_nothing(run)


def _leaves_nothing(run: PlainRun) -> None:
    assert run.misbooked() == []
    assert run.left_behind == []


def _is_told(run: PlainRun) -> bool:
    """By the newest ticks, or by the entry that closes the newest launch."""
    closed = [launch.closed.detail for launch in run.state.launches.values() if launch.closed is not None]
    return any(tick.waiting_for for tick in run.ticks[-10:]) or any(run.provider in detail for detail in closed[-1:])
