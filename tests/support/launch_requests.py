"""Requests for an instance: a test names what it cares about."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from spotrun.instance import LaunchRequest
from spotrun.offering import Offering


def requested(what: Offering, launch: int = 1, run_uid: str = "0123456789", **fields: Any) -> LaunchRequest:
    """One that lives for two hours, of a run whose folder is nowhere."""
    others: dict[str, Any] = {"run_uri": "/nowhere/run", "time_to_live": timedelta(hours=2)}
    others |= {"token": f"{run_uid}-{launch}", "launch": launch, "run_uid": run_uid}
    return LaunchRequest(offering=what, **(others | fields))
