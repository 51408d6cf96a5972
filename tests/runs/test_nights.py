"""Training every night by one line for cron, whatever became of the last one."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from configparser import ConfigParser
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from spotrun.errors import NightUnderWay
from spotrun.folder.status_objects import RUNNER_KEY, RunnerStatus, write_status
from spotrun.report.compare import trend
from spotrun.run import events as ev
from spotrun.runner.creation import prepare_run
from spotrun.runs.known import remember
from spotrun.runs.nightly import one_at_a_time
from spotrun.runs.open_run import attended, open_run
from spotrun.spec.file import load_spec
from tests.support.eventually import eventually
from tests.support.repository import EXAMPLES, JOBS
from tests.support.sandbox import Sandbox
from tests.support.summaries import calm_on_demand, stormy

SHIPPED = EXAMPLES / "nightly"


def ten_in_the_evening() -> str:
    """A time zone in which it is 22 o'clock, whenever this is tested: POSIX counts hours west of Greenwich."""
    return f"NIGHT{(datetime.now(UTC).hour - 22) % 24}"


GATED = """
import runpy, sys, time
from pathlib import Path
from torch.optim.lr_scheduler import CosineAnnealingLR

step = CosineAnnealingLR.step

def step_once_the_gate_is_open(schedule, *args):
    while schedule.last_epoch == 28 and Path({gate!r}).exists():
        time.sleep(0.05)
    step(schedule, *args)

CosineAnnealingLR.step = step_once_the_gate_is_open
sys.path.insert(0, str(Path({script!r}).parent))
runpy.run_path({script!r}, run_name="__main__")
"""


@pytest.fixture
def evening(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """It is 22 o'clock: in the processes that are started, and in this one, which knows of it by `tzset`."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", ten_in_the_evening())
        time.tzset()
        yield
    time.tzset()


@pytest.fixture
def job(sandbox: Sandbox, evening: None) -> Path:
    """examples/nightly.yaml with a smaller training, whose news go into a file of the test."""
    work = sandbox.folder / "work"
    work.mkdir()
    script = GATED.format(gate=str(sandbox.folder / "gate"), script=str(JOBS / "quick.py"))
    (work / "gated.py").write_text(script)
    text = (EXAMPLES / "nightly.yaml").read_text()
    for old, new in (
        ("workdir: .", f"workdir: {work}"),
        ("script: resnet50.py", "script: gated.py"),
        ('args: [--epochs, "2"]', 'args: [--epochs, "3", --step-s, "0.05"]'),
        ("~/spotrun-nights.jsonl", f"{sandbox.folder}/nights.jsonl"),
        ("time_scale: 20", "time_scale: 60"),
        ("expected_work: 20m", "expected_work: 20m\n  hang_after: 1h"),
    ):
        assert old in text
        text = text.replace(old, new)
    path = sandbox.folder / "nightly.yaml"
    path.write_text(f"{text}checkpoint: {{every: 10 steps}}\n")
    return path


def test_three_nights_by_the_same_line_of_which_the_second_was_cut_off(sandbox: Sandbox, job: Path) -> None:
    gate = sandbox.folder / "gate"
    line = ("launch", job, "--nightly")
    first = sandbox.call(*line)
    assert "To be done by" in first
    assert "07:00 of run time" in first

    gate.touch()  # holds the training up in its third epoch
    cut_off = sandbox.start(*line)
    eventually(lambda: nights(sandbox) == 2 and len(sandbox.state("nightly").epochs) == 2, within_s=90)
    assert "a nightly run of nightly is still in progress" in sandbox.call(*line, code=11)
    cut_off.send_signal(signal.SIGKILL)
    cut_off.communicate()
    sandbox.ask("chaos", "nightly", "--no-notice")
    gate.unlink()

    carried_on = sandbox.call(*line)
    assert "continuing nightly-" in carried_on
    assert nights(sandbox) == 2
    sandbox.call(*line)

    runs = sandbox.ask_json("compare", "nightly", "--last", "3")["runs"]
    assert [(run["state"], run["epochs"]) for run in runs] == [("completed", 3)] * 3
    table = sandbox.call("compare", "nightly", "--last", "3")
    assert "Trend of the last 3, the oldest first:" in table
    assert re.search(r"cost per epoch: \$\S+, \$\S+, \$\S+ \([+-]\d+%\)", table)

    told = [json.loads(news) for news in (sandbox.folder / "nights.jsonl").read_text().splitlines()]
    assert [news["run"] for news in told] == [run["run"] for run in runs], "one summary a night"
    assert all(news["event"] == "night" and news["epochs"] == 3 for news in told)
    assert sandbox.left_running() == []


def nights(sandbox: Sandbox) -> int:
    return len(list(sandbox.store.glob("nightly-*/ledger/00000000.json")))


def plain(job: Path) -> None:
    """Make it a command that is done at once."""
    job.write_text(re.sub(r"  args: .*\n", "", job.read_text()).replace("script: gated.py", "run: 'true'"))


def test_night_over_its_limit_exits_with_10_and_a_detached_night_is_refused(sandbox: Sandbox, job: Path) -> None:
    plain(job)
    job.write_text(job.read_text().replace("usd_per_epoch > 2", "cost_usd > 0"))
    assert "leave out --detach" in sandbox.ask("launch", job, "--nightly", "-d", code=2)
    assert "✓" in sandbox.ask("launch", job, "--nightly", "--dry-run")
    assert not list(sandbox.store.glob("nightly-*"))
    assert "and > 0 is a failure" in sandbox.call("launch", job, "--nightly", code=10)


def test_a_night_that_was_stopped_is_put_in_order_and_a_new_one_begins(sandbox: Sandbox, job: Path) -> None:
    plain(job)
    job.write_text(job.read_text().replace("usd_per_epoch > 2 or", ""))
    old = open_run(prepare_run(load_spec(job, {}, str(sandbox.store)), "test").create(), None)
    remember(old)
    old.ledger.append(lambda _: ev.StopRequested(by="a test"))
    sandbox.call("launch", job, "--nightly")
    state = old.ledger.refresh()
    assert state.terminal is not None
    assert state.terminal.outcome == "stopped"
    assert sorted(row["state"] for row in sandbox.ask_json("status")) == ["completed", "stopped"]
    told = [json.loads(news)["run"] for news in (sandbox.folder / "nights.jsonl").read_text().splitlines()]
    assert told[0] == old.id
    assert len(told) == 2


# -- the lock --------------------------------------------------------------------------------------------------------


def test_only_one_process_holds_the_lock_and_a_killed_one_holds_it_no_more(sandbox: Sandbox, job: Path) -> None:
    spec = load_spec(job, {}, str(sandbox.store))
    hold = (
        "import sys; from pathlib import Path; from spotrun.runs.nightly import one_at_a_time\n"
        "from spotrun.spec.file import load_spec\n"
        f"with one_at_a_time(load_spec(Path({str(job)!r}), {{}}, {str(sandbox.store)!r})):\n"
        "    print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(NightUnderWay) as told, one_at_a_time(spec):
        pass
    assert told.value.exit_code == 11
    with one_at_a_time(spec.model_copy(update={"name": "another"})):
        pass
    holder.kill()
    holder.communicate()
    with one_at_a_time(spec):
        pass


def test_a_run_that_a_living_runner_attends_to_is_left_to_it(sandbox: Sandbox, job: Path) -> None:
    run = open_run(prepare_run(load_spec(job, {}, str(sandbox.store)), "test").create(), None)

    def sign_of_life(pid: int, host: str) -> None:
        write_status(run.store, RUNNER_KEY, RunnerStatus(at=datetime.now(UTC), pid=pid, host=host, sequence=1))

    assert not attended(run)
    sign_of_life(os.getpid(), os.uname().nodename)
    assert attended(run)
    assert "is still in progress" in sandbox.ask("launch", job, "--nightly", code=11)
    sign_of_life(2**22 + 1, os.uname().nodename)
    assert not attended(run), "no such process is left on this machine"
    sign_of_life(2**22 + 1, "elsewhere")
    assert attended(run), "nobody here can see the processes of another machine"


# -- what is printed and shipped -------------------------------------------------------------------------------------


def test_a_trend_tells_the_change_from_the_first_to_the_last() -> None:
    text = trend([calm_on_demand(), stormy()])
    saved = 1 - stormy().total.cost_usd / calm_on_demand().total.cost_usd
    assert f"(-{saved * 100:.0f}%)" in text.splitlines()[1]
    assert text.splitlines()[4] == "  interruptions: 0, 2"
    assert "%" not in trend([stormy()])


def options_of(line: str) -> list[str]:
    """The words after `spotrun` in a line of a shell."""
    words = shlex.split(line)
    return words[next(i for i, word in enumerate(words) if word.endswith("spotrun")) + 1 :]


def test_cron_systemd_and_github_have_the_same_line() -> None:
    (cron,) = [line for line in (SHIPPED / "crontab").read_text().splitlines() if re.match(r"\d+ \d+ \* \* \* ", line)]
    service, timer = (ConfigParser(interpolation=None, strict=False) for _ in range(2))
    for unit, name in ((service, "service"), (timer, "timer")):
        unit.optionxform = str  # type: ignore[assignment,method-assign]
        unit.read_string((SHIPPED / f"spotrun-nightly.{name}").read_text())
    workflow = yaml.safe_load((SHIPPED / "github-actions.yml").read_text())
    (step,) = [step for step in workflow["jobs"]["train"]["steps"] if "--nightly" in step.get("run", "")]
    wanted = ["launch", "nightly.yaml", "--nightly"]
    assert options_of(cron.partition(">>")[0]) == wanted
    assert options_of(service["Service"]["ExecStart"]) == wanted
    assert options_of(step["run"]) == wanted
    assert timer["Timer"]["Persistent"] == "true"
    assert service["Service"]["SuccessExitStatus"] == str(NightUnderWay.exit_code)
    assert workflow["concurrency"]["cancel-in-progress"] is False
    actions = [step["uses"] for step in workflow["jobs"]["train"]["steps"] if "uses" in step]
    assert [action for action in actions if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action)] == []
    assert workflow["permissions"] == {"contents": "read", "id-token": "write"}
    assert "secrets.AWS" not in (SHIPPED / "github-actions.yml").read_text(), "no key is stored"


def test_the_workflow_is_one_that_github_takes(tmp_path: Path) -> None:
    def errors_in(path: Path) -> str:
        checker = Path(sys.executable).parent / "check-jsonschema"
        done = subprocess.run(
            [checker, "--builtin-schema", "vendor.github-workflows", path], capture_output=True, text=True, timeout=60
        )
        return "" if done.returncode == 0 else done.stdout

    assert errors_in(SHIPPED / "github-actions.yml") == ""
    spoilt = tmp_path / "spoilt.yml"
    spoilt.write_text((SHIPPED / "github-actions.yml").read_text().replace("    steps:", "    stepz:"))
    assert "stepz" in errors_in(spoilt)


def test_a_deadline_too_close_to_begin_with_is_refused_before_anything_is_created(sandbox: Sandbox, job: Path) -> None:
    job.write_text(job.read_text().replace("expected_work: 20m", "expected_work: 25h"))
    assert "cannot be met even on demand" in sandbox.ask("launch", job, "--nightly", code=2)
    assert not list(sandbox.store.glob("nightly-*"))
