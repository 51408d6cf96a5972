"""
Gangs on a Slurm cluster: two members that train together through what happens to nodes there.

The cluster is Slurm's own programs on this machine (tests/support/slurm_cluster.py). Its time is the wall's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest

from spotrun.clouds.slurm.ids import job_of
from spotrun.instance import EndedBy
from spotrun.run.events import Cause
from spotrun.run.gang import MemberName
from tests.support.sandbox import Sandbox, final_tensors
from tests.support.slurm_cluster import NEEDS_SLURM, cluster
from tests.support.slurm_sandbox import PRICES, NodeTime, SlurmSandbox, dollars

pytestmark = [NEEDS_SLURM, pytest.mark.timeout(600)]
ARGUMENTS = "--epochs, '{epochs}', --width, '64'"
GANG = "num_nodes: 2\n"
STRONG = "strong Nodes=n[1-4] PriorityTier=10 PreemptMode=OFF"
SECTION = "slurm:\n  wait: 10s\n  scratch: '{scratch}'\n  partitions:\n"
ENDS_WITHIN_S = 240

Opened = Callable[..., SlurmSandbox]


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opened]:
    """A sandbox on a cluster of four nodes with these partitions."""
    with ExitStack() as held:

        def begin(partitions: Sequence[str], silent_s: int = 300) -> SlurmSandbox:
            little = held.enter_context(cluster(nodes=4, partitions=partitions, silent_s=silent_s))
            sandbox = SlurmSandbox(tmp_path, monkeypatch, little)
            held.callback(sandbox.close)
            return sandbox

        yield begin


def spot(name: str, nodes: str) -> str:
    return f"{name} Nodes={nodes} PriorityTier=1 PreemptMode=CANCEL GraceTime=20"


def section(*names: str) -> str:
    kinds = {name: "on_demand" if name == "sure" else "spot" for name in names}
    lines = [f"    - {{{{name: {n}, capacity: {kinds[n]}, usd_per_node_hour: {PRICES[n]}}}}}\n" for n in names]
    return SECTION + "".join(lines)


def calm(sandbox: Sandbox, epochs: int) -> dict[int, set[str]]:
    """What each rank has seen in each step of a training that nothing happens to."""
    args = f"{ARGUMENTS.format(epochs=epochs)}, --step-s, '0'"
    sandbox.call("launch", sandbox.job("calm", args=args, extra=GANG), "-y")
    seen = sandbox.trace_by_step()
    sandbox.trace.unlink()
    assert {len(lines) for lines in seen.values()} == {2}, "a line of each rank"
    return seen


def stormy(sandbox: SlurmSandbox, epochs: int, *names: str) -> Path:
    args = f"{ARGUMENTS.format(epochs=epochs)}, --step-s, '0.2'"
    return sandbox.job_on_slurm("stormy", args, section=section(*names), extra=GANG)


def billed(sandbox: SlurmSandbox) -> Fraction:
    bill = sandbox.call_json("report", "stormy")
    parts = [*bill["epochs"], bill["unfinished"]]
    assert sum(Decimal(part["cost_usd"]) for part in parts) == Decimal(bill["total"]["cost_usd"]) > 0
    return Fraction(bill["total"]["spot_usd"]) + Fraction(bill["total"]["on_demand_usd"])


def nothing_is_left(sandbox: SlurmSandbox) -> None:
    assert sandbox.left_running() == []
    jobs = sandbox.cluster.ask("squeue", "--noheader", "--format=%i %k").splitlines()
    assert not [job for job in jobs if "spotrun:" in job]


def test_a_gang_is_preempted_and_goes_on_elsewhere_with_the_same_bits(opened: Opened) -> None:
    sandbox = opened((spot("cheap", "n[1-2]"), spot("fair", "n[3-4]"), STRONG))
    quiet = calm(sandbox, epochs=24)
    runner = sandbox.start("launch", stormy(sandbox, 24, "cheap", "fair"), "-y")
    taken = sandbox.trains_on(runner, zone="cheap", steps=10)
    sandbox.take("n2")
    sandbox.trains_on(runner, zone="fair", before=taken, steps=1)
    sandbox.hurry()
    output, _ = runner.communicate(timeout=ENDS_WITHIN_S)
    assert runner.returncode == 0, output

    state = sandbox.state("stormy")
    first, *_ = state.attempts.values()
    assert first.notice is not None
    assert first.notice.deadline_at is not None
    assert first.notice_at is not None
    assert 5 < (first.notice.deadline_at - first.notice_at).total_seconds() <= 20, "GraceTime is 20 s"
    assert first.end is not None
    assert first.end.cause is Cause.INTERRUPTED
    by = {gone.ended_by for member in state.launches[1].members if (gone := member.gone)}
    assert by <= {EndedBy.ITSELF, EndedBy.CLOUD}, "who has saved all leaves before the deadline"
    assert sandbox.trace_by_step() == quiet
    assert final_tensors(sandbox.run("stormy")) == final_tensors(sandbox.run("calm"))
    assert abs(dollars(sandbox.node_times()) - billed(sandbox)) < Fraction(1, 10**6)
    nothing_is_left(sandbox)
    assert [*sandbox.machines.iterdir()] == []


@pytest.mark.nightly
def test_a_node_breaks_and_the_survivor_trains_on_with_a_replacement(opened: Opened) -> None:
    """It is the first node, which has the process that began all steps."""
    sandbox = opened((spot("cheap", "n[1-4]"),), silent_s=15)
    quiet = calm(sandbox, epochs=16)
    runner = sandbox.start("launch", stormy(sandbox, 16, "cheap"), "-y")
    broken = sandbox.trains_on(runner, zone="cheap", steps=10)
    sandbox.cluster.break_node("n1")
    sandbox.trains_on(runner, zone="cheap", before=broken, steps=1)
    sandbox.hurry()
    output, _ = runner.communicate(timeout=ENDS_WITHIN_S)
    assert runner.returncode == 0, output

    state = sandbox.state("stormy")
    _, replacement = state.launches
    assert [[*attempt.names] for attempt in state.attempts.values()] == [
        [MemberName(1, 0), MemberName(1, 1)],
        [MemberName(1, 1), MemberName(replacement, 0)],
    ]
    lost = state.member(MemberName(1, 0)).gone
    assert lost is not None
    assert lost.ended_by is EndedBy.FAULT
    assert sandbox.trace_by_step() == quiet
    left_at = sandbox.cluster.lost_at("n1")
    times = sandbox.node_times()
    (before,) = [each for each in times if each.began_at == min(each.began_at for each in times)]
    alone = NodeTime("cheap", round((left_at - before.began_at).total_seconds()), "", 1, before.began_at)
    seen_late = (lost.ended_at - left_at).total_seconds()
    assert -1 <= seen_late < 60, "a look of the runner's, on a busy machine"
    late = Fraction(PRICES["cheap"]) * round(seen_late) / 3600
    assert abs(dollars([*times, alone]) + late - billed(sandbox)) < Fraction(PRICES["cheap"]) * 2 / 3600
    nothing_is_left(sandbox)


@pytest.mark.nightly
def test_a_gang_trains_on_demand_while_spot_is_full_comes_back_and_is_cancelled(opened: Opened) -> None:
    """Two partitions have the same nodes: one that has just refused is not asked again so soon."""
    sandbox = opened(
        (spot("cheap", "n[1-2]"), spot("fair", "n[1-2]"), "sure Nodes=n[3-4] PriorityTier=1 PreemptMode=OFF", STRONG)
    )
    quiet = calm(sandbox, epochs=60)
    others = sandbox.fill("cheap", 1)
    runner = sandbox.start("launch", stormy(sandbox, 60, "cheap", "fair", "sure"), "-y")
    dear = sandbox.trains_on(runner, zone="sure", steps=1)
    sandbox.cluster.ask("scancel", others)
    cancelled = sandbox.trains_on(runner, zone="fair", before=dear, steps=1)
    sandbox.cluster.ask("scancel", job_of(cancelled))
    sandbox.is_left(runner, cancelled)
    sandbox.hurry()
    output, _ = runner.communicate(timeout=ENDS_WITHIN_S)
    assert runner.returncode == 0, output

    state = sandbox.state("stormy")
    attempts = {each.instance_id: each for each in state.attempts.values()}
    back = attempts[cancelled]
    end = attempts[dear].end
    assert end is not None
    assert end.cause is Cause.REPLACED
    by = {gone.ended_by for name in back.names if (gone := state.member(name).gone)}
    assert by == {EndedBy.USER}
    assert len(attempts) >= 3
    assert sandbox.trace_by_step() == quiet
    assert abs(dollars(sandbox.node_times()) - billed(sandbox)) < Fraction(1, 10**6)
    nothing_is_left(sandbox)
