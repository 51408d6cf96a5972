"""EC2 as it fails: tests are named for the rows (P3, P6, ...) of a catalogue of what users of such tools have met."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import boto3
import pytest
from moto.ec2.models import ec2_backends
from msgspec.structs import replace

from spotrun.clouds.aws.calls import Region
from spotrun.clouds.aws.catalog import SURROUNDINGS_FOR_S
from spotrun.clouds.aws.driver import QUOTA_HELD_FOR, AwsDriver
from spotrun.clouds.aws.error_codes import TokenReused
from spotrun.clouds.error_kinds import BadImage, CredentialsExpired
from spotrun.clouds.patience import ATTEMPTS_MAX, PATIENT, PAUSE_MAX_S
from spotrun.errors import CloudError, CloudUnavailable, IdentityUnknown, LaunchTokenSpent, LoginExpired, QuotaExceeded
from spotrun.instance import EndedBy, InstanceState
from spotrun.offering import CapacityType
from spotrun.policy import Append
from spotrun.run.events import LaunchIntended
from tests.support import aws_launches
from tests.support.aws_launches import Login, count, launches, request
from tests.support.ec2_run import Ec2Run
from tests.support.ec2_server import ACCOUNT, IMAGE_PARAMETER, REGION, ZONES
from tests.support.guarded_account import GuardedAccount
from tests.support.manual_clock import ManualClock

SPOT, ON_DEMAND = CapacityType.SPOT, CapacityType.ON_DEMAND
INTERRUPTED = "Server.SpotInstanceTermination"


def driver(clock: ManualClock | None = None) -> AwsDriver:
    """One that has seen nothing yet."""
    return AwsDriver(aws_launches.CONFIG, clock or ManualClock(datetime.now(UTC)))


# -- asking ----------------------------------------------------------------------------------------------------------


def test_p3_a_zone_without_a_subnet_is_not_offered(account: GuardedAccount) -> None:
    with account.as_administrator():
        ec2 = boto3.client("ec2")
        inside = [{"Name": "availability-zone", "Values": [ZONES[1]]}]
        ec2.delete_subnet(SubnetId=ec2.describe_subnets(Filters=inside)["Subnets"][0]["SubnetId"])
    zones = {each.zone for each in driver().offerings()}
    assert ZONES[0] in zones
    assert ZONES[1] not in zones


@pytest.mark.parametrize("action", ["RunInstances", "DescribeInstances", "TerminateInstances"])
def test_p6_every_wait_has_an_end(account: GuardedAccount, action: str) -> None:
    clock = ManualClock(datetime.now(UTC))
    cloud = driver(clock)
    instance = cloud.launch(request(cloud, token="a"))
    account.calls.clear()
    account.refuse(action, "RequestLimitExceeded", 503, times=100)
    began_s = clock.monotonic()
    with pytest.raises(CloudUnavailable):
        {
            "RunInstances": lambda: cloud.launch(request(cloud, token="b")),
            "DescribeInstances": cloud.instances,
            "TerminateInstances": lambda: cloud.terminate(instance.instance_id),
        }[action]()
    assert count(account, action) == ATTEMPTS_MAX
    assert clock.monotonic() - began_s <= ATTEMPTS_MAX * PAUSE_MAX_S
    assert PATIENT.connect_s + PATIENT.read_s < 60


def test_p4_p5_a_quota_that_another_market_holds_is_not_waited_for(account: GuardedAccount, cloud: AwsDriver) -> None:
    cloud.terminate(cloud.launch(request(cloud, SPOT)).instance_id)
    account.refuse("RunInstances", "VcpuLimitExceeded", 400)
    with pytest.raises(QuotaExceeded):
        cloud.launch(request(cloud, ON_DEMAND, token="0123456789-8"))


def test_p5_after_five_minutes_a_quota_is_final(account: GuardedAccount) -> None:
    clock = ManualClock(datetime.now(UTC))
    cloud = driver(clock)
    cloud.terminate(cloud.launch(request(cloud)).instance_id)
    for waited, error in ((timedelta(0), CloudUnavailable), (QUOTA_HELD_FOR + timedelta(minutes=5), QuotaExceeded)):
        clock.advance(waited.total_seconds())
        account.refuse("RunInstances", "MaxSpotInstanceCountExceeded", 400)
        with pytest.raises(error):
            cloud.launch(request(cloud, token="0123456789-8"))


def test_p14_a_missing_instance_profile_fails_once_in_the_words_of_ec2(
    account: GuardedAccount, cloud: AwsDriver
) -> None:
    somebodys = AwsDriver(replace(aws_launches.CONFIG, instance_profile="somebodys"), ManualClock(datetime.now(UTC)))
    with (
        account.as_administrator(),
        pytest.raises(IdentityUnknown, match=r"\(somebodys\).*Invalid IAM Instance Profile"),
    ):
        somebodys.launch(request(cloud))
    assert len(launches(account)) == 1


def test_p14_another_invalid_parameter_fails_once_in_the_words_of_ec2(
    account: GuardedAccount, cloud: AwsDriver
) -> None:
    account.refuse("RunInstances", "InvalidParameterValue", 400)
    with pytest.raises(CloudError, match="InvalidParameterValue: by the test") as raised:
        cloud.launch(request(cloud))
    assert not isinstance(raised.value, IdentityUnknown)
    assert len(launches(account)) == 1


@pytest.mark.parametrize("trouble", ["no parameter", "no group", "a second group", "no right to ask"])
def test_unreadable_surroundings_stay_as_last_read_and_a_remark_says_so(account: GuardedAccount, trouble: str) -> None:
    run = Ec2Run(account)
    runner = run.runner()
    for _ in range(2):
        run.ticks(runner)
    run.agent().trains_on()
    (trains,) = run.instances()
    run.clock.advance(SURROUNDINGS_FOR_S)
    with account.as_administrator():
        _spoil(account, trouble)
    tick = runner.tick()
    assert tick.blind is None
    assert f" of {REGION}: the last known value is used, because " in (tick.remark or "")
    account.end(trains, INTERRUPTED)
    for _ in range(3):
        run.ticks(runner)
    assert run.state.terminal is None
    can_launch = trouble != "no group"
    assert bool(run.instances()) is can_launch, "another one is asked for with what is known"
    account.denied.clear()


def _spoil(account: GuardedAccount, trouble: str) -> None:
    ec2 = boto3.client("ec2")
    if trouble == "no parameter":
        boto3.client("ssm").delete_parameter(Name=IMAGE_PARAMETER)
    elif trouble == "no group":
        (group,) = ec2.describe_security_groups(GroupNames=["spotrun-node"])["SecurityGroups"]
        ec2_backends[ACCOUNT][REGION].groups[group["VpcId"]].pop(group["GroupId"])  # although an instance has it
    elif trouble == "a second group":
        elsewhere = ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
        ec2.create_security_group(GroupName="spotrun-node", Description="another", VpcId=elsewhere)
    else:
        for action in ("DescribeSecurityGroups", "DescribeSubnets", "GetParameter"):
            account.refuse(action, "UnauthorizedOperation", 403)


def test_p21_a_deleted_image_is_looked_up_again(account: GuardedAccount, cloud: AwsDriver) -> None:
    old = request(cloud)
    newer = _publish_another_image(account)
    account.refuse("RunInstances", "InvalidAMIID.NotFound", 400)
    with pytest.raises(BadImage):
        cloud.launch(old)
    anew = request(cloud)
    assert anew.offering.image == newer != old.offering.image
    assert cloud.launch(anew).alive


def test_p21_a_newest_image_that_never_trains_is_left_for_the_one_that_did(account: GuardedAccount) -> None:
    run = Ec2Run(account)
    runner = run.runner()
    for _ in range(2):
        run.ticks(runner)
    run.agent()
    newer = _publish_another_image(account)
    run.clock.advance(SURROUNDINGS_FOR_S)
    for reason in (INTERRUPTED, "Client.InstanceInitiatedShutdown", INTERRUPTED):
        run.clock.advance(90)
        account.end(_alive(account), reason)
        run.ticks(runner)
        run.ticks(runner)
    first, second, third, fourth = launches(account)
    assert second["ImageId"] == newer != first["ImageId"], "the newest is tried"
    assert third["ImageId"] == fourth["ImageId"] == first["ImageId"], "and not again"
    intents = [launch.intent for launch in run.state.launches.values()]
    assert [intent.offering.image for intent in intents] == [asked["ImageId"] for asked in launches(account)]
    assert f"as {newer} has failed" in intents[2].reason


# -- tokens ----------------------------------------------------------------------------------------------------------


def test_p9_what_a_crash_left_unrecorded_is_found_by_its_token(account: GuardedAccount, cloud: AwsDriver) -> None:
    asked = request(cloud)
    for _ in range(ATTEMPTS_MAX):
        account.lose_answer("RunInstances")
    with pytest.raises(CloudUnavailable):
        cloud.launch(asked)
    (found,) = driver().instances(asked.run_uid)
    assert (found.token, found.launch) == (asked.token, asked.launch)
    assert driver().launch(asked).instance_id == found.instance_id


def test_p11_a_token_with_our_own_newer_image_is_still_its_instance(account: GuardedAccount, cloud: AwsDriver) -> None:
    asked = request(cloud)
    first = cloud.launch(asked)
    newer = replace(asked, offering=replace(asked.offering, image=_publish_another_image(account)))
    assert driver().launch(newer).instance_id == first.instance_id
    assert len(driver().instances()) == 1


def test_p11_p12_nor_does_a_newer_image_raise_the_dead(account: GuardedAccount, cloud: AwsDriver) -> None:
    asked = request(cloud)
    cloud.terminate(cloud.launch(asked).instance_id)
    with pytest.raises(LaunchTokenSpent):
        driver().launch(asked)
    newer = replace(asked, offering=replace(asked.offering, image=_publish_another_image(account)))
    with pytest.raises(LaunchTokenSpent):
        driver().launch(newer)
    assert not [each for each in driver().instances() if each.alive]


def test_p13_a_token_is_for_one_zone(account: GuardedAccount, cloud: AwsDriver) -> None:
    asked = request(cloud)
    other = next(
        each
        for each in cloud.offerings()
        if each.capacity_type is SPOT
        and each.instance_type == asked.offering.instance_type
        and each.zone != asked.offering.zone
    )
    cloud.launch(asked)
    with pytest.raises(TokenReused):
        cloud.launch(replace(asked, offering=other))
    assert len(cloud.instances()) == 1


# -- looking ---------------------------------------------------------------------------------------------------------


def test_p7_an_instance_that_is_not_seen_yet_is_unknown_and_not_dead(account: GuardedAccount, cloud: AwsDriver) -> None:
    instance = cloud.launch(request(cloud))
    with account.unseen(instance.instance_id):
        assert driver().describe(instance.instance_id) is None
        driver().terminate(instance.instance_id)
    seen = driver().describe(instance.instance_id)
    assert seen is not None
    assert seen.alive
    driver().terminate(instance.instance_id)
    assert not [each for each in driver().instances() if each.alive]


def test_p16_throttling_is_not_an_answer(account: GuardedAccount, cloud: AwsDriver) -> None:
    instance = cloud.launch(request(cloud))
    account.refuse("DescribeInstances", "RequestLimitExceeded", 503, times=ATTEMPTS_MAX)
    with pytest.raises(CloudUnavailable):
        cloud.describe(instance.instance_id)
    assert cloud.describe(instance.instance_id) is not None


def test_p17_p18_tags_come_with_the_launch_and_others_do_not_matter(account: GuardedAccount, cloud: AwsDriver) -> None:
    instance = cloud.launch(request(cloud))
    assert count(account, "CreateTags") == 0
    with account.as_administrator():
        boto3.client("ec2").create_tags(Resources=[instance.instance_id], Tags=[{"Key": "Name", "Value": "mine"}])
        boto3.client("ec2").delete_tags(Resources=[instance.instance_id], Tags=[{"Key": "spotrun:launch"}])
    (seen,) = driver().instances(instance.run_uid)
    assert (seen.instance_id, seen.token) == (instance.instance_id, instance.token)


def test_p19_p20_no_spot_request_outlives_its_launch(account: GuardedAccount, cloud: AwsDriver) -> None:
    cloud.launch(request(cloud))
    assert launches(account)[0]["InstanceMarketOptions.SpotOptions.SpotInstanceType"] == "one-time"
    assert count(account, "RequestSpotInstances") == count(account, "CreateFleet") == 0


@pytest.mark.parametrize("code", ["ExpiredToken", "RequestExpired", "ExpiredTokenException"])
def test_p26_expired_credentials_are_a_passing_blindness(account: GuardedAccount, cloud: AwsDriver, code: str) -> None:
    cloud.launch(request(cloud))
    account.refuse("DescribeInstances", code, 400)
    with pytest.raises(CredentialsExpired) as raised:
        cloud.instances()
    assert "log in again" in str(raised.value.hint)
    assert [each.alive for each in cloud.instances()] == [True]


def test_p26_no_client_outlives_its_credentials(account: GuardedAccount) -> None:
    region = Region(REGION, ManualClock(datetime.now(UTC)))
    names = ("ec2", "ssm", "sts", "quotas", "scheduler", "iam", "pricing")
    before = {name: getattr(region, name) for name in names}
    account.refuse("DescribeInstances", "ExpiredToken", 400)
    with pytest.raises(CredentialsExpired):
        region.ask("look", lambda: region.ec2.describe_instances())
    assert [name for name in names if getattr(region, name) is before[name]] == []


def test_p26_credentials_that_were_renewed_meanwhile_are_used(
    account: GuardedAccount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_in = Login(tmp_path, monkeypatch)
    clock = ManualClock(datetime.now(UTC))
    cloud = driver(clock)
    log_in("FIRST")
    cloud.instances()
    account.expired = {"FIRST"}
    clock.advance(60)
    with pytest.raises(CredentialsExpired):
        cloud.instances()
    assert account.keys[-1] == "FIRST"
    log_in("SECOND")
    cloud.instances()
    assert account.keys[-1] == "SECOND"


def test_p26_a_day_of_expired_credentials_kills_nothing(
    account: GuardedAccount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Nor does the time-to-live of an instance that was soon to be replaced. Half of the day the store is out of reach
    too; then it is elsewhere, and only the cloud cannot be asked.
    """
    log_in = Login(tmp_path, monkeypatch)
    log_in("FIRST")
    run = Ec2Run(account)
    runner = run.runner()
    for _ in range(2):
        run.ticks(runner)
    agent = run.agent()
    for _ in range(23):
        run.clock.advance(3600)
        agent.trains_on()
        run.ticks(runner)
    account.expired = {"FIRST"}
    for hour in range(24):
        run.store_says = LoginExpired("S3 answered 400 ExpiredToken") if hour < 12 else None
        run.clock.advance(3600)
        agent.trains_on()
        tick = runner.tick()
        assert "ExpiredToken" in (tick.blind or tick.remark or "")
    run.store_says = None
    log_in("SECOND")
    run.clock.advance(60)
    agent.trains_on()
    (launch,) = run.state.launches.values()
    assert launch.recorded is not None
    assert launch.recorded.billed_from + timedelta(seconds=launch.intent.time_to_live_s) > run.clock.now()
    seen = runner.tick()
    assert seen.blind is None
    assert [type(action.event) for action in seen.actions if isinstance(action, Append)] == [LaunchIntended]
    assert [each.alive for each in seen.instances] == [True]
    assert seen.state.current_attempt == agent.attempt
    assert (len(seen.state.commits), seen.state.commits[-1].event.step) == (23 + 24 + 1, agent.step)
    assert count(account, "TerminateInstances") == 0
    assert len(launches(account)) == 1


# -- what became of an instance ----------------------------------------------------------------------------------------


def test_an_instance_that_is_pending_is_not_billed_yet(account: GuardedAccount, cloud: AwsDriver) -> None:
    instance = cloud.launch(request(cloud))
    account.row(instance.instance_id)._state.name = "pending"
    seen = driver().describe(instance.instance_id)
    assert seen is not None
    assert (seen.state, seen.billed_from, seen.prices, seen.alive) == (InstanceState.PENDING, None, (), True)


def test_the_meter_runs_from_when_an_instance_was_last_seen_pending(account: GuardedAccount) -> None:
    clock = ManualClock(datetime.now(UTC).replace(microsecond=0))
    cloud = driver(clock)
    launched = cloud.launch(request(cloud))
    row = account.row(launched.instance_id)
    row._state.name = "pending"
    for _ in range(3):
        clock.advance(5)
        cloud.instances()
    row._state.name = "running"
    clock.advance(5)
    seen, elsewhere = cloud.describe(launched.instance_id), driver(clock).describe(launched.instance_id)
    assert seen is not None
    assert elsewhere is not None
    assert seen.billed_from == clock.now() - timedelta(seconds=5)
    assert seen.prices[0].since == seen.billed_from
    assert elsewhere.billed_from == launched.launched_at, "who has not seen it counts from the launch"


def test_instance_that_ends_during_its_launch_is_never_billed(account: GuardedAccount, cloud: AwsDriver) -> None:
    instance = cloud.launch(request(cloud))
    account.end(instance.instance_id, "Server.InsufficientInstanceCapacity")
    seen = driver().describe(instance.instance_id)
    assert seen is not None
    assert (seen.state, seen.billed_from, seen.prices) == (InstanceState.TERMINATED, None, ())


def test_p27_an_interruption_during_set_up_is_the_clouds(account: GuardedAccount, cloud: AwsDriver) -> None:
    instance = cloud.launch(request(cloud))
    account.end(instance.instance_id, INTERRUPTED)
    seen = driver().describe(instance.instance_id)
    assert seen is not None
    assert seen.ended_by is EndedBy.CLOUD


def test_an_interruption_without_a_time_was_when_its_spot_request_says(account: GuardedAccount) -> None:
    clock = ManualClock(datetime.now(UTC).replace(microsecond=0))
    cloud = driver(clock)
    instance = cloud.launch(request(cloud))
    taken_at = clock.now() + timedelta(minutes=40)
    clock.advance(3600)
    _end_without_a_time(account, instance.instance_id)
    account.spot_requests.tell(instance.instance_id, "instance-terminated-no-capacity", taken_at)
    seen = cloud.describe(instance.instance_id)
    assert seen is not None
    assert (seen.ended_at, seen.ended_by) == (taken_at, EndedBy.CLOUD)


@pytest.mark.parametrize("refused", [True, False])
def test_end_without_a_recorded_time_counts_from_its_first_sighting(account: GuardedAccount, refused: bool) -> None:
    clock = ManualClock(datetime.now(UTC).replace(microsecond=0))
    cloud = driver(clock)
    instance = cloud.launch(request(cloud))
    clock.advance(3600)
    _end_without_a_time(account, instance.instance_id)
    if refused:
        account.spot_requests.tell(instance.instance_id, "instance-terminated-no-capacity", clock.now())
        account.refuse("DescribeSpotInstanceRequests", "InternalError", 500, times=ATTEMPTS_MAX)
    before = clock.now()
    first = cloud.describe(instance.instance_id)
    seen_by = clock.now()
    clock.advance(600)
    again = cloud.describe(instance.instance_id)
    assert first == again
    assert first is not None
    assert first.ended_at is not None
    assert before <= first.ended_at <= seen_by


def _end_without_a_time(account: GuardedAccount, instance_id: str) -> None:
    account.end(instance_id, INTERRUPTED)
    account.row(instance_id)._reason = INTERRUPTED


def _alive(account: GuardedAccount) -> str:
    with account.as_administrator():
        (found,) = [each for each in driver().instances() if each.alive]
    return found.instance_id


def _publish_another_image(account: GuardedAccount) -> str:
    name = list(ec2_backends[ACCOUNT][REGION].amis)[1]
    with account.as_administrator():
        boto3.client("ssm").put_parameter(Name=IMAGE_PARAMETER, Value=name, Type="String", Overwrite=True)
    return name
