"""`spotrun bench` of real trainings on the local cloud: what it measures, and that it leaves nothing running."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from spotrun.runs.open_run import OpenRun, runs_in
from tests.support import toy_cloud
from tests.support.eventually import eventually
from tests.support.sandbox import Sandbox
from tests.support.toy_sandbox import toy_sandbox

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


@pytest.mark.parametrize("share", [0.6, pytest.param(0.0, marks=pytest.mark.nightly)])
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
    assert "all of its instances have ended" in output
    assert sandbox.left_running() == []
    (run,) = (folder.name for folder in sandbox.store.iterdir() if folder.name.startswith("waits-bench-"))
    assert sandbox.state(run).terminal is not None


# -- several at once, on a cloud that somebody has brought -------------------------------------------------------------


@pytest.fixture
def toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    with toy_sandbox(tmp_path, monkeypatch) as found:
        yield found


def on_toys(sandbox: Sandbox) -> Path:
    job, _ = waiting(sandbox, 0.0)
    job.write_text(job.read_text().replace("cloud: local", f"cloud: {toy_cloud.NAME}"))
    return job


def measured_for(sandbox: Sandbox) -> list[OpenRun]:
    """The runs of the bench, by when they were created."""
    runs = runs_in(sandbox.uri) if sandbox.store.is_dir() else []
    return sorted(runs, key=lambda run: run.created.clock_epoch)


def two_instances(sandbox: Sandbox, bench: subprocess.Popen[str]) -> list[OpenRun]:
    """The runs of a bench of two at once, as soon as each has an instance."""

    def both() -> bool:
        states = [run.ledger.refresh() for run in measured_for(sandbox)]
        recorded = [launch for state in states for launch in state.launches.values() if launch.recorded is not None]
        return len(recorded) == 2 or bench.poll() is not None

    eventually(both, within_s=120)
    assert bench.poll() is None, bench.communicate()[0]
    return measured_for(sandbox)


def test_two_are_measured_at_once_within_one_budget_and_shown_as_they_were_asked_for(toys: Sandbox):
    bench = ("bench", on_toys(toys), "--batch", "4,2000", "--max-parallel", 2, "--steps", 30, "--budget", 4, "--yes")
    output = toys.call(*bench, "--json")
    assert "2 trainings at once share this machine" in output
    small, large = rows_of(output)
    assert (small["name"], large["name"]) == ("V100:1, batch 4", "V100:1, batch 2000")
    assert (small["fate"], large["fate"]) == ("measured", "out of memory")
    first, second = measured_for(toys)
    assert {run.created.budget_usd for run in (first, second)} == {Decimal(2)}
    ended = first.ledger.refresh().terminal
    assert ended is not None
    assert second.created.clock_epoch < ended.at, "they were there at once"
    assert toys.left_running() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.nightly)])
def test_a_signal_ends_all_that_are_measured_at_once(toys: Sandbox, number: signal.Signals):
    bench = toys.start("bench", on_toys(toys), "--batch", "4,8", "--max-parallel", 2, "--steps", 100_000, "--yes")
    runs = two_instances(toys, bench)
    bench.send_signal(number)
    output, _ = bench.communicate(timeout=120)
    assert bench.returncode == 128 + number
    assert output.count("all of its instances have ended") == 2
    assert toys.left_running() == []
    assert all(run.ledger.refresh().terminal is not None for run in runs)
    assert list((toys.folder / "box" / "guards").iterdir()) == []


def test_instances_of_a_killed_bench_end_soon_by_themselves_and_at_once_by_down(toys: Sandbox):
    bench = toys.start("bench", on_toys(toys), "--batch", "4,8", "--max-parallel", 2, "--trial-timeout", "2m", "--yes")
    runs = two_instances(toys, bench)
    bench.kill()
    bench.communicate()
    guards = [datetime.fromisoformat(path.read_text()) for path in (toys.folder / "box" / "guards").iterdir()]
    assert len(guards) == 2
    for run, ends_at in zip(runs, sorted(guards), strict=True):
        (launch,) = run.ledger.refresh().launches.values()
        assert launch.recorded is not None
        lives = timedelta(seconds=launch.intent.time_to_live_s)
        assert timedelta(minutes=4) < lives <= timedelta(minutes=5), "two minutes, and three for its last word"
        assert ends_at - launch.recorded.billed_from <= lives + timedelta(seconds=5)
        assert f"`spotrun down {run.id}` ends it" in " ".join(toys.ask("status", run.id).split())
        toys.ask("down", run.id, "-y")
    assert toys.left_running() == []
