"""
A newcomer's first hour: the demo, what is typed, what is mistyped, and what goes wrong on the way. What is printed must
be true.

One training is stopped by SIGTERM, loses its instance, is left to the background, loses its runner and its terminal,
and is complete in the end. `-k first_hour` also selects the quickstart in an environment of its own, and scripts that
others wrote.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
import pytest

from spotrun.clouds.registry import cloud_named
from spotrun.folder.status_objects import RUNNER_KEY
from tests.support.called_spotrun import Spotrun
from tests.support.eventually import eventually
from tests.support.repository import EXAMPLES, JOBS
from tests.support.sandbox import Sandbox

pytestmark = pytest.mark.first_hour
SPOTRUN = (sys.executable, "-m", "spotrun")
TRAIN = """
import runpy, sys, time
from pathlib import Path
from torch.optim.lr_scheduler import CosineAnnealingLR

step = CosineAnnealingLR.step

def step_slowly_at_first(schedule, *args):
    time.sleep(0.4 * Path({slow!r}).exists())
    step(schedule, *args)

CosineAnnealingLR.step = step_slowly_at_first
sys.path.insert(0, str(Path({script!r}).parent))
Path("metrics.csv").write_text("loss")
runpy.run_path({script!r}, run_name="__main__")
"""
EPOCHS, STEPS = 12, 12
DEMO_WITHIN_S = 600
JOB = f"""
name: first
train:
  script: train.py
  args: [--epochs, "{EPOCHS}", --step-s, "0", --width, "100"]
envs: {{TRACE: TRACE_FILE}}
resources:
  cloud: local
  accelerators: V100:1
local:
  time_scale: 30
  boot: 20s
  script:
    - {{when: epoch 2 at 50%, then: interrupt, notice: 60s}}
"""


EXPECTED_WITHIN_S = 90.0
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


class Terminal:
    """
    A command in a session of its own, on a terminal of `columns`. Its end hangs up, which is what a closed window does.

    What is printed is read only in `until` and `ended`.
    """

    def __init__(
        self, command: Sequence[str], columns: int = 100, environment: Mapping[str, str] | None = None
    ) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        self.process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, **(environment or {}), "TERM": "xterm"},
            preexec_fn=lambda: os.login_tty(theirs),
        )
        os.close(theirs)
        self.printed = ""
        self._read_to = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: TracebackType | BaseException | None) -> None:
        self.hang_up()
        if kind is not None:
            self.process.kill()
        self.process.wait()

    def until(self, text: str) -> str:
        """What was printed up to `text`, from where the last call ended."""
        give_up_at = time.monotonic() + EXPECTED_WITHIN_S
        while (at := self.printed.find(text, self._read_to)) < 0:
            assert self._read(), f"{text!r} was not printed:\n{self.printed[self._read_to :]}"
            assert time.monotonic() < give_up_at, f"{text!r} was not printed in time:\n{self.printed[self._read_to :]}"
        before, self._read_to = self._read_to, at + len(text)
        return self.printed[before : self._read_to]

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def press_ctrl_c(self) -> None:
        """Once the command waits: Python's `input` misses a Ctrl-C between its question and its reading."""
        eventually(lambda: psutil.Process(self.process.pid).status() == psutil.STATUS_SLEEPING)
        self.type("\x03")

    def ended(self, code: int) -> str:
        """All that it printed, once it has ended with `code`."""
        give_up_at = time.monotonic() + EXPECTED_WITHIN_S
        while self._read():
            assert time.monotonic() < give_up_at, f"it goes on:\n{self.printed[self._read_to :]}"
        assert self.process.wait(EXPECTED_WITHIN_S) == code, self.printed
        return self.printed

    def hang_up(self) -> None:
        if self._ours >= 0:
            os.close(self._ours)
            self._ours = -1

    def _read(self) -> bool:
        """Whether there may be more."""
        if not select.select([self._ours], [], [], 0.2)[0]:
            return True
        data = b""
        with contextlib.suppress(OSError):  # as Linux says it when nobody has the other end open
            data = os.read(self._ours, 1 << 16)
        self.printed += _ESCAPES.sub("", data.decode(errors="replace"))
        return bool(data)


@pytest.fixture
def project(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the quickstart, with a script that is slow while the file `slow` beside the folder is there."""
    project, slow = sandbox.folder / "my-project", sandbox.folder / "slow"
    project.mkdir()
    slow.touch()
    (project / "train.py").write_text(TRAIN.format(slow=str(slow), script=str(JOBS / "quick.py")))
    (project / "job.yaml").write_text(JOB.replace("TRACE_FILE", str(sandbox.trace)))
    monkeypatch.chdir(project)
    yield project
    for pid in runners(sandbox):
        os.kill(pid, signal.SIGKILL)


def runners(sandbox: Sandbox) -> list[int]:
    """The runner that gave the last sign of life, if it lives."""
    found = [json.loads(path.read_text())["pid"] for path in sandbox.store.glob(f"*/{RUNNER_KEY}")]
    return [pid for pid in found if Path(f"/proc/{pid}").exists() and pid != os.getpid()]


def test_from_the_first_typo_to_the_first_report(sandbox: Sandbox, project: Path, spotrun: Spotrun) -> None:
    # Before anything runs: typos, no terminal, and no answer.
    assert "did you mean `spotrun launch`?" in spotrun("lunch", "job.yaml").err
    job = Path("job.yaml").read_text()
    Path("wrong.yaml").write_text(job.replace("accelerators", "acelerators").replace("train.py", "trian.py"))
    said = spotrun("validate", "wrong.yaml")
    assert said.code == 2
    assert "did you mean train.py?" in said.err
    assert "did you mean accelerators?" in said.err
    assert "correct the file, then run `spotrun validate wrong.yaml`" in said.err
    assert spotrun("validate", "job.yaml").out == "job.yaml is valid: first\n"
    assert spotrun("init", "train.py").code == 0
    assert spotrun("validate", "train.yaml").out == "train.yaml is valid: train\n"
    assert "try: add -y" in spotrun("launch", "job.yaml").err
    assert "start one with `spotrun launch" in spotrun("status").out
    with Terminal([*SPOTRUN, "launch", "job.yaml"], columns=60) as terminal:
        terminal.until("There is no bill")
        terminal.until("Launch? [Y/n]: ")
        terminal.press_ctrl_c()
        assert "nothing was launched" in terminal.ended(130)
    assert not sandbox.store.exists()

    # SIGTERM stops the run, says so, and leaves nothing running.
    with Terminal([*SPOTRUN, "launch", "job.yaml"]) as terminal:
        terminal.until("Launch? [Y/n]: ")
        terminal.type("\n")
        eventually(lambda: sandbox.last_step() >= 2)
        terminal.process.send_signal(signal.SIGTERM)
        terminal.until("SIGTERM: stopping first-")
        output = terminal.ended(4)
    assert "continue with `spotrun resume first-" in output
    assert sandbox.left_running() == []
    assert spotrun("status", "--json").json[0]["state"] == "stopped"

    # The first interruption is survived. Ctrl-C asks, and no typo stops the run.
    with Terminal([*SPOTRUN, "resume", "first"]) as terminal:
        terminal.until("interruption notice")
        eventually(lambda: len(sandbox.state("first").attempts) == 3)
        terminal.press_ctrl_c()
        for answer in ("\n", "detsch\n"):
            terminal.until("[s/d]: ")
            terminal.type(answer)
            terminal.until("Type stop or detach.")
        terminal.type("d\n")
        assert "a background runner takes care of" in terminal.ended(0)
    assert not sandbox.state("first").stop_requested

    # A second launch of that name says that one is running. Enter does not begin another.
    with Terminal([*SPOTRUN, "launch", "job.yaml"]) as terminal:
        terminal.until("has not ended (")
        terminal.until("`spotrun stop first-")
        terminal.until("Launch another? [y/N]: ")
        terminal.type("\n")
        assert "nothing was launched" in terminal.ended(1)

    # The runner is killed. That is said, with what is still running.
    (runner,) = runners(sandbox)
    os.kill(runner, signal.SIGKILL)
    eventually(lambda: not runners(sandbox))
    assert "unattended" in spotrun("status").out
    said = spotrun("launch", "job.yaml", "--dry-run")
    assert "no runner takes care of it. Still running, as far as is known: i-" in said.err
    assert "`spotrun resume first-" in said.err

    # The terminal is closed. A runner in the background takes over, and its log says why.
    with Terminal([*SPOTRUN, "resume", "fir"]) as terminal:
        eventually(lambda: runners(sandbox))
        terminal.until("durable")
    terminal.process.wait()
    assert terminal.process.returncode == 0
    (log,) = sandbox.store.glob("first-*/runner.log")
    assert "SIGHUP: the terminal is gone; a runner in the background takes over" in log.read_text()
    (row,) = spotrun("status", "--json").json
    assert row["attended"] or row["state"] == "completed"

    (sandbox.folder / "slow").unlink()

    # It is complete: no step was lost or done twice, and every verb that shows a run shows this one.
    eventually(lambda: sandbox.state("first").terminal is not None)
    eventually(lambda: not runners(sandbox))
    assert sandbox.last_step() == EPOCHS * STEPS - 1
    assert all(len(lines) == 1 for lines in sandbox.trace_by_step().values())
    assert sandbox.left_running() == []
    shown = _each_verb_right(spotrun)
    assert "completed" in shown["status"]
    assert "the cloud gave" in shown["why first"]
    assert f"trained {EPOCHS * STEPS} steps" in shown["logs first"]
    assert "SIGTERM" not in shown["report first"]
    assert spotrun("fetch", "first", "--to", "files").code == 0
    assert Path("files/metrics.csv").read_text() == "loss"
    _each_verb_wrong(spotrun)
    _narrow_and_plain()
    _without_its_store(sandbox, spotrun)


def _each_verb_right(spotrun: Spotrun) -> dict[str, str]:
    verbs = (
        "status",
        "report first",
        "report fir --html report.html",
        "why first",
        "events first",
        "logs first",
        "compare first first",
        "checkpoints ls first",
        "checkpoints verify first",
        "plan job.yaml --work 1h --lifetimes 20",
        "offers --cloud local",
        "stop first",
        "tick first",
        "resume first",
        "down first -y",
        "reap -y",
    )
    said = {words: spotrun(*words.split()) for words in verbs}
    assert {words: each.code for words, each in said.items()} == dict.fromkeys(verbs, 0)
    assert Path("report.html").stat().st_size > 10_000
    return {words: each.out for words, each in said.items()}


def _each_verb_wrong(spotrun: Spotrun) -> None:
    """A mistyped name: which run was probably meant."""
    for verb in (
        "report",
        "why",
        "events",
        "logs",
        "fetch",
        "stop",
        "tick",
        "resume",
        "down -y",
        "ssh",
        "chaos",
        "checkpoints ls",
    ):
        said = spotrun(*verb.split(), "frist")
        assert (said.code, said.out) == (3, ""), verb
        assert said.err.startswith("error: no run 'frist' in "), verb
        assert "try: did you mean first" in said.err, verb


def _narrow_and_plain() -> None:
    """60 columns, in a locale without a letter beyond ASCII."""
    more = {"COLUMNS": "60", "LC_ALL": "C", "LANG": "C", "PYTHONIOENCODING": "ascii"}
    for verb in ("status", "report", "why"):
        words = [*SPOTRUN, verb, *(["first"] if verb != "status" else [])]
        done = subprocess.run(words, env={**os.environ, **more}, stdin=subprocess.DEVNULL, capture_output=True)
        assert (done.returncode, done.stderr) == (0, b""), verb


def _without_its_store(sandbox: Sandbox, spotrun: Spotrun) -> None:
    sandbox.store.rename(sandbox.folder / "moved")
    said = spotrun("report", "first")
    assert (said.code, f"there is no folder {sandbox.store}" in said.err) == (3, True)
    said = spotrun("status", "--store", sandbox.store)
    assert (said.code, "there is no folder" in said.err) == (5, True)
    assert spotrun("report", "first", "--store", sandbox.folder / "moved").code == 0


DEMO = """
import demo
demo.WIDTHS = demo.WIDTHS[2:]
demo.FITTED = demo.FITTED.with_name("first-hour.yaml")
demo.main()
"""
"""That of `make demo`, with the narrower two of its networks."""


@pytest.mark.timeout(DEMO_WITHIN_S + 60)
def test_the_demo_survives_four_interruptions_and_each_notice_has_its_standby(sandbox: Sandbox) -> None:
    command = [sys.executable, "-c", DEMO]
    done = subprocess.run(command, cwd=EXAMPLES, capture_output=True, text=True, timeout=DEMO_WITHIN_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Measured here and now: a training step takes" in done.stdout
    assert "times, sizes and dollars below differ from those in the README" in done.stdout
    assert "training completed at step 282" in done.stdout
    state = sandbox.state("resnet50")
    noticed = {number for number, attempt in state.attempts.items() if attempt.notice is not None}
    assert noticed <= {launch.intent.standby_for for launch in state.launches.values()}
    told = sandbox.call_json("report", "resnet50")
    assert [epoch["epoch"] for epoch in told["epochs"]] == [1, 2, 3, 4, 5, 6]
    notices = [each["notice_lead_s"] is not None for each in told["interruptions"]]
    assert notices == [True, False, False, True], "as examples/resnet50.yaml announces"
    assert re.search(r"launching \S+ on-demand in ", done.stdout), "where spot is gone"
    assert sandbox.left_running() == []


FULL_DISK = 'mount -t tmpfs -o size=40m none "$1" && head -c 39500000 /dev/zero >"$1/other" && shift && exec "$@"'


def test_full_disk_is_reported_at_once_and_training_goes_on_when_there_is_room(sandbox: Sandbox) -> None:
    """A checkpoint of 5 MB does not fit; the entries of the ledger do."""
    job = sandbox.job("full", args="--epochs, '2', --step-s, '0.1'")
    sandbox.store.mkdir()
    own_disk = ["unshare", "--user", "--map-root-user", "--mount", "bash", "-c", FULL_DISK, "bash", str(sandbox.store)]
    cloud = cloud_named("local").account(()).driver
    try:
        with Terminal([*own_disk, *SPOTRUN, "launch", str(job), "-y"]) as terminal:
            terminal.until("No space left on device;")
            terminal.until("make room on its disk")
            assert sandbox.last_step() < 12, "it did not train on without a checkpoint"
            seen_here = f"/proc/{terminal.process.pid}/root{sandbox.store}"
            said = subprocess.run([*SPOTRUN, "status", "--store", seen_here], capture_output=True, text=True)
            assert " cannot save its next checkpoint: the disk of " in " ".join(said.stdout.split())
            Path(f"{seen_here}/other").unlink()
            terminal.until("training completed at step 24")
            terminal.ended(0)
    finally:
        for instance in cloud.instances():
            cloud.terminate(instance.instance_id)
