"""Converts the rows of Google's lists, and its operations, to Instances."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NamedTuple

from msgspec.structs import replace

from spotrun.clouds.charged import charged
from spotrun.clouds.error_kinds import AlreadyThere
from spotrun.clouds.gcp import request as label
from spotrun.clouds.gcp.config import region_of
from spotrun.clouds.gcp.error_codes import IDENTITY_DENIED, failed
from spotrun.clouds.gcp.gpus import of_label
from spotrun.clouds.gcp.moments import moment
from spotrun.clouds.gcp.names import read_name
from spotrun.clouds.gcp.operations import DELETE, ENDED_BY, INSERT, Operation, first_end, last_end, of_the_last
from spotrun.errors import CloudError, CloudUnavailable, InsufficientCapacity, QuotaExceeded
from spotrun.instance import EndedBy, Instance, InstanceState, PriceSegment
from spotrun.offering import CapacityType, Offering

_STATES = {
    "PROVISIONING": InstanceState.PENDING,
    "STAGING": InstanceState.PENDING,
    "RUNNING": InstanceState.RUNNING,
    "REPAIRING": InstanceState.RUNNING,
    "PENDING_STOP": InstanceState.STOPPING,
    "STOPPING": InstanceState.STOPPING,
    "SUSPENDING": InstanceState.STOPPING,
    "DEPROVISIONING": InstanceState.STOPPING,
    "SUSPENDED": InstanceState.STOPPED,
    "STOPPED": InstanceState.STOPPED,
    "TERMINATED": InstanceState.STOPPED,
}
"""
Instance states, keyed by Google's status: https://cloud.google.com/compute/docs/instances/instance-lifecycle.
TERMINATED means that the machine is switched off: it is still listed, and its disk is billed (G3). A deleted instance
is not listed at all. An instance whose status is missing from this table counts as running.
"""
_NUMBER = re.compile(r"[0-9]{1,9}")
_NANO = re.compile(r"[0-9]{1,15}")
"""
The form of the longer numbers that spotrun writes into labels. It is checked because a user may have changed a label to
any text.
"""
_FORMS = {label.NANO_PRICE: _NANO, **dict.fromkeys((label.LAUNCH, label.CPUS, label.MEMORY), _NUMBER)}
_ALWAYS = (label.RUN, label.LAUNCH, label.NANO_PRICE)
"""Labels that every instance has from its launch."""
LABEL_SHOWN_MAX = 20
FREE = Decimal(0)
_ELSEWHERE_OR_LATER = (InsufficientCapacity, CloudUnavailable, AlreadyThere)
"""Errors after which the same launch may succeed in another zone, or a few minutes later."""


History = Callable[[Offering, datetime | None], Sequence[PriceSegment]]
"""
A function that returns the price history of an offering's pool, oldest first; empty if the history is unknown. With a
time, the history has all changes until then. Without a time, it may lack the newest changes.
"""


class Record(NamedTuple):
    """
    Everything that Google reports about the instances of one name: the row in its list, if there is one, and the
    operations, oldest first.
    """

    name: str
    row: Mapping[str, Any] | None
    operations: Sequence[Operation]


def instance_of(record: Record, history: History, seen: Instance | None) -> Instance | None:
    """
    Convert a record to an Instance. Return None if Google reports nothing about the instance, because it is too new or
    so old that Google has forgotten it.

    `seen` is what spotrun knew of the instance when it last saw it running; None if it never did. It supplies the time
    at which billing began, which Google forgets when the instance is deleted.
    """
    if record.row is not None:
        return _listed(record.row, history)
    operations = of_the_last(record.operations)
    made = next((each for each in operations if each.kind == INSERT), None)
    if made is not None and made.ended_at is None:
        return _begun(record, made)
    end = first_end(operations)
    if end is None and made is not None:
        # Without an operation that ended it, it exists, although Google's list lacks it.
        return _never_made(record, made) if made.failed else seen or _begun(record, made)
    return None if end is None else _ended(record, made, operations, end, history, seen)


# -- instances that Google lists ---------------------------------------------------------------------------------------


def _listed(row: Mapping[str, Any], history: History) -> Instance | None:
    """Convert a row to an Instance. Return None if its name is not one of spotrun's."""
    name, labels = read_name(row["name"]), row.get("labels", {})
    if name is None:
        return None
    state = _STATES.get(str(row.get("status")), InstanceState.RUNNING)
    launched_at = moment(row.get("creationTimestamp")) or datetime.fromtimestamp(0, UTC)
    billed_from = moment(row.get("lastStartTimestamp"))
    offering = _offering_listed(row, labels)
    stopped_at = moment(row.get("lastStopTimestamp")) if state is InstanceState.STOPPED else None
    return Instance(
        instance_id=row["name"],
        token=name.token or labels.get(label.TOKEN, ""),
        run_uid=name.run_uid,
        launch=name.launch,
        offering=offering,
        state=state,
        launched_at=launched_at,
        billed_from=billed_from,
        prices=_metered(history, offering, billed_from, stopped_at, None),
        off_since=stopped_at,
    )


def run_of(row: Mapping[str, Any]) -> str:
    """Return the uid of the run to which a listed resource belongs; "" if it belongs to no run."""
    name = read_name(row["name"])
    return str(row.get("labels", {}).get(label.RUN, "")) if name is None else name.run_uid


def _offering_listed(row: Mapping[str, Any], labels: Mapping[str, str]) -> Offering:
    scheduling = row.get("scheduling", {})
    spot = scheduling.get("provisioningModel") == "SPOT" or scheduling.get("preemptible", False)
    zone = last_part(row["zone"])
    return Offering(
        cloud="gcp",
        region=region_of(zone),
        zone=zone,
        instance_type=last_part(row["machineType"]),
        capacity_type=CapacityType.SPOT if spot else CapacityType.ON_DEMAND,
        price_usd_per_hour=_price(labels.get(label.NANO_PRICE)),
        accelerators=of_label(labels.get(label.ACCELERATORS, "")),
        cpus=_number(labels.get(label.CPUS)),
        memory_gib=_number(labels.get(label.MEMORY)),
    )


def odd_labels(row: Mapping[str, Any]) -> str:
    """Name those of spotrun's labels that an instance lacks, or that have wrong values; "" if all are right."""
    labels = row.get("labels", {})
    odd = [
        f"{key}={labels[key][:LABEL_SHOWN_MAX]!r}"
        for key, form in _FORMS.items()
        if key in labels and not form.fullmatch(labels[key])
    ]
    gone = [key for key in _ALWAYS if key not in labels]
    named = [f"{label.RUN}={labels[label.RUN]!r}"] if labels.get(label.RUN) not in (None, run_of(row)) else []
    told = {"no label": gone, "the label of another run:": named, "labels that nobody can read:": odd}
    return "; ".join(f"{what} {', '.join(keys)}" for what, keys in told.items() if keys)


def last_part(link: str) -> str:
    """Return the last part of a link. In Google's answers, most names are the end of a link."""
    return str(link).rpartition("/")[2]


def why_not_ended(operations: Sequence[Operation]) -> str:
    """Return Google's message about the last try to end an instance that still exists; "" if the try did not fail."""
    last = next((each for each in reversed(operations) if each.kind == DELETE), None)
    error = None if last is None or last.error is None else failed(f"end {last.target}", last.error)
    return "" if error is None else f": {error.message}"


# -- instances that only Google's list of operations shows -------------------------------------------------------------


def _begun(record: Record, made: Operation) -> Instance | None:
    """
    Return the pending instance of a launch that Google has accepted. Google does not list the instance, or not yet.
    Return None if its name is not one of spotrun's.
    """
    return _remembered(record, made, InstanceState.PENDING, made.asked_at)


def denials(record: Record) -> int:
    """
    Return how often Google refused a launch with this name because of its service account, after first accepting the
    launch.
    """
    return sum(
        each.kind == INSERT and isinstance(_failure(record, each), IDENTITY_DENIED) for each in record.operations
    )


def _failure(record: Record, made: Operation) -> CloudError | None:
    return None if made.error is None else failed(f"launch {record.name}", made.error)


def _never_made(record: Record, made: Operation) -> Instance | None:
    """
    Return an ended instance for a launch that failed after Google had accepted it, for example for lack of capacity.
    Return None if Google refused the launch's service account: the driver then repeats the launch, so an instance may
    still start.
    """
    found = _remembered(record, made, InstanceState.TERMINATED, made.asked_at)
    error = _failure(record, made)
    if found is None or error is None or isinstance(error, IDENTITY_DENIED):
        return None
    return replace(found, ended_at=made.ended_at, ended_by=_refused_by(error), end_reason=error.message)


def _refused_by(error: CloudError) -> EndedBy:
    """
    Return the cause to record for a launch that failed. EndedBy.FAULT means that the launch would fail in every zone
    and at any time. Three such launches in a row make the run fail (P14).
    """
    if isinstance(error, QuotaExceeded):
        return EndedBy.QUOTA
    return EndedBy.CLOUD if isinstance(error, _ELSEWHERE_OR_LATER) else EndedBy.FAULT


def _ended(
    record: Record,
    made: Operation | None,
    operations: Sequence[Operation],
    end: Operation,
    history: History,
    seen: Instance | None,
) -> Instance | None:
    """
    Return the ended instance of a record, with the prices for its bill.

    If spotrun never saw the instance running, billing is assumed to begin when the launch operation succeeded. The
    machine is billed until it was switched off; if that time is unknown, until the operation `end` was done. The disk
    is billed until the operation that `last_end` returns was done.
    """
    off_since = _off_since(seen, operations)
    asked_at = made.asked_at if made is not None else min(end.asked_at, off_since or end.asked_at)
    launched_at = asked_at if seen is None else seen.launched_at
    found = _remembered(record, end, InstanceState.TERMINATED, launched_at)
    if found is None:
        return None
    ran_since = made.ended_at if made is not None and not made.failed else None
    stopped_at = max(launched_at, off_since or end.ended_at or end.asked_at)
    gone = last_end(operations) or end
    ended_at = max(stopped_at, gone.ended_at or gone.asked_at)
    billed_from = (None if seen is None else seen.billed_from) or ran_since
    if billed_from is not None:
        billed_from = min(billed_from, stopped_at)
    offering = found.offering if seen is None else seen.offering
    return replace(
        found,
        offering=offering,
        billed_from=billed_from,
        ended_at=ended_at,
        ended_by=ENDED_BY[end.kind],
        prices=_metered(history, offering, billed_from, stopped_at, ended_at),
        end_reason=end.told,
        off_since=stopped_at if stopped_at < ended_at or off_since is not None else None,
    )


def _off_since(seen: Instance | None, operations: Sequence[Operation]) -> datetime | None:
    """
    Return the time at which the machine was switched off; None if it is unknown. The time comes from this driver, if it
    saw the machine switched off. Otherwise it comes from the id of the delete call, in which the driver that deleted
    the instance stored it. It does not come from the operation that switched the machine off, because Google sometimes
    forgets that operation while the disk still exists.
    """
    told = None if seen is None or seen.state is not InstanceState.STOPPED else seen.off_since
    return told or next((each.off_since for each in operations if each.off_since is not None), None)


def _remembered(record: Record, of: Operation, state: InstanceState, launched_at: datetime) -> Instance | None:
    """
    Return an instance that Google no longer lists, or does not list yet, with the facts that its name contains. Return
    None if the name is not one of spotrun's.
    """
    name = read_name(record.name)
    if name is None:
        return None
    offering = Offering(
        cloud="gcp",
        region=region_of(of.zone),
        zone=of.zone,
        instance_type=name.instance_type,
        capacity_type=name.capacity_type,
        price_usd_per_hour=FREE,
    )
    return Instance(
        instance_id=record.name,
        token=name.token,
        run_uid=name.run_uid,
        launch=name.launch,
        offering=offering,
        state=state,
        launched_at=launched_at,
    )


def _metered(
    history: History,
    offering: Offering,
    since: datetime | None,
    stopped_at: datetime | None,
    ended_at: datetime | None,
) -> tuple[PriceSegment, ...]:
    """
    Return the hourly prices at which the instance was billed; () if it never was. While the machine is switched off,
    only its disk is billed.
    """
    if since is None:
        return ()
    found = charged(history(offering, stopped_at), offering, since, stopped_at)
    if not found or stopped_at is None or stopped_at == ended_at or stopped_at <= since:
        return found
    return (*found, PriceSegment(since=stopped_at, usd_per_hour=FREE))


def _number(text: str | None) -> int:
    """Return the number in a label; 0 if a user has changed or removed the label."""
    return int(text) if text is not None and _NUMBER.fullmatch(text) else 0


def _price(text: str | None) -> Decimal:
    return Decimal(text) / label.NANO if text is not None and _NANO.fullmatch(text) else FREE
