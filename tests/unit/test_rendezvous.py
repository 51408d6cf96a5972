"""What the trainers of a gang are told of one another."""

from __future__ import annotations

from spotrun.agent.gang.rendezvous import Rendezvous
from spotrun.run.gang import Gang, Meeting, MemberName, Seat
from spotrun.trainer_link import GANG


def test_a_member_with_two_accelerators_starts_two_processes_of_four() -> None:
    seats = (Seat(name=MemberName(1, 0), rank=0), Seat(name=MemberName(1, 1), rank=2))
    gang = Gang(members=seats, world=4, batches=(1,) * 4)
    second = Rendezvous("uid", 7, gang, ("10.0.0.1", "10.0.0.2"), at=1, work="/work")
    assert not second.leads
    assert second.others == (MemberName(1, 0),)
    variables = second.variables(3, Meeting(address="10.0.0.1", port=4000))
    assert (variables["MASTER_ADDR"], variables["MASTER_PORT"]) == ("10.0.0.1", "4000")
    assert (variables["NODE_RANK"], variables["PL_TRAINER_NUM_NODES"]) == ("1", "2")
    assert variables[GANG] == "uid 7 3 4"
    for prefix in ("SPOTRUN", "SKYPILOT"):
        assert variables[f"{prefix}_NUM_NODES"] == "2"
        assert variables[f"{prefix}_NODE_RANK"] == "1"
        assert variables[f"{prefix}_NODE_IPS"] == "10.0.0.1\n10.0.0.2"
        assert variables[f"{prefix}_NUM_GPUS_PER_NODE"] == "2"
