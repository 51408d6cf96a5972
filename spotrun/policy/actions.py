"""Actions that a decision returns to the runner. Each action is safe to repeat."""

from __future__ import annotations

import msgspec

from spotrun.run import events as ev


class Append(msgspec.Struct, frozen=True, kw_only=True):
    """Write an event into the ledger, unless the run has changed since the decision was made."""

    event: ev.AnyEvent


class Execute(msgspec.Struct, frozen=True, kw_only=True):
    """Request an instance from the cloud, for a launch that is in the ledger."""

    launch: int


class Terminate(msgspec.Struct, frozen=True, kw_only=True):
    instance_id: str
    reason: str


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """Launch nothing now, for the given `reason`."""

    reason: str


Action = Append | Execute | Terminate | Wait
