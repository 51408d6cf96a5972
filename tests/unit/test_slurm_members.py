"""What Slurm's one job of a gang is to spotrun: members that end, each with a bill. The queue is on paper."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from spotrun.clouds.local import processes
from spotrun.clouds.slurm import gang, notices
from spotrun.clouds.slurm.cloud import CLOUD
from spotrun.clouds.slurm.commands import Answer
from spotrun.clouds.slurm.config import SlurmConfig
from spotrun.clouds.slurm.driver import SlurmDriver
from spotrun.clouds.slurm.member_files import MemberEnd, MemberFiles, Seat
from spotrun.clouds.slurm.submission import files_of, submission
from spotrun.errors import CloudUnavailable, InsufficientCapacity, LaunchTokenSpent
from spotrun.instance import EndedBy, Instance, InstanceState, LaunchRequest
from spotrun.run.billing import SLURM_RULE, Meter
from spotrun.spec.model import RunSpec
from tests.support.eventually import eventually
from tests.support.launch_requests import requested
from tests.support.manual_clock import ManualClock
from tests.support.slurm_jobs import CHEAP, PARTITIONS
from tests.support.slurm_queue import Partition, SlurmQueue

UID = "0123456789"


@pytest.fixture(autouse=True)
def _logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPOTRUN_SLURM_LOGS", str(tmp_path / "logs"))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def queue(clock: ManualClock) -> SlurmQueue:
    return SlurmQueue(clock, [Partition("cheap", nodes=3), Partition("sure")])


def driver(queue: SlurmQueue, clock: ManualClock) -> SlurmDriver:
    return SlurmDriver(SlurmConfig(partitions=PARTITIONS, wait=timedelta(minutes=3)), clock, queue)


def request(count: int | None = 3, launch: int = 1) -> LaunchRequest:
    more = {"run_uri": "/shared/runs/n-0123456789", "time_to_live": timedelta(hours=10)}
    return requested(CHEAP.offering, launch, UID, count=count, **more)


def charged(instances: Sequence[Instance]) -> Decimal:
    """The dollars of all meters at their ends, to the micro-dollar: each rounds to nano-dollars."""
    total = Decimal(0)
    for each in instances:
        assert each.ended_at is not None
        total += Meter(SLURM_RULE, each.prices, each.billed_from, each.ended_at, each.ended_by).cost_until(
            each.ended_at
        )
    return round(total, 6)


def node_seconds(seconds: int) -> Decimal:
    return round(CHEAP.usd_per_node_hour * seconds / 3600, 6)


def test_a_job_asks_for_all_nodes_at_once_and_starts_what_starts_members() -> None:
    words = submission(request(), SlurmConfig(partitions=PARTITIONS), CHEAP)
    assert {"--nodes=3", "--ntasks=3", "--ntasks-per-node=1", "--no-kill", "--no-requeue", "--exclusive"} <= {*words}
    assert "spotrun.clouds.slurm.gang" in words
    assert "spotrun.clouds.slurm.start" in submission(request(None), SlurmConfig(partitions=PARTITIONS), CHEAP)


def test_a_step_is_on_its_node_with_all_that_the_job_has_there(tmp_path: Path) -> None:
    files, seat = MemberFiles(str(tmp_path / "100%-1")), Seat("n2", "10.0.0.2")
    words = gang.step(files, 1, seat, ["/runs/n", UID], {"SLURM_GPUS_ON_NODE": "2"})
    assert {"--no-kill", "--overlap", "--nodes=1", "--nodelist=n2", "--gres=gpu:2", "--cpu-bind=none"} <= {*words}
    assert f"--output={tmp_path}/100%%-1.1.log" in words
    assert words[-5:] == ["spotrun.clouds.slurm.member", "1", "10.0.0.2", "/runs/n", UID]
    assert not [word for word in gang.step(files, 1, seat, [], {}) if word.startswith("--gres")]


def test_more_nodes_than_are_free_are_waited_for_and_then_no_capacity(queue: SlurmQueue, clock: ManualClock) -> None:
    ours = driver(queue, clock)
    ours.launch(request(2))
    assert ours.launch(request(2, launch=2)).state is InstanceState.PENDING
    assert [each.address for each in ours.instances() if each.launch == 2] == ["", ""]
    clock.advance(200)
    with pytest.raises(InsufficientCapacity, match="less than 2 nodes of cheap were free in time"):
        ours.launch(request(2, launch=2))


def test_the_member_that_ends_last_pays_for_the_nodes_that_others_left(queue: SlurmQueue, clock: ManualClock) -> None:
    ours = driver(queue, clock)
    ours.launch(request())
    clock.advance(100)
    ours.terminate("job-1.0")
    clock.advance(50)
    ours.terminate("job-1.2")
    clock.advance(10)
    states = {each.instance_id: each.state for each in ours.instances()}
    assert states == {
        "job-1.0": InstanceState.TERMINATED,
        "job-1.1": InstanceState.RUNNING,
        "job-1.2": InstanceState.TERMINATED,
    }
    assert ours.launch(request()).instance_id == "job-1.0", "as long as one of them lives"
    clock.advance(40)
    ours.terminate("job-1.1")
    clock.advance(2)
    assert {each.ended_by for each in ours.instances()} == {EndedBy.USER}
    last = ours.describe("job-1.1")
    assert last is not None
    assert [each.usd_per_hour / CHEAP.usd_per_node_hour for each in last.prices] == [1, 2, 3]
    assert charged(ours.instances()) == node_seconds(3 * 200)
    with pytest.raises(LaunchTokenSpent):
        ours.launch(request())


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_second_that_has_only_begun_is_billed_to_exactly_one_member(
    queue: SlurmQueue, clock: ManualClock, order: tuple[int, int]
) -> None:
    """Slurm counts whole seconds, and a member ends at any moment of one: the job may be over in the same."""
    ours = driver(queue, clock)
    for launch, (later_s, over_s) in enumerate(((0.9, 0.0), (0.9, 2.0), (3.5, 0.0)), start=1):
        token = ours.launch(request(2, launch)).token
        files, began = files_of(token), clock.now()
        clock.advance(10)
        files.end(order[0], MemberEnd(clock.now() + timedelta(seconds=0.063), EndedBy.ITSELF, "exit code 0"))
        seen = [each for each in ours.instances() if each.launch == launch and not each.alive]
        assert [each.member for each in seen] == [order[0]], "what it costs is written down now"
        files.end(order[1], MemberEnd(clock.now() + timedelta(seconds=later_s), EndedBy.ITSELF, "exit code 0"))
        clock.advance(int(later_s) + over_s)
        over = clock.now()
        queue.end(token, "COMPLETED")
        clock.advance(2)
        left = [each for each in ours.instances() if each.launch == launch and each.member == order[1]]
        assert charged([*seen, *left]) == node_seconds(2 * round((over - began).total_seconds())), (later_s, over_s)


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_node_that_is_lost_leaves_the_job_and_costs_no_more(queue: SlurmQueue, clock: ManualClock, lost: int) -> None:
    ours = driver(queue, clock)
    first = ours.launch(request())
    ours.instances()
    job = queue.job(first.token)
    clock.advance(100)
    job.nodes = tuple(node for at, node in enumerate(job.nodes) if at != lost)
    clock.advance(2)
    ended = [each for each in ours.instances() if not each.alive]
    assert [(each.member, each.ended_by) for each in ended] == [(lost, EndedBy.FAULT)]
    clock.advance(98)
    queue.end(first.token, "PREEMPTED")
    clock.advance(2)
    assert {each.ended_by for each in ours.instances()} == {EndedBy.FAULT, EndedBy.CLOUD}
    assert charged(ours.instances()) == node_seconds(2 * 200 + 102)


def test_a_job_without_its_first_node_ends_when_the_last_step_has(queue: SlurmQueue, clock: ManualClock) -> None:
    ours = driver(queue, clock)
    first = ours.launch(request(2))
    ours.instances()
    job = queue.job(first.token)
    job.nodes = job.nodes[1:]
    clock.advance(2)
    assert [each.alive for each in ours.instances()] == [False, True]
    del job.steps["member-1"]
    clock.advance(2)
    survivor = ours.instances()[1]
    assert survivor.state is InstanceState.STOPPING, "Slurm has not said yet until when it bills"
    assert job.state == "CANCELLED", "nobody else would end it before its time limit"
    clock.advance(2)
    assert ours.instances()[1].ended_by is EndedBy.ITSELF
    assert charged(ours.instances()) == node_seconds(2 + 4)


def test_first_written_member_file_counts(tmp_path: Path, clock: ManualClock) -> None:
    files = MemberFiles(str(tmp_path / "x" / "t-1"))
    assert files.seats() == ()
    assert files.take_seats([Seat("n1", "a")]) == (Seat("n1", "a"),) == files.take_seats([Seat("n2", "b")])
    first = files.end(0, MemberEnd(clock.now(), EndedBy.FAULT, "lost"))
    assert files.end(0, MemberEnd(clock.now(), EndedBy.ITSELF, "exit code 0")) == first == files.ended(0)
    files.ask_to_end(1)
    assert files.end(1, MemberEnd(clock.now(), EndedBy.ITSELF, "exit code 137")).by is EndedBy.USER
    assert not [*(tmp_path / "x").glob("*.tmp")]


def test_a_record_that_cannot_be_read_is_no_end_of_a_member(tmp_path: Path) -> None:
    files = MemberFiles(str(tmp_path / "t-1"))
    (tmp_path / "t-1.0.ended").write_text("{")
    with pytest.raises(CloudUnavailable, match=r"t-1\.0\.ended is not a valid record of a member"):
        files.ended(0)
    (tmp_path / "t-1.1.ended").mkdir()
    with pytest.raises(CloudUnavailable, match=r"t-1\.1\.ended: Is a directory"):
        files.ended(1)


def test_a_shell_is_opened_on_the_node_of_the_member(queue: SlurmQueue, clock: ManualClock) -> None:
    ours = driver(queue, clock)
    ours.launch(request())
    spec = RunSpec.from_dict({"name": "n", "workdir": "/work", "train": {"run": "true"}})
    command = CLOUD.shell(spec, ours.instances()[2]).command
    assert {"--jobid=1", "--nodes=1", "--nodelist=n1-2"} <= {*command}


# -- the task of a step ----------------------------------------------------------------------------------------------


@pytest.fixture
def task(tmp_path: Path) -> subprocess.Popen[bytes]:
    """A member's task on this machine, whose controller says that the job runs."""
    program = tmp_path / "bin" / "scontrol"
    program.parent.mkdir()
    says(tmp_path, "JobState=RUNNING EndTime=1 PreemptTime=None")
    program.write_text(f"#!/bin/sh\necho >> {tmp_path}/asked; cat {tmp_path}/told\n")
    program.chmod(0o755)
    command = ["sh", "-c", 'echo $$ > pid; trap "" HUP; sleep 600 & wait']
    return subprocess.Popen(
        [
            *(sys.executable, "-P", "-m", "spotrun.clouds.slurm.member", "1", "127.0.0.1"),
            *("/runs/n", UID, "1", "600", str(tmp_path / "scratch"), *command),
        ],
        env={**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"},
    )


def says(tmp_path: Path, told: str) -> None:
    """What the controller tells about the job from now on."""
    new = tmp_path / "new"
    new.write_text(f"{told}\n")
    new.replace(tmp_path / "told")


def asked(tmp_path: Path) -> int:
    """How often it was asked."""
    return (tmp_path / "asked").stat().st_size


def lives(tmp_path: Path) -> processes.ProcessMark:
    told = tmp_path / "scratch" / f"spotrun-{os.getuid()}-7.1" / "pid"
    found = eventually(lambda: processes.mark(int(told.read_text())) if told.exists() and told.read_text() else None)
    assert found is not None
    return found


def test_a_member_is_not_below_its_task_and_does_not_outlive_it(task: subprocess.Popen[bytes], tmp_path: Path) -> None:
    member = lives(tmp_path)
    eventually(lambda: member not in processes.descendants(task.pid))  # what forked it ends
    assert os.getsid(member.pid) != os.getsid(task.pid)
    task.send_signal(signal.SIGTERM)
    task.send_signal(signal.SIGKILL)
    task.wait()
    eventually(lambda: not processes.is_alive(member))
    eventually(lambda: not [*(tmp_path / "scratch").iterdir()])


@pytest.mark.exhaustive
def test_a_member_that_ends_ends_its_task_with_its_code(task: subprocess.Popen[bytes], tmp_path: Path) -> None:
    member = lives(tmp_path)
    processes.kill(member)
    assert task.wait(60) != 0
    assert not [*(tmp_path / "scratch").iterdir()]


@pytest.mark.exhaustive
def test_a_second_signal_takes_nothing_of_the_time_that_the_first_one_left(
    task: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    member = lives(tmp_path)
    told = tmp_path / "scratch" / f"spotrun-{os.getuid()}-7.1" / notices.FILE
    eventually(told.exists)  # the task has asked at its beginning; two signals that it does not hear apart are one
    before = asked(tmp_path)
    deadline = int(time.time()) + 600
    says(tmp_path, f"JobState=RUNNING EndTime={deadline} PreemptTime={deadline - 600}")
    for again in (1, 2, 3):
        task.send_signal(signal.SIGTERM)
        eventually(partial(lambda times: asked(tmp_path) >= before + times, again))
        eventually(lambda: notices.read(told) == datetime.fromtimestamp(deadline, UTC))
    assert processes.is_alive(member)
    says(tmp_path, f"JobState=COMPLETING EndTime={deadline} PreemptTime={deadline - 600}")
    task.send_signal(signal.SIGTERM)
    task.wait(60)
    assert not processes.is_alive(member)


@pytest.mark.parametrize(
    ("told", "code", "by"),
    [
        ("EndTime=1795600148 PreemptTime=1795600136", 143, EndedBy.CLOUD),
        ("EndTime=1795600148 PreemptTime=1795600136", 137, EndedBy.CLOUD),
        ("EndTime=1795600148 PreemptTime=1795600136", 0, EndedBy.ITSELF),
        ("EndTime=1795600148 PreemptTime=None", 143, EndedBy.ITSELF),
    ],
)
def test_a_member_that_is_killed_while_its_job_is_preempted_was_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str, code: int, by: EndedBy
) -> None:
    class Controller:
        def run(self, words: Sequence[str]) -> Answer:
            return Answer(
                0, {"job": f"JobState=RUNNING {told} NodeList=n1", "node": "NodeName=n1 NodeAddr=a"}[words[3]], ""
            )

    step = tmp_path / "srun"
    step.write_text(f"#!/bin/sh\nexit {code}\n")
    step.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    files = MemberFiles(str(tmp_path / "t-1"))
    gang.main(files, ["/runs/n", UID], {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1"}, Controller())
    ended = files.ended(0)
    assert ended is not None
    assert (ended.by, str(code) in ended.reason) == (by, True)


def test_two_launches_of_one_run_share_no_file() -> None:
    names = {files_of(replace(request(launch=launch)).token).start for launch in (1, 11)}
    assert len(names) == 2
