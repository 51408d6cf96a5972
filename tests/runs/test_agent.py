"""The agent on an instance: real agents and trainers, a real store, a ledger written by hand."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from spotrun.cli.app import app
from spotrun.clouds.local import processes
from spotrun.errors import RunNotFound
from spotrun.folder.status_objects import AgentStatus, agent_key, read_status
from spotrun.run import events as ev
from spotrun.run.billing import EC2_RULE
from spotrun.run.events import Cause
from tests.support import fault_proxy as faults
from tests.support.agent_bench import AgentRun, Node, Start
from tests.support.eventually import eventually
from tests.support.fault_proxy import Fault, FaultProxy, Request
from tests.support.object_stores import RunningServer
from tests.support.repository import JOBS
from tests.support.small_wheels import only_from


def steps_of(run: AgentRun) -> list[int]:
    return [step for _, step in run.steps_done()]


def test_a_training_that_nothing_disturbs_completes(start: Start):
    run = start()
    node = run.launch()
    node.powers_off()
    completed = run.wait_for(ev.RunCompleted)
    assert (completed.step, steps_of(run)) == (60, list(range(1, 61)))
    final = run.state.commit(completed.final_commit)
    assert final.event.final
    assert final.event.step == 60
    assert [event.epoch for event in run.seen(ev.EpochCompleted)] == [0, 1]
    assert run.seen(ev.ResumedFrom) == [ev.ResumedFrom(attempt=2, incarnation=0, commit=None, epoch=0, step=0)]
    assert len(run.seen(ev.TrainingStarted)) == 1
    commits = run.seen(ev.CheckpointCommitted)
    gaps = [(b.taken_at - a.taken_at).total_seconds() for a, b in pairwise(commits)]
    assert all(gap >= 25 for gap in gaps[:-1])
    assert not run.state.voids


def test_a_snapshot_that_is_held_back_is_replaced_by_a_newer_one(start: Start):
    """Commits are 30 s apart, and a step takes 2 s: the first snapshot after a commit would be 26 s old by then."""
    run = start({"steps": 1000, "epoch_steps": 1000, "step_s": 0.1}, checkpoint={"every": "2 steps"}, scale=20)
    run.launch()
    run.wait_for(ev.CheckpointCommitted, 4)
    ages = [event.durable_s for event in run.seen(ev.CheckpointCommitted)]
    assert max(ages[1:4]) < 20


def test_a_trainer_that_is_killed_right_after_a_snapshot_loses_nothing(start: Start, tmp_path: Path):
    run = start({"acts": {"snapshot": "kill"}, "once": str(tmp_path)})
    run.launch().powers_off()
    exited = run.wait_for(ev.TrainerExited)
    assert exited.cause is Cause.OUT_OF_MEMORY
    assert run.seen(ev.ResumedFrom)[1].step == exited.step
    assert steps_of(run) == list(range(1, 61))
    run.wait_for(ev.RunCompleted)


@pytest.mark.parametrize("commits", [1, 2], ids=["the first arena", "the second"])
def test_a_trainer_that_is_started_again_needs_no_download(start: Start, commits: int):
    run = start({"steps": 400, "epoch_steps": 40, "step_s": 0.1}, checkpoint={"every": "100000 steps"})
    node = run.launch()
    run.wait_for(ev.CheckpointCommitted, commits)  # the epoch's; the next one is four seconds away
    newest = run.state.latest_commit()
    for part in (Path(run.store.uri) / newest.event.prefix).glob("part-*"):
        part.write_bytes(b"nobody could restore this")
    os.kill(node.trainer_pid(), signal.SIGKILL)
    resumed = run.wait_for(ev.ResumedFrom, 2)
    assert (resumed.commit, resumed.skipped) == (newest.number, ())
    run.wait_for(ev.TrainingStarted, 2)
    node.close()


def test_a_notice_is_used_to_the_last_and_loses_no_step(start: Start):
    run = start({"steps": 100_000, "epoch_steps": 1000})
    node = run.launch()
    run.wait_for(ev.CheckpointCommitted)
    noticed_at = run.clock.now()
    node.notice(120)
    node.powers_off()
    drained = run.wait_for(ev.AttemptDrained)
    assert steps_of(run)[-1] == run.state.commit(drained.final_commit).event.step
    assert drained.reason == "interruption notice"
    assert drained.stopped_at - noticed_at > timedelta(seconds=30), "the window was wasted"
    assert run.state.attempts[2].end.known_at <= noticed_at + timedelta(seconds=120)

    second = run.launch()
    run.wait_for(ev.TrainingStarted, 2)
    assert run.seen(ev.ResumedFrom)[1].commit == drained.final_commit
    second.close()
    assert steps_of(run) == list(range(1, len(steps_of(run)) + 1)), "no step twice, none left out"


def test_a_fenced_agent_powers_off_without_another_commit(start: Start):
    run = start({"steps": 100_000, "epoch_steps": 1000})
    first = run.launch()
    run.wait_for(ev.CheckpointCommitted)
    os.kill(first.agent_pid(), signal.SIGSTOP)
    os.kill(first.trainer_pid(), signal.SIGSTOP)
    attempt = run.state.current_attempt
    run.write(ev.DrainRequested(attempt=attempt, reason="test"))
    second = run.launch()
    run.wait_for(ev.AttemptStarted, 2)
    commits = len([e for e in run.seen(ev.CheckpointCommitted) if e.attempt == attempt])
    os.kill(first.trainer_pid(), signal.SIGCONT)
    os.kill(first.agent_pid(), signal.SIGCONT)
    first.powers_off()
    run.wait_for(ev.CheckpointCommitted, commits + 2)
    assert len([e for e in run.seen(ev.CheckpointCommitted) if e.attempt == attempt]) == commits
    second.close()


def test_a_damaged_checkpoint_is_walked_past_and_named(start: Start):
    run = start({"steps": 100_000, "epoch_steps": 1000})
    first = run.launch()
    run.wait_for(ev.CheckpointCommitted, 2)
    first.notice(60)
    first.powers_off()
    older, newest = run.state.restore_candidates()[1::-1]
    path = Path(run.store.uri) / newest.event.prefix / "part-0000"
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    second = run.launch()
    resumed = run.wait_for(ev.ResumedFrom, 2)
    assert (resumed.commit, resumed.skipped) == (older.number, (newest.number,))
    run.wait_for(ev.TrainingStarted, 2)
    assert not run.seen(ev.TrainerExited), "that it was told of the damaged one is no failure of the trainer's"
    second.notice(60)
    second.powers_off()
    assert "restarting the trainer, because the checkpoint that it was loading is damaged" in run.log(second)


def test_training_never_begins_at_zero_because_every_checkpoint_is_damaged(start: Start):
    run = start({"steps": 100_000, "epoch_steps": 1000})
    first = run.launch()
    run.wait_for(ev.CheckpointCommitted, 2)
    first.notice(60)
    first.powers_off()
    for commit in run.state.restore_candidates():
        (Path(run.store.uri) / commit.event.prefix / "manifest.json").unlink()
    run.launch().powers_off()
    ended = run.wait_for(ev.AttemptEnded)
    assert ended.cause is Cause.EXTERNAL
    assert "checkpoints verify" in ended.detail


def test_a_killed_agent_is_started_again_and_continues_its_attempt(start: Start):
    run = start({"steps": 120})
    node = run.launch()
    run.wait_for(ev.CheckpointCommitted)
    trainer = node.trainer_pid()
    os.kill(node.agent_pid(), signal.SIGKILL)
    resumed = run.wait_for(ev.ResumedFrom, 2)
    assert (resumed.incarnation, len(run.seen(ev.AttemptStarted))) == (1, 1)
    assert processes.mark(trainer) is None
    node.powers_off()
    assert run.wait_for(ev.RunCompleted).step == 120


def test_a_hung_trainer_is_ended_with_its_stacks_in_the_log(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SPOTRUN_HANG_FLOOR_S", "1")
    run = start({"acts": {"step 20": "hang"}, "once": str(tmp_path)}, policy={"hang_after": "30s"})
    node = run.launch()
    exited = run.wait_for(ev.TrainerExited)
    assert exited.cause is Cause.HANG
    node.powers_off()
    run.wait_for(ev.RunCompleted)
    assert "in act" in run.log(node)


@pytest.fixture
def little_patience(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Spec keys with which a silence of three seconds is a hang."""
    monkeypatch.setenv("SPOTRUN_HANG_FLOOR_S", "1")
    return {"policy": {"hang_after": "30s"}}


def test_a_trainer_that_hangs_in_its_imports_is_ended(start: Start, tmp_path: Path, little_patience: dict[str, Any]):
    run = start({"acts": {"import": "hang"}, "once": str(tmp_path)}, **little_patience)
    run.launch().powers_off()
    assert run.wait_for(ev.TrainerExited).cause is Cause.HANG
    assert run.wait_for(ev.RunCompleted).step == 60


def test_a_script_that_hangs_after_its_final_checkpoint_has_completed(start: Start, little_patience: dict[str, Any]):
    run = start({"acts": {"exit": "hang"}}, **little_patience)
    node = run.launch()
    node.powers_off()
    completed = run.wait_for(ev.RunCompleted)
    assert run.state.commit(completed.final_commit).event.final
    assert run.seen(ev.TrainerExited) == []
    assert "no sign of life" in run.log(node)


def test_a_script_that_fails_after_its_final_checkpoint_commits_it_once(start: Start, tmp_path: Path):
    run = start({"acts": {"exit": "kill"}, "once": str(tmp_path)})
    run.launch().powers_off()
    completed = run.wait_for(ev.RunCompleted)
    assert [resumed.step for resumed in run.seen(ev.ResumedFrom)] == [0, 60]
    assert [event.final for event in run.seen(ev.CheckpointCommitted) if event.step == 60] == [True]
    assert run.state.commit(completed.final_commit).event.final


def test_a_script_that_ends_well_without_a_final_checkpoint_has_not_completed(start: Start, tmp_path: Path):
    run = start({"acts": {"end": "skip"}, "once": str(tmp_path)})
    run.launch().powers_off()
    assert run.wait_for(ev.TrainerExited).exit_code == 0
    completed = run.wait_for(ev.RunCompleted)
    assert run.state.commit(completed.final_commit).event.step == 60


def test_a_plain_command_that_hangs_is_ended_and_one_that_computes_is_not(
    start: Start, tmp_path: Path, little_patience: dict[str, Any]
):
    silent_but_busy = "python -c 'import time; end = time.monotonic() + 4.5\nwhile time.monotonic() < end: pass'"
    command = f"test -e {tmp_path}/once && exec {silent_but_busy}; touch {tmp_path}/once; sleep 1000"
    run = start(train={"run": command}, **little_patience)
    run.launch().powers_off()
    assert [exited.cause for exited in run.seen(ev.TrainerExited)] == [Cause.HANG]
    run.wait_for(ev.RunCompleted)


def test_a_script_that_fails_twice_at_the_same_step_is_not_tried_again(start: Start):
    run = start({"acts": {"step 20": "raise"}}, retry={"max_restarts": 5})
    node = run.launch()
    node.powers_off()
    assert [event.step for event in run.seen(ev.TrainerExited)] == [19, 19]
    ended = run.wait_for(ev.AttemptEnded)
    assert ended.cause is Cause.USER_ERROR
    assert "failed twice at step 19" in ended.detail
    assert "the user's own mistake" in ended.detail
    assert "the user's own mistake" in run.log(node)


def test_a_refused_training_is_not_restarted(start: Start):
    run = start({"refuse": "no map-style data"})
    run.launch().powers_off()
    ended = run.wait_for(ev.AttemptEnded)
    assert (ended.cause, ended.detail) == (Cause.USER_ERROR, "no map-style data; try: do otherwise")
    assert run.seen(ev.TrainerExited) == []


def test_a_stop_commits_and_drains(start: Start):
    run = start({"steps": 100_000, "epoch_steps": 1000})
    node = run.launch()
    run.wait_for(ev.TrainingStarted)
    run.write(ev.StopRequested(by="test"))
    node.powers_off()
    drained = run.wait_for(ev.AttemptDrained)
    assert drained.reason == "stop requested"
    assert run.state.commit(drained.final_commit).event.step == steps_of(run)[-1]
    assert run.state.attempts[2].end.cause is Cause.STOPPED


class Held:
    """What becomes of requests when the parts of one snapshot do not arrive until they are let go."""

    def __init__(self, snapshot: str) -> None:
        self.under_way, self.let_go = threading.Event(), threading.Event()
        self._parts = f"{snapshot}/part"

    def __call__(self, request: Request) -> Fault:
        if request.method != "PUT" or self._parts not in request.path:
            return faults.none
        self.under_way.set()
        return faults.after(self.let_go)


@contextlib.contextmanager
def training_behind(
    fate: Callable[[Request], Fault], folder: Path, server: RunningServer, patch: pytest.MonkeyPatch, **more: Any
) -> Iterator[tuple[AgentRun, Node]]:
    """A run without an end; `more` is for its trainer, and `spec` for itself."""
    spec = more.pop("spec", {})
    job = {"steps": 100_000, "epoch_steps": 100_000, "step_s": 0.1} | more
    with FaultProxy(server.endpoint, fate) as line:
        server.reach(patch, line.url)
        run = AgentRun(folder, job, runs_uri=server.new_prefix(), **spec)
        try:
            yield run, run.launch()
        finally:
            run.close()


def test_a_notice_too_short_for_a_final_snapshot_leaves_the_upload_in_flight_alone(
    tmp_path: Path, servers: Callable[[str], RunningServer], monkeypatch: pytest.MonkeyPatch
):
    """An upload takes 4 s of system time here, 240 s of run time: too long for a notice of 180 s."""
    held = Held("-0-1")

    def fate(request: Request) -> Fault:
        slow = request.path.endswith("manifest.json") and "-0-1/" not in request.path
        return faults.late(4) if slow else held(request)

    with training_behind(fate, tmp_path, servers("s3"), monkeypatch) as (run, node):
        eventually(held.under_way.is_set, 60)
        node.notice(180)
        eventually(lambda: node.status().get("phase") == "drain")
        held.let_go.set()
        node.powers_off()
        newest = run.seen(ev.CheckpointCommitted)[-1]
        ended = run.wait_for(ev.AttemptEnded)
    assert newest.prefix.endswith("-0-1")
    assert ended.cause is Cause.INTERRUPTED
    assert "saving a final snapshot takes" in ended.detail
    assert f"step {newest.step:,} survives" in ended.detail


def test_a_final_snapshot_is_tried_after_the_upload_in_flight_however_slow_saves_were(
    tmp_path: Path, servers: Callable[[str], RunningServer], monkeypatch: pytest.MonkeyPatch
):
    """Before the notice an upload took 12 s of system time, 720 s of run time."""
    held, noticed = Held("-0-1"), threading.Event()

    def fate(request: Request) -> Fault:
        slow = request.path.endswith("manifest.json") and "-0-1/" not in request.path and not noticed.is_set()
        return faults.late(12) if slow else held(request)

    with training_behind(fate, tmp_path, servers("s3"), monkeypatch) as (run, node):
        eventually(held.under_way.is_set, 60)
        node.notice(600)
        noticed.set()
        held.let_go.set()
        node.powers_off()
        drained = run.wait_for(ev.AttemptDrained)
    final = run.state.commit(drained.final_commit).event
    assert (final.final, final.step) == (True, steps_of(run)[-1])
    assert any(commit.event.prefix.endswith("-0-1") for commit in run.state.commits)


def test_a_notice_with_time_for_a_final_snapshot_waits_for_no_upload_to_make_room(
    tmp_path: Path, servers: Callable[[str], RunningServer], monkeypatch: pytest.MonkeyPatch
):
    """The snapshot before is still being sent, so that the trainer has no arena."""
    held = Held("-0-1")
    with training_behind(held, tmp_path, servers("s3"), monkeypatch) as (run, node):
        eventually(held.under_way.is_set, 60)
        node.notice(1800)
        eventually((run.folder / "final").exists)
        held.let_go.set()
        node.powers_off()
        drained = run.wait_for(ev.AttemptDrained, within_s=180)
    final = run.state.commit(drained.final_commit).event
    assert (final.final, final.step) == (True, steps_of(run)[-1])
    assert not any(commit.event.prefix.endswith("-0-1") for commit in run.state.commits)


def test_training_pauses_while_the_store_is_full_and_loses_nothing(
    tmp_path: Path, servers: Callable[[str], RunningServer], monkeypatch: pytest.MonkeyPatch
):
    """Once somebody makes room, and once nobody does: then the instance does not wait for ever."""
    monkeypatch.setenv("SPOTRUN_ROOM_WITHIN_S", "6")
    full = threading.Event()
    full.set()

    def fate(request: Request) -> Fault:
        refused = full.is_set() and request.method == "PUT" and "/checkpoints/" in request.path
        return faults.refused(faults.S3_FULL) if refused else faults.none

    with training_behind(fate, tmp_path, servers("s3"), monkeypatch, epoch_steps=1000) as (run, node):
        failed = run.wait_for(ev.CheckpointFailed)
        assert ("507" in failed.detail, "make room" in failed.detail, failed.size_bytes > 100_000) == (True,) * 3
        eventually(lambda: process_state(node.trainer_pid()) == "T")
        steps = len(run.steps_done())
        eventually(lambda: "make room" in trouble(run, node))
        assert len(run.steps_done()) == steps, "it stands still"
        full.clear()
        run.wait_for(ev.CheckpointCommitted)
        eventually(lambda: len(run.steps_done()) > steps)
        eventually(lambda: not trouble(run, node))
        full.set()
        node.powers_off()
        ended = run.wait_for(ev.AttemptEnded)
        newest = run.seen(ev.CheckpointCommitted)[-1]
    assert ended.cause is Cause.STORE_FULL
    assert f"step {newest.step:,} survives" in ended.detail
    assert run.state.attempts[2].end.gave_up is False
    assert steps_of(run) == list(range(1, len(steps_of(run)) + 1)), "no step twice, none left out"
    assert len(run.seen(ev.CheckpointFailed)) == 2, "each refusal is told once"


def process_state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def trouble(run: AgentRun, node: Node) -> str:
    status = read_status(run.store, agent_key(node.launch), AgentStatus)
    return "" if status is None else status.trouble


def test_a_trainer_that_hangs_while_a_snapshot_is_sent_does_not_wait_for_room(
    tmp_path: Path,
    servers: Callable[[str], RunningServer],
    monkeypatch: pytest.MonkeyPatch,
    little_patience: dict[str, Any],
):
    held = Held("-0-0")
    with training_behind(
        held, tmp_path, servers("s3"), monkeypatch, acts={"step 50": "hang"}, step_s=0.02, spec=little_patience
    ) as (run, node):
        eventually(held.under_way.is_set, 60)
        eventually(lambda: "no sign of life" in run.log(node), 30)
        held.let_go.set()


def test_n10_what_had_no_time_for_a_final_snapshot_is_left_for_the_cloud_too(start: Start):
    """Its first hour is free only where the cloud ends it."""
    run = start({"steps": 100_000, "epoch_steps": 100_000}, scale=30.0, billing=EC2_RULE)
    node = run.launch()
    run.wait_for(ev.TrainingStarted)
    node.notice(2)
    assert run.wait_for(ev.AttemptEnded).cause is Cause.INTERRUPTED
    eventually(lambda: node.status().get("phase") == "idle")
    node.powers_off()  # nobody came within three minutes


def test_a_standby_takes_over_only_after_its_predecessor_has_drained(start: Start):
    run = start({"steps": 100_000, "epoch_steps": 1000})
    first = run.launch()
    run.wait_for(ev.CheckpointCommitted)
    second = run.launch()
    eventually(lambda: second.status().get("phase") == "standby")
    eventually(lambda: (second.folder / "trainer.json").exists())
    assert len(run.seen(ev.AttemptStarted)) == 1
    run.write(ev.DrainRequested(attempt=run.state.current_attempt, reason="back to spot"))
    first.powers_off()
    run.wait_for(ev.TrainingStarted, 2)
    kinds = [ev.kind(entry.event) for entry in run.ledger.entries]
    assert kinds.index("AttemptDrained") < len(kinds) - 1 - kinds[::-1].index("AttemptStarted")
    second.close()
    assert steps_of(run) == list(range(1, len(steps_of(run)) + 1))


def test_a_plain_command_runs_and_completes(start: Start, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SKYPILOT_TASK_ID", "of the machine that launches")
    knows = "echo $SKYPILOT_NUM_NODES $SKYPILOT_NODE_RANK $SKYPILOT_NODE_IPS $SKYPILOT_NUM_GPUS_PER_NODE"
    command = f"echo $GREETING | tee said; python -c 'print(1+1)'; {knows}; echo $SKYPILOT_TASK_ID"
    run = start(train={"run": command}, envs={"GREETING": "hello"})
    node = run.launch()
    node.powers_off()
    assert run.wait_for(ev.RunCompleted).final_commit is None
    assert f"hello\n2\n1 0 127.0.0.1 1\n{run.store.uri.rpartition('/')[2]}\n" in run.log(node)
    kinds = [ev.kind(entry.event) for entry in run.ledger.entries]
    assert kinds[-2:] == ["OutputsStored", "RunCompleted"], "the files are there when the run is done"
    last = CliRunner().invoke(app, ["status", "--store", str(Path(run.store.uri).parent)]).stdout.splitlines()[-2:]
    assert [line.partition(":")[0] for line in last] == ["files", "report"]
    assert f"spotrun fetch {run.store.uri}" in last[0]


def test_a_plain_command_is_ended_before_its_instance_goes_and_its_files_are_fetched(start: Start, tmp_path: Path):
    run = start(train={"run": "mkdir -p logs; date >> logs/began-$$; echo x > ready; sleep 1000"})
    node = run.launch()
    run.wait_for(ev.ResumedFrom)
    eventually((node.folder / "work" / "ready").exists)
    node.notice(1200)  # 20 s of this machine
    node.powers_off()
    assert run.wait_for(ev.AttemptDrained).final_commit is None
    stored = run.wait_for(ev.OutputsStored)
    assert stored.files == 2, "sent at the notice"

    def fetch(*words: object) -> Result:
        return CliRunner().invoke(app, ["fetch", run.store.uri, *map(str, words)])

    to = tmp_path / "to"
    said = json.loads(fetch("logs/*", "--to", to, "--json").stdout)
    (path,) = to.rglob("began-*")
    assert [file["outcome"] for file in said["files"]] == ["fetched"]
    assert said["files"][0]["path"] == path.relative_to(to).as_posix()
    assert "fetched 1 file, 2 bytes, into" in fetch("--to", to).stdout
    assert "nothing new: 2 files" in fetch("--to", to).stdout
    assert "ready" in fetch("--list").stdout
    for words in (["*.ckpt"], ["--step", "7"]):
        error = fetch(*words).exception
        assert isinstance(error, RunNotFound)
        assert error.hint.startswith("it has")

    run.launch()
    run.wait_for(ev.ResumedFrom, 2)
    run.write(ev.StopRequested(by="test"))
    run.wait_for(ev.AttemptDrained, 2)
    assert run.seen(ev.OutputsStored)[-1].files == 3, "the first attempt's file of another name is still there"


def test_a_plain_command_trains_on_in_its_notice_and_may_save_by_itself(start: Start):
    """The shell dies of SIGTERM at once, and what it has started takes a while."""
    saves = "import signal, time; signal.signal(15, lambda *_: print('saved') or exit(0)); print('on'); time.sleep(999)"
    run = start(train={"run": f'python -c "{saves}"; echo not reached'})
    node = run.launch()
    eventually(lambda: "on\n" in run.log(node))
    noticed_at = run.clock.now()
    node.notice(120)
    node.powers_off()
    drained = run.wait_for(ev.AttemptDrained)
    assert drained.final_commit is None
    assert drained.stopped_at - noticed_at > timedelta(seconds=60), "SIGTERM came early"
    assert run.state.attempts[2].end.known_at <= noticed_at + timedelta(seconds=120)
    log = run.log(node)
    assert ("saved\n" in log, "not reached" in log) == (True, False)
    assert run.state.terminal is None, "a command that was told to end has not come to its end"


def test_an_instance_that_cannot_install_pytorch_leaves_the_run_to_another(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name, text in {**only_from(tmp_path), "SPOTRUN_INSTALLS_TORCH": "1", "PIP_RETRIES": "0"}.items():
        monkeypatch.setenv(name, text)
    run = start()
    node = run.launch()
    node.powers_off()
    assert "power off: the installation of PyTorch ended with exit code 1" in run.log(node)
    assert not run.state.attempts


def test_failed_setup_is_reported(start: Start):
    run = start(setup="echo no such package; exit 4")
    run.launch().powers_off()
    ended = run.wait_for(ev.AttemptEnded)
    assert ended.cause is Cause.USER_ERROR
    assert "exit code 4" in ended.detail
    assert "no such package" in ended.detail


@pytest.mark.parametrize("job", [{"train": {"run": "true"}}, {"setup": "true"}])
def test_a_path_without_a_shell_fails_the_run_and_no_agent(start: Start, job: dict[str, Any]):
    run = start(envs={"PATH": "/nowhere"}, **job)
    run.launch().powers_off()
    ended = run.wait_for(ev.AttemptEnded)
    assert ended.cause is Cause.USER_ERROR
    assert "bash cannot be started: No such file or directory; check PATH" in ended.detail


def test_checkpoints_beyond_the_kept_ones_are_retired_and_deleted(start: Start):
    run = start({"steps": 150, "epoch_steps": 30}, checkpoint={"every": "30s", "keep_last": 2})
    run.launch().powers_off()
    left = {stored.key.rpartition("/")[0] for stored in run.store.list("checkpoints/")}
    kept = [commit for commit in run.state.commits if commit.retired_at is None]
    assert left == {commit.event.prefix for commit in kept}
    assert len(kept) == 2
    assert run.state.commit(run.wait_for(ev.RunCompleted).final_commit).usable


def test_a_run_is_not_complete_before_what_it_need_not_keep_is_deleted_however_slow_that_is(
    tmp_path: Path, servers: Callable[[str], RunningServer], monkeypatch: pytest.MonkeyPatch
):
    def fate(request: Request) -> Fault:
        return faults.late(1) if request.method == "DELETE" or "delete" in request.query else faults.none

    spec = {"checkpoint": {"every": "30s", "keep_last": 2}}
    job = {"steps": 150, "epoch_steps": 30, "step_s": 0.02, "spec": spec}
    with training_behind(fate, tmp_path, servers("s3"), monkeypatch, **job) as (run, node):
        node.powers_off()
        left = {stored.key.rpartition("/")[0] for stored in run.store.list("checkpoints/")}
        kept = {commit.event.prefix for commit in run.state.commits if commit.retired_at is None}
    assert left == kept
    assert len(kept) == 2


def test_five_saves_that_fail_in_a_row_end_the_attempt(start: Start):
    run = start({"steps": 100_000, "epoch_steps": 1000})
    (Path(run.store.uri) / "checkpoints").write_text("in the way")
    run.launch().powers_off()
    assert run.wait_for(ev.AttemptEnded).cause is Cause.SAVES_FAILED
    assert len(run.seen(ev.CheckpointFailed)) == 5


def test_a_checkpoint_with_nan_is_kept_and_never_resumed_from(start: Start):
    run = start({"steps": 100_000, "epoch_steps": 1000, "not_finite_from": 60})
    first = run.launch()
    eventually(lambda: run.steps_done() and steps_of(run)[-1] > 60)
    first.notice(60)
    first.powers_off()
    final = run.seen(ev.CheckpointCommitted)[-1]
    assert final.final
    assert final.suspect
    run.launch()
    resumed = run.wait_for(ev.ResumedFrom, 2)
    assert resumed.commit == run.wait_for(ev.AttemptDrained).final_commit
    assert resumed.step < 60


@pytest.mark.nightly
def test_a_real_lightning_training_survives_a_kill_and_a_notice(start: Start, tmp_path: Path):
    run = start(
        train={"script": "quick.py", "args": ["--epochs", "8"]},
        files={name: (JOBS / name).read_text() for name in ("quick.py", "fast_imports.py", "tiny.py")},
        envs={"TRACE": str(tmp_path / "lines")},
    )
    first = run.launch()
    run.wait_for(ev.CheckpointCommitted, within_s=60)
    os.kill(first.trainer_pid(), signal.SIGKILL)
    run.wait_for(ev.TrainingStarted, 2, within_s=60)
    first.notice(120)
    first.powers_off()
    run.launch().powers_off(120)
    assert run.wait_for(ev.RunCompleted).step == 96
    lines: dict[str, set[str]] = {}
    for line in (tmp_path / "lines").read_text().splitlines():
        lines.setdefault(line.split()[0], set()).add(line)
    assert len(lines) == 96
    assert all(len(different) == 1 for different in lines.values()), "steps that were redone gave the same"
