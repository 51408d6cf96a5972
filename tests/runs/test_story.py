"""
Read this first: what happens to a run, from its launch to its bill.

A real Lightning training on the local cloud loses three machines: one with a notice, one without, and one after which
there is no spot capacity anywhere. It ends with the same weights as a run that nobody interrupted.
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
"""Enough that a standby on a busy machine is there before the end."""
STEPS = EPOCHS * 12


def test_a_run_loses_three_machines_and_ends_as_if_nothing_had_happened(sandbox: Sandbox) -> None:
    arguments = f"--epochs, '{EPOCHS}', --step-s, '0.1'"
    sandbox.call("launch", sandbox.job("calm", args=f"--epochs, '{EPOCHS}', --step-s, '0'"), "-y")
    sandbox.trace.rename(sandbox.trace.with_suffix(".calm"))
    sandbox.call("launch", sandbox.job("stormy", args=arguments, script=MARKET, extra=POLICY), "-y")

    state = sandbox.state("stormy")
    attempts = list(state.attempts.values())
    capacity = [state.launch_of(attempt).intent.offering.capacity_type for attempt in attempts]
    causes = [attempt.end.cause for attempt in attempts if attempt.end is not None]

    # It was interrupted, went on-demand when spot was gone, came back when it returned, and was completed.
    assert state.terminal is not None
    assert state.terminal.outcome == "completed"
    assert causes[:3] == [Cause.INTERRUPTED] * 3
    assert causes[-1] is Cause.DONE
    assert CapacityType.ON_DEMAND in capacity
    assert capacity[0] is capacity[-1] is CapacityType.SPOT

    # The notice was used: the first attempt committed its last step before it left, and nothing was trained twice.
    drained = [entry.event for entry in entries_of(sandbox) if isinstance(entry.event, ev.AttemptDrained)]
    assert drained
    assert drained[0].final_commit is not None

    # Every step has the samples, the loss and the learning rate of the quiet run, also where it was done twice.
    quiet = dict(line.split(" ", 1) for line in sandbox.trace.with_suffix(".calm").read_text().splitlines())
    assert {str(step): lines for step, lines in sandbox.trace_by_step().items()} == {
        step: {f"{step} {rest}"} for step, rest in quiet.items()
    }
    assert final_tensors(sandbox.run("stormy")) == final_tensors(sandbox.run("calm"))

    # The bill: every completed epoch has its share, and the parts sum to the whole.
    bill = sandbox.call_json("report", "stormy")
    parts = [*bill["epochs"], bill["unfinished"]]
    assert len(bill["epochs"]) == EPOCHS
    assert sum(Decimal(part["cost_usd"]) for part in parts) == Decimal(bill["total"]["cost_usd"]) > 0
    assert bill["total"]["interruptions"] == 3
    assert sandbox.left_running() == []


def entries_of(sandbox: Sandbox) -> list[ev.Entry]:
    run = sandbox.run("stormy")
    run.ledger.refresh()
    return run.ledger.entries
