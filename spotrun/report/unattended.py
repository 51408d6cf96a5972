"""
Describes a run that has no runner, and names the commands that continue or end it. The text mentions each instance that
may still be billed, because no runner will end it.
"""

from __future__ import annotations

from datetime import datetime

from spotrun.account.outcome import status_word
from spotrun.report.describe import span
from spotrun.report.tables import plain
from spotrun.run.events import RunCreated
from spotrun.run.member import Member
from spotrun.run.state import Launch, RunState
from spotrun.units import plain_usd


def attended_to(run: str, state: RunState, runner: str = "a runner") -> str:
    """Describe, in one line, a run that has a runner. `run` is the reference that users type for the run."""
    if state.stop_requested:
        return f"{run} has a stop request, and {runner} is stopping it. `spotrun down {run}` ends it now"
    return (
        f"{run} has not ended ({status_word(state)}), and {runner} takes care of it. "
        f"`spotrun logs {run} -f` shows it, `spotrun stop {run}` ends it"
    )


def blind(why: str, since: datetime, now: datetime, clock: str) -> str:
    """
    Describe in one line a runner that gets no answer from the cloud. `why` is the reason, with advice.
    """
    lasts = span(max(0.0, (now - since).total_seconds()))
    return f"its runner has had no answer from the cloud since {since:%a %H:%M:%S} {clock}, {lasts} ago: {why}"


def left_alone(run: str, state: RunState) -> str:
    """
    Describe, in one line, a run without a runner: its outcome, its running instances, and the command to type. `run` is
    the reference that users type for the run.
    """
    if state.terminal is not None:
        what, advice = (
            f"{run} has ended ({state.terminal.outcome})",
            f"`spotrun down {run}` checks that no instance is left",
        )
    elif state.stop_requested:
        what = f"{run} has a stop request, but no runner that stops it"
        advice = f"`spotrun down {run}` ends it now"
    else:
        what = f"{run} has not ended, and no runner takes care of it"
        advice = f"{_carried_on(run, state.created)}`spotrun down {run}` ends it now"
    return f"{what}. {_running(state)}. {advice}"


def _carried_on(run: str, created: RunCreated) -> str:
    """Name the command that continues the run, as the first half of a sentence about continuing and ending the run."""
    if created.is_bench:
        return "The bench that created it is over: "
    if created.sweep:
        return f"The command that began the sweep {plain(created.sweep)} continues it, "
    return f"`spotrun resume {run}` continues it, "


def _running(state: RunState) -> str:
    launches = [launch for launch in state.launches.values() if not launch.settled]
    left = [_instance(launch, each) for launch in launches for each in launch.members if each.gone is None]
    if not left:
        return "No instance of the run is running"
    return f"Still running, as far as is known: {', '.join(left)}"


def _instance(launch: Launch, member: Member) -> str:
    offering = launch.intent.offering
    price = f"${plain_usd(launch.newest_price_usd_per_hour)}/h" + (" simulated" if offering.simulated else "")
    name = f"launch {launch.number}" if member.recorded is None else member.recorded.instance_id
    return f"{name} ({offering} at {price})"
