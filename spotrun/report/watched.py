"""
Shortens the descriptions of events for people who watch a run. If the cloud refuses several launches for the same
reason, the reason is shown only once and briefly; `events` and `why` show it in full.
"""

from __future__ import annotations

from spotrun.report.describe import event_line, line_of
from spotrun.report.tables import plain
from spotrun.run.events import CheckpointRetired, Entry, LaunchClosed, OutputsStored, RunFailed
from spotrun.run.reasons import in_brief, in_one_line
from spotrun.run.state import Launch, RunState


def worth_watching(entries: list[Entry]) -> list[Entry]:
    """
    Return the entries without two frequent kinds: retired checkpoints and stored files. `spotrun events` shows these
    too.
    """
    return [entry for entry in entries if not isinstance(entry.event, CheckpointRetired | OutputsStored)]


def watched_line(entry: Entry, state: RunState) -> str:
    """
    Describe an event in one line, like `event_line`, but without a message from the cloud that an earlier line has
    already shown.
    """
    event = entry.event
    if isinstance(event, LaunchClosed) and (launch := state.launches.get(event.launch)) and launch.closed == event:
        return line_of(entry, plain(f"launch {launch.number} given up ({event.cause}){_why(launch, state)}"))
    if isinstance(event, RunFailed) and (told := _told_by(event, state)) is not None:
        return line_of(entry, f"run failed ({event.cause}): launch {told} was refused")
    return event_line(entry, state.ordinals())


def watched_lines(entry: Entry, state: RunState, indent: int) -> list[str]:
    """Describe an event like `watched_line`, but put a reason that contains a colon on a line of its own."""
    line, reason = watched_line(entry, state), in_one_line(getattr(entry.event, "detail", ""))
    if ": " not in reason or not line.endswith(f": {reason}"):
        return [line]
    return [line.removesuffix(f": {reason}"), " " * indent + reason]


def _why(launch: Launch, state: RunState) -> str:
    words = _words(launch)
    before = (each.number for each in state.launches.values() if each.number < launch.number and _words(each) == words)
    as_before = next(before, None)
    return f": {words}" if as_before is None or not words else f": refused for the same reason as launch {as_before}"


def _words(launch: Launch) -> str:
    """Return the reason why the launch was given up, without the names of the launch's offering and zone."""
    offering = launch.intent.offering
    return "" if launch.closed is None else in_brief(launch.closed.detail, str(offering), offering.zone)


def _told_by(event: RunFailed, state: RunState) -> int | None:
    """
    Return the number of the launch whose refusal is the reason why the run failed; None if there is no such launch.
    """
    closed = {each.closed.detail: number for number, each in state.launches.items() if each.closed is not None}
    return closed.get(event.detail) if event.detail else None
