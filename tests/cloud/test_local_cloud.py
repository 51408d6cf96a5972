"""Instances of the local cloud are real processes: they really run, and they really die."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import urlsplit

import botocore.utils
import pytest

from spotrun.clouds.local import processes
from spotrun.clouds.local.driver import LocalDriver, instance_id_of
from spotrun.clouds.local.metadata import MetadataService
from spotrun.clouds.local.records import CloudPaths, RecordFolder
from spotrun.errors import CloudError, CloudUnavailable, LaunchTokenSpent
from spotrun.instance import EndedBy, Instance, InstanceState
from spotrun.offering import CapacityType
from spotrun.proc import ProcessMark
from tests.support.eventually import eventually
from tests.support.local_clouds import RUN, Bench, launcher, until
from tests.support.manual_clock import ManualClock

ESCAPE = """
import os, subprocess, sys
subprocess.Popen(["setsid", "sleep", "1001"])
orphan = "setsid sh -c 'sleep 1002 & echo $! > orphan' & exit"
subprocess.Popen(["env", "-i", "PATH=" + os.environ["PATH"], "sh", "-c", orphan])
subprocess.Popen(["sh", "-c", "trap '' TERM INT HUP; while :; do sleep 1003; done"])
os.setsid() if os.getpid() != os.getsid(0) else None
open("ready", "w").close()
sys.stdin.read(); subprocess.run(["sleep", "1004"])
"""


def log(bench: Bench) -> list[dict[str, object]]:
    return [json.loads(line) for line in CloudPaths(bench.root).log.read_text().splitlines()]


def record_of(cloud: LocalDriver, instance: Instance) -> tuple[ProcessMark, ProcessMark, str]:
    record = cloud.record(instance.instance_id)
    assert record is not None
    assert record.supervisor is not None
    assert record.guardian is not None
    assert record.metadata_endpoint is not None
    return record.supervisor, record.guardian, record.metadata_endpoint


def is_unlocked(bench: Bench, instance: Instance) -> bool:
    """Return whether the last thread of the supervisor is gone, some time after its first: each holds the lock."""
    lock = RecordFolder(bench.root / "records" / instance.instance_id).try_lock()
    if lock is not None:
        os.close(lock)
    return lock is not None


def escaping(bench: Bench) -> tuple[LocalDriver, Instance, ProcessMark]:
    """An instance whose processes do all they can to survive; one of them has no environment and no parent."""
    cloud = bench.cloud(init=[sys.executable, "-c", ESCAPE])
    instance = bench.running(cloud)
    disk = cloud.folder(instance.instance_id)
    eventually(
        lambda: (disk / "ready").exists() and (disk / "orphan").exists() and (disk / "orphan").read_text().strip()
    )
    orphan = processes.mark(int((disk / "orphan").read_text()))
    assert orphan is not None
    return cloud, instance, orphan


# -- birth -----------------------------------------------------------------------------------------------------------


def test_init_finds_its_run_its_clock_and_its_disk(bench: Bench) -> None:
    cloud = bench.cloud(init=["sh", "-c", "env > environment; pwd > here; echo hello; exec sleep 1000"])
    instance = bench.running(cloud)
    disk = cloud.folder(instance.instance_id)
    assert disk.stat().st_mode & 0o777 == 0o700
    eventually(lambda: (disk / "console.log").exists() and "hello" in (disk / "console.log").read_text())
    environment = dict(line.split("=", 1) for line in (disk / "environment").read_text().splitlines() if "=" in line)
    assert environment["SPOTRUN_RUN"] == f"{bench.root}/run"
    assert environment["SPOTRUN_RUN_UID"] == RUN
    assert environment["SPOTRUN_LAUNCH"] == "1"
    assert environment["SPOTRUN_INSTANCE_ID"] == instance.instance_id
    assert environment["SPOTRUN_INSTANCE_DIR"] == str(disk)
    assert environment["SPOTRUN_TIME_SCALE"] == "60.0"
    assert datetime.fromisoformat(environment["SPOTRUN_CLOCK_EPOCH"]) == bench.clock.epoch
    assert environment["AWS_EC2_METADATA_SERVICE_ENDPOINT"] == record_of(cloud, instance)[2]
    assert (disk / "here").read_text().strip() == str(disk)


def test_an_instance_boots_before_it_runs_and_costs(bench: Bench) -> None:
    cloud = bench.cloud(boot_s=30)
    launched = cloud.launch(bench.request(cloud))
    assert launched.state is InstanceState.PENDING
    assert launched.billed_from is None
    running = until(cloud, launched, InstanceState.RUNNING)
    assert running.billed_from is not None
    assert running.billed_from - running.launched_at >= timedelta(seconds=30)


def test_an_instance_that_ends_while_it_boots_costs_nothing(bench: Bench) -> None:
    cloud = bench.cloud(boot_s=10_000)
    launched = cloud.launch(bench.request(cloud))
    cloud.terminate(launched.instance_id)
    ended = until(cloud, launched, InstanceState.TERMINATED)
    assert ended.billed_from is None
    assert ended.prices == ()


def test_an_instance_outlives_its_launcher_killed_with_all_its_group(bench: Bench) -> None:
    cloud = bench.cloud()
    other = launcher(bench, bench.request(cloud))
    with other:
        assert other.stdout is not None
        instance_id = other.stdout.readline().strip()
        os.killpg(other.pid, signal.SIGINT)
        os.killpg(other.pid, signal.SIGKILL)
    eventually(lambda: cloud.instances()[0].state is InstanceState.RUNNING)
    assert [each.instance_id for each in cloud.instances()] == [instance_id]


def test_eight_processes_racing_with_one_token_start_one_instance(bench: Bench) -> None:
    cloud = bench.cloud()
    request = bench.request(cloud)
    racers = [launcher(bench, request) for _ in range(8)]
    answers = {racer.communicate()[0].strip() for racer in racers}
    assert answers == {instance_id_of(request.token)}
    assert [line["event"] for line in log(bench)].count("launched") == 1
    until(cloud, cloud.instances()[0], InstanceState.RUNNING)
    eventually(lambda: len(_sleepers(bench)) == 1)


@pytest.mark.parametrize("after_s", [0.05, 0.1, 0.13, 0.16, 0.19, 0.22, 0.25, 0.3])
def test_a_launch_whose_launcher_is_killed_anywhere_can_be_repeated(bench: Bench, after_s: float) -> None:
    cloud = bench.cloud()
    request = bench.request(cloud)
    with launcher(bench, request) as other:
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(after_s)
        other.kill()
    instance = cloud.launch(request)
    until(cloud, instance, InstanceState.RUNNING)
    eventually(lambda: len(_sleepers(bench)) == 1)
    launches = [line for line in log(bench) if line["event"] == "launched"]
    assert all(line == launches[0] for line in launches)


def test_an_empty_folder_left_by_a_crash_is_no_instance_and_is_completed_by_a_repeat(bench: Bench) -> None:
    cloud = bench.cloud()
    request = bench.request(cloud)
    folder = CloudPaths(bench.root).record_folder(instance_id_of(request.token))
    assert folder is not None
    folder.create()
    assert cloud.instances() == []
    assert cloud.describe(folder.instance_id) is None
    until(cloud, cloud.launch(request), InstanceState.RUNNING)


@pytest.fixture
def cut_short(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> tuple[LocalDriver, object]:
    """A launch that was written down, and then its launcher died."""
    cloud = bench.cloud()
    request = bench.request(cloud, time_to_live=timedelta(seconds=30))
    with monkeypatch.context() as patch:
        patch.setattr("spotrun.clouds.local.launching.subprocess.Popen", _die)
        with pytest.raises(CloudUnavailable):
            cloud.launch(request)
    return cloud, request


def _die(*_: object, **__: object) -> None:
    raise OSError("the launcher dies here")


def test_a_launch_cut_short_before_its_supervisor_is_completed_by_a_repeat(
    cut_short: tuple[LocalDriver, object],
) -> None:
    cloud, request = cut_short
    assert cloud.instances() == [], "or a runner would wait for it instead of repeating the launch"
    until(cloud, cloud.launch(request), InstanceState.RUNNING)  # type: ignore[arg-type]


def test_a_launch_cut_short_and_never_repeated_is_over_with_its_time_to_live(
    cut_short: tuple[LocalDriver, object],
) -> None:
    cloud, request = cut_short
    (ended,) = eventually(cloud.instances)
    assert ended.state is InstanceState.TERMINATED
    assert ended.ended_by is EndedBy.TIME_TO_LIVE
    assert ended.billed_from is None
    with pytest.raises(LaunchTokenSpent):
        cloud.launch(request)  # type: ignore[arg-type]


def test_a_supervisor_that_cannot_start_is_an_error_that_names_its_log(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud = bench.cloud()
    request = bench.request(cloud)
    with monkeypatch.context() as patch:
        patch.setattr("spotrun.clouds.local.launching._supervisor_command", lambda *_: ["false"])
        with pytest.raises(CloudUnavailable, match="did not start") as caught:
            cloud.launch(request)
    assert "supervisor.log" in str(caught.value)
    assert cloud.launch(request).alive


def test_an_instance_started_from_inside_another_does_not_belong_to_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    outer = bench.running(bench.cloud())
    monkeypatch.setenv("SPOTRUN_INSTANCE_ID", outer.instance_id)
    cloud = bench.cloud()
    inner = bench.running(cloud)
    cloud.terminate(outer.instance_id)
    until(cloud, outer, InstanceState.TERMINATED)
    seen = cloud.describe(inner.instance_id)
    assert seen is not None
    assert seen.alive


# -- death -----------------------------------------------------------------------------------------------------------


def test_an_instance_whose_init_exits_has_powered_itself_off(bench: Bench) -> None:
    cloud = bench.cloud(init=["sh", "-c", "sleep 1000 & exit 3"])
    ended = until(cloud, cloud.launch(bench.request(cloud)), InstanceState.TERMINATED)
    assert ended.ended_by is EndedBy.ITSELF
    record = cloud.record(ended.instance_id)
    assert record is not None
    assert record.init_exit_code == 3
    eventually(lambda: not bench.processes())


def test_the_whole_tree_dies_whatever_it_does_to_survive(bench: Bench) -> None:
    cloud, instance, orphan = escaping(bench)
    cloud.terminate(instance.instance_id)
    assert not processes.is_alive(orphan)
    eventually(lambda: not bench.processes())


def test_when_the_supervisor_is_killed_its_guardian_ends_the_instance(bench: Bench) -> None:
    cloud, instance, orphan = escaping(bench)
    supervisor, _, _ = record_of(cloud, instance)
    processes.kill(supervisor)
    eventually(lambda: not bench.processes() and not processes.is_alive(orphan))
    ended = until(cloud, instance, InstanceState.TERMINATED)
    assert ended.ended_by is EndedBy.FAULT
    assert [line["by"] for line in log(bench) if line["event"] == "ended"] == ["fault"]


@pytest.mark.parametrize("look", ["describe", "list", "terminate", "launch"])
def test_next_listing_ends_an_instance_whose_supervisor_and_guardian_were_killed(bench: Bench, look: str) -> None:
    cloud = bench.cloud(init=["sh", "-c", "setsid sleep 1001 & sleep 1002"])
    request = bench.request(cloud)
    instance = until(cloud, cloud.launch(request), InstanceState.RUNNING)
    supervisor, guardian, _ = record_of(cloud, instance)
    processes.kill(guardian)
    died_at = bench.clock.now()
    processes.kill(supervisor)
    eventually(lambda: not processes.is_alive(guardian) and is_unlocked(bench, instance))
    if look == "launch":
        with pytest.raises(LaunchTokenSpent):
            cloud.launch(request)
    elif look == "list":
        cloud.instances()
    else:
        getattr(cloud, look)(instance.instance_id)
    assert not bench.processes()
    ended = until(cloud, instance, InstanceState.TERMINATED)
    assert ended.ended_by is EndedBy.FAULT
    assert ended.ended_at is not None
    assert abs(ended.ended_at - died_at) < timedelta(seconds=60 * 2)  # two system seconds, on a busy machine


def test_an_instance_whose_supervisor_hangs_is_ended_by_force(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spotrun.clouds.local.settling.END_WITHIN_S", 0.2)
    cloud = bench.cloud()
    instance = bench.running(cloud)
    supervisor, guardian, _ = record_of(cloud, instance)
    os.kill(guardian.pid, signal.SIGSTOP)
    os.kill(supervisor.pid, signal.SIGSTOP)
    cloud.terminate(instance.instance_id)
    assert until(cloud, instance, InstanceState.TERMINATED).ended_by is EndedBy.USER
    assert not bench.processes()


def test_the_time_to_live_holds_even_when_the_supervisor_hangs(bench: Bench) -> None:
    cloud = bench.cloud()
    instance = bench.running(cloud, time_to_live=timedelta(seconds=60))
    supervisor, _, _ = record_of(cloud, instance)
    os.kill(supervisor.pid, signal.SIGSTOP)
    assert until(cloud, instance, InstanceState.TERMINATED).ended_by is EndedBy.TIME_TO_LIVE
    eventually(lambda: not bench.processes())  # the guardian that ended it leaves after it has said so


def test_a_process_that_took_over_an_old_id_is_not_killed() -> None:
    with subprocess.Popen(["sleep", "1000"]) as innocent:
        mark = processes.mark(innocent.pid)
        assert mark is not None
        processes.kill(ProcessMark(innocent.pid, mark.started - 1))
        assert processes.is_alive(mark)
        innocent.kill()


def test_a_process_of_another_instance_is_not_killed(bench: Bench) -> None:
    cloud = bench.cloud()
    first, second = bench.running(cloud), bench.running(cloud)
    cloud.terminate(first.instance_id)
    seen = cloud.describe(second.instance_id)
    assert seen is not None
    assert seen.alive
    eventually(lambda: len(_sleepers(bench)) == 1)


# -- interruptions ---------------------------------------------------------------------------------------------------


def test_an_interruption_is_announced_and_comes_at_its_deadline(bench: Bench) -> None:
    cloud = bench.cloud()
    instance = bench.running(cloud)
    metadata = Metadata(record_of(cloud, instance)[2])
    assert metadata.get("spot/instance-action")[0] == 404
    assert metadata.get("spot/termination-time")[0] == 404
    asked_at = bench.clock.now()
    cloud.interrupt(instance.instance_id, timedelta(seconds=120))
    assert eventually(lambda: metadata.get("spot/instance-action")[0] == 200)
    noticed = cloud.describe(instance.instance_id)
    assert noticed is not None
    assert noticed.alive
    assert noticed.notice_deadline is not None
    assert noticed.notice_deadline - asked_at >= timedelta(seconds=119)
    action = json.loads(metadata.get("spot/instance-action")[1])
    assert action == {"action": "terminate", "time": noticed.notice_deadline.strftime("%Y-%m-%dT%H:%M:%SZ")}
    assert metadata.get("spot/termination-time")[1] == action["time"]
    ended = until(cloud, instance, InstanceState.TERMINATED)
    assert ended.ended_by is EndedBy.CLOUD
    assert ended.ended_at is not None
    assert noticed.notice_deadline <= ended.ended_at
    assert not _sleepers(bench)


def test_an_interruption_without_notice_is_not_announced(bench: Bench) -> None:
    cloud = bench.cloud()
    instance = bench.running(cloud)
    cloud.interrupt(instance.instance_id, None)
    ended = until(cloud, instance, InstanceState.TERMINATED)
    assert ended.ended_by is EndedBy.CLOUD
    assert ended.notice_deadline is None
    assert "notice" not in [line["event"] for line in log(bench)]


def test_a_second_interruption_may_only_shorten_the_notice(bench: Bench) -> None:
    cloud = bench.cloud()
    instance = bench.running(cloud)
    cloud.interrupt(instance.instance_id, timedelta(hours=1))
    first = eventually(lambda: _notice(cloud, instance))
    cloud.interrupt(instance.instance_id, timedelta(hours=2))
    cloud.rebalance(instance.instance_id)
    eventually(lambda: "rebalance" in [line["event"] for line in log(bench)])
    assert _notice(cloud, instance) == first
    cloud.interrupt(instance.instance_id, timedelta(seconds=20))
    until(cloud, instance, InstanceState.TERMINATED)


def test_on_demand_is_never_taken(bench: Bench) -> None:
    cloud = bench.cloud()
    instance = bench.running(cloud, CapacityType.ON_DEMAND)
    with pytest.raises(CloudError, match="on-demand"):
        cloud.interrupt(instance.instance_id)


def test_ended_instance_cannot_be_interrupted(bench: Bench) -> None:
    cloud = bench.cloud()
    with pytest.raises(CloudError, match="is running"):
        cloud.interrupt("i-00000000000000000")


# -- metadata --------------------------------------------------------------------------------------------------------


class Metadata:
    """A client that can be rude."""

    def __init__(self, endpoint: str) -> None:
        self._address = urlsplit(endpoint)
        self.token = self.request("PUT", "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"})[1]

    def request(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, str, dict[str, str]]:
        connection = http.client.HTTPConnection(self._address.hostname or "", self._address.port, timeout=10)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode(), dict(answer.getheaders())
        finally:
            connection.close()

    def get(self, path: str) -> tuple[int, str, dict[str, str]]:
        return self.request("GET", f"/latest/meta-data/{path}", {"X-aws-ec2-metadata-token": self.token})


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Bench, LocalDriver, Instance, Metadata]]:
    with pytest.MonkeyPatch.context() as patch:
        bench = Bench(tmp_path_factory.mktemp("served"), patch)
        cloud = bench.cloud()
        instance = bench.running(cloud, time_to_live=timedelta(days=30))  # five hours are five minutes here
        yield bench, cloud, instance, Metadata(record_of(cloud, instance)[2])
        bench.close()


def test_metadata_tells_an_instance_what_it_is(served: tuple[Bench, LocalDriver, Instance, Metadata]) -> None:
    _, _, instance, metadata = served
    offering = instance.offering
    assert metadata.get("instance-id")[:2] == (200, instance.instance_id)
    assert metadata.get("instance-type")[1] == offering.instance_type
    assert metadata.get("instance-life-cycle")[1] == "spot"
    assert metadata.get("placement/availability-zone")[1] == offering.zone
    assert metadata.get("placement/region")[1] == offering.region
    assert metadata.get("tags/instance/spotrun:run")[1] == RUN
    assert "placement/" in metadata.get("")[1].split("\n")
    assert metadata.get("iam/security-credentials/")[0] == 404
    assert metadata.get("events/recommendations/rebalance")[0] == 404


@pytest.mark.parametrize(
    ("method", "path", "headers", "code"),
    [
        ("PUT", "/latest/api/token", {}, 400),
        ("PUT", "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "0"}, 400),
        ("PUT", "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "21601"}, 400),
        ("PUT", "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "1e3"}, 400),
        ("PUT", "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "9" * 5000}, 400),
        ("PUT", "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "9", "X-Forwarded-For": "1.2.3.4"}, 403),
        ("GET", "/latest/api/token", {}, 405),
        ("POST", "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "9"}, 405),
        ("PUT", "/latest/meta-data/instance-id", {}, 405),
        ("DELETE", "/latest/meta-data/instance-id", {}, 405),
        ("GET", "/latest/meta-data/instance-id", {}, 401),
        ("GET", "/latest/meta-data/instance-id", {"X-aws-ec2-metadata-token": "wrong"}, 401),
        ("GET", "/latest/meta-data/spot/instance-action", {}, 401),
    ],
)
def test_metadata_is_as_strict_as_the_real_service(
    served: tuple[Bench, LocalDriver, Instance, Metadata], method: str, path: str, headers: dict[str, str], code: int
) -> None:
    assert served[3].request(method, path, headers)[0] == code


def test_metadata_tells_run_time(served: tuple[Bench, LocalDriver, Instance, Metadata]) -> None:
    bench, _, _, metadata = served
    date = parsedate_to_datetime(metadata.get("instance-id")[2]["Date"])
    assert abs(date - bench.clock.now()) < timedelta(seconds=60 * 2)


def test_unmodified_botocore_reads_the_metadata(served: tuple[Bench, LocalDriver, Instance, Metadata]) -> None:
    _, cloud, instance, _ = served
    endpoint = record_of(cloud, instance)[2]
    options = {"timeout": 60, "num_attempts": 3, "base_url": endpoint, "env": {}}
    fetcher = botocore.utils.InstanceMetadataRegionFetcher(**options)
    assert fetcher.retrieve_region() == instance.offering.region
    credentials = botocore.utils.InstanceMetadataFetcher(**options)
    assert credentials.retrieve_iam_role_credentials() == {}


def test_a_rebalance_recommendation_is_shown_and_ends_nothing(bench: Bench) -> None:
    cloud = bench.cloud()
    instance = bench.running(cloud)
    metadata = Metadata(record_of(cloud, instance)[2])
    cloud.rebalance(instance.instance_id)
    eventually(lambda: metadata.get("events/recommendations/rebalance")[0] == 200)
    notice = json.loads(metadata.get("events/recommendations/rebalance")[1])
    assert datetime.fromisoformat(notice["noticeTime"]) >= instance.launched_at - timedelta(seconds=1)
    seen = cloud.describe(instance.instance_id)
    assert seen is not None
    assert seen.notice_deadline is None


def test_a_metadata_token_expires_in_run_time(bench: Bench) -> None:
    cloud = bench.cloud()
    clock = ManualClock()
    service = MetadataService(cloud.launch(bench.request(cloud)), clock)
    token = service.new_token(60)
    clock.advance(59)
    assert service.knows(token)
    clock.advance(1)
    assert not service.knows(token)
    assert not service.knows(None)


# -- memory ----------------------------------------------------------------------------------------------------------


def test_the_cloud_s_own_log_tells_what_the_bill_needs(bench: Bench) -> None:
    cloud = bench.cloud()
    instance = bench.running(cloud)
    cloud.interrupt(instance.instance_id, timedelta(seconds=30))
    ended = until(cloud, instance, InstanceState.TERMINATED)
    lines = {line["event"]: line for line in log(bench)}
    assert set(lines) == {"launched", "metered", "price", "notice", "ended"}
    assert all(line["instance_id"] == instance.instance_id for line in lines.values())
    assert datetime.fromisoformat(str(lines["metered"]["at"])) == ended.billed_from
    assert datetime.fromisoformat(str(lines["price"]["at"])) == ended.prices[0].since
    assert lines["price"]["usd_per_hour"] == str(ended.prices[0].usd_per_hour)
    assert datetime.fromisoformat(str(lines["notice"]["deadline"])) == ended.notice_deadline
    assert datetime.fromisoformat(str(lines["ended"]["at"])) == ended.ended_at
    assert lines["ended"]["by"] == "cloud"


def test_a_run_is_forgotten_except_for_what_still_lives(bench: Bench) -> None:
    cloud = bench.cloud()
    gone, alive = bench.running(cloud), bench.running(cloud)
    cloud.terminate(gone.instance_id)
    cloud.forget(RUN)
    assert [each.instance_id for each in cloud.instances()] == [alive.instance_id]
    assert not cloud.folder(gone.instance_id).exists()
    assert cloud.folder(alive.instance_id).exists()


def test_a_cloud_where_nothing_was_ever_launched_is_empty_and_makes_no_folder(bench: Bench) -> None:
    assert bench.cloud().instances() == []
    assert not bench.root.exists()


def _notice(cloud: LocalDriver, instance: Instance) -> datetime | None:
    seen = cloud.describe(instance.instance_id)
    return seen and seen.notice_deadline


def _sleepers(bench: Bench) -> list[ProcessMark]:
    return [each for each in bench.processes() if b"sleep" in _command(each)]


def _command(process: ProcessMark) -> bytes:
    try:
        return Path(f"/proc/{process.pid}/comm").read_bytes()
    except OSError:
        return b""


def test_a_supervisor_imports_nothing_heavy() -> None:
    """It shares the machine with the training. On an idle machine it starts in 0.1 s of processor time."""
    code = "import sys, spotrun.clouds.local.supervisor as _; print(*sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    loaded = subprocess.run(
        [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    heavy = {
        "pydantic",
        "torch",
        "rich",
        "psutil",
        "fsspec",
        "obstore",
        "yaml",
        "asyncio",
        "boto3",
        "spotrun.spec.model",
    }
    assert heavy & set(loaded.stdout.split()) == set()
