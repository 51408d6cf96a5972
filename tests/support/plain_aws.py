"""
An AWS account without a server and without clients of the SDK: its operations take and give what boto3's do.

    aws = PlainAws(clock)
    aws.reach(monkeypatch)
    aws.fault = lambda operation: ...   # may raise in place of an answer

A launch costs a millisecond, so that a test can go through each call with each error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from spotrun.clouds.aws.calls import Patience, Region
from spotrun.clouds.aws.config import AwsConfig
from tests.support.manual_clock import ManualClock

ACCOUNT, REGION = "123456789012", "us-east-1"
SUBNETS = {"subnet-a": "us-east-1a", "subnet-b": "us-east-1b"}
TYPE, SPOT_USD, ON_DEMAND_USD = "g5.xlarge", "0.40", "1.006"
CONFIG = AwsConfig(regions=(REGION,), instance_types=(TYPE,), image_parameter="/spotrun/image")
INTERRUPTED = "Server.SpotInstanceTermination"
Row = dict[str, Any]


def refusal(code: str, status: int = 400, words: str = "by the test", **headers: str) -> ClientError:
    """What the SDK raises when AWS answers with an error."""
    metadata = {"HTTPStatusCode": status, "HTTPHeaders": headers}
    return ClientError({"Error": {"Code": code, "Message": words}, "ResponseMetadata": metadata}, "Operation")


class PlainAws:
    """`calls` are the operations that were asked for, each with how long the caller would have waited."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._began_at = clock.now()
        self._of_token: dict[str, Row] = {}
        self._ec2, self._iam = _Ec2(self), _Iam(self)
        self.calls: list[tuple[str, Patience]] = []
        self.fault: Callable[[str], None] = lambda _: None
        self.schedules: set[str] = set()

    def reach(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whoever asks AWS in this test asks this account."""
        monkeypatch.setattr(Region, "partition", "aws")
        monkeypatch.setattr(Region, "_client", lambda region, *_: _Client(self, region._patience))

    def answer(self, operation: str, asked: dict[str, Any], patience: Patience) -> Any:
        self.calls.append((operation, patience))
        self.fault(operation)
        place = self._iam if hasattr(self._iam, operation) else self._ec2
        return getattr(place, operation)(**asked)

    @property
    def rows(self) -> list[Row]:
        """The instances that there are and were, as EC2 describes them."""
        return list(self._of_token.values())

    @property
    def alive(self) -> list[str]:
        return [row["InstanceId"] for row in self.rows if row["State"]["Name"] == "running"]

    @property
    def roles(self) -> list[str]:
        return list(self._iam.roles)

    def end(self, instance_id: str, reason: str) -> None:
        (row,) = [row for row in self.rows if row["InstanceId"] == instance_id]
        row["State"] = {"Name": "terminated"}
        row["StateReason"] = {"Code": reason}
        row["StateTransitionReason"] = f"{reason} ({self._clock.now():%Y-%m-%d %H:%M:%S} GMT)"

    def launched(self, asked: dict[str, Any]) -> Row:
        known = self._of_token.get(asked["ClientToken"])
        if known is not None and known["State"]["Name"] == "terminated":
            raise refusal("IdempotentInstanceTerminated")
        if asked["IamInstanceProfile"]["Name"] not in self._iam.profiles:
            raise refusal("InvalidParameterValue", words="Invalid IAM Instance Profile name")
        return known or self._of_token.setdefault(asked["ClientToken"], self._row(asked))

    def _row(self, asked: dict[str, Any]) -> Row:
        spot = {"InstanceLifecycle": "spot"} if "InstanceMarketOptions" in asked else {}
        return {
            "InstanceId": f"i-{len(self._of_token):017x}",
            "InstanceType": asked["InstanceType"],
            "State": {"Name": "running"},
            "LaunchTime": self._clock.now(),
            "Placement": {"AvailabilityZone": SUBNETS[asked["SubnetId"]]},
            "Tags": asked["TagSpecifications"][0]["Tags"],
            **spot,
        }

    @property
    def spot_prices(self) -> list[Row]:
        return [
            {"InstanceType": TYPE, "AvailabilityZone": zone, "Timestamp": self._began_at, "SpotPrice": SPOT_USD}
            for zone in SUBNETS.values()
        ]


class _Client:
    """A client of any service: no two of them have an operation of one name."""

    def __init__(self, account: PlainAws, patience: Patience) -> None:
        self._account, self._patience = account, patience

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        return lambda **asked: self._account.answer(operation, asked, self._patience)

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

    def describe_images(self, **_: Any) -> Row:
        return {"Images": [{"State": "available"}]}

    def describe_instances(self, **_: Any) -> Row:
        return {"Reservations": [{"Instances": self._account.rows}]}

    def describe_spot_instance_requests(self, **_: Any) -> Row:
        return {"SpotInstanceRequests": []}

    def run_instances(self, **asked: Any) -> Row:
        return {"Instances": [self._account.launched(asked)]}

    def terminate_instances(self, InstanceIds: list[str]) -> Row:
        for instance_id in set(InstanceIds) & set(self._account.alive):
            self._account.end(instance_id, "Client.UserInitiatedShutdown")
        return {"TerminatingInstances": []}

    def get_parameter(self, **_: Any) -> Row:
        return {"Parameter": {"Value": "ami-1"}}

    def get_caller_identity(self) -> Row:
        return {"Arn": f"arn:aws:iam::{ACCOUNT}:user/me", "Account": ACCOUNT}

    def get_products(self, **_: Any) -> Row:
        dimension = {"unit": "Hrs", "pricePerUnit": {"USD": ON_DEMAND_USD}}
        terms = {"OnDemand": {"term": {"priceDimensions": {"dimension": dimension}}}}
        product = {"product": {"attributes": {"instanceType": TYPE}}, "terms": terms}
        return {"PriceList": [json.dumps(product)]}

    def create_schedule(self, Name: str, **_: Any) -> Row:
        if Name in self._account.schedules:
            raise refusal("ConflictException", 409)
        self._account.schedules.add(Name)
        return {"ScheduleArn": Name}

    def delete_schedule(self, Name: str, **_: Any) -> Row:
        if Name not in self._account.schedules:
            raise refusal("ResourceNotFoundException", 404)
        self._account.schedules.remove(Name)
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
        made = {"PermissionsBoundary": boundary, "Tags": Tags, "CreateDate": self._account._clock.now()}
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
        roles = [{"RoleName": name} for name in _known(self.profiles, InstanceProfileName)]
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

    def list_roles(self) -> Row:
        return {"Roles": [{"RoleName": name} for name in self.roles]}


def _known(things: dict[str, Any], name: str) -> Any:
    if name not in things:
        raise refusal("NoSuchEntity", 404)
    return things[name]
