"""A real training with a deadline, on the local cloud: on demand until it is known, then on spot, and in time."""

from __future__ import annotations

from spotrun.offering import CapacityType
from tests.support.sandbox import Sandbox

POLICY = "policy: {deadline: 3h, return_cooldown: 30s}\n"
EPOCHS = 30


def test_a_real_run_moves_to_spot_once_its_work_is_known_and_is_done_in_time(sandbox: Sandbox) -> None:
    job = sandbox.job("hurried", args=f"--epochs, '{EPOCHS}', --step-s, '0.05'", extra=POLICY)
    said = sandbox.call("launch", job, "-y")
    assert "To be done by" in said

    state = sandbox.state("hurried")
    assert state.created.deadline_at is not None
    assert state.terminal is not None
    assert state.terminal.outcome == "completed"
    assert state.terminal.at <= state.created.deadline_at
    assert state.deadline_lost is None
    bought = [state.launch_of(attempt).intent.offering.capacity_type for attempt in state.attempts.values()]
    assert bought == [CapacityType.ON_DEMAND, CapacityType.SPOT]
    assert sandbox.left_running() == []

    (row,) = sandbox.ask_json("status")
    assert row["deadline_at"] == state.created.deadline_at.isoformat()
    assert row["deadline_lost"] is False

    # A plan of the same job knows from this run how long the work is.
    plan = sandbox.ask_json("plan", job, "--deadline", "9h", "--lifetimes", "10")
    assert plan["epochs"] == EPOCHS
    assert 10 < plan["work_s"] < 10_800


def test_a_launch_that_not_even_on_demand_could_finish_is_refused(sandbox: Sandbox) -> None:
    job = sandbox.job("hopeless", extra="policy: {deadline: 1h, expected_work: 1h}\n")
    assert "cannot be met even on demand" in sandbox.ask("launch", job, "-y", code=2)
    assert not sandbox.store.exists()
