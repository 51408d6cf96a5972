"""What only real programs of Slurm show: who is signalled, what is left, and what `launch` and `doctor` say."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from spotrun.clock import system_clock
from spotrun.clouds.local import processes
from spotrun.clouds.slurm import notices
from spotrun.clouds.slurm.config import SlurmConfig
from spotrun.clouds.slurm.driver import SlurmDriver
from spotrun.clouds.slurm.ids import job_of
from spotrun.clouds.slurm.queue import LEFT_TO_SLURM
from spotrun.instance import EndedBy, Instance, InstanceState, LaunchRequest
from spotrun.proc import ProcessMark
from tests.support.eventually import eventually
from tests.support.launch_requests import requested
from tests.support.manual_clock import ManualClock
from tests.support.sandbox import Sandbox
from tests.support.slurm_cluster import NEEDS_SLURM, Cluster, cluster
from tests.support.slurm_jobs import CHEAP, SURE

pytestmark = NEEDS_SLURM
UID = "0123456789"
PARTITIONS = (
    "cheap Nodes=n1 PriorityTier=1 PreemptMode=CANCEL GraceTime=15",
    "rude Nodes=n1 PriorityTier=1 PreemptMode=CANCEL GraceTime=0",
    "sure Nodes=n1 PriorityTier=10 PreemptMode=OFF MaxTime=60",
)
HEARS = "trap 'echo heard >> heard' TERM; while :; do sleep 0.1; done"
INIT = ("sh", "-c", f"({HEARS}) & {HEARS}")
JOB = """\
name: job
train: {{run: "true"}}
num_nodes: {nodes}
resources: {{cloud: slurm}}
slurm: {{partitions: [{{name: {name}, capacity: {capacity}, usd_per_node_hour: 0.10, max_time: {limit}}}]}}
"""


@pytest.fixture(scope="module")
def little() -> Iterator[Cluster]:
    with cluster(nodes=1, partitions=PARTITIONS) as found:
        yield found


@pytest.fixture
def on_it(little: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setenv("SLURM_CONF", str(little.conf))
    monkeypatch.setenv("SPOTRUN_SLURM_LOGS", str(tmp_path / "logs"))
    yield little
    little.forget_jobs()


def request(driver: SlurmDriver, partition: int, launch: int) -> LaunchRequest:
    return requested(driver.offerings()[partition], launch, UID, time_to_live=timedelta(minutes=30))


def ended(driver: SlurmDriver, instance: Instance) -> Instance:
    def over() -> Instance | None:
        found = driver.describe(instance.instance_id)
        return found if found is not None and not found.alive else None

    found = eventually(over)
    assert found is not None
    return found


def test_only_the_listener_step_gets_the_notice_of_a_taken_node(on_it: Cluster, tmp_path: Path) -> None:
    config = SlurmConfig(partitions=(CHEAP, SURE), scratch=str(tmp_path))
    driver = SlurmDriver(config, system_clock(), init=INIT)
    spot = driver.launch(request(driver, 0, 1))
    told = eventually(lambda: next(tmp_path.glob(f"spotrun-*/{notices.FILE}"), None))
    assert told is not None
    assert notices.read(told) is None
    on_it.ask("scancel", "--signal=TERM", job_of(spot.instance_id))  # somebody's own signal is no notice
    stronger = driver.launch(request(driver, 1, 2))
    deadline = eventually(lambda: notices.read(told))
    assert deadline is not None
    assert timedelta(seconds=1) < deadline - datetime.now(UTC) <= timedelta(seconds=15), "GraceTime"
    assert not told.with_name("heard").exists(), "neither an agent nor what it has started is signalled"
    gone = ended(driver, spot)
    assert (gone.ended_by, gone.end_reason) == (EndedBy.CLOUD, "PREEMPTED")
    assert gone.ended_at is not None
    assert gone.ended_at >= deadline
    eventually(lambda: getattr(driver.describe(stronger.instance_id), "state", None) is InstanceState.RUNNING)


def test_an_instance_that_ends_by_itself_leaves_neither_a_process_nor_a_folder(on_it: Cluster, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    config = SlurmConfig(partitions=(CHEAP,), scratch=str(tmp_path / "scratch"))
    forks = f"(setsid sh -c 'while :; do touch {mark}; sleep 0.05; done' &) ; sleep 1"
    driver = SlurmDriver(config, system_clock(), init=("sh", "-c", forks))
    gone = ended(driver, driver.launch(request(driver, 0, 1)))
    assert gone.ended_by is EndedBy.ITSELF
    mark.unlink()
    assert [*(tmp_path / "scratch").iterdir()] == []
    assert not mark.exists(), "what it has sent into the background is gone too"


def test_a_node_that_breaks_takes_all_that_ran_on_it_and_nothing_of_another_cluster(
    on_it: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster(nodes=1, partitions=PARTITIONS) as other:
        away = at_work(tmp_path / "away")
        monkeypatch.setenv("SLURM_CONF", str(other.conf))
        monkeypatch.setenv("SPOTRUN_SLURM_LOGS", str(tmp_path / "others"))
        beside = at_work(tmp_path / "beside")
        on_it.break_node("n1")
        try:
            assert not processes.is_alive(away), "it carries no variable of Slurm's, like an agent"
            assert processes.is_alive(beside), "of the same node and job, by name"
        finally:
            on_it.start_node("n1")


def at_work(scratch: Path) -> ProcessMark:
    """A process in the background of a new instance, that has an environment of its own."""
    told = scratch / "pid"
    forks = f"(env -i setsid sh -c 'echo $$ > {told}; sleep 600 & wait' &) ; sleep 600"
    driver = SlurmDriver(
        SlurmConfig(partitions=(CHEAP,), scratch=str(scratch)), system_clock(), init=("sh", "-c", forks)
    )
    driver.launch(request(driver, 0, 1))
    found = eventually(lambda: processes.mark(int(told.read_text())) if told.exists() and told.read_text() else None)
    assert found is not None
    return found


@pytest.mark.parametrize("why", ["PartitionDown", "JobHeldAdmin"])
def test_job_that_slurm_cannot_schedule_is_cancelled_when_its_wait_is_over(
    on_it: Cluster, tmp_path: Path, why: str
) -> None:
    config = SlurmConfig(partitions=(CHEAP,), scratch=str(tmp_path), wait=timedelta(seconds=1))
    on_it.ask("scontrol", "update", "partition=cheap", "state=down")
    ours = SlurmDriver(config, system_clock(), init=INIT)
    waiting = ours.launch(request(ours, 0, 1))
    if why == "JobHeldAdmin":
        on_it.ask("scontrol", "hold", job_of(waiting.instance_id))
        on_it.ask("scontrol", "update", "partition=cheap", "state=up")
    eventually(lambda: on_it.ask("squeue", "--noheader", "--format=%r").strip() == why)
    eventually(lambda: datetime.now(UTC) - waiting.launched_at > timedelta(seconds=2))
    assert ours.describe(waiting.instance_id) == waiting, "Slurm itself leaves it in the queue"
    gone = ended(SlurmDriver(config, ManualClock(datetime.now(UTC) + LEFT_TO_SLURM)), waiting)
    on_it.ask("scontrol", "update", "partition=cheap", "state=up")
    assert (gone.never_ran, gone.ended_by) == (True, EndedBy.CLOUD)


@pytest.mark.parametrize(
    ("name", "capacity", "limit", "nodes", "key", "says"),
    [
        ("cheep", "spot", "24h", 1, "slurm.partitions[0].name", "did you mean cheap?"),
        ("rude", "spot", "24h", 1, "slurm.partitions[0].name", "GraceTime=0"),
        ("sure", "spot", "1h", 1, "slurm.partitions[0].capacity", "capacity: on_demand"),
        ("sure", "on_demand", "24h", 1, "slurm.partitions[0].max_time", "max_time: 1h"),
        ("cheap", "spot", "24h", 2, "slurm.partitions[0].name", "write num_nodes: 1"),
    ],
    ids=["renamed", "no grace", "nobody takes", "too long", "too few nodes"],
)
def test_a_job_that_this_cluster_cannot_run_is_refused_and_nothing_is_submitted(
    on_it: Cluster, sandbox: Sandbox, name: str, capacity: str, limit: str, nodes: int, key: str, says: str
) -> None:
    path = sandbox.folder / "job.yaml"
    path.write_text(JOB.format(name=name, capacity=capacity, limit=limit, nodes=nodes))
    said = " ".join(sandbox.call("launch", path, "-y", code=2).split())
    assert f"{path}:5: {key}: " in said
    assert says in said
    assert on_it.ask("squeue", "--noheader", "--states=all", "--format=%i") == ""
    assert not sandbox.store.exists() or [*sandbox.store.glob("job-*")] == []


def test_a_job_that_no_run_needs_is_reaped(on_it: Cluster, sandbox: Sandbox) -> None:
    config = SlurmConfig(partitions=(CHEAP,), scratch=str(sandbox.folder))
    driver = SlurmDriver(config, system_clock(), init=("sleep", "600"))
    left = driver.launch(request(driver, 0, 99))
    assert left.instance_id in sandbox.call("reap", "--cloud", "slurm", "-y")
    assert "ended 1" in sandbox.call("reap", "--cloud", "slurm", "-y", "--run", UID)
    assert ended(driver, left).ended_by is EndedBy.USER


def test_doctor_reads_the_cluster(on_it: Cluster, sandbox: Sandbox) -> None:
    found = {each["name"]: each for each in sandbox.call_json("doctor", "slurm")["checks"]}
    assert found["slurm"]["detail"].endswith("cluster little, 3 partitions")
    assert "PreemptMode=CANCEL, GraceTime=15 s" in found["partition cheap"]["detail"]
    assert "capacity: spot" in found["partition cheap"]["detail"]
    assert "1 node at most in a job" in found["partition cheap"]["detail"]
    assert found["partition sure"]["detail"].startswith("UP, PreemptMode=OFF, GraceTime=0 s, MaxTime 1:00:00")
    assert found["store"]["verdict"] == "ok"
    path = sandbox.folder / "job.yaml"
    for cpus, code, says in ((1, 0, "UP, PreemptMode=OFF"), (64, 7, "Requested node configuration is not available")):
        job = JOB.format(name="sure", capacity="on_demand", limit="1h", nodes=1)
        path.write_text(job.replace("max_time", f"cpus: {cpus}, max_time"))
        assert says in " ".join(sandbox.call("doctor", "slurm", path, code=code).split())
