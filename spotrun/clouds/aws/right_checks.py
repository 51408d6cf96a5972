"""Checks whether the caller has the rights that a run needs, except the right to launch. Names each missing right."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial

from spotrun.clouds.aws.account_checks import rehearse
from spotrun.clouds.aws.calls import Region
from spotrun.clouds.aws.price_list import read_price_list
from spotrun.clouds.aws.prices import spot_prices
from spotrun.doctor.finding import Finding, Refusal, Verdict, findings_of, ok, warned
from spotrun.units import count_of, plain_usd

ATTACH = "attach the policy spotrun-runner (infra/aws/README.md) to your user or role"
_SPOT = "spot.amazonaws.com"
NEEDS_POLICY = Refusal(hint=ATTACH, verdict=Verdict.FAILED)
"""
Turns AWS's refusal of a call into a failed check, with the advice to attach the policy spotrun-runner, which allows the
call.
"""


def price_findings(region: Region, types: Sequence[str], now: datetime) -> Iterator[Finding]:
    """
    Check that the prices of `types` can be read. A run needs prices to choose a type and to compute its bill.
    """
    if not types:
        return
    spot = spot_prices(region, types, now).segments
    for name in types:
        told = sorted(found[-1].usd_per_hour for pool, found in spot.items() if pool.instance_type == name)
        if told:
            yield ok(
                "spot prices",
                f"{name}: ${plain_usd(told[0])} to ${plain_usd(told[-1])} an hour in {count_of(len(told), 'zone')}",
            )
        else:
            hint = "name another type or region, or set spot_policy: on-demand"
            yield warned(
                "spot prices", f"EC2 reports no spot price for {name}, so spotrun does not request it on spot", hint
            )
    listed = read_price_list(region, types, now)
    if listed.trouble is None:
        yield ok("price list", "on-demand prices are today's")
    else:
        yield warned("price list", f"on-demand prices are from the shipped table: {listed.trouble}", ATTACH)


def spot_role_findings(region: Region) -> Iterator[Finding]:
    """
    Check that the role that EC2 needs for spot exists. If it is missing, create it, as EC2 itself would at the
    account's first spot launch:
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/service-linked-roles-spot-instance-requests.html

    Raises:
        AccessDenied: the caller is not allowed to list roles.
    """
    if region.pages(region.iam, "list_roles", "Roles", PathPrefix=f"/aws-service-role/{_SPOT}/"):
        yield ok("spot role", "is there")
    else:
        yield from findings_of("spot role", partial(_made_spot_role, region), NEEDS_POLICY)


def _made_spot_role(region: Region) -> Iterator[Finding]:
    region.ask("make the role for spot", lambda: region.iam.create_service_linked_role(AWSServiceName=_SPOT))
    yield ok("spot role", "is made: nobody has asked for spot in this account before")


def spot_request_findings(region: Region) -> Iterable[Finding]:
    rehearse(region, "list spot requests", lambda: region.ec2.describe_spot_instance_requests(DryRun=True))
    return ()
