"""
Computes the rendezvous of a gang's trainers (the address and port at which they connect to each other), and the
environment variables that pass it to the trainers.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from spotrun.agent.agent_context import AgentContext
from spotrun.market.accelerators import count_in
from spotrun.run.gang import Gang, Meeting, MemberName
from spotrun.run.state import Attempt, RunState
from spotrun.trainer_link import GANG, WORK

MEETS_AS = ("SPOTRUN", "SKYPILOT")
"""
Prefixes of the variables that describe a member's place in the gang. Each variable is set under both prefixes, so
scripts that were written for SkyPilot find the variables too.
"""
PLACES = ("NUM_NODES", "NODE_RANK", "NODE_IPS", "NUM_GPUS_PER_NODE")
NAMES = (
    *("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "PL_TRAINER_NUM_NODES", GANG, WORK),
    *(
        f"{prefix}_{name}"
        for prefix in MEETS_AS
        for name in ("NUM_NODES", "NODE_RANK", "NODE_IPS", "NUM_GPUS_PER_NODE")
    ),
)
"""The variables that `Rendezvous.variables` returns. They differ between attempts."""
LOOPBACK = "127.0.0.1"
LOOPBACK_INTERFACE = "lo"
GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
NCCL_INTERFACE = "NCCL_SOCKET_IFNAME"


@dataclass(frozen=True)
class Rendezvous:
    """
    A member's place in an attempt. `addresses` are the addresses of all the gang's members, in the order of their
    ranks. `at` is the index of this member in `addresses`.
    """

    run_uid: str
    attempt: int
    gang: Gang
    addresses: tuple[str, ...]
    at: int
    work: str

    @classmethod
    def of(cls, context: AgentContext, attempt: Attempt) -> Rendezvous:
        assert attempt.gang is not None
        return cls(
            run_uid=context.assignment.run_uid,
            attempt=attempt.number,
            gang=attempt.gang,
            addresses=addresses_of(context.recorder.state, attempt),
            at=attempt.names.index(context.assignment.name),
            work=str(context.assignment.work),
        )

    @property
    def leads(self) -> bool:
        return self.at == 0

    @property
    def others(self) -> tuple[MemberName, ...]:
        return tuple(name for at, name in enumerate(self.gang.names) if at != self.at)

    def new_meeting(self) -> Meeting:
        """
        Return a new rendezvous for the trainers of one incarnation: the address of this member, and a port that is free
        now.

        Raises:
            OSError: the address does not belong to this machine.
        """
        with socket.socket() as sock:
            sock.bind((self.addresses[self.at], 0))
            return Meeting(address=self.addresses[self.at], port=sock.getsockname()[1])

    def variables(self, incarnation: int, meet: Meeting) -> dict[str, str]:
        """
        Return the environment variables with which this member's trainer of `incarnation` finds the other trainers.

        `LightningEnvironment` reads `MASTER_ADDR`, `MASTER_PORT` and `NODE_RANK`; a Trainer without `num_nodes` reads
        `PL_TRAINER_NUM_NODES`: https://lightning.ai/docs/pytorch/stable/clouds/cluster_intermediate_1.html. The other
        variables are for jobs that run a command (`train: {run}`).
        """
        size = len(self.addresses)
        return {
            "MASTER_ADDR": meet.address,
            "MASTER_PORT": str(meet.port),
            "NODE_RANK": str(self.at),
            "PL_TRAINER_NUM_NODES": str(size),
            **_places(self.addresses, self.at, self.gang.world // size),
            WORK: "" if self.leads else self.work,
            GANG: f"{self.run_uid} {self.attempt} {incarnation} {self.gang.world}",
        }


def alone(accelerators: str) -> dict[str, str]:
    """
    Return the environment variables of a gang of one member (rank, addresses, number of processes), for a run on one
    instance. So a script that expects these variables also runs on one instance.
    """
    return _places((LOOPBACK,), 0, max(1, count_in(accelerators)))


def listens_on(address: str) -> dict[str, str]:
    """
    Return the environment variables that limit the network interfaces on which gloo and NCCL listen.

    For a run on one instance, `address` is "", and both listen only on the loopback interface. In a gang on several
    machines, gloo listens only on the interface that has `address`. NCCL chooses its interface itself, because the
    machines may have a second, faster network. This is safe, because NCCL does not execute the data that it receives.
    """
    interface = _interface_at(address or LOOPBACK)
    if interface == LOOPBACK_INTERFACE:
        return {GLOO_INTERFACE: interface, NCCL_INTERFACE: interface}
    return {} if interface is None else {GLOO_INTERFACE: interface}


def _interface_at(address: str) -> str | None:
    """
    Return the name of the network interface that has `address`; None if the address does not belong to this machine.
    """
    try:
        number = socket.gethostbyname(address)
    except OSError:
        return None
    if ip_address(number).is_loopback:  # every loopback address belongs to this machine
        return LOOPBACK_INTERFACE
    import psutil  # only members that have to reach other machines need it

    found = psutil.net_if_addrs().items()
    return next((name for name, has in found if any(each.address == number for each in has)), None)


def _places(addresses: Sequence[str], rank: int, processes: int) -> dict[str, str]:
    """
    Return the environment variables that describe a member's place in the gang: its rank, all members' addresses, and
    the number of processes on each member. Each variable is returned once for each prefix in MEETS_AS.
    """
    texts = (str(len(addresses)), str(rank), "\n".join(addresses), str(processes))
    places = dict(zip(PLACES, texts, strict=True))
    return {f"{prefix}_{name}": text for prefix in MEETS_AS for name, text in places.items()}


def addresses_of(state: RunState, attempt: Attempt) -> tuple[str, ...]:
    return tuple(member.ready.address for member in state.members_of(attempt) if member.ready is not None)
