"""A real training that is recommended to leave, on the local cloud: it commits, trains on, and then hands over."""

from __future__ import annotations

from spotrun.run import events as ev
from spotrun.run.events import Cause
from spotrun.run.state import RunState
from tests.support.eventually import eventually
from tests.support.sandbox import WITHIN_S, Sandbox

MARKET = "{when: epoch 2 at 30%, then: rebalance}\n"
EPOCHS = 30


def test_a_recommended_instance_commits_trains_on_and_is_drained_for_its_standby(sandbox: Sandbox) -> None:
    """In that order, although the cloud never takes it; the run is exact, and nothing was trained twice."""
    job = sandbox.job("moved", args=f"--epochs, '{EPOCHS}', --step-s, '0.1'", script=MARKET)
    runner = sandbox.start("launch", job, "-y")
    eventually(lambda: sandbox.trace.exists() or runner.poll() is not None, within_s=WITHIN_S)
    run = sandbox.run("moved")
    eventually(lambda: has_moved(run.ledger.refresh()) or runner.poll() is not None, within_s=WITHIN_S)
    sandbox.hurry()
    output, _ = runner.communicate(timeout=WITHIN_S)
    assert runner.returncode == 0, output
    state = run.ledger.refresh()
    entries = run.ledger.entries
    heard = next(entry.number for entry in entries if isinstance(entry.event, ev.NoticeSeen))
    after = [entry.event for entry in entries if entry.number > heard]
    commits = [(event.why, event.final) for event in after if isinstance(event, ev.CheckpointCommitted)]
    first = next(commit for commit in commits if commit[0] != "epoch")  # an epoch may end before the news arrives
    assert first == ("rebalance", False)
    told, then = list(state.attempts.values())
    assert told.drain is not None
    assert told.end is not None
    assert told.end.cause is Cause.REPLACED
    assert state.launch_of(then).intent.standby_for == told.number
    assert state.terminal is not None
    assert state.terminal.outcome == "completed"
    assert all(len(lines) == 1 for lines in sandbox.trace_by_step().values())
    assert sandbox.left_running() == []


def has_moved(state: RunState) -> bool:
    """Another instance trains."""
    return len(state.attempts) > 1 and state.current is not None and bool(state.current.trainers)
