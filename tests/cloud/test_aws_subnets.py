"""Subnets that lead nowhere: which subnet of a zone EC2 is asked for, and what follows when none of them is of use."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import boto3
import pytest

from spotrun.clouds.aws.driver import AwsDriver
from spotrun.policy.launches import STILLBORN_MAX
from tests.support.aws_launches import CONFIG
from tests.support.ec2_run import Ec2Run
from tests.support.ec2_server import ZONES
from tests.support.guarded_account import GuardedAccount
from tests.support.manual_clock import ManualClock

ZONE = ZONES[0]


class Zone:
    """One zone of an account without its first subnet. `small` are blocks with room for 11, `large` for 251."""

    def __init__(self) -> None:
        self._ec2 = boto3.client("ec2")
        (first,) = self._ec2.describe_subnets(Filters=[{"Name": "availability-zone", "Values": [ZONE]}])["Subnets"]
        self.network = first["VpcId"]
        self._ec2.delete_subnet(SubnetId=first["SubnetId"])
        self._free = iter(range(200, 250))

    def subnet(self, *, large: bool, public: bool = False) -> str:
        block = f"172.31.{next(self._free)}.0/{24 if large else 28}"
        made = self._ec2.create_subnet(VpcId=self.network, CidrBlock=block, AvailabilityZone=ZONE)
        name = str(made["Subnet"]["SubnetId"])
        self._ec2.modify_subnet_attribute(SubnetId=name, MapPublicIpOnLaunch={"Value": public})
        return name

    def route(self, subnet: str, **target: Any) -> None:
        """Give a subnet a table of its own; without a target it leads nowhere."""
        table = self._ec2.create_route_table(VpcId=self.network)["RouteTable"]["RouteTableId"]
        self._ec2.associate_route_table(RouteTableId=table, SubnetId=subnet)
        if target:
            self._ec2.create_route(RouteTableId=table, DestinationCidrBlock="0.0.0.0/0", **target)

    def nat(self, inside: str) -> str:
        address = self._ec2.allocate_address(Domain="vpc")["AllocationId"]
        made = self._ec2.create_nat_gateway(SubnetId=inside, AllocationId=address)
        return str(made["NatGateway"]["NatGatewayId"])

    def close_gateway(self) -> None:
        """The internet gateway has no route any more."""
        (main,) = self._ec2.describe_route_tables(Filters=[{"Name": "association.main", "Values": ["true"]}])[
            "RouteTables"
        ]
        self._ec2.delete_route(RouteTableId=main["RouteTableId"], DestinationCidrBlock="0.0.0.0/0")


@pytest.fixture
def zone(account: GuardedAccount) -> Iterator[Zone]:
    with account.as_administrator():
        yield Zone()


def offered() -> tuple[str, ...]:
    """The subnets of the zone, in the order in which they are asked for."""
    found = AwsDriver(CONFIG, ManualClock(datetime.now(UTC))).offerings()
    (subnets,) = {each.subnets for each in found if each.zone == ZONE}
    return subnets


def test_p33_a_subnet_with_public_addresses_comes_before_a_roomier_one_without(zone: Zone) -> None:
    public, private = zone.subnet(large=False, public=True), zone.subnet(large=True)
    zone.route(private)
    assert offered() == (public,), "the other one leads nowhere"


def test_p33_a_subnet_behind_a_nat_gateway_is_as_good_as_a_public_one_and_the_roomier_comes_first(zone: Zone) -> None:
    public, private = zone.subnet(large=False, public=True), zone.subnet(large=True)
    zone.route(private, NatGatewayId=zone.nat(inside=public))
    assert offered() == (private, public)


def test_p33_an_internet_gateway_without_public_addresses_is_no_way_out(zone: Zone) -> None:
    private, behind_nat = zone.subnet(large=True), zone.subnet(large=False)
    zone.route(behind_nat, NatGatewayId=zone.nat(inside=private))
    assert offered() == (behind_nat,)


def test_p33_public_addresses_come_first_where_no_subnet_leads_out(zone: Zone) -> None:
    zone.close_gateway()
    public, private = zone.subnet(large=False, public=True), zone.subnet(large=True)
    assert offered() == (public, private)


def test_p33_public_addresses_come_first_where_the_routes_may_not_be_read(account: GuardedAccount, zone: Zone) -> None:
    public, private = zone.subnet(large=False, public=True), zone.subnet(large=True)
    cloud = AwsDriver(CONFIG, ManualClock(datetime.now(UTC)))
    account.refuse("DescribeRouteTables", "UnauthorizedOperation", 403)
    (subnets,) = {each.subnets for each in cloud.offerings() if each.zone == ZONE}
    assert subnets == (public, private)
    (remark,) = cloud.remarks
    assert remark.startswith("which subnets of us-east-1 lead to the internet is not known: AWS refused")


def test_p33_three_stillborn_instances_were_in_three_places_which_the_message_names(
    account: GuardedAccount, zone: Zone
) -> None:
    subnets = {zone.subnet(large=True, public=True), zone.subnet(large=False, public=True)}
    run = Ec2Run(account)
    for _ in range(STILLBORN_MAX):
        runner = run.runner()  # each of them reads the ledger again
        while not run.instances():
            run.ticks(runner)
        run.ticks(runner)
        (launched,) = run.instances()
        run.clock.advance(300)
        account.end(launched, "Client.InstanceInitiatedShutdown")
        run.ticks(runner)
    run.ticks(run.runner())
    state = run.state
    places = [(launch.intent.offering.zone, launch.intent.offering.subnet) for launch in state.launches.values()]
    assert {places[0][1], places[1][1]} == subnets
    assert [zone for zone, _ in places] == [*ZONES[:1] * 2, ZONES[1]]
    assert state.terminal is not None
    for zone_name, subnet in places:
        assert f"{zone_name}, {subnet}" in state.terminal.detail
    assert "\n  try: `spotrun doctor aws JOB.yaml`" in state.terminal.detail
