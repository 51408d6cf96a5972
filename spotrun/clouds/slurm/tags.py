"""
Writes and reads the comment of a Slurm job. spotrun stores a job's tags (its run, launch and limits) in the comment
when it submits the job.
"""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal, InvalidOperation
from urllib.parse import parse_qsl, urlencode

import msgspec

from spotrun.clouds.slurm.config import CLOUD_NAME, REGION
from spotrun.instance import LaunchRequest
from spotrun.offering import CapacityType, Offering

OURS = "spotrun:"


class Tags(msgspec.Struct, frozen=True, kw_only=True):
    """
    The facts about a job that are stored in its comment. The partition and the token are not among them, because Slurm
    stores them in other fields of the job (the token is the job's name).
    """

    run_uid: str
    launch: int
    offering: Offering
    time_to_live: timedelta
    wait: timedelta
    """Maximum time in the queue."""
    count: int | None = None
    """The number of a gang's members; None for a single instance."""


def comment_of(request: LaunchRequest, wait: timedelta) -> str:
    """Return the comment. It has the form `spotrun:0123456789?launch=17&…`, with each value quoted as in a URL."""
    what = request.offering
    facts = {
        "launch": request.launch,
        "type": what.instance_type,
        "capacity": str(what.capacity_type),
        "usd": f"{what.price_usd_per_hour:f}",
        "accelerators": what.accelerators,
        "cpus": what.cpus,
        "memory": what.memory_gib,
        "life": int(request.time_to_live.total_seconds()),
        "wait": int(wait.total_seconds()),
    }
    if request.count is not None:
        facts["members"] = request.count
    return f"{OURS}{request.run_uid}?{urlencode(facts)}"


def tags_of(comment: str, partition: str) -> Tags | None:
    """Read a job's comment; return None if the job is not spotrun's, or if its comment was changed."""
    run_uid, mark, facts = comment.removeprefix(OURS).partition("?")
    if not comment.startswith(OURS) or not mark:
        return None
    told = dict(parse_qsl(facts, keep_blank_values=True))
    try:
        return Tags(
            run_uid=run_uid,
            launch=int(told["launch"]),
            offering=Offering(
                cloud=CLOUD_NAME,
                region=REGION,
                zone=partition,
                instance_type=told["type"],
                capacity_type=CapacityType(told["capacity"]),
                price_usd_per_hour=Decimal(told["usd"]),
                accelerators=told["accelerators"],
                cpus=int(told["cpus"]),
                memory_gib=int(told["memory"]),
            ),
            time_to_live=timedelta(seconds=int(told["life"])),
            wait=timedelta(seconds=int(told["wait"])),
            count=int(told["members"]) if "members" in told else None,
        )
    except (KeyError, ValueError, InvalidOperation):
        return None
