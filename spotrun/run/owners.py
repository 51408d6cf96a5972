"""
Lists the events that only the owner's programs, the command line and the runners, may write (protocol 31).

These events decide which instances are rented and ended. The run's training code can write to the same folder, and must
not be able to forge such an event. So entries with these events are signed with the owner's key. An agent's reports are
not signed, because they affect only the agent's attempt.
"""

from __future__ import annotations

from spotrun.run import events as ev

OF_OWNER: frozenset[type[ev.Event]] = frozenset(
    (
        ev.StopRequested,
        ev.ResumeRequested,
        ev.PruneRequested,
        ev.EndCorrected,
        ev.LaunchIntended,
        ev.LaunchRecorded,
        ev.GuardArmed,
        ev.InstanceStopped,
        ev.LaunchClosed,
        ev.DrainRequested,
        ev.InstanceCondemned,
        ev.MemberReleased,
        ev.InstanceGone,
        ev.DeadlineOutOfReach,
        ev.BudgetNearlySpent,
        ev.RunStopped,
        ev.RunFailed,
    )
)


def is_of_owner(event: ev.AnyEvent) -> bool:
    """
    Return True if only the run's owner is allowed to write this event. CheckpointRetired is a special case: during the
    run, the agent writes it and names its attempt. After the run's end, it names no attempt, and only the owner is
    allowed to write it.
    """
    return type(event) in OF_OWNER or (isinstance(event, ev.CheckpointRetired) and event.attempt is None)


def about_forged(count: int, found_by: str) -> str:
    """Return a warning about entries that lack the owner's signature; "" if there are none."""
    if not count:
        return ""
    what = "1 entry of the ledger is forged and has" if count == 1 else f"{count} entries are forged and have"
    return f"{what} no effect: see `spotrun events {found_by}`"
