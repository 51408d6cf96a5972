"""
The checks of an AWS account, made with the caller's own credentials before any instance is billed.

They read and rehearse: RunInstances and TerminateInstances are dry runs, which launch and end nothing. They make the
role of a run and the guard of an instance that do not exist, and remove both. EC2's own role for spot stays.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial

from spotrun.clock import Clock
from spotrun.clouds.aws import account_checks, guard
from spotrun.clouds.aws.calls import Region
from spotrun.clouds.aws.capacity_checks import Capacity
from spotrun.clouds.aws.catalog import Catalog
from spotrun.clouds.aws.config import AwsConfig
from spotrun.clouds.aws.disk_key import key_findings
from spotrun.clouds.aws.network import Network, Subnet, describe_image
from spotrun.clouds.aws.request import run_instances
from spotrun.clouds.aws.right_checks import needs_policy, price_findings, spot_findings
from spotrun.clouds.aws.run_role import RunRoles
from spotrun.clouds.aws.secret_checks import secret_findings
from spotrun.clouds.clock_skew import SET_CLOCK, SKEW_WARNED, in_words, skew_of
from spotrun.clouds.identities import SETTLES_WITHIN, trial_uid
from spotrun.doctor.finding import Finding, Verdict, advice_of, findings_of, ok, unknown, waits, warned
from spotrun.errors import AccessDenied, CloudError, CloudUnavailable, IdentityUnknown
from spotrun.instance import LaunchRequest
from spotrun.offering import CapacityType, Offering
from spotrun.secrets.reference import Reference
from spotrun.spec.model import ResourcesSpec
from spotrun.units import count_of, to_the_second

LOOK_AGAIN_S = 5.0
DENIED_WITHIN = timedelta(seconds=20)
"""
Maximum time that the doctor repeats what AWS denies after it made a role: mostly the denial is permanent. A run waits
longer: no user watches it.
"""
_TOKEN, _NOWHERE = "spotrun-doctor", "s3://doctor/doctor"
_DEPLOY = "deploy infra/aws/account.yaml and region.yaml, or name what you use instead"
_TOLD_BY = {CapacityType.SPOT: "launch on spot", CapacityType.ON_DEMAND: "launch on demand"}


class AwsDoctor:
    """
    One region of an account, and what a job wants of it. `wanted` need not name anything; `secrets` are those of the
    job, by the names of their variables, and `repository` is that of its image in ECR.
    """

    def __init__(
        self,
        region: Region,
        config: AwsConfig,
        wanted: ResourcesSpec,
        clock: Clock,
        secrets: Mapping[str, Reference] | None = None,
        repository: str = "",
    ) -> None:
        self.region = region.name
        self._repository = repository
        self._secrets = secrets or {}
        self._region = region
        self._config = config
        self._wanted = wanted
        self._clock = clock
        self._catalog = Catalog(region, config, clock)
        self._capacity = Capacity(region, self._catalog, wanted)

    def findings(self) -> Iterator[Finding]:
        """Yield all findings. A failure is reported once: each check that needs what has failed is left out."""
        if not (yield from _told(findings_of("identity", self._identity))):
            return
        has_image = yield from _told(findings_of("image", self._image))
        has_network = yield from _told(findings_of("network", self._network))
        has_template = yield from _told(findings_of("launch template", self._launch_template))
        has_place = has_network and (yield from _told(findings_of("capacity", self._capacity.zone_findings)))
        if has_place:
            yield from findings_of("spot prices", self._prices)
            yield from findings_of("quota", self._capacity.quota_findings)
        complete = has_place and has_image and has_template
        if not complete:
            yield unknown("launches", "are not rehearsed without what failed above", "mend that, then look again")
        yield from findings_of("role", partial(self._launches, rehearse=complete))
        uses_spot = self._wanted.spot_policy != "on-demand"
        if uses_spot:
            yield from findings_of("spot role", partial(spot_findings, self._region))
        yield from findings_of("disk key", partial(key_findings, self._region, uses_spot=uses_spot))
        yield from findings_of("terminate", self._may_terminate)
        yield from findings_of("secrets", partial(secret_findings, self._region, self._secrets))
        yield self._guard()

    # -- who asks, and when --------------------------------------------------------------------------------------

    def _identity(self) -> Iterator[Finding]:
        who, skew = self._with_skew(lambda: account_checks.caller(self._region))
        where = f"{who.arn}, in {self._region.name}"
        if who.arn.endswith(":root"):
            yield warned(
                "identity", where, "use a user or role that has the policy spotrun-runner: root may do anything"
            )
        else:
            yield ok("identity", where)
        yield from _clock_findings(skew)

    def _with_skew(self, ask: Callable[[], account_checks.Caller]) -> tuple[account_checks.Caller, timedelta | None]:
        before = self._machine_time
        who = ask()
        return who, None if who.told_at is None else skew_of(before, self._machine_time, who.told_at)

    @property
    def _machine_time(self) -> datetime:
        """The calls put the clock right, and this is what it was before."""
        return self._clock.now() + self._clock.ahead

    # -- what surrounds an instance ------------------------------------------------------------------------------

    def _image(self) -> Iterator[Finding]:
        image = describe_image(self._region, self._catalog.image)
        where = "" if self._config.image_id else f", the newest behind {self._config.image_parameter}"
        yield ok("image", f"{image.image_id}{where}" + (f", made on {image.made_on}" if image.made_on else ""))

    def _network(self) -> Iterator[Finding]:
        network = self._catalog.network
        zones = ", ".join(sorted(network.subnets)) or "no zone at all"
        yield ok("network", f"security group {network.group}, with subnets in {zones}")
        yield from _ways_out(network, self._region.name)
        rules = account_checks.ingress_rules(self._region, network.group)
        if rules:
            hint = (
                "remove them with `aws ec2 revoke-security-group-ingress`: spotrun needs none, and PyTorch runs what"
                " comes to its ports"
            )
            what = count_of(rules, "rule lets", "rules let")
            yield warned("ingress", f"{what} something into {network.group}", hint)
        else:
            yield ok("ingress", "no rule lets anything in")

    def _launch_template(self) -> Iterator[Finding]:
        """Only if one is named: a launch needs none."""
        if self._config.launch_template is not None:
            by = f"{self._catalog.launch_template}, the default version of {self._config.launch_template}"
            yield ok("launch template", by)

    def _prices(self) -> Iterator[Finding]:
        types = {each.instance_type for each in self._capacity.one_of_each().values()}
        return price_findings(self._region, sorted(types), self._clock.now())

    # -- what the caller may do ----------------------------------------------------------------------------------

    def _launches(self, *, rehearse: bool) -> Iterator[Finding]:
        """Launches are rehearsed as those of a run: with a role of its own, or with the profile that the job names."""
        if self._config.instance_profile is not None:
            if rehearse:
                yield from findings_of("permissions", lambda: self._permissions("doctor", timedelta()))
            return
        roles = RunRoles(self._region, self._clock, secrets=self._secrets.values(), repository=self._repository)
        with _trial_role(roles, self._clock) as uid:
            yield from self._made(roles, uid)
            if rehearse:
                yield from findings_of("permissions", lambda: self._permissions(uid, SETTLES_WITHIN))
        yield ok("role", "a run can have a role of its own; the trial role is removed again")

    def _permissions(self, uid: str, patience: timedelta) -> Iterator[Finding]:
        until = self._clock.now() + patience
        for capacity_type, offering in self._capacity.one_of_each().items():
            name = _TOLD_BY[capacity_type]
            yield from findings_of(name, partial(self._may_launch, name, offering, uid, until))

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
        try:
            with needs_policy():
                rehearse = partial(account_checks.rehearse_launch, self._region, parameters)
                yield from self._settled(name, rehearse, IdentityUnknown, until)
        except CloudError as error:
            raise type(error)(error.message, hint=advice_of(error, _DEPLOY)) from error
        yield ok(name, f"EC2 would launch {offering.instance_type} in {offering.zone}")

    def _made(self, roles: RunRoles, uid: str) -> Iterator[Finding]:
        """Make the role as one runner does, and again as a second runner, which checks the one that is there."""
        make = partial(roles.make, uid, _NOWHERE)
        for _ in range(2):
            yield from self._settled("role", make, CloudUnavailable, self._clock.now() + SETTLES_WITHIN)

    def _settled(
        self, name: str, ask: Callable[[], object], unsettled: type[CloudError], until: datetime
    ) -> Iterator[Finding]:
        """Call `ask` until AWS knows the new role everywhere. Yield once what the user has to wait for."""
        told, denied_until = False, self._clock.now() + DENIED_WITHIN
        while True:
            try:
                ask()
            except unsettled as error:
                ends_at = min(until, denied_until) if isinstance(error.__cause__, AccessDenied) else until
                if self._clock.now() >= ends_at:
                    raise
                if not told:
                    at_most = to_the_second(ends_at - self._clock.now())
                    yield waits(name, f"for AWS to know the new role everywhere, {at_most} at most ({error.message})")
                told = True
            else:
                return
            self._clock.sleep(LOOK_AGAIN_S)

    def _may_terminate(self) -> Iterator[Finding]:
        with needs_policy():
            ended = account_checks.rehearse_termination(self._region)
        if ended is None:
            what = (
                "no instance of spotrun's runs here, so the right to end one cannot be checked: ec2:TerminateInstances"
            )
            yield unknown("terminate", what)
        else:
            yield ok("terminate", f"EC2 would end {ended}")

    def _guard(self) -> Finding:
        why = guard.missing(self._region, self._clock)
        if why is None:
            return ok("guard", "a schedule ends each instance that outlives its time-to-live")
        what = "if an instance hangs, and its own timer with it, only the next sweep ends it"
        return warned("guard", f"{what}: {why}", f"{_DEPLOY}; or let cron call `spotrun reap` every hour")


def _ways_out(network: Network, region: str) -> Iterator[Finding]:
    """Warn of each zone in which an instance could install nothing, whichever of its subnets it has."""
    if network.unrouted:
        hint = "allow ec2:DescribeRouteTables: deploy infra/aws/account.yaml again"
        yield unknown("way out", f"which subnets lead to the internet: {network.unrouted}", hint)
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
        f"send its 0.0.0.0/0 to a NAT gateway: aws ec2 create-route --region {region} --route-table-id rtb-… "
        "--destination-cidr-block 0.0.0.0/0 --nat-gateway-id nat-…; or name another zone under resources"
    )


def _told(found: Iterable[Finding]) -> Generator[Finding, None, bool]:
    """Yield what a check has found; return whether all of it is well enough for what needs it."""
    failed = False
    for finding in found:
        yield finding
        failed = failed or finding.verdict is Verdict.FAILED
    return not failed


@contextlib.contextmanager
def _trial_role(roles: RunRoles, clock: Clock) -> Iterator[str]:
    """The uid of a run that does not exist. After the block it has no role."""
    uid = trial_uid(clock.now())
    try:
        yield uid
    except BaseException:
        with contextlib.suppress(CloudError):  # the first reason is the one to report
            roles.remove(uid)
        raise
    roles.remove(uid)


def _clock_findings(skew: timedelta | None) -> Iterator[Finding]:
    if skew is None:
        yield unknown("aws clock", "AWS's answer had no date that can be read")
    elif abs(skew) > SKEW_WARNED:
        yield warned("aws clock", in_words(skew, "AWS"), SET_CLOCK)
    else:
        yield ok("aws clock", "this machine's clock agrees with AWS's")
