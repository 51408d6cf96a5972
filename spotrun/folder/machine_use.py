"""
Computes the utilization of a run's machines from each agent's newest status. The time between the last status and the
loss of a machine is left out, because nothing is known about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
from msgspec.structs import astuple

from spotrun.folder.status_objects import AgentStatus, MachineUse, agent_key, read_status
from spotrun.run.gang import MemberName
from spotrun.run.state import RunState
from spotrun.store.port import Store

READERS = 8
"""
Maximum status objects that are read at the same time. Parallel reads are faster, because each read mostly waits for the
store.
"""


class TypeUse(msgspec.Struct, frozen=True, kw_only=True):
    """The utilization of all machines of one type while they trained. Times are in run time."""

    instance_type: str
    used: MachineUse


def machine_use(store: Store, state: RunState) -> list[TypeUse]:
    """
    Return the utilization of the machines of each type, in the order in which the types first trained. Types whose
    agents reported nothing are left out.
    """
    names = list(dict.fromkeys(name for attempt in state.attempts.values() for name in attempt.names))
    found: dict[str, MachineUse] = {}
    for name, used in zip(names, _used(store, names), strict=True):
        instance_type = state.launches[name.launch].intent.offering.instance_type
        found[instance_type] = found.get(instance_type, MachineUse()) + used
    return [TypeUse(instance_type=name, used=used) for name, used in found.items() if used != MachineUse()]


def _used(store: Store, names: Sequence[MemberName]) -> list[MachineUse]:
    with ThreadPoolExecutor(READERS) as pool:
        read = pool.map(lambda name: read_status(store, agent_key(*astuple(name)), AgentStatus), names)
        return [MachineUse() if status is None else status.used for status in read]
