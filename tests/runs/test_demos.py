"""Scripts that others wrote run under spotrun as they are, and survive an interruption."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.repository import JOBS
from tests.support.sandbox import Sandbox

pytestmark = pytest.mark.first_hour


def launch_interrupted(sandbox: Sandbox, script: str, workdir: Path) -> None:
    """Train `script` on a market that takes the first instance back, without a notice, as soon as it trains."""
    (sandbox.folder / "job.yaml").write_text(
        f"name: demo\nworkdir: {workdir}\ntrain: {{script: {script}}}\n"
        f"checkpoint: {{uri: {sandbox.store}, every: 10 steps}}\n"
        "local:\n  time_scale: 30\n  boot: 10s\n"
        "  script: [{when: epoch 1 at 60%, then: interrupt, notice: none}]\n"
    )
    sandbox.call("launch", sandbox.folder / "job.yaml", "-y")


def test_boring_model_of_the_lightning_package_runs_unchanged(sandbox: Sandbox, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    shutil.copy(JOBS / "boring.py", work)
    launch_interrupted(sandbox, "boring.py", work)
    state = sandbox.state("demo")
    assert state.terminal is not None
    assert state.terminal.outcome == "completed"
    assert [epoch.event.epoch for epoch in state.epochs] == [0, 1, 2]
    assert sandbox.left_running() == []


@pytest.mark.nightly
def test_the_transformer_of_the_demos_runs_unchanged(sandbox: Sandbox, tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "data").mkdir(parents=True)
    shutil.copy(JOBS / "transformer.py", work)
    words = " ".join(f"word{number % 97}" for number in range(4000))
    (work / "data" / "wikitext-2.txt").write_text(f"{words}\n")
    launch_interrupted(sandbox, "transformer.py", work)
    state = sandbox.state("demo")
    assert state.terminal is not None
    assert state.terminal.outcome == "completed"
    assert len(state.attempts) == 2
    assert state.commits[-1].event.step == 40
