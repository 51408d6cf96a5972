"""What a cluster says of its partitions against what a job says, and what `spotrun doctor slurm` makes of it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from spotrun.clouds.slurm import doctor, shared_folders
from spotrun.clouds.slurm.commands import Answer
from spotrun.clouds.slurm.config import SlurmConfig, config_of
from spotrun.clouds.slurm.doctor import SlurmDoctor
from spotrun.clouds.slurm.partitions import misfits, read_cluster
from spotrun.doctor.finding import Finding, Verdict
from spotrun.offering import CapacityType
from spotrun.spec.file import load_spec
from tests.support.manual_clock import ManualClock
from tests.support.slurm_jobs import CHEAP, PARTITIONS, SURE
from tests.support.slurm_queue import Partition, SlurmQueue

PREEMPTIBLE = {"PreemptMode": "CANCEL", "GraceTime": "120", "MaxTime": "1-00:00:00"}


def queue(cheap: dict[str, str] | None = None, preempt_type: str = "preempt/partition_prio", **sure: str) -> SlurmQueue:
    settings = PREEMPTIBLE if cheap is None else {**PREEMPTIBLE, **cheap}
    partitions = [Partition("cheap", settings=settings), Partition("sure", settings={"PriorityTier": "10", **sure})]
    return SlurmQueue(ManualClock(), partitions, preempt_type)


def told(queue: SlurmQueue, *partitions: Any) -> list[tuple[str, str, str]]:
    found = misfits(SlurmConfig(partitions=partitions or PARTITIONS), read_cluster(queue))
    return [(".".join(map(str, each.at)), each.message, each.suggestion) for each in found]


def found_by_doctor(queue: SlurmQueue, config: SlurmConfig, store: str | None = None) -> list[Finding]:
    return [each for each in SlurmDoctor(config, store, queue).findings() if each.name != "shared folders"]


def test_partitions_that_are_as_the_job_says_are_let_through() -> None:
    assert told(queue()) == []
    assert told(queue({"PreemptMode": "REQUEUE", "MaxTime": "UNLIMITED"})) == []
    assert told(queue({"GraceTime": "0", "PreemptMode": "OFF"}, "preempt/qos")) == [], "a QOS says it, not a partition"


@pytest.mark.parametrize(("limits", "most"), [({"TotalNodes": "1"}, "1 node"), ({"MaxNodes": "3"}, "3 nodes")])
def test_a_gang_that_a_partition_never_has_room_for_is_refused_with_its_line(limits: dict[str, str], most: str) -> None:
    known = read_cluster(queue(limits))
    ((at, message, advice),) = [
        (each.at, each.message, each.suggestion) for each in misfits(SlurmConfig(partitions=PARTITIONS, nodes=4), known)
    ]
    assert at == ("slurm", "partitions", 0, "name")
    assert message == f"a job in cheap has at most {most}, but num_nodes is 4"
    assert advice == f"write num_nodes: {most[0]}, or name another partition"


@pytest.mark.parametrize(
    ("cheap", "preempt_type", "key", "says", "fix"),
    [
        ({"GraceTime": "0"}, None, "name", "GraceTime=0: Slurm ends its jobs without a notice", "GraceTime=120"),
        ({"PreemptMode": "OFF"}, None, "capacity", "no job loses nodes in cheap", "capacity: on_demand"),
        ({}, "preempt/none", "capacity", "PreemptType=preempt/none", "capacity: on_demand"),
        ({"PreemptMode": "GANG,SUSPEND"}, None, "name", "it suspends jobs", "PreemptMode=CANCEL"),
        (
            {"MaxTime": "5:00"},
            None,
            "name",
            "can run for at most 5m, but an instance lives for at least 10m",
            "another",
        ),
        ({"MaxTime": "12:00:00"}, None, "max_time", "can run for at most 12h", "max_time: 12h"),
    ],
)
def test_wrong_partition_setting_is_reported_with_its_place_and_a_fix(
    cheap: dict[str, str], preempt_type: str | None, key: str, says: str, fix: str
) -> None:
    found = told(queue(cheap, preempt_type or "preempt/partition_prio"))
    assert [at for at, _, _ in found] == [f"slurm.partitions.0.{key}"]
    assert says in found[0][1]
    assert fix in found[0][2]


def test_renamed_partition_is_reported_with_the_intended_one() -> None:
    renamed = replace(CHEAP, name="cheaper"), replace(SURE, name="gone")
    assert told(queue(), *renamed) == [
        ("slurm.partitions.0.name", "the cluster paper has no partition cheaper", "did you mean cheap?"),
        ("slurm.partitions.1.name", "the cluster paper has no partition gone", "it has cheap, sure"),
    ]


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("UNLIMITED", None),
        ("30:00", timedelta(minutes=30)),
        ("12:00:00", timedelta(hours=12)),
        ("7-00:00:00", timedelta(days=7)),
    ],
)
def test_time_limits_are_read_in_each_of_slurm_s_forms(text: str, limit: timedelta | None) -> None:
    assert read_cluster(queue({"MaxTime": text})).partitions["cheap"].max_time == limit


def test_doctor_tells_what_there_is_as_a_line_to_write() -> None:
    found = {each.name: each for each in found_by_doctor(queue(), SlurmConfig())}
    assert "22.05.8, cluster paper, 2 partitions" in found["slurm"].detail
    assert "[{name: cheap, capacity: spot, usd_per_node_hour: 0}]" in found["partition cheap"].detail
    assert "GraceTime=120 s" in found["partition cheap"].detail
    assert "[{name: sure, capacity: on_demand, usd_per_node_hour: 0}]" in found["partition sure"].detail
    assert {each.verdict for each in found.values()} == {Verdict.OK}


@pytest.mark.parametrize("mode", ["OFF", "CANCEL", "REQUEUE", "SUSPEND,GANG"])
@pytest.mark.parametrize("grace", ["0", "120"])
@pytest.mark.parametrize("limit", ["UNLIMITED", "2-00:00:00", "1:30:30", "10:00", "9:59"])
@pytest.mark.parametrize("preempt_type", ["preempt/partition_prio", "preempt/qos", "preempt/none"])
def test_each_line_that_doctor_prints_is_one_that_it_finds_well(
    tmp_path: Path, mode: str, grace: str, limit: str, preempt_type: str
) -> None:
    cluster = queue({"PreemptMode": mode, "GraceTime": grace, "MaxTime": limit}, preempt_type)
    (found,) = [each for each in found_by_doctor(cluster, SlurmConfig()) if each.name == "partition cheap"]
    _, written, line = found.detail.partition("slurm.partitions: ")
    taken = preempt_type == "preempt/partition_prio" and mode != "OFF"
    assert bool(written) == (limit != "9:59" and (not taken or (grace != "0" and mode in ("CANCEL", "REQUEUE"))))
    assert found.verdict is (Verdict.OK if written else Verdict.WARNED)
    if written:
        job = tmp_path / "job.yaml"
        job.write_text(f'train: {{run: "true"}}\nresources: {{cloud: slurm}}\nslurm: {{partitions: {line}}}\n')
        again = found_by_doctor(cluster, config_of(load_spec(job).slurm))
        assert [each.verdict for each in again if each.name == "partition cheap"] == [Verdict.OK]


def test_doctor_does_not_call_spot_what_is_taken_without_a_notice() -> None:
    config = SlurmConfig(partitions=(replace(CHEAP, capacity_type=CapacityType.ON_DEMAND),))
    (_, found) = found_by_doctor(queue({"GraceTime": "0"}), config)
    assert found.verdict is Verdict.FAILED
    assert "Slurm ends its jobs without a notice" in found.detail
    assert "GraceTime=120" in found.hint


@pytest.mark.parametrize(
    ("words", "verdict"),
    [
        ("allocation failure: Requested node configuration is not available", Verdict.FAILED),
        ("allocation failure: Invalid account or account/partition combination specified", Verdict.FAILED),
        ("allocation failure: Required node not available (down, drained or reserved)", Verdict.WARNED),
    ],
)
def test_doctor_asks_whether_a_partition_has_what_a_job_names(words: str, verdict: Verdict) -> None:
    large = replace(SURE, cpus=64, memory_gb=8, qos="night")
    cluster = queue()
    cluster.answers["sbatch"] = [Answer(1, "", words)]
    (_, found) = found_by_doctor(cluster, SlurmConfig(partitions=(large,), account="lab"))
    assert (found.name, found.verdict) == ("partition sure", verdict)
    assert words in found.detail
    asked = {"--test-only", "--cpus-per-task=64", "--mem=8G", "--qos=night", "--account=lab", "--partition=sure"}
    assert asked <= {*cluster.calls[-1]}
    assert cluster.jobs == []


def test_doctor_warns_that_no_partition_preempts_another() -> None:
    found = found_by_doctor(queue(None, "preempt/none"), SlurmConfig())
    assert [each.detail for each in found if each.verdict is Verdict.WARNED] == [
        "nobody takes nodes from anybody here, as far as partitions say (PreemptType=preempt/none)"
    ]


def test_doctor_looks_at_the_partitions_of_a_job() -> None:
    config = SlurmConfig(partitions=PARTITIONS)
    found = {each.name: each for each in found_by_doctor(queue({"GraceTime": "0"}, State="DOWN"), config)}
    assert found["slurm.partitions[0].name"].verdict is Verdict.FAILED
    assert found["slurm.partitions[0].name"].exit_code == 2
    assert found["partition sure"].verdict is Verdict.WARNED
    assert "partition cheap" not in found


@pytest.mark.parametrize(
    ("grace", "mode", "says", "fix"),
    [
        ("120", "CANCEL", "jobs of top take nodes of sure, so it is not on demand", "write capacity: spot"),
        ("0", "CANCEL", "Slurm ends its jobs without a notice", "GraceTime=120"),
        ("120", "SUSPEND,GANG", "it suspends jobs", "name a partition with PreemptMode=CANCEL or REQUEUE"),
    ],
)
def test_partition_that_loses_nodes_is_not_on_demand(grace: str, mode: str, says: str, fix: str) -> None:
    taken = {"PreemptMode": mode, "PriorityTier": "1", "GraceTime": grace}
    partitions = [Partition("sure", settings=taken), Partition("top", settings={"PriorityTier": "9"})]
    ((at, message, advice),) = told(SlurmQueue(ManualClock(), partitions), SURE)
    assert at == "slurm.partitions.0.capacity"
    assert says in message
    assert fix in advice
    (_, of_sure) = found_by_doctor(SlurmQueue(ManualClock(), partitions), SlurmConfig(partitions=(SURE,)))
    assert (of_sure.verdict, of_sure.exit_code) == (Verdict.FAILED, 2)


def test_partition_whose_nodes_no_other_has_is_on_demand() -> None:
    taken = {"PreemptMode": "CANCEL", "PriorityTier": "1", "Nodes": "n7,n8"}
    partitions = [Partition("sure", settings=taken), Partition("top", settings={"PriorityTier": "9"})]
    assert told(SlurmQueue(ManualClock(), partitions), SURE) == []


def test_doctor_says_where_graces_are_that_it_cannot_see() -> None:
    found = found_by_doctor(queue(None, "preempt/qos"), SlurmConfig(partitions=PARTITIONS))
    (warning,) = [each for each in found if each.verdict is Verdict.WARNED]
    assert "sacctmgr show qos" in warning.hint


@pytest.mark.parametrize("program", ["sbatch", "squeue", "scancel"])
def test_doctor_says_what_a_machine_lacks_that_cannot_submit(program: str) -> None:
    cluster = queue()
    cluster.missing.add(program)
    failed = [each for each in found_by_doctor(cluster, SlurmConfig()) if each.verdict is Verdict.FAILED]
    assert [each.detail for each in failed] == [f"there is no {program} on this machine"]
    assert "login node" in failed[0].hint


def test_folder_that_nodes_may_not_see_is_reported_with_the_command_that_shows_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "file_system_of", lambda path: "ext4" if path == Path("/home/my runs") else "nfs4")
    findings = SlurmDoctor(SlurmConfig(), "/home/my runs", queue()).findings()
    (warning,) = [each for each in findings if each.verdict is Verdict.WARNED]
    assert "`srun ls -d '/home/my runs'`" in warning.hint


def test_a_controller_that_is_away_ends_the_questions() -> None:
    away = queue()
    away.answers["scontrol"] = [Answer(1, "", "Unable to contact slurm controller (connect failure)")]
    (only,) = found_by_doctor(away, SlurmConfig())
    assert (only.name, only.verdict, only.exit_code) == ("slurm", Verdict.FAILED, 7)


def test_folder_on_a_local_disk_is_recognised(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    rows = ("/dev/sda1 /", "server:/home /home", "/dev/sdb1 /home/my\\040disk", "tmpfs /tmp")
    each_kind = zip(rows, ("ext4", "nfs4", "xfs", "tmpfs"), strict=True)
    mounts.write_text("".join(f"{row} {kind} rw 0 0\n" for row, kind in each_kind))
    kinds = {
        place: shared_folders.file_system_of(Path(place), mounts)
        for place in ("/opt/x", "/home/ada/runs", "/home/my disk/runs", "/tmp/runs", "/homeless")
    }
    assert kinds == {
        "/opt/x": "ext4",
        "/home/ada/runs": "nfs4",
        "/home/my disk/runs": "xfs",
        "/tmp/runs": "tmpfs",
        "/homeless": "ext4",
    }
    assert [place for place, kind in kinds.items() if not shared_folders.is_of_one_machine(kind)] == ["/home/ada/runs"]
