"""
Reads a job's choice between the user's own machine and a cloud. The machine trains when it is free, and the cloud
trains at other times.

    any_of: [{cloud: local, hardware: box}, {cloud: aws, region: us-east-1}]

`RunSpec` has no field for such an `any_of`. So this module replaces `any_of` in `resources` with the keys of the
cloud's entry, and adds the key `home`: the name of the user's machine. The two entries may be in either order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from spotrun.spec.kinds import ANY_OF
from spotrun.spec.problems import Key
from spotrun.spec.values import kind_of
from spotrun.units import Unreadable

HARDWARE = "hardware"
HOME = "home"
LOCAL = "local"
"""The name of the cloud whose instances are processes on this machine."""
_FORM = "write it like [{cloud: local, hardware: box}, {cloud: aws}]"


class Places(NamedTuple):
    """The keys that replace `any_of` in `resources`, and the key at which the user wrote each of them."""

    keys: dict[str, Any]
    written_at: dict[str, Key]


def has_machine(choice: object) -> bool:
    """
    Return True if an entry of `choice` is the user's own machine. It is then a choice between this machine and a cloud.
    """
    return isinstance(choice, list) and any(isinstance(entry, dict) and HARDWARE in entry for entry in choice)


def read_places(resources: Mapping[str, Any]) -> Places:
    """
    Read a choice between the user's own machine and a cloud.

    Raises:
        Unreadable: `any_of` is not a choice between one machine of the user and one cloud. The error's `at` is the key
            that causes it, relative to `any_of`.
    """
    entries = [*_entries(resources[ANY_OF])]
    machines = [(at, entry) for at, entry in entries if HARDWARE in entry]
    clouds = [(at, entry) for at, entry in entries if HARDWARE not in entry]
    if len(machines) > 1:
        reason = "is a second machine of your own, and a job can have only one"
        raise Unreadable(reason, "name a cloud in its place", at=machines[1][0])
    if len(clouds) > 1:
        raise Unreadable("is a second cloud, and a job rents on one", "keep one of them", at=clouds[1][0])
    if not clouds:
        raise Unreadable("names no cloud that trains while the machine is in use", _FORM)
    ((machine_at, machine),), ((cloud_at, cloud),) = machines, clouds
    _require_machine(machine, machine_at)
    if "cloud" not in cloud:
        raise Unreadable("does not say which cloud", "add cloud: aws, for example", at=cloud_at)
    found = Places({HOME: machine[HARDWARE], **cloud}, {key: (*cloud_at, key) for key in cloud})
    found.written_at[HOME] = (*machine_at, HARDWARE)
    for key in found.keys:
        if key in resources:
            raise Unreadable(f"{key} is also given next to {ANY_OF}", "keep one of them", at=found.written_at[key])
    return found


def _entries(value: list[object]) -> Iterator[tuple[Key, Mapping[str, Any]]]:
    for index, entry in enumerate(value):
        if not isinstance(entry, dict):
            raise Unreadable(f"must be a mapping, not {kind_of(entry)}", "write it like {cloud: aws}", at=(index,))
        yield (index,), entry


def _require_machine(machine: Mapping[str, Any], at: Key) -> None:
    if machine.get("cloud", LOCAL) != LOCAL:
        raise Unreadable("a machine of your own is in no cloud", f"write cloud: {LOCAL}", at=(*at, "cloud"))
    for key in machine:
        if key not in ("cloud", HARDWARE):
            advice = f"describe the machine under {HARDWARE}, and write keys for the cloud into the cloud's entry"
            raise Unreadable("does not belong to a machine of your own", advice, at=(*at, key))
