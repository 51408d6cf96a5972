"""
Checks an AWS account with the caller's own credentials, before any instance is billed.

The checks read settings and make trial calls. They call RunInstances and TerminateInstances only as dry runs, so they
launch and end nothing. They create a role for a run that does not exist, and a guard for an instance that does not
exist, and then remove both. If the account lacks EC2's service-linked role for spot instances, the checks create it,
and it stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property, partial

from msgspec.structs import replace

from spotrun import address
from spotrun.clock import Clock
from spotrun.clouds.aws import account_checks, guard, role_rights
from spotrun.clouds.aws.calls import Region
from spotrun.clouds.aws.capacity_checks import Capacity
from spotrun.clouds.aws.catalog import Catalog
from spotrun.clouds.aws.config import AwsConfig
from spotrun.clouds.aws.disk_key import KEY_UNREAD, key_findings
from spotrun.clouds.aws.network import Network, Subnet, describe_image
from spotrun.clouds.aws.request import RUN, run_instances
from spotrun.clouds.aws.right_checks import (
    ATTACH,
    NEEDS_POLICY,
    price_findings,
    spot_request_findings,
    spot_role_findings,
)
from spotrun.clouds.aws.run_role import FOLDER, OTHER_STORE, RunRoles
from spotrun.clouds.aws.secret_checks import secret_findings
from spotrun.clouds.capacity_checks import CapacityRequest
from spotrun.clouds.clock_skew import clock_finding, skew_of
from spotrun.clouds.error_kinds import NotThere
from spotrun.clouds.identities import SETTLES_WITHIN
from spotrun.clouds.identity_trial import DENIED_WITHIN, Settling, trial_identity
from spotrun.doctor.finding import Finding, Refusal, Step, Verdict, findings_of, findings_of_steps, ok, unknown, warned
from spotrun.errors import CloudError, IdentityUnknown
from spotrun.instance import LaunchRequest
from spotrun.offering import CapacityType, Offering
from spotrun.secrets.reference import Reference
from spotrun.spec.model import ResourcesSpec
from spotrun.units import count_of

_TOKEN, _NOWHERE = "spotrun-doctor", "s3://doctor/doctor"
_DEPLOY = "deploy infra/aws/account.yaml and region.yaml, or name your own resources instead"
_LAUNCH_REFUSED = Refusal(advice=_DEPLOY, error=CloudError, verdict=Verdict.FAILED)
_STORE_DENIED = Refusal(error=role_rights.StoreDenied, verdict=Verdict.FAILED)
_UNDATED = Refusal(
    "if EC2 does not report when it took an instance, the time when a runner first saw the end is used",
    ATTACH,
    verdict=Verdict.WARNED,
)
_TOLD_BY = {CapacityType.SPOT: "launch on spot", CapacityType.ON_DEMAND: "launch on demand"}


class AwsDoctor:
    """
    Checks one region of an account. `wanted` describes the resources to rent. `store_uri` is the store of the runs; ""
    if unknown. For a job, `secrets` are its secrets, keyed by environment variable, and `repository` is the ECR
    repository of its container image.
    """

    def __init__(
        self,
        region: Region,
        config: AwsConfig,
        wanted: ResourcesSpec,
        clock: Clock,
        secrets: Mapping[str, Reference] | None = None,
        repository: str = "",
        store_uri: str = "",
    ) -> None:
        self.region = region.name
        place = address.parse(store_uri)
        self._store = place if isinstance(place, address.BucketAddress) and place.scheme == "s3" else None
        self._repository = repository
        self._secrets = secrets or {}
        self._region = region
        self._config = config
        self._wanted = wanted
        self._clock = clock
        self._settling = Settling("AWS to know the new role", clock)
        self._catalog = Catalog(region, config, clock)
        of_any_type = Catalog(region, replace(config, instance_types=()), clock)
        request = CapacityRequest(wanted, config.instance_types)
        self._capacity = Capacity(region, self._catalog, request, of_any_type)

    def findings(self) -> Iterator[Finding]:
        return findings_of_steps(self._steps())

    def _steps(self) -> Iterator[Step]:
        region, uses_spot = self._region, self._wanted.spot_policy != "on-demand"
        yield Step("identity", self._identity, is_vital=True)
        yield Step("bucket", self._require_bucket)
        yield Step("image", self._image)
        yield Step("network", self._network)
        yield Step("launch template", self._launch_template)
        yield Step("capacity", self._capacity.zone_findings, needs=("network",))
        yield Step("spot prices", self._prices, NEEDS_POLICY, needs=("capacity",))
        yield Step("quota", self._capacity.quota_findings, needs=("capacity",))
        launches = partial(self._launches, rehearse=True)
        of_launch = ("image", "launch template", "capacity")
        yield Step("role", launches, needs=of_launch, otherwise=self._unrehearsed)
        if uses_spot:
            yield Step("spot role", partial(spot_role_findings, region), Refusal(hint=ATTACH))
            requests = partial(spot_request_findings, region)
            yield Step("spot requests", requests, _UNDATED, needs=("spot role",))
        yield Step("disk key", partial(key_findings, region, uses_spot=uses_spot), Refusal(hint=KEY_UNREAD))
        yield Step("terminate", self._may_terminate, NEEDS_POLICY)
        yield Step("secrets", partial(secret_findings, region, self._secrets))
        yield Step("guard", self._guard)

    # -- login and clock -----------------------------------------------------------------------------------------

    def _identity(self) -> Iterator[Finding]:
        who, skew = self._with_skew(lambda: account_checks.caller(self._region))
        where = f"{who.arn}, in {self._region.name}"
        if who.arn.endswith(":root"):
            yield warned(
                "identity", where, "use a user or role that has the policy spotrun-runner: root may do anything"
            )
        else:
            yield ok("identity", where)
        if skew is None:
            yield unknown("aws clock", "AWS's answer had no readable date")
        else:
            yield clock_finding("aws clock", skew, "AWS")

    def _with_skew(self, ask: Callable[[], account_checks.Caller]) -> tuple[account_checks.Caller, timedelta | None]:
        before = self._machine_time
        who = ask()
        return who, None if who.told_at is None else skew_of(before, self._machine_time, who.told_at)

    @property
    def _machine_time(self) -> datetime:
        """The time on this machine's clock. The run's clock differs from it, because AWS's answers correct it."""
        return self._clock.now() + self._clock.ahead

    def _require_bucket(self) -> Iterable[Finding]:
        if not self._has_bucket:
            assert self._store is not None
            make = f"aws s3 mb s3://{self._store.bucket} --region {self._region.name}"
            hint = f"make it (infra/aws/README.md, or only: {make}), or use --store with an existing bucket"
            raise CloudError(f"there is no bucket s3://{self._store.bucket}", hint=hint)
        return ()

    @cached_property
    def _has_bucket(self) -> bool:
        return self._store is None or account_checks.has_bucket(self._region, self._store.bucket)

    # -- image, network and prices -------------------------------------------------------------------------------

    def _image(self) -> Iterator[Finding]:
        image = describe_image(self._region, self._catalog.image)
        where = "" if self._config.image_id else f", named by the parameter {self._config.image_parameter}"
        yield ok("image", f"{image.image_id}{where}" + (f", made on {image.made_on}" if image.made_on else ""))

    def _network(self) -> Iterator[Finding]:
        network = self._catalog.network
        zones = ", ".join(sorted(network.subnets)) or "no zone at all"
        yield ok("network", f"security group {network.group}, with subnets in {zones}")
        yield from _ways_out(network, self._region.name)
        rules = account_checks.ingress_rules(self._region, network.group)
        if rules:
            hint = (
                "remove them with `aws ec2 revoke-security-group-ingress`: spotrun needs none, and PyTorch executes"
                " whatever arrives at its ports"
            )
            what = count_of(rules, "rule lets", "rules let")
            yield warned("ingress", f"{what} something into {network.group}", hint)
        else:
            yield ok("ingress", "no rule lets traffic in")

    def _launch_template(self) -> Iterator[Finding]:
        if self._config.launch_template is not None:
            by = f"{self._catalog.launch_template}, the default version of {self._config.launch_template}"
            yield ok("launch template", by)

    def _prices(self) -> Iterator[Finding]:
        types = {each.instance_type for each in self._capacity.one_of_each().values()}
        return price_findings(self._region, sorted(types), self._clock.now())

    # -- permissions ---------------------------------------------------------------------------------------------

    def _launches(self, *, rehearse: bool) -> Iterator[Finding]:
        """
        Check with dry runs that a run can launch instances. Use the job's instance profile if it names one. Otherwise
        create a role for this check, and remove it. If `rehearse` is False, make no dry runs: check only that the role
        can be created.
        """
        if self._config.instance_profile is not None:
            if rehearse:
                yield from findings_of("permissions", lambda: self._permissions("doctor", timedelta()))
            yield from self._may_use_store("doctor", timedelta())
            return
        roles = RunRoles(self._region, self._clock, secrets=self._secrets.values(), repository=self._repository)
        with trial_identity(roles, self._clock) as uid:
            uri = _NOWHERE if self._store is None else str(role_rights.folder_in(self._store, uid))
            for _ in range(2):  # first as a new run's runner, then as a second runner, which checks the existing role
                make = partial(roles.make, uid, uri)
                yield from self._settling.findings("role", make, self._clock.now() + SETTLES_WITHIN)
            if rehearse:
                yield from findings_of("permissions", lambda: self._permissions(uid, SETTLES_WITHIN))
            yield from self._may_use_store(uid, DENIED_WITHIN)
        yield ok("role", "a run can have a separate role; the trial role has been removed")

    def _unrehearsed(self) -> Iterator[Finding]:
        yield unknown("launches", "not rehearsed, because a check above failed", "fix that, then run the doctor again")
        yield from self._launches(rehearse=False)

    def _permissions(self, uid: str, patience: timedelta) -> Iterator[Finding]:
        until = self._clock.now() + patience
        for capacity_type, offering in self._capacity.one_of_each().items():
            name = _TOLD_BY[capacity_type]
            check = partial(self._may_launch, name, offering, uid, until)
            yield from findings_of(name, check, NEEDS_POLICY, _LAUNCH_REFUSED)

    def _may_launch(self, name: str, offering: Offering, uid: str, until: datetime) -> Iterator[Finding]:
        network = self._catalog.network
        request = LaunchRequest(
            token=_TOKEN,
            run_uid=uid,
            run_uri=_NOWHERE,
            launch=0,
            offering=self._catalog.surrounded(offering),
            time_to_live=timedelta(hours=1),
        )
        image = describe_image(self._region, request.offering.image)
        parameters = run_instances(request, self._config, image, network.group)
        rehearse = partial(
            account_checks.rehearse,
            self._region,
            "launch",
            lambda: self._region.ec2.run_instances(**parameters, DryRun=True),
        )
        yield from self._settling.findings(name, rehearse, until, IdentityUnknown)
        yield ok(name, f"EC2 would launch {offering.instance_type} in {offering.zone}")

    def _may_use_store(self, uid: str, patience: timedelta) -> Iterator[Finding]:
        if self._store is not None and self._has_bucket:
            check = partial(self._store_of_instances, self._store, uid, patience)
            yield from findings_of(role_rights.NAME, check, _STORE_DENIED, role_rights.UNSIMULATED)

    def _store_of_instances(self, store: address.BucketAddress, uid: str, patience: timedelta) -> Iterator[Finding]:
        """
        Check that the role of instances may use a run's folder in the store: the job's own role, or the trial role of
        the run `uid`, whose tags IAM may not know for the time `patience`.
        """
        folder = role_rights.folder_in(store, uid)
        named = self._config.instance_profile
        tags = {} if named else {RUN: uid, FOLDER: folder.prefix}
        hint = role_rights.ALLOW.format(named) if named else OTHER_STORE
        profile = self._config.profile_of(uid)
        ask = partial(role_rights.require_store, self._region, profile, folder, tags, hint)
        until = self._clock.now() + patience
        yield from self._settling.findings(role_rights.NAME, ask, until, (role_rights.StoreDenied, NotThere))
        yield ok(role_rights.NAME, f"the role of instances may read and write in {store}")

    def _may_terminate(self) -> Iterator[Finding]:
        ended = account_checks.rehearse_termination(self._region)
        if ended is None:
            what = "there is no instance of spotrun, so the right to end one cannot be checked: ec2:TerminateInstances"
            yield unknown("terminate", what)
        else:
            yield ok("terminate", f"EC2 would end {ended}")

    def _guard(self) -> Iterator[Finding]:
        why = guard.missing(self._region, self._clock)
        if why is None:
            yield ok("guard", "a schedule ends each instance that outlives its time-to-live")
        else:
            what = "if an instance hangs together with its timer, only the next `spotrun reap` ends the instance"
            yield warned("guard", f"{what}: {why}", f"{_DEPLOY}; or let cron call `spotrun reap` every hour")


def _ways_out(network: Network, region: str) -> Iterator[Finding]:
    """Warn about each zone in which no subnet leads to the internet: instances there cannot install packages."""
    if network.unrouted:
        hint = "allow ec2:DescribeRouteTables: deploy infra/aws/account.yaml again"
        yield unknown("way out", f"it is unknown which subnets lead to the internet: {network.unrouted}", hint)
        return
    for zone, subnets in sorted(network.subnets.items()):
        if not any(subnet.leads_out for subnet in subnets):
            names = ", ".join(subnet.subnet_id for subnet in subnets)
            what = f"no subnet of {zone} leads to the internet ({names}): an instance there cannot install its packages"
            yield warned(f"way out of {zone}", what, _a_way_out(subnets, region))
    leading = [zone for zone, subnets in sorted(network.subnets.items()) if any(each.leads_out for each in subnets)]
    if leading:
        yield ok("way out", f"subnets lead to the internet in {', '.join(leading)}")


def _a_way_out(subnets: Sequence[Subnet], region: str) -> str:
    gated = next((subnet for subnet in subnets if subnet.has_gateway), None)
    if gated is not None:
        return (
            f"aws ec2 modify-subnet-attribute --region {region} --subnet-id {gated.subnet_id} --map-public-ip-on-launch"
        )
    return (
        f"route the subnet's 0.0.0.0/0 to a NAT gateway: aws ec2 create-route --region {region} --route-table-id rtb-… "
        "--destination-cidr-block 0.0.0.0/0 --nat-gateway-id nat-…; or name another zone under resources"
    )
