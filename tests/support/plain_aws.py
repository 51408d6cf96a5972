"""
An AWS account without a server and without clients of the SDK: its operations take and give what boto3's do.

    aws = PlainAws(clock)
    aws.reach(monkeypatch)
    aws.fault = lambda operation: ...   # may raise in place of an answer

A launch costs a millisecond, so that a test can go through each call with each error. What is due by the account's
clock has happened whenever somebody asks: an instance powers off at its time-to-live unless it is `frozen`, a schedule
ends what it names and goes, and an hour after its end an instance is in no list any more.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError

from spotrun.clouds.aws.calls import Region
from spotrun.clouds.aws.clock_skew import keep_right
from spotrun.clouds.aws.config import AwsConfig
from spotrun.clouds.patience import Patience
from tests.support.manual_clock import ManualClock
from tests.support.plain_charges import Charge

ACCOUNT, REGION = "123456789012", "us-east-1"
SUBNETS = {"subnet-a": "us-east-1a", "subnet-b": "us-east-1b"}
TYPE, SPOT_USD, ON_DEMAND_USD = "g5.xlarge", "0.40", "1.006"
CONFIG = AwsConfig(regions=(REGION,), instance_types=(TYPE,), image_parameter="/spotrun/image")
INTERRUPTED = "Server.SpotInstanceTermination"
POWERED_OFF, TERMINATED = "Client.InstanceInitiatedShutdown", "Client.UserInitiatedShutdown"
EMPTY: dict[str, Any] = {
    "describe_instances": {"Reservations": []},
    "describe_instance_types": {"InstanceTypes": []},
    "describe_instance_type_offerings": {"InstanceTypeOfferings": []},
    "describe_spot_price_history": {"SpotPriceHistory": []},
    "get_products": {"PriceList": []},
}
"""What a region answers that has nothing."""
LISTED_FOR = timedelta(hours=1)
"""So long after its end: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/terminating-instances.html"""
_LIFE = re.compile(r"^SPOTRUN_TIME_TO_LIVE_S=(\d+)$", re.MULTILINE)
Row = dict[str, Any]


class Schedule(NamedTuple):
    """It ends these instances, and is deleted."""

    at: datetime
    instance_ids: list[str]


def refusal(code: str, status: int = 400, words: str = "by the test", **headers: str) -> ClientError:
    """What the SDK raises when AWS answers with an error."""
    metadata = {"HTTPStatusCode": status, "HTTPHeaders": headers}
    return ClientError({"Error": {"Code": code, "Message": words}, "ResponseMetadata": metadata}, "Operation")


class PlainAws:
    """
    `calls` are the operations that were asked for, each with how long the caller would have waited. `charges` has, by
    instance id, what the account is charged. `stale` is how old the list of instances is, and `pends`
    how long an instance is pending, which is not charged:
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-lifecycle.html. With `tells_time` each answer
    is dated. A region that is not `REGION` has nothing. One that is `hanging` takes the caller's time.
    In the `full_zone` no quota is left for spot. EC2 accepts and `cannot_start` instances of these kinds, each with the
    reason that it tells. `disk_key` is the default key of EBS. `consoles` are what instances have printed.
    """

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self._spot = [(clock.now(), float(SPOT_USD))]
        self._of_token: dict[str, Row] = {}
        self._ends_at: dict[str, datetime] = {}
        self._schedules: dict[str, Schedule] = {}
        self._ec2, self._iam = _Ec2(self), _Iam(self)
        self.calls: list[tuple[str, Patience]] = []
        self.fault: Callable[[str], None] = lambda _: None
        self.charges: dict[str, Charge] = {}
        self.frozen: set[str] = set()
        self.full_zone = ""
        self.hanging: set[str] = set()
        self.stale = self.pends = timedelta()
        self.tells_time = False
        self.spot_is_gone = False
        self.cannot_start: dict[str, str] = {}
        self.disk_key = "alias/aws/ebs"
        self.consoles: dict[str, str] = {}

    def reach(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whoever asks AWS in this test asks this account."""
        monkeypatch.setattr(Region, "partition", "aws")
        monkeypatch.setattr(Region, "_client", lambda region, *_: _Client(self, region))

    def answer(self, operation: str, asked: dict[str, Any], patience: Patience, region: str) -> Any:
        self.calls.append((operation, patience))
        self.fault(operation)
        if region in self.hanging:
            self.clock.advance(patience.read_s)
            raise ReadTimeoutError(endpoint_url=f"https://{region}")
        self._let_time_pass()
        if region != REGION:
            return EMPTY[operation]
        place = self._iam if hasattr(self._iam, operation) else self._ec2
        try:
            return getattr(place, operation)(**asked)
        except ClientError:
            raise
        except Exception as mistake:  # noqa: BLE001  whoever asks takes any other for a fault of the SDK, which passes
            pytest.fail(f"this account does not know how to answer {operation}: {mistake!r}")

    @property
    def rows(self) -> list[Row]:
        """The instances that there are and were, as EC2 describes them while it lists them."""
        self._let_time_pass()
        return list(self._of_token.values())

    def listed(self) -> list[Row]:
        """What DescribeInstances has: as it was a while ago, if the list is stale."""
        now = self.clock.now()
        return [self._as_of(row, now - self.stale) for row in self.rows if self._is_listed(row, now)]

    def _is_listed(self, row: Row, now: datetime) -> bool:
        charge = self.charges[row["InstanceId"]]
        forgotten = charge.ended_at is not None and now - charge.ended_at > LISTED_FOR
        return bool(row["LaunchTime"] <= now - self.stale) and not forgotten

    def _as_of(self, row: Row, seen_at: datetime) -> Row:
        charge = self.charges[row["InstanceId"]]
        if charge.ended_at is not None and charge.ended_at <= seen_at:
            return row
        of_its_end = ("StateReason", "StateTransitionReason")
        state = {"Name": "pending" if seen_at < charge.began_at else "running"}
        return {name: told for name, told in row.items() if name not in of_its_end} | {"State": state}

    @property
    def counts(self) -> Counter[str]:
        return Counter(operation for operation, _ in self.calls)

    @property
    def rented(self) -> list[str]:
        return [row["InstanceId"] for row in self.rows]

    @property
    def left(self) -> list[str]:
        return [*self.alive, *self.schedules]

    @property
    def identities_left(self) -> list[str]:
        return [*self.roles, *self.profiles]

    @property
    def alive(self) -> list[str]:
        return [row["InstanceId"] for row in self.rows if row["State"]["Name"] == "running"]

    @property
    def roles(self) -> list[str]:
        return list(self._iam.roles)

    @property
    def profiles(self) -> list[str]:
        return list(self._iam.profiles)

    @property
    def schedules(self) -> dict[str, Schedule]:
        self._let_time_pass()
        return self._schedules

    @property
    def charged_usd(self) -> dict[str, float]:
        """For each instance."""
        self._let_time_pass()
        return {instance_id: charge.usd(self.clock.now()) for instance_id, charge in self.charges.items()}

    def spot_costs(self, usd_per_hour: float) -> None:
        """From now on."""
        self._spot.append((self.clock.now(), usd_per_hour))

    def interrupt(self, instance_id: str) -> None:
        self.end(instance_id, INTERRUPTED)

    def power_off(self, instance_id: str) -> None:
        self.end(instance_id, POWERED_OFF)

    def end(self, instance_id: str, reason: str, at: datetime | None = None) -> None:
        """EC2 tells when a user or the instance itself did it; of an interruption only its spot request knows that."""
        (row,) = [row for row in self._of_token.values() if row["InstanceId"] == instance_id]
        at = at or self.clock.now()
        row["State"] = {"Name": "terminated"}
        row["StateReason"] = {"Code": reason}
        row["StateTransitionReason"] = "" if reason == INTERRUPTED else f"{reason} ({at:%Y-%m-%d %H:%M:%S} GMT)"
        charge = self.charges[instance_id]
        charge.ended_at, charge.taken = at, reason == INTERRUPTED

    def _let_time_pass(self) -> None:
        now = self.clock.now()
        for instance_id, ends_at in self._ends_at.items():
            if ends_at <= now and self.charges[instance_id].ended_at is None and instance_id not in self.frozen:
                self.end(instance_id, POWERED_OFF, ends_at)
        for name, schedule in [*self._schedules.items()]:
            if schedule.at <= now:
                del self._schedules[name]
                for instance_id in schedule.instance_ids:
                    if self.charges[instance_id].ended_at is None:
                        self.end(instance_id, TERMINATED, schedule.at)

    def launched(self, asked: dict[str, Any]) -> Row:
        known = self._of_token.get(asked["ClientToken"])
        if known is not None and known["State"]["Name"] == "terminated":
            raise refusal("IdempotentInstanceTerminated")
        if self.spot_is_gone and known is None and "InstanceMarketOptions" in asked:
            raise refusal("InsufficientInstanceCapacity")
        if SUBNETS[asked["SubnetId"]] == self.full_zone and known is None and "InstanceMarketOptions" in asked:
            raise refusal("VcpuLimitExceeded")
        if asked["IamInstanceProfile"]["Name"] not in self._iam.profiles:
            raise refusal("InvalidParameterValue", words="Invalid IAM Instance Profile name")
        row = known or self._started(self._of_token.setdefault(asked["ClientToken"], self._row(asked)))
        return self._as_of(row, self.clock.now())

    def _started(self, row: Row) -> Row:
        reason = self.cannot_start.get("spot" if "InstanceLifecycle" in row else "on-demand")
        if reason is not None:
            self.end(row["InstanceId"], reason)
        return row

    def _row(self, asked: dict[str, Any]) -> Row:
        number, is_spot, now = len(self._of_token), "InstanceMarketOptions" in asked, self.clock.now()
        spot = {"InstanceLifecycle": "spot", "SpotInstanceRequestId": f"sir-{number:08x}"} if is_spot else {}
        instance_id = f"i-{number:017x}"
        prices = self._spot if is_spot else [(now, float(ON_DEMAND_USD))]
        volume_gib = asked["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"]
        self.charges[instance_id] = Charge(instance_id, is_spot, now + self.pends, volume_gib, prices)
        if life := _LIFE.search(asked["UserData"]):
            self._ends_at[instance_id] = now + timedelta(seconds=int(life[1]))
        return {
            "InstanceId": instance_id,
            "InstanceType": asked["InstanceType"],
            "State": {"Name": "running"},
            "LaunchTime": now,
            "Placement": {"AvailabilityZone": SUBNETS[asked["SubnetId"]]},
            "Tags": asked["TagSpecifications"][0]["Tags"],
            **spot,
        }

    @property
    def spot_prices(self) -> list[Row]:
        return [
            {"InstanceType": TYPE, "AvailabilityZone": zone, "Timestamp": since, "SpotPrice": str(usd)}
            for zone in SUBNETS.values()
            for since, usd in self._spot
        ]


class _Client:
    """A client of any service: no two of them have an operation of one name."""

    def __init__(self, account: PlainAws, region: Region) -> None:
        self._account, self._region = account, region
        self._hooks: dict[str, Callable[..., None]] = {}
        self.meta = SimpleNamespace(events=SimpleNamespace(register=self._hooks.__setitem__))
        if account.tells_time:
            keep_right(region._clock, self)

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        return lambda **asked: self._dated(operation, asked)

    def _dated(self, operation: str, asked: dict[str, Any]) -> Any:
        def call() -> Any:
            return self._account.answer(operation, asked, self._region._patience, self._region.name)

        if not self._hooks:
            return call()
        context: dict[str, Any] = {}
        self._hooks["before-call"](context=context)
        answer = call()
        date = format_datetime(self._account.clock.now(), usegmt=True)
        parsed = {**answer, "ResponseMetadata": {"HTTPHeaders": {"date": date}}}
        self._hooks["after-call"](http_response=SimpleNamespace(status_code=200), parsed=parsed, context=context)
        return parsed

    def get_paginator(self, operation: str) -> _Pages:
        return _Pages(getattr(self, operation))


class _Pages:
    def __init__(self, ask: Callable[..., Any]) -> None:
        self._ask = ask

    def paginate(self, **asked: Any) -> Iterator[Any]:
        yield self._ask(**asked)


class _Ec2:
    """EC2, and the services that have an operation or two."""

    def __init__(self, account: PlainAws) -> None:
        self._account = account

    def describe_instance_types(self, **_: Any) -> Row:
        gpus = {"Gpus": [{"Name": "A10G", "Count": 1}]}
        return {
            "InstanceTypes": [
                {
                    "InstanceType": TYPE,
                    "GpuInfo": gpus,
                    "VCpuInfo": {"DefaultVCpus": 4},
                    "MemoryInfo": {"SizeInMiB": 16384},
                }
            ]
        }

    def describe_instance_type_offerings(self, **_: Any) -> Row:
        return {"InstanceTypeOfferings": [{"InstanceType": TYPE, "Location": zone} for zone in SUBNETS.values()]}

    def describe_spot_price_history(self, **_: Any) -> Row:
        return {"SpotPriceHistory": self._account.spot_prices}

    def describe_security_groups(self, **_: Any) -> Row:
        return {"SecurityGroups": [{"GroupId": "sg-1", "VpcId": "vpc-1"}]}

    def describe_subnets(self, **_: Any) -> Row:
        named = {"AvailableIpAddressCount": 99}
        return {"Subnets": [{"SubnetId": name, "AvailabilityZone": zone, **named} for name, zone in SUBNETS.items()]}

    def describe_route_tables(self, **_: Any) -> Row:
        wide = {"DestinationCidrBlock": "0.0.0.0/0", "NatGatewayId": "nat-1", "State": "active"}
        return {"RouteTables": [{"Associations": [{"Main": True}], "Routes": [wide]}]}

    def get_ebs_default_kms_key_id(self) -> Row:
        return {"KmsKeyId": self._account.disk_key}

    def describe_images(self, **_: Any) -> Row:
        return {"Images": [{"State": "available"}]}

    def describe_instances(self, Filters: Sequence[Row] = (), **_: Any) -> Row:
        found = [row for row in self._account.listed() if all(_passes(row, each) for each in Filters)]
        return {"Reservations": [{"Instances": found}]}

    def describe_spot_instance_requests(self, **_: Any) -> Row:
        charges = self._account.charges
        return {
            "SpotInstanceRequests": [
                {
                    "SpotInstanceRequestId": row["SpotInstanceRequestId"],
                    "Status": {
                        "Code": "instance-terminated-no-capacity",
                        "UpdateTime": charges[row["InstanceId"]].ended_at,
                    },
                }
                for row in self._account.rows
                if charges[row["InstanceId"]].is_spot and charges[row["InstanceId"]].taken
            ]
        }

    def run_instances(self, **asked: Any) -> Row:
        return {"Instances": [self._account.launched(asked)]}

    def terminate_instances(self, InstanceIds: list[str]) -> Row:
        for instance_id in set(InstanceIds) & set(self._account.alive):
            self._account.end(instance_id, TERMINATED)
        return {"TerminatingInstances": []}

    def get_console_output(self, InstanceId: str) -> Row:
        return {"InstanceId": InstanceId, "Output": self._account.consoles.get(InstanceId, "")}

    def get_service_quota(self, **_: Any) -> Row:
        return {"Quota": {"Value": 4.0}}

    def describe_launch_template_versions(self, **_: Any) -> Row:
        version = {"LaunchTemplateId": "lt-1", "VersionNumber": 1, "LaunchTemplateData": {}}
        return {"LaunchTemplateVersions": [version]}

    def get_parameter(self, **_: Any) -> Row:
        return {"Parameter": {"Value": "ami-1"}}

    def get_caller_identity(self) -> Row:
        return {"Arn": f"arn:aws:iam::{ACCOUNT}:user/me", "Account": ACCOUNT}

    def get_products(self, **_: Any) -> Row:
        dimension = {"unit": "Hrs", "pricePerUnit": {"USD": ON_DEMAND_USD}}
        terms = {"OnDemand": {"term": {"priceDimensions": {"dimension": dimension}}}}
        product = {"product": {"attributes": {"instanceType": TYPE}}, "terms": terms}
        return {"PriceList": [json.dumps(product)]}

    def create_schedule(self, Name: str, ScheduleExpression: str, Target: Row, **asked: Any) -> Row:
        assert asked["ActionAfterCompletion"] == "DELETE"
        if Name in self._account.schedules:
            raise refusal("ConflictException", 409)
        at = datetime.strptime(ScheduleExpression, "at(%Y-%m-%dT%H:%M:%S)").replace(tzinfo=UTC)
        self._account.schedules[Name] = Schedule(at, json.loads(Target["Input"])["InstanceIds"])
        return {"ScheduleArn": Name}

    def delete_schedule(self, Name: str, **_: Any) -> Row:
        if Name not in self._account.schedules:
            raise refusal("ResourceNotFoundException", 404)
        del self._account.schedules[Name]
        return {}


class _Iam:
    """Roles, and profiles with the names of what they hold."""

    def __init__(self, account: PlainAws) -> None:
        self._account = account
        self.roles: dict[str, Row] = {}
        self.profiles: dict[str, list[str]] = {}

    def create_role(self, RoleName: str, PermissionsBoundary: str, Tags: list[Row], **_: Any) -> Row:
        if RoleName in self.roles:
            raise refusal("EntityAlreadyExists", 409)
        boundary = {"PermissionsBoundaryArn": PermissionsBoundary}
        made = {"PermissionsBoundary": boundary, "Tags": Tags, "CreateDate": self._account.clock.now()}
        self.roles[RoleName] = made
        return {"Role": made}

    def get_role(self, RoleName: str) -> Row:
        return {"Role": _known(self.roles, RoleName)}

    def delete_role(self, RoleName: str) -> Row:
        _known(self.roles, RoleName)
        del self.roles[RoleName]
        return {}

    def attach_role_policy(self, RoleName: str, PolicyArn: str) -> Row:
        _known(self.roles, RoleName)["policy"] = PolicyArn
        return {}

    def detach_role_policy(self, RoleName: str, PolicyArn: str) -> Row:
        _known(_known(self.roles, RoleName), "policy")
        del self.roles[RoleName]["policy"]
        return {}

    def create_instance_profile(self, InstanceProfileName: str, **_: Any) -> Row:
        if InstanceProfileName in self.profiles:
            raise refusal("EntityAlreadyExists", 409)
        self.profiles[InstanceProfileName] = []
        return {}

    def add_role_to_instance_profile(self, InstanceProfileName: str, RoleName: str) -> Row:
        held = _known(self.profiles, InstanceProfileName)
        if held:
            raise refusal("LimitExceeded", 409)
        held.append(RoleName)
        return {}

    def get_instance_profile(self, InstanceProfileName: str) -> Row:
        names = _known(self.profiles, InstanceProfileName)
        roles = [{"RoleName": name, "Arn": f"arn:aws:iam::123456789012:role/{name}"} for name in names]
        return {"InstanceProfile": {"Roles": roles}}

    def remove_role_from_instance_profile(self, InstanceProfileName: str, RoleName: str) -> Row:
        held = _known(self.profiles, InstanceProfileName)
        if RoleName not in held:
            raise refusal("NoSuchEntity", 404)
        held.remove(RoleName)
        return {}

    def delete_instance_profile(self, InstanceProfileName: str) -> Row:
        _known(self.profiles, InstanceProfileName)
        del self.profiles[InstanceProfileName]
        return {}

    def simulate_principal_policy(self, **_: Any) -> Row:
        return {"EvaluationResults": []}

    def list_roles(self) -> Row:
        return {"Roles": [{"RoleName": name} for name in self.roles]}


def _passes(row: Row, asked: Row) -> bool:
    """Whether an instance is one that this filter of DescribeInstances asks for."""
    tags, name, values = {tag["Key"]: tag["Value"] for tag in row["Tags"]}, asked["Name"], asked["Values"]
    found = {"instance-id": [row["InstanceId"]], "tag-key": [*tags]}.get(name, [tags.get(name.removeprefix("tag:"))])
    return not {*found}.isdisjoint(values)


def _known(things: dict[str, Any], name: str) -> Any:
    if name not in things:
        raise refusal("NoSuchEntity", 404)
    return things[name]
