"""
The events that only the owner of a run may write: the command line and the runners (protocol 31).

The owner signs the entries of these events. They decide which instances are rented and ended, and the run's training
code, which can write to the same folder, must not forge them. An agent's reports affect only the agent's attempt, and
are not signed.
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
    """Return True if only the owner may write this event. A retirement after the run's end is such an event."""
    return type(event) in OF_OWNER or (isinstance(event, ev.CheckpointRetired) and event.attempt is None)


def about_forged(count: int, found_by: str) -> str:
    """Return a warning about entries that lack the owner's signature; "" if there are none."""
    if not count:
        return ""
    what = "1 entry of the ledger is forged and counts" if count == 1 else f"{count} entries are forged and count"
    return f"{what} for nothing: see `spotrun events {found_by}`"
