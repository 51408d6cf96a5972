"""Members of a gang on the local cloud: all of a launch come, or none, and each can be reached at its own address."""

from __future__ import annotations

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from urllib.request import Request, urlopen

import pytest
from msgspec.structs import replace

from spotrun.clouds.local import members, processes
from spotrun.clouds.local.driver import LocalDriver
from spotrun.clouds.local.metadata import TOKEN_HEADER, TOKEN_PATH, TOKEN_TTL_HEADER
from spotrun.clouds.local.records import CloudPaths, Record, RecordFolder, instance_id_of
from spotrun.errors import CloudUnavailable, InsufficientCapacity, LaunchTokenSpent
from spotrun.instance import EndedBy, Instance, InstanceState, LaunchRequest
from spotrun.offering import CapacityType
from spotrun.spec.market_script import Action
from spotrun.store.atomic_write import write_atomically
from tests.support.eventually import eventually
from tests.support.local_clouds import RUN, Bench, launcher, until
from tests.support.local_markets import step


def gang(bench: Bench, cloud: LocalDriver, count: int = 3, **fields: object) -> LaunchRequest:
    return replace(bench.request(cloud, **fields), count=count)


def living(cloud: LocalDriver) -> list[Instance]:
    return [each for each in cloud.instances() if each.alive]


def events(bench: Bench, event: str) -> list[str]:
    lines = [json.loads(line) for line in CloudPaths(bench.root).log.read_text().splitlines()]
    return [line["instance_id"] for line in lines if line["event"] == event]


def test_member_receives_its_index_and_its_address(bench: Bench) -> None:
    cloud = bench.cloud(init=["sh", "-c", "env > environment; exec sleep 1000"])
    first = cloud.launch(gang(bench, cloud))
    for each in cloud.instances():
        until(cloud, each, InstanceState.RUNNING)
        assert each.address == f"127.77.{first.launch}.{each.member}"
        told = cloud.folder(each.instance_id) / "environment"
        eventually(lambda told=told: told.exists() and "SPOTRUN_MEMBER=" in told.read_text())
        assert f"SPOTRUN_MEMBER={each.member}\n" in told.read_text()


def test_an_instance_on_its_own_is_no_member(bench: Bench) -> None:
    cloud = bench.cloud(init=["sh", "-c", "env > environment; echo > ready; exec sleep 1000"])
    alone = bench.running(cloud)
    eventually(lambda: (cloud.folder(alone.instance_id) / "ready").exists())
    assert "SPOTRUN_MEMBER" not in (cloud.folder(alone.instance_id) / "environment").read_text()
    assert alone.address == ""


# -- all or none -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after_s", [0.15, 0.3, 0.45, 0.6, 0.75, 0.9, 1.1, 1.4])
def test_a_launcher_that_is_killed_anywhere_leaves_none_or_three(bench: Bench, after_s: float) -> None:
    cloud = bench.cloud()
    request = gang(bench, cloud)
    with launcher(bench, request) as other:
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(after_s)
        other.kill()
    assert len(cloud.instances()) in (0, 3)
    first = cloud.launch(request)
    assert first.instance_id == instance_id_of(request.token)
    for each in cloud.instances():
        until(cloud, each, InstanceState.RUNNING)
    assert len(living(cloud)) == 3
    assert len(set(events(bench, "launched"))) == 3


@pytest.fixture
def begun(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> tuple[LocalDriver, LaunchRequest]:
    """A launch whose launcher died when the first of three members had its supervisor."""
    cloud = bench.cloud(boot_s=0)
    request = gang(bench, cloud)
    begin = subprocess.Popen
    left = [begin]

    def die_after_one(*arguments: object, **options: object) -> object:
        if not left:
            raise OSError("the launcher dies here")
        return left.pop()(*arguments, **options)  # type: ignore[call-overload]

    with monkeypatch.context() as patch:
        patch.setattr("spotrun.clouds.local.launching.subprocess.Popen", die_after_one)
        with pytest.raises(CloudUnavailable):
            cloud.launch(request)
    return cloud, request


def first_record(cloud: LocalDriver, request: LaunchRequest) -> Instance:
    record = cloud.record(instance_id_of(request.token))
    assert record is not None
    assert record.supervisor is not None
    assert processes.is_alive(record.supervisor) is not record.ended
    return record.instance


def test_while_members_are_missing_none_is_shown_and_none_costs(begun: tuple[LocalDriver, LaunchRequest]) -> None:
    cloud, request = begun
    assert cloud.instances() == []
    assert cloud.describe(instance_id_of(request.token)) is None
    assert first_record(cloud, request).state is InstanceState.PENDING
    until(cloud, cloud.launch(request), InstanceState.RUNNING)
    assert len(living(cloud)) == 3


def test_of_a_launch_that_is_given_up_nothing_is_left(
    begun: tuple[LocalDriver, LaunchRequest], bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud, request = begun
    monkeypatch.setattr(members, "GIVEN_UP_AFTER_S", 0.0)
    ended = eventually(lambda: found if len(found := cloud.instances()) == 3 else None)
    assert ended is not None
    assert {(each.state, each.ended_by, each.billed_from) for each in ended} == {
        (InstanceState.TERMINATED, EndedBy.FAULT, None)
    }
    eventually(lambda: not bench.processes())
    with pytest.raises(LaunchTokenSpent):
        cloud.launch(request)


def test_a_member_that_ends_before_all_are_there_takes_the_others_with_it(
    begun: tuple[LocalDriver, LaunchRequest], bench: Bench
) -> None:
    cloud, request = begun
    cloud.terminate(instance_id_of(request.token))
    with pytest.raises(LaunchTokenSpent):
        cloud.launch(request)
    eventually(lambda: not bench.processes())
    assert living(cloud) == []


def test_an_empty_folder_of_one_member_is_completed_by_a_repeat(bench: Bench) -> None:
    cloud = bench.cloud()
    request = gang(bench, cloud)
    folder = CloudPaths(bench.root).record_folder(instance_id_of(request.token, 1))
    assert folder is not None
    folder.create()
    assert cloud.instances() == []
    cloud.launch(request)
    assert len(living(cloud)) == 3


def test_a_launcher_that_dies_while_members_are_accepted_leaves_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud = bench.cloud()
    request = gang(bench, cloud)
    write = RecordFolder.write

    def die_at_the_first(folder: RecordFolder, record: Record) -> None:
        if record.instance.member == 0:
            raise OSError("the launcher dies here")
        write(folder, record)

    with monkeypatch.context() as patch:
        patch.setattr(RecordFolder, "write", die_at_the_first)
        with pytest.raises(CloudUnavailable):
            cloud.launch(request)
    assert cloud.instances() == []
    monkeypatch.setattr(members, "GIVEN_UP_AFTER_S", 0.0)
    assert {(each.state, each.billed_from) for each in cloud.instances()} == {(InstanceState.TERMINATED, None)}
    with pytest.raises(LaunchTokenSpent):
        cloud.launch(request)


def test_records_of_a_first_member_stay_while_another_lives(bench: Bench) -> None:
    cloud = bench.cloud()
    first = cloud.launch(gang(bench, cloud))
    cloud.terminate(first.instance_id)
    until(cloud, first, InstanceState.TERMINATED)
    cloud.forget(RUN)
    assert len(living(cloud)) == 2
    for each in living(cloud):
        cloud.terminate(each.instance_id)
        until(cloud, each, InstanceState.TERMINATED)
    cloud.forget(RUN)
    assert cloud.instances() == []


# -- what a script does to members -------------------------------------------------------------------------------------


def trains(cloud: LocalDriver, instance: Instance, **status: object) -> None:
    told = {"phase": "train", "epoch": 0, "batch": 0, "batches": 10, "step": 0, "upload": None, **status}
    write_atomically(cloud.folder(instance.instance_id) / "status.json", json.dumps(told).encode())


def running_gang(bench: Bench, cloud: LocalDriver) -> list[Instance]:
    cloud.launch(gang(bench, cloud))
    return [until(cloud, each, InstanceState.RUNNING) for each in cloud.instances()]


def test_one_member_is_taken_and_the_others_stay(bench: Bench) -> None:
    cloud = bench.cloud(script=(step("epoch 2 at 0%", Action.INTERRUPT, None),))
    members = running_gang(bench, cloud)
    for each in members:
        trains(cloud, each, epoch=1)
    eventually(lambda: len(living(cloud)) < 3)
    eventually(lambda: len(events(bench, "ended")) == 1)
    assert len(living(cloud)) == 2


def test_two_members_are_taken_in_one_moment_once_two_train(bench: Bench) -> None:
    cloud = bench.cloud(script=(step("epoch 2 at 0%", Action.INTERRUPT, 120, members=2),))
    first, second, third = running_gang(bench, cloud)
    trains(cloud, first, epoch=1)
    path = CloudPaths(bench.root).market(RUN)
    eventually(lambda: path.with_suffix(".lock").exists())  # the first of them has looked for a second
    assert not path.exists()
    trains(cloud, third, epoch=0)
    for each in (first, third):
        assert until(cloud, each, InstanceState.TERMINATED).ended_by is EndedBy.CLOUD
    ends = [found.notice_deadline for each in (first, third) if (found := cloud.describe(each.instance_id)) is not None]
    assert ends[0] == ends[1]
    assert [each.instance_id for each in living(cloud)] == [second.instance_id]


def test_cut_off_member_gets_another_address_and_lives_on(bench: Bench) -> None:
    cloud = bench.cloud(script=(step("epoch 2 at 0%", Action.CUT_OFF),))
    members = running_gang(bench, cloud)
    trains(cloud, members[1], epoch=1)
    before = members[1].address

    def moved() -> str | None:
        seen = cloud.describe(members[1].instance_id)
        return seen.address if seen is not None and seen.address != before else None

    assert eventually(moved) == before.replace("127.77.", "127.78.")
    assert {each.address for each in living(cloud)} >= {members[0].address, members[2].address}
    assert told_address(cloud, members[1]) == before.replace("127.77.", "127.78.")
    assert told_address(cloud, members[0]) == members[0].address


def told_address(cloud: LocalDriver, instance: Instance) -> str:
    """What its metadata tells it."""
    record = cloud.record(instance.instance_id)
    assert record is not None
    assert record.metadata_endpoint is not None
    asked = Request(record.metadata_endpoint.rstrip("/") + TOKEN_PATH, method="PUT", headers={TOKEN_TTL_HEADER: "3600"})
    with urlopen(asked, timeout=10) as answer:
        token = answer.read().decode()
    path = "latest/meta-data/local-ipv4"
    with urlopen(Request(record.metadata_endpoint + path, headers={TOKEN_HEADER: token}), timeout=10) as answer:
        return str(answer.read().decode())


# -- room --------------------------------------------------------------------------------------------------------------


def test_more_members_than_a_pool_has_room_for_are_refused_and_leave_nothing(bench: Bench) -> None:
    cloud = bench.cloud(capacity=3)
    with pytest.raises(InsufficientCapacity):
        cloud.launch(gang(bench, cloud, 4))
    assert cloud.instances() == []
    assert [*CloudPaths(bench.root).record_folders()] == []
    cloud.launch(gang(bench, cloud, 3))
    for request in (gang(bench, cloud, 1), bench.request(cloud)):
        with pytest.raises(InsufficientCapacity):
            cloud.launch(request)
    on_demand = cloud.launch(bench.request(cloud, CapacityType.ON_DEMAND))
    assert len(living(cloud)) == 4
    assert on_demand.alive


def test_launches_that_race_for_room_share_no_place(bench: Bench) -> None:
    cloud = bench.cloud(capacity=3)
    requests = [gang(bench, cloud, 2) for _ in range(4)]

    def launched(request: LaunchRequest) -> bool:
        try:
            return bench.cloud(capacity=3).launch(request).alive
        except InsufficientCapacity:
            return False

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(launched, requests)) == [False, False, False, True]
    assert len(living(cloud)) == 2


def test_there_is_room_again_for_as_many_as_are_gone(bench: Bench) -> None:
    cloud = bench.cloud(capacity=3)
    first = cloud.launch(gang(bench, cloud, 3))
    cloud.terminate(first.instance_id)
    until(cloud, first, InstanceState.TERMINATED)
    with pytest.raises(InsufficientCapacity):
        cloud.launch(gang(bench, cloud, 2))
    cloud.launch(gang(bench, cloud, 1))
    assert len(living(cloud)) == 3


def test_a_launch_that_was_given_up_takes_no_room(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, begun: tuple[LocalDriver, LaunchRequest]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(members, "GIVEN_UP_AFTER_S", 0.0)
        eventually(lambda: len(begun[0].instances()) == 3)
    cloud = bench.cloud(capacity=3)
    cloud.launch(gang(bench, cloud, 3, time_to_live=timedelta(hours=1)))
    assert len(living(cloud)) == 3
