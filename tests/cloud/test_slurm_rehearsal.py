"""
The dress rehearsal: a run on a Slurm cluster from its launch to its bill.

The cluster is Slurm's own programs on this machine (tests/support/slurm_cluster.py). Its time is the wall's.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest

from spotrun.account.losses import losses
from spotrun.clouds.slurm.ids import job_of
from spotrun.instance import EndedBy
from spotrun.run.events import Cause
from spotrun.run.state import RunState
from tests.support.sandbox import final_tensors
from tests.support.slurm_cluster import NEEDS_SLURM, cluster
from tests.support.slurm_sandbox import PARTITIONS, SlurmSandbox, dollars

pytestmark = NEEDS_SLURM
ARGUMENTS = "--epochs, '38', --width, '64'"


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmSandbox]:
    with cluster(partitions=PARTITIONS, silent_s=15) as little:
        sandbox = SlurmSandbox(tmp_path, monkeypatch, little)
        yield sandbox
        sandbox.close()


@pytest.mark.timeout(600)
def test_a_run_on_a_cluster_loses_its_nodes_and_ends_as_if_nothing_had_happened(sandbox: SlurmSandbox) -> None:
    sandbox.call("launch", sandbox.job("calm", args=f"{ARGUMENTS}, --step-s, '0'"), "-y")
    sandbox.trace.rename(sandbox.trace.with_suffix(".calm"))
    runner = sandbox.start("launch", sandbox.job_on_slurm("stormy", f"{ARGUMENTS}, --step-s, '0.2'"), "-y")

    taken = sandbox.trains_on(runner, zone="cheap", steps=10)
    stronger = sandbox.take("n1")
    broken = sandbox.trains_on(runner, zone="fair", steps=10, before=taken)
    sandbox.cluster.break_node("n2")
    # there is no spot, and it looks again in 20 s
    dear = sandbox.trains_on(runner, zone="sure", before=broken, steps=1)
    sandbox.cluster.ask("scancel", stronger)
    cancelled = sandbox.trains_on(runner, zone="cheap", steps=10, before=dear)
    sandbox.cluster.ask("scancel", job_of(cancelled))
    sandbox.trains_on(runner, zone="cheap", steps=10, before=cancelled)
    sandbox.hurry()
    output, _ = runner.communicate(timeout=240)
    assert runner.returncode == 0, output

    state = sandbox.state("stormy")
    each_loss_was_what_it_was(state, [taken, broken, dear, cancelled])
    quiet = dict(line.split(" ", 1) for line in sandbox.trace.with_suffix(".calm").read_text().splitlines())
    assert {str(step): lines for step, lines in sandbox.trace_by_step().items()} == {
        step: {f"{step} {rest}"} for step, rest in quiet.items()
    }
    assert final_tensors(sandbox.run("stormy")) == final_tensors(sandbox.run("calm"))
    its_bill_is_node_seconds_times_prices(sandbox)
    assert sandbox.left_running() == []
    assert sandbox.cluster.ask("squeue", "--noheader", "--format=%i") == ""
    assert [*sandbox.machines.iterdir()] == [], "what was killed with its node is swept by the next one there"


def each_loss_was_what_it_was(state: RunState, lost: list[str]) -> None:
    attempts = {attempt.instance_id: attempt for attempt in state.attempts.values()}
    taken, broken, dear, cancelled = (attempts[instance_id] for instance_id in lost)
    assert taken.notice is not None
    assert taken.notice.deadline_at is not None
    assert taken.notice_at is not None
    assert 5 < (taken.notice.deadline_at - taken.notice_at).total_seconds() <= 12, "GraceTime is 12 s"
    ends = [attempt.end for attempt in (taken, broken, dear, cancelled)]
    causes = [None if end is None else end.cause for end in ends]
    assert causes[0] is Cause.INTERRUPTED
    assert causes[2] is Cause.REPLACED
    gone = {launch.gone.instance_id: launch.gone.ended_by for launch in state.launches.values() if launch.gone}
    assert gone[broken.instance_id] is EndedBy.FAULT
    assert gone[cancelled.instance_id] is EndedBy.USER
    found = losses(state)
    named = {taken.number: Cause.INTERRUPTED, broken.number: EndedBy.FAULT, cancelled.number: EndedBy.USER}
    assert {each.attempt: each.cause for each in found}.items() <= named.items()
    assert sum(each.steps_lost for each in found) == sum(
        trainer.steps_redone for attempt in state.attempts.values() for trainer in attempt.trainers
    )


def its_bill_is_node_seconds_times_prices(sandbox: SlurmSandbox) -> None:
    bill = sandbox.call_json("report", "stormy")
    told = Decimal(bill["total"]["spot_usd"]) + Decimal(bill["total"]["on_demand_usd"])
    assert abs(dollars(sandbox.node_times()) - Fraction(told)) < Fraction(1, 10**6)
    parts = [*bill["epochs"], bill["unfinished"]]
    assert sum(Decimal(part["cost_usd"]) for part in parts) == Decimal(bill["total"]["cost_usd"]) > 0
