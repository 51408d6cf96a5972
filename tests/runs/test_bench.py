"""`spotrun bench` of real trainings on the local cloud: what it measures, and that it leaves nothing running."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.eventually import eventually
from tests.support.sandbox import Sandbox

NEAR = 0.05


def waiting(sandbox: Sandbox, share: float) -> tuple[Path, Path]:
    """A job that waits for its data for such a share, and where it says which share that was."""
    into = sandbox.folder / f"share-{share}"
    args = f"--share, '{share}', --batch-size, '8', --into, '{into}'"
    return sandbox.job("waits", args=args, program="waits_for_data.py", scale=20), into


def rows_of(output: str) -> list[dict[str, Any]]:
    """`output` has the lines of the progress before the JSON."""
    found = json.loads(output[output.index("\n{") :] if not output.startswith("{") else output)
    rows: list[dict[str, Any]] = found["rows"]
    return rows


@pytest.mark.parametrize("share", [0.6, 0.0])
def test_the_wait_for_data_is_measured_and_the_verdict_is_right(sandbox: Sandbox, share: float):
    """The script says how long it waited: a busy machine may wait longer than planted. What does not fit is a row."""
    job, into = waiting(sandbox, share)
    output = sandbox.call("bench", job, "--batch", "4,2000", "--steps", 60, "--budget", 2, "--yes", "--json")
    small, large = rows_of(output)
    assert small["fate"] == "measured"
    measured = small["measured"]
    truth = float(Path(f"{into}-4").read_text())
    assert measured["data_wait"] == pytest.approx(truth, abs=NEAR)
    assert measured["samples"] == measured["steps"] * 4
    assert small["verdict"].startswith("input-bound") == (share > 0.5), f"it waited {truth:.0%} of the time"
    assert large["fate"] == "out of memory"
    assert large["measured"] is None
    assert sandbox.left_running() == []
    assert not any(commit.event.final for commit in sandbox.state(small["run"]).commits), "nobody goes on with it"


def test_ctrl_c_leaves_nothing_running(sandbox: Sandbox):
    job, into = waiting(sandbox, 0.0)
    bench = sandbox.start("bench", job, "--steps", 100_000, "--yes")
    eventually(lambda: Path(f"{into}-8").exists(), within_s=120)
    bench.send_signal(signal.SIGINT)
    output, _ = bench.communicate(timeout=120)
    assert bench.returncode == 130
    assert "nothing of it is left running" in output
    assert sandbox.left_running() == []
    (run,) = (folder.name for folder in sandbox.store.iterdir() if folder.name.startswith("waits-bench-"))
    assert sandbox.state(run).terminal is not None
