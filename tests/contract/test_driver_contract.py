"""What every cloud driver must do. A new driver adds a bench here, and nothing else."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Protocol

import msgspec
import pytest
from msgspec import UNSET

from spotrun.clock import ScaledClock
from spotrun.clouds.aws.config import AwsConfig
from spotrun.clouds.aws.driver import AwsDriver
from spotrun.clouds.driver import CloudDriver
from spotrun.clouds.gcp.driver import GcpDriver
from spotrun.clouds.local.config import MarketConfig
from spotrun.clouds.local.driver import LocalDriver
from spotrun.clouds.slurm.commands import Programs
from spotrun.clouds.slurm.config import SlurmConfig
from spotrun.clouds.slurm.driver import SlurmDriver
from spotrun.errors import CloudError, LaunchTokenSpent
from spotrun.instance import EndedBy, Instance, InstanceState, LaunchRequest
from spotrun.offering import RENTED, CapacityType, Offering
from tests.support import ec2_machines, ec2_server, gce_launches, local_clouds, slurm_cluster, slurm_jobs, toy_cloud
from tests.support.ec2_server import Ec2Account
from tests.support.eventually import eventually
from tests.support.google_server import GoogleServer
from tests.support.launch_requests import requested
from tests.support.plain_google import PlainGoogle
from tests.support.slurm_cluster import NEEDS_SLURM, Cluster
from tests.support.slurm_queue import Partition, SlurmQueue
from tests.support.world.cloud import SimulatedCloud
from tests.support.world.timings import Timings
from tests.support.worlds import calm

OTHERS = ("aaaaaaaaaa", "bbbbbbbbbb")
"""Runs besides the one that most tests launch for."""


class Account(Protocol):
    """An empty account at one cloud."""

    has_gangs = False
    """Whether its driver can start members."""
    has_quotas = False
    """Whether its account limits what may run in a region."""
    short_life = timedelta(seconds=60)
    """A time-to-live that is over soon by the system's clock, and not before an instance can be seen."""

    def driver(self) -> CloudDriver:
        """A new driver object that has seen nothing yet."""

    def close(self) -> None:
        """Return everything that is still rented."""


class LocalAccount(Account):
    has_gangs = True

    def __init__(self, bench: local_clouds.Bench) -> None:
        self._bench = bench

    def driver(self) -> CloudDriver:
        market = MarketConfig(boot_s=3.0)
        return LocalDriver(self._bench.root, self._bench.clock, market, init=local_clouds.SLEEP)

    def close(self) -> None:
        self._bench.close()


class ToyAccount(Account):
    """A cloud from outside, over the local one's bench."""

    has_gangs = True

    def __init__(self, bench: local_clouds.Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        self._bench = bench
        monkeypatch.setenv(toy_cloud.FOLDER_VARIABLE, str(bench.root))

    def driver(self) -> CloudDriver:
        return toy_cloud.ToyDriver(self._bench.clock, MarketConfig(boot_s=3.0), init=local_clouds.SLEEP)

    def close(self) -> None:
        self._bench.close()


class AwsAccount(Account):
    has_quotas = True

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._clock = ScaledClock(datetime.now(UTC), 60.0)
        self._server = Ec2Account(self._clock)
        self._server.__enter__()
        self._server.reach(monkeypatch)
        self._server.furnish()
        for run_uid in OTHERS:
            self._server.identify(run_uid)
        self._server.image, self._server.tools = {"PATH": os.environ["PATH"]}, {"aws": ec2_machines.NO_STORE}

    def driver(self) -> CloudDriver:
        types = tuple(ec2_server.TYPES)
        config = AwsConfig(
            regions=(ec2_server.REGION,), instance_types=types, image_parameter=ec2_server.IMAGE_PARAMETER
        )
        return AwsDriver(config, self._clock)

    def close(self) -> None:
        self._server.__exit__()


class PlainGcpAccount(Account):
    """In this process. It forgets an instance as soon as that is deleted, as Google does."""

    has_quotas = True

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._clock = ScaledClock(datetime.now(UTC), 60.0)
        google = PlainGoogle(self._clock)
        google.project.accounts = None  # any
        google.reach(monkeypatch)

    def driver(self) -> CloudDriver:
        return GcpDriver(gce_launches.CONFIG, self._clock)

    def close(self) -> None:
        """There is nothing."""


class GcpAccount(PlainGcpAccount):
    """The same by HTTP."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._clock = ScaledClock(datetime.now(UTC), 60.0)
        self._server = GoogleServer(self._clock)
        gce_launches.reach(self._server, folder, monkeypatch)

    def close(self) -> None:
        self._server.__exit__()


class SlurmAccount(Account):
    """The cluster's programs on paper, or real ones of a cluster on this machine."""

    has_gangs = True

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, real: slurm_cluster.Cluster | None = None
    ) -> None:
        self._real = real
        if real is not None:
            self.short_life = timedelta(seconds=5)
        self._clock = ScaledClock(datetime.now(UTC), 60.0 if real is None else 1.0)
        partitions = [Partition(name, nodes=6) for name in ("cheap", "sure")]
        self._commands = SlurmQueue(self._clock, partitions) if real is None else Programs()
        self._scratch = folder
        monkeypatch.setenv("SPOTRUN_SLURM_LOGS", str(folder / "logs"))
        if real is not None:
            monkeypatch.setenv("SLURM_CONF", str(real.conf))

    def driver(self) -> CloudDriver:
        config = SlurmConfig(partitions=slurm_jobs.PARTITIONS, scratch=str(self._scratch))
        return SlurmDriver(config, self._clock, self._commands, init=local_clouds.SLEEP)

    def close(self) -> None:
        if self._real is not None:
            self._real.forget_jobs()


class SimulatedAccount(Account):
    """Its drivers are one object: a cloud without machines is its own account."""

    has_gangs = True

    def __init__(self) -> None:
        clock = ScaledClock(datetime.now(UTC), 600.0)
        self._cloud = SimulatedCloud(clock, calm(), Timings(pending_s=(3.0, 3.0)))

    def driver(self) -> CloudDriver:
        return self._cloud

    def close(self) -> None:
        """There is nothing."""


@pytest.fixture(scope="module")
def little_cluster() -> Iterator[Callable[[], Cluster]]:
    """A real one, from when it is first asked for until all tests of this file are over."""
    with contextlib.ExitStack() as held:
        yield cache(lambda: held.enter_context(slurm_cluster.cluster(nodes=6)))


@pytest.fixture
def opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, little_cluster: Callable[[], Cluster]
) -> Iterator[Callable[[str], Account]]:
    """An account of a name."""
    benches: dict[str, Callable[[], Account]] = {
        "local": lambda: LocalAccount(local_clouds.Bench(tmp_path / "cloud", monkeypatch)),
        "aws": lambda: AwsAccount(monkeypatch),
        "gcp": lambda: GcpAccount(tmp_path, monkeypatch),
        "plain gcp": lambda: PlainGcpAccount(monkeypatch),
        "simulated": SimulatedAccount,
        "toy": lambda: ToyAccount(local_clouds.Bench(tmp_path / "cloud", monkeypatch), monkeypatch),
        "slurm": lambda: SlurmAccount(tmp_path, monkeypatch),
        "cluster": lambda: SlurmAccount(tmp_path, monkeypatch, little_cluster()),
    }
    with contextlib.ExitStack() as stack:
        yield lambda name: stack.enter_context(contextlib.closing(benches[name]()))


TOY = pytest.param("toy", marks=pytest.mark.checks("tests/support/toy_cloud.py"))
"""It is here to check the example of a driver from outside, and calls the local cloud's driver."""
CLUSTER = pytest.param("cluster", marks=NEEDS_SLURM)


CLOUDS = ["local", "aws", "gcp", "plain gcp", "simulated", TOY, "slurm"]
NIGHTLY_ON_A_CLUSTER = pytest.mark.parametrize(
    "account", [*CLOUDS, pytest.param("cluster", marks=[NEEDS_SLURM, pytest.mark.nightly])], indirect=True
)
"""Where Slurm's programs on paper prove the same, and real ones take seconds."""


@pytest.fixture(params=[*CLOUDS, CLUSTER])
def account(request: pytest.FixtureRequest, opened: Callable[[str], Account]) -> Account:
    return opened(request.param)


def offering(driver: CloudDriver, capacity_type: CapacityType = CapacityType.SPOT) -> Offering:
    return next(each for each in driver.offerings() if each.capacity_type is capacity_type)


def seen(driver: CloudDriver, instance: Instance, state: InstanceState) -> Instance:
    def reached() -> Instance | None:
        found = driver.describe(instance.instance_id)
        return found if found is not None and found.state is state else None

    found = eventually(reached)
    assert found is not None
    return found


def test_offerings_name_their_cloud_and_spot_is_the_cheaper_kind(account: Account) -> None:
    driver = account.driver()
    offerings = driver.offerings()
    assert {each.cloud for each in offerings} == {driver.name}
    assert {each.capacity_type for each in offerings} == set(RENTED)
    on_demand = {
        (each.region, each.instance_type): each.price_usd_per_hour
        for each in offerings
        if each.capacity_type is CapacityType.ON_DEMAND
    }
    for each in offerings:
        assert 0 < each.price_usd_per_hour <= on_demand[each.region, each.instance_type]


@NIGHTLY_ON_A_CLUSTER
def test_spot_history_ends_with_the_price_of_the_offering_if_there_is_one(account: Account) -> None:
    driver = account.driver()
    spot = offering(driver)
    history = [*driver.spot_history(spot, datetime.now(UTC))]
    assert history == sorted(history, key=lambda each: each.since)
    assert [each.usd_per_hour for each in history[-1:]] in ([], [spot.price_usd_per_hour])


def test_pools_of_a_type_in_a_region_have_one_quota_and_spot_another(account: Account) -> None:
    quotas: dict[tuple[str, str], dict[CapacityType, set[object]]] = {}
    for each in account.driver().offerings():
        of_type = quotas.setdefault((each.region, each.instance_type), {kind: set() for kind in RENTED})
        of_type[each.capacity_type].add(each.quota)
    for of_type in quotas.values():
        (spot,), (on_demand,) = (of_type[kind] for kind in (CapacityType.SPOT, CapacityType.ON_DEMAND))
        assert (spot is UNSET, on_demand is UNSET, spot == on_demand) == ((not account.has_quotas,) * 3)


@pytest.mark.parametrize("capacity_type", RENTED)
def test_a_launched_instance_is_what_was_asked_for_and_comes_to_run(
    account: Account, capacity_type: CapacityType
) -> None:
    driver = account.driver()
    request = requested(offering(driver, capacity_type), launch=17)
    instance = driver.launch(request)
    assert instance.state in (InstanceState.PENDING, InstanceState.RUNNING)
    assert (instance.token, instance.run_uid, instance.launch) == (request.token, request.run_uid, 17)
    assert instance.offering.pool == request.offering.pool
    running = seen(driver, instance, InstanceState.RUNNING)
    assert running.alive
    assert running.launched_at.utcoffset() == timedelta()


def test_the_meter_runs_from_the_start_and_stops_at_the_end(account: Account) -> None:
    driver = account.driver()
    launched = driver.launch(requested(offering(driver)))
    running = seen(driver, launched, InstanceState.RUNNING)
    assert running.billed_from is not None
    assert running.billed_from >= running.launched_at
    assert [segment.since for segment in running.prices] == [running.billed_from]
    assert running.prices[0].usd_per_hour > 0
    driver.terminate(launched.instance_id)
    ended = seen(driver, launched, InstanceState.TERMINATED)
    assert ended.billed_from == running.billed_from
    assert ended.ended_at is not None
    assert ended.ended_at >= running.billed_from


def test_a_repeated_launch_returns_the_same_instance(account: Account) -> None:
    driver = account.driver()
    request = requested(offering(driver))
    first = driver.launch(request)
    assert driver.launch(request).instance_id == first.instance_id
    seen(driver, first, InstanceState.RUNNING)
    assert account.driver().launch(request).instance_id == first.instance_id
    assert len(driver.instances()) == 1


@NIGHTLY_ON_A_CLUSTER
def test_racing_launches_with_one_token_start_one_instance(account: Account) -> None:
    request = requested(offering(account.driver()))
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: account.driver().launch(request), range(8)))
    assert len({instance.instance_id for instance in answers}) == 1
    assert len(account.driver().instances()) == 1


def test_another_token_is_another_instance(account: Account) -> None:
    driver = account.driver()
    first = driver.launch(requested(offering(driver), token="a"))
    second = driver.launch(requested(offering(driver), token="b"))
    assert first.instance_id != second.instance_id
    assert {each.instance_id for each in driver.instances()} == {first.instance_id, second.instance_id}


def test_a_token_used_for_another_request_is_refused(account: Account) -> None:
    driver = account.driver()
    driver.launch(requested(offering(driver, CapacityType.SPOT)))
    with pytest.raises(CloudError):
        driver.launch(requested(offering(driver, CapacityType.ON_DEMAND)))
    assert len(driver.instances()) == 1


def test_a_new_driver_ends_what_an_old_one_launched(account: Account) -> None:
    driver = account.driver()
    instance = driver.launch(requested(offering(driver)))
    account.driver().terminate(instance.instance_id)
    ended = seen(account.driver(), instance, InstanceState.TERMINATED)
    assert not ended.alive
    assert ended.ended_by is EndedBy.USER


def test_ending_twice_or_something_unknown_is_harmless(account: Account) -> None:
    driver = account.driver()
    instance = driver.launch(requested(offering(driver)))
    driver.terminate(instance.instance_id)
    driver.terminate(instance.instance_id)
    ended = seen(driver, instance, InstanceState.TERMINATED)
    driver.terminate(instance.instance_id)
    driver.terminate("i-00000000000000000")
    assert driver.describe(instance.instance_id) == ended


def test_the_token_of_a_terminated_instance_is_spent(account: Account) -> None:
    driver = account.driver()
    request = requested(offering(driver))
    instance = driver.launch(request)
    driver.terminate(instance.instance_id)
    seen(driver, instance, InstanceState.TERMINATED)
    with pytest.raises(LaunchTokenSpent):
        account.driver().launch(request)
    assert not [each for each in driver.instances() if each.alive]


def test_an_unknown_instance_is_none(account: Account) -> None:
    assert account.driver().describe("i-00000000000000000") is None
    assert account.driver().describe("../../etc") is None
    assert account.driver().instances() == []


def test_instances_are_listed_by_run(account: Account) -> None:
    driver = account.driver()
    mine = driver.launch(requested(offering(driver), token="a", run_uid=OTHERS[0]))
    driver.launch(requested(offering(driver), token="b", run_uid=OTHERS[1]))
    assert [each.instance_id for each in account.driver().instances(OTHERS[0])] == [mine.instance_id]
    assert len(account.driver().instances()) == 2
    assert account.driver().instances("cccccccccc") == []


def test_unavailable_type_is_refused_and_starts_nothing(account: Account) -> None:
    driver = account.driver()
    unknown = msgspec.structs.replace(offering(driver), instance_type="x99.huge")
    with pytest.raises(CloudError):
        driver.launch(requested(unknown))
    assert driver.instances() == []


def test_an_instance_ends_by_itself_when_its_time_to_live_is_over(account: Account) -> None:
    driver = account.driver()
    request = requested(offering(driver), time_to_live=account.short_life)
    ended = seen(driver, driver.launch(request), InstanceState.TERMINATED)
    assert ended.ended_by is EndedBy.TIME_TO_LIVE
    assert ended.ended_at is not None
    assert ended.ended_at - ended.launched_at >= account.short_life


def test_a_driver_that_starts_instances_one_by_one_says_so_and_starts_none_of_a_gang(account: Account) -> None:
    if account.has_gangs:
        return
    driver = account.driver()
    for count in (1, 3):
        with pytest.raises(CloudError, match="starts single instances") as refused:
            driver.launch(msgspec.structs.replace(requested(offering(driver)), count=count))
        assert type(refused.value) is CloudError
        assert refused.value.hint is not None
    assert driver.instances() == []


@pytest.fixture(params=["local", TOY, "simulated", "slurm", CLUSTER])
def of_gangs(request: pytest.FixtureRequest, opened: Callable[[str], Account]) -> Account:
    """One whose driver starts members."""
    return opened(request.param)


def gang_of_three(driver: CloudDriver, token: str = "token-1") -> LaunchRequest:
    return msgspec.structs.replace(requested(offering(driver), token=token, launch=17), count=3)


def test_members_come_together_each_with_an_index_and_an_address(of_gangs: Account) -> None:
    driver = of_gangs.driver()
    request = gang_of_three(driver)
    first = driver.launch(request)
    members = sorted(driver.instances(), key=lambda each: each.member)
    assert first.instance_id == members[0].instance_id
    assert [each.member for each in members] == [0, 1, 2]
    assert {(each.token, each.run_uid, each.launch) for each in members} == {(request.token, request.run_uid, 17)}
    running = [seen(driver, each, InstanceState.RUNNING) for each in members]
    assert len({each.address for each in running} - {""}) == 3
    assert {each.address for each in members} <= {"", *(each.address for each in running)}


def test_a_repeated_launch_finds_the_same_members(of_gangs: Account) -> None:
    driver = of_gangs.driver()
    request = gang_of_three(driver)
    first = driver.launch(request)
    before = {each.instance_id for each in driver.instances()}
    assert of_gangs.driver().launch(request).instance_id == first.instance_id
    assert {each.instance_id for each in driver.instances()} == before
    assert len(before) == 3
    with pytest.raises(CloudError):
        driver.launch(msgspec.structs.replace(request, count=2))


def test_racing_launches_with_one_token_start_its_members_once(of_gangs: Account) -> None:
    request = gang_of_three(of_gangs.driver())
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: of_gangs.driver().launch(request), range(4)))
    assert len({instance.instance_id for instance in answers}) == 1
    assert len(of_gangs.driver().instances()) == 3


def test_members_of_two_launches_have_addresses_of_their_own(of_gangs: Account) -> None:
    driver = of_gangs.driver()
    for token in ("a", "b"):
        driver.launch(gang_of_three(driver, token))
    running = [seen(driver, each, InstanceState.RUNNING) for each in driver.instances()]
    assert len({each.address for each in running} - {""}) == 6


def test_one_member_is_ended_alone_and_the_token_is_spent_with_the_last(of_gangs: Account) -> None:
    driver = of_gangs.driver()
    request = gang_of_three(driver)
    first = driver.launch(request)
    members = driver.instances()
    driver.terminate(first.instance_id)
    seen(driver, first, InstanceState.TERMINATED)
    others = [each for each in members if each.instance_id != first.instance_id]
    for each in others:
        assert seen(driver, each, InstanceState.RUNNING).alive
    assert of_gangs.driver().launch(request).instance_id == first.instance_id
    for each in others:
        driver.terminate(each.instance_id)
        seen(driver, each, InstanceState.TERMINATED)
    with pytest.raises(LaunchTokenSpent):
        driver.launch(request)


def test_unavailable_type_starts_no_member(of_gangs: Account) -> None:
    driver = of_gangs.driver()
    unknown = msgspec.structs.replace(offering(driver), instance_type="x99.huge")
    with pytest.raises(CloudError):
        driver.launch(msgspec.structs.replace(requested(unknown), count=3))
    assert driver.instances() == []


def test_healthy_cloud_is_listed_whole_without_a_remark(account: Account) -> None:
    driver = account.driver()
    launched = driver.launch(requested(offering(driver)))
    for must_see in (None, (), (launched.offering.region,), (launched.offering.zone,)):
        assert {each.pool for each in driver.offerings(must_see)} >= {launched.offering.pool}
        assert [each.instance_id for each in driver.instances(launched.run_uid, must_see)] == [launched.instance_id]
    assert driver.remarks == ()
