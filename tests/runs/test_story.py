"""
Read this first: the story of one run, from its launch to its bill.

A real Lightning training runs on the local cloud and loses three instances. The cloud announces the first loss with a
notice; the second comes without one; after the third there is no spot capacity anywhere, until it returns. The run ends
with the same weights as a run that nobody interrupted.

`sandbox` is a store and a local cloud of the test's own, and calls `spotrun` as a person would: in a process. What that
writes is read back from the run's ledger. Time on the local cloud passes 30 times as fast as ours.
"""

from __future__ import annotations

from decimal import Decimal

from spotrun.offering import CapacityType
from spotrun.run import events as ev
from spotrun.run.events import Cause
from tests.support.sandbox import Sandbox, final_tensors

MARKET = """
{when: epoch 2 at 30%, then: interrupt, notice: 120s}
{when: epoch 3 at 60%, then: interrupt, notice: none}
{when: epoch 5 at 30%, then: no-spot, notice: none}
{when: epoch 6 at 50%, then: spot-returns}
"""
POLICY = "policy: {on_demand_after: 20s, return_to_spot: true, return_cooldown: 60s}\n"
EPOCHS = 18
"""Enough that a standby is ready before the end, on a busy machine too."""


def test_a_run_loses_three_instances_and_ends_as_if_nothing_had_happened(sandbox: Sandbox) -> None:
    # The same job twice: first in peace, then in a market that takes its instances. Each trainer traces what it did.
    calm = sandbox.job("calm", args=f"--epochs, '{EPOCHS}', --step-s, '0'")
    stormy = sandbox.job("stormy", args=f"--epochs, '{EPOCHS}', --step-s, '0.1'", script=MARKET, extra=POLICY)
    sandbox.call("launch", calm, "-y")
    quiet = sandbox.trace.rename(sandbox.trace.with_suffix(".calm"))
    sandbox.call("launch", stormy, "-y")

    state = sandbox.state("stormy")
    attempts = list(state.attempts.values())
    capacity = [state.launch_of(attempt).intent.offering.capacity_type for attempt in attempts]
    causes = [attempt.end.cause for attempt in attempts if attempt.end is not None]

    # Three instances were lost. The run went on-demand when spot was gone, returned with it, and was completed.
    assert state.terminal is not None
    assert state.terminal.outcome == "completed"
    assert causes[:3] == [Cause.INTERRUPTED] * 3
    assert causes[-1] is Cause.DONE
    assert CapacityType.ON_DEMAND in capacity
    assert capacity[0] is capacity[-1] is CapacityType.SPOT

    # The notice was used: the first attempt committed its last step before its instance went.
    drained = [entry.event for entry in entries_of(sandbox) if isinstance(entry.event, ev.AttemptDrained)]
    assert drained
    assert drained[0].final_commit is not None

    # Each step has the samples, the loss and the learning rate of the calm run, those that were done twice too.
    assert sandbox.trace_by_step() == {int(line.split()[0]): {line} for line in quiet.read_text().splitlines()}
    assert final_tensors(sandbox.run("stormy")) == final_tensors(sandbox.run("calm"))

    # The bill: each completed epoch has its share, and the shares add up to the whole. Nothing is left running.
    bill = sandbox.ask_json("report", "stormy")
    parts = [*bill["epochs"], bill["unfinished"]]
    assert len(bill["epochs"]) == EPOCHS
    assert sum(Decimal(part["cost_usd"]) for part in parts) == Decimal(bill["total"]["cost_usd"]) > 0
    assert bill["total"]["interruptions"] == 3
    assert sandbox.left_running() == []


def entries_of(sandbox: Sandbox) -> list[ev.Entry]:
    run = sandbox.run("stormy")
    run.ledger.refresh()
    return run.ledger.entries
