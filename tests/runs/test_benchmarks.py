"""The commands of benchmarks/, each at a size that a test can wait for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import downtime, stall
from tests.support.repository import ROOT

pytestmark = pytest.mark.checks("benchmarks")
SHORT_IMPORTS = ROOT / "tests" / "support" / "short_imports"
WITHIN_S = 480
"""It takes a minute beside four other trainings on two cores."""
RATIOS = ("stall_over_memcpy", "durable_over_put", "durable_notice_over_put", "restore_over_get", "whole_over_get")
KEYS = {"model", "variant", "stall_ms_median", "stall_ms_max", "slowdown", "extra_ram_over_state", *RATIOS}
STRANGER = """
import os, socket
link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
link.connect(os.environ["SPOTRUN_AGENT"])
"""


def call(*words: object, short: bool = False) -> subprocess.CompletedProcess[str]:
    """`short`: its trainers import no more than they need."""
    environment = os.environ | ({"PYTHONPATH": str(SHORT_IMPORTS)} if short else {})
    command = [sys.executable, "-m", "benchmarks.checkpoint", *map(str, words)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True
    )
    try:
        output, errors = process.communicate(timeout=WITHIN_S)
    except BaseException:
        process.send_signal(signal.SIGINT)  # as a Ctrl-C, after which nothing is left
        process.communicate(timeout=30)
        raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


@pytest.mark.timeout(WITHIN_S + 60)
def test_a_checkpoint_of_a_small_model_is_measured_and_restored_to_the_bit(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = call("--models", "tiny-256", "--variants", "none,ours", "--rounds", 1, "--json", out, short=True)
    assert done.returncode == 0, done.stderr

    none, ours = json.loads(out.read_text())
    assert (none["variant"], ours["variant"]) == ("none", "ours")
    assert none.keys() >= KEYS
    assert ours.keys() >= KEYS
    assert ours["restored_identical"] is True
    assert ours["checkpoints"] >= 1, "on a busy machine one is still on its way when the next is taken"
    assert ours["state_bytes"] == none["state_bytes"] > 9_000_000
    assert ours["stall_ms_max"] >= ours["stall_ms_median"] > 0
    assert all(ours[name] > 0 for name in RATIOS)
    assert all(none[name] is None for name in RATIOS)
    assert isinstance(ours["first_batch_beyond_s"], float)
    assert ours["slowdown"] > -0.9
    assert ours["extra_ram_over_state"] > 1, "an arena alone is as large as the state"
    assert all(ours["limits"][name] > 0 for name in ("memcpy_s", "put_s", "get_s"))
    assert "ours" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--models", "alexnet"), "error: no model alexnet\n  try: --models tiny,resnet50"),
        (("--variants", "none,magic"), "error: no variant magic\n  try: --variants none,"),
        (("--variants", ""), "error: no variant was named"),
    ],
)
def test_the_checkpoint_benchmark_refuses_what_it_does_not_know_before_it_starts(
    words: tuple[str, ...], said: str
) -> None:
    done = call(*words)
    assert done.returncode == 1
    assert done.stderr.startswith(said)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("links", "said"), [(False, "has not found its agent within 2 s"), (True, "has met its agent, and said no more")]
)
def test_the_stall_benchmark_ends_where_the_other_trainer_and_the_agent_are_strangers(
    links: bool, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "other" / "spotrun"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(STRANGER if links else "")
    monkeypatch.setattr(stall, "SCRIPT", "import threading\n\nimport spotrun\n\nthreading.Event().wait()\n")
    monkeypatch.setattr(stall.Measuring, "meets_within_s", 2.0)
    monkeypatch.setattr(stall.Measuring, "silence_max_s", 2.0)
    with pytest.raises(SystemExit) as ended:
        stall.measured(tmp_path / "run", "tiny", stall.KEPT[stall.PLAIN], package.parent)
    assert str(ended.value).startswith(f"error: the trainer of {package.parent} {said}")
    assert "\n  try: a checkout whose spotrun/trainer_link.py" in str(ended.value)


def test_the_downtime_benchmark_compares_ours_and_its_rivals_in_the_same_markets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = tmp_path / "out.json"
    words = ["downtime", "--jobs", "4", "--horizon", "43200", "--workers", "2", "--json", str(told)]
    monkeypatch.setattr(sys, "argv", words)
    assert downtime.main() == 0
    facts = json.loads(told.read_text())
    assert set(facts["rules"]) == {*downtime.OURS, *(rule.name for rule in downtime.RIVALS)}
    assert all(row["interruptions"] >= 3 for row in facts["rules"].values())
    shares = {name: of["poll and relaunch"] for name, of in facts["shares"].items()}
    assert shares["ours"] < shares["ours, set up again"] < 0.7
    assert shares["ours, notices only"] < shares["ours, notices only, set up again"]
    assert "seconds lost an interruption" in capsys.readouterr().out
