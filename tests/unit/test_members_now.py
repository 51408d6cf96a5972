"""How each member of a gang is, in `status` and on the live screen."""

from __future__ import annotations

from datetime import timedelta

import pytest

from spotrun.folder.status_objects import AgentStatus, MembersTrainer
from spotrun.report.members import StatusOf, members_now
from spotrun.report.overview import notes
from spotrun.run import events as ev
from spotrun.run.events import Cause
from spotrun.run.gang import MemberName
from tests.support.gang_history import GangHistory
from tests.support.histories import START, History


def silent(_: MemberName) -> None:
    """No agent has said anything."""


def does(history: History, status_of: StatusOf = silent) -> dict[str, str]:
    return {str(each.name): each.does for each in members_now(history.state, status_of)}


def test_a_gang_that_comes_together():
    history = GangHistory(2)
    one, two = history.ask(2)
    assert does(history) == {"1.0": "is asked for", "1.1": "is asked for"}
    history.exist(one, two)
    history.ready(two)
    assert does(history) == {"1.0": "starts", "1.1": "is ready, and waits for others"}
    history.ready(one)
    history.start_gang([one, two])
    assert does(history) == dict.fromkeys(("1.0", "1.1"), "begins to train")
    history.meet()
    history.training()
    assert does(history) == dict.fromkeys(("1.0", "1.1"), "trains")


def test_a_member_that_is_taken_and_those_that_are_gone():
    history = GangHistory(2)
    one, two = history.training_gang()
    deadline_at = history.now + timedelta(seconds=120)
    history.write(ev.NoticeSeen(attempt=history.attempt, kind="termination", deadline_at=deadline_at, member=two))
    assert does(history) == {"1.0": "trains", "1.1": f"is taken by the cloud at {deadline_at:%H:%M:%S}"}
    history.drained(None)
    assert does(history) == {"1.0": "is ready, and waits for others", "1.1": "is being ended"}
    history.lost(two)
    history.write(ev.InstanceCondemned(launch=one.launch, member=one.member, cause=Cause.HANG))
    assert does(history) == {"1.0": "is being ended"}


def test_a_member_whose_process_has_ended_does_not_train():
    history = GangHistory(2)
    _, two = history.training_gang()

    def told(name: MemberName) -> AgentStatus | None:
        trainer = MembersTrainer(attempt=history.attempt, incarnation=0, exit_code=1, at=history.now, reason="why")
        return AgentStatus(launch=1, phase="exited", at=START, sequence=1, trainer=trainer) if name == two else None

    assert does(history, told) == {
        "1.0": "trains",
        "1.1": "has ended its process (exit code 1), and waits for the lead's decision",
    }


def test_a_run_on_one_instance_has_no_members():
    history = History()
    history.running()
    assert does(history) == {}


@pytest.mark.parametrize("runs", [1, 2])
def test_status_has_a_line_for_each_member_where_one_run_is_shown(runs: int):
    history = GangHistory(2)
    history.training_gang()
    row = {
        "run": "demo-1",
        "state": "training",
        "members": [each.to_dict() for each in members_now(history.state, silent)],
    }
    lines = [line for line in notes([row] * runs) if line.startswith("member ")]
    ranks = [line.partition(" on ")[0] for line in lines]
    assert ranks == (["member 1.0 (rank 0)", "member 1.1 (rank 1)"] if runs == 1 else [])
    assert all(line.endswith(" trains") for line in lines)
