"""Converts rows of DescribeInstances to Instances."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from spotrun.clouds.aws import request as tag
from spotrun.clouds.aws.disk_key import why_not_started
from spotrun.clouds.charged import charged
from spotrun.instance import EndedBy, Instance, InstanceState, PriceSegment
from spotrun.offering import CapacityType, Offering

_STATES = {
    "pending": InstanceState.PENDING,
    "running": InstanceState.RUNNING,
    "shutting-down": InstanceState.STOPPING,
    "stopping": InstanceState.STOPPING,
    "stopped": InstanceState.STOPPED,
    "terminated": InstanceState.TERMINATED,
}
ENDED_BY = {
    "Server.SpotInstanceTermination": EndedBy.CLOUD,
    "Server.SpotInstanceShutdown": EndedBy.CLOUD,
    "Server.InsufficientInstanceCapacity": EndedBy.CLOUD,
    "Client.VolumeLimitExceeded": EndedBy.QUOTA,
    "Client.UserInitiatedShutdown": EndedBy.USER,
    "Client.InstanceTerminated": EndedBy.USER,
    "Client.InstanceInitiatedShutdown": EndedBy.ITSELF,
}
"""
The party that counts as having ended an instance, keyed by the code of EC2's StateReason:
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_StateReason.html. Any other code counts as a fault.
"""
CANNOT_START = re.compile(r"(Server|Client)\.InternalError|Client\.Invalid[A-Z]\w*(\.\w+)*")
"""
Codes with which EC2 ends an instance that it cannot start, after it accepted the launch. The cause is an error inside
EC2, a bad snapshot, or the disk's key.
"""
NEVER_RAN = ("Server.InsufficientInstanceCapacity", "Client.VolumeLimitExceeded")
"""
Other codes with which EC2 ends an instance that has never run, because capacity was short or a limit on disk volume was
reached. EC2 bills nothing for such a launch.
"""
_WHEN = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")
_NUMBER = re.compile(r"[0-9]{1,9}")
_AMOUNT = re.compile(r"[0-9]{1,9}(\.[0-9]{1,18})?")
"""
The form of amounts in spotrun's tags. It is checked because users can change a tag to any text, even to a number too
long to compute with.
"""
_FORMS = {tag.PRICE: _AMOUNT, **dict.fromkeys((tag.LAUNCH, tag.TIME_TO_LIVE, tag.CPUS, tag.MEMORY), _NUMBER)}
TAG_SHOWN_MAX = 20


def instance_of(
    found: dict[str, Any],
    region: str,
    prices: Sequence[PriceSegment],
    gone_by: datetime,
    pending_at: datetime | None = None,
    key: str | None = None,
) -> Instance:
    """
    Convert a row of DescribeInstances to an Instance.

    `prices` is the price history of the instance's pool, oldest first. If it is empty, the price in the instance's tag
    is used. `gone_by` is the assumed end of an instance that has ended, if EC2 does not report when.

    `pending_at` is the time at which the instance was last seen pending. Billing is assumed to start at this time (or
    at the launch if it is None), because EC2 does not report when an instance began to run.

    `key` is EBS's default encryption key; "" if the caller is not allowed to read it. If EC2 could not start the
    instance, and the key may be the cause, `end_reason` says so.
    """
    tags = {each["Key"]: each["Value"] for each in found.get("Tags", [])}
    state = _STATES[found["State"]["Name"]]
    launched_at: datetime = found["LaunchTime"].astimezone(UTC)
    ended = state is InstanceState.TERMINATED
    ended_at = max(launched_at, end_told(found) or gone_by) if ended else None
    ran = state is not InstanceState.PENDING and not _never_ran(found)
    began = max(launched_at, pending_at or launched_at)
    billed_from = min(began, ended_at or began) if ran else None
    offering = _offering(found, region, tags)
    return Instance(
        instance_id=found["InstanceId"],
        token=tags.get(tag.TOKEN, ""),
        run_uid=tags.get(tag.RUN, ""),
        launch=_launch(tags),
        offering=offering,
        state=state,
        launched_at=launched_at,
        billed_from=billed_from,
        ended_at=ended_at,
        ended_by=_ended_by(found, tags, launched_at, ended_at),
        prices=() if billed_from is None else charged(prices, offering, billed_from, ended_at),
        end_reason=_told_reason(found, region, key) if ended else "",
        off_since=end_told(found) if state is InstanceState.STOPPED else None,
    )


def _offering(found: dict[str, Any], region: str, tags: dict[str, str]) -> Offering:
    spot = found.get("InstanceLifecycle") == "spot"
    return Offering(
        cloud="aws",
        region=region,
        zone=found["Placement"]["AvailabilityZone"],
        instance_type=found["InstanceType"],
        capacity_type=CapacityType.SPOT if spot else CapacityType.ON_DEMAND,
        price_usd_per_hour=_price(tags.get(tag.PRICE)),
        accelerators=tags.get(tag.ACCELERATORS, ""),
        cpus=_number(tags.get(tag.CPUS)),
        memory_gib=_number(tags.get(tag.MEMORY)),
    )


def _ended_by(
    found: dict[str, Any], tags: dict[str, str], launched_at: datetime, ended_at: datetime | None
) -> EndedBy | None:
    if ended_at is None:
        return None
    ended_by = ENDED_BY.get(_reason(found), EndedBy.FAULT)
    lifetime = timedelta(seconds=_number(tags.get(tag.TIME_TO_LIVE)))
    if ended_by is EndedBy.ITSELF and lifetime and ended_at - launched_at >= lifetime:
        return EndedBy.TIME_TO_LIVE
    return ended_by


def _reason(found: dict[str, Any]) -> str:
    return str(found.get("StateReason", {}).get("Code", ""))


def _told_reason(found: dict[str, Any], region: str, key: str | None) -> str:
    """
    Return the reason for an instance's end: EC2's error code and message, such as `Client.VolumeLimitExceeded: Volume
    limit exceeded`, followed by the probable cause if it is known.
    """
    code, message = _reason(found), str(found.get("StateReason", {}).get("Message", ""))
    told = message if message.startswith(code) else f"{code}: {message}".removesuffix(": ")
    why = "" if key is None else why_not_started(told, key, region, is_spot=found.get("InstanceLifecycle") == "spot")
    return f"{told}; {why}: `spotrun doctor aws` says what to do" if why else told


def _never_ran(found: dict[str, Any]) -> bool:
    return _reason(found) in NEVER_RAN or cannot_start(found)


def cannot_start(found: dict[str, Any]) -> bool:
    return CANNOT_START.fullmatch(_reason(found)) is not None


def end_told(found: dict[str, Any]) -> datetime | None:
    """
    Return the end time in a row's text, such as `User initiated (2026-11-21 10:00:00 GMT)`; None if it has no end time.
    """
    told = _WHEN.search(found.get("StateTransitionReason", ""))
    return None if told is None else datetime.strptime(told[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)


def odd_tags(found: dict[str, Any]) -> str:
    """Describe the tags that spotrun cannot read because a user changed them; "" if there are none."""
    tags = {each["Key"]: each["Value"] for each in found.get("Tags", [])}
    odd = [
        f"{key}={tags[key][:TAG_SHOWN_MAX]!r}"
        for key, form in _FORMS.items()
        if key in tags and not form.fullmatch(tags[key])
    ]
    return f"tags that nobody can read: {', '.join(odd)}" if odd else ""


def _launch(tags: Mapping[str, str]) -> int:
    """
    Return the launch's number from the launch tag. If a user has changed this tag, return the number at the end of the
    token tag. If a user has changed both, return 0, which no launch has.
    """
    return _number(tags.get(tag.LAUNCH)) or _number(tags.get(tag.TOKEN, "").rpartition("-")[2])


def _number(text: str | None) -> int:
    """Return the number in a tag; 0 if a user has changed or removed the tag."""
    return int(text) if text is not None and _NUMBER.fullmatch(text) else 0


def _price(text: str | None) -> Decimal:
    return Decimal(text) if text is not None and _AMOUNT.fullmatch(text) else Decimal(0)
