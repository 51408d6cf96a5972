"""What goes on of a run that nobody watches, and what to type: nothing that bills is left unsaid."""

from __future__ import annotations

from spotrun.account.outcome import status_word
from spotrun.run.state import Launch, RunState


def attended_to(run_id: str, state: RunState) -> str:
    """A run that has a runner, in one line."""
    return (
        f"{run_id} goes on already ({status_word(state)}), and a runner attends to it. "
        f"`spotrun logs {run_id} -f` shows it, `spotrun stop {run_id}` ends it"
    )


def left_alone(run_id: str, state: RunState) -> str:
    """What becomes of the run, what of it is running, and what to type; in one line."""
    if state.terminal is not None:
        what, advice = f"{run_id} has ended ({state.terminal.outcome})", f"`spotrun down {run_id}` makes sure of it"
    elif state.stop_requested:
        what = f"{run_id} was asked to stop, and no runner sees to it"
        advice = f"`spotrun down {run_id}` ends it now"
    else:
        what = f"{run_id} has not ended, and no runner attends to it"
        advice = f"`spotrun resume {run_id}` carries it on, `spotrun down {run_id}` ends it now"
    return f"{what}. {_running(state)}. {advice}"


def _running(state: RunState) -> str:
    left = [launch for launch in state.launches.values() if not launch.settled]
    if not left:
        return "No instance of it is running"
    return f"Still running, as far as is known: {', '.join(map(_instance, left))}"


def _instance(launch: Launch) -> str:
    offering = launch.intent.offering
    price = f"${launch.newest_price_usd_per_hour}/h" + (" simulated" if offering.simulated else "")
    name = f"launch {launch.number}" if launch.recorded is None else launch.recorded.instance_id
    return f"{name} ({offering} at {price})"
