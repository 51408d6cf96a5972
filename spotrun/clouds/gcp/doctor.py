"""
Checks a Google Cloud project with the caller's own login, before any instance is billed.

The checks read settings and the caller's permissions. To show that service accounts can be created, they create one for
a run that does not exist, and delete it. Google Cloud has no dry run for launches, so no check can show that a launch
will succeed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, partial
from typing import Any

from msgspec.structs import replace

from spotrun import address
from spotrun.clock import Clock
from spotrun.clouds.clock_skew import clock_finding
from spotrun.clouds.error_kinds import BadImage, BadSurroundings
from spotrun.clouds.gcp import account_checks, reservation_checks
from spotrun.clouds.gcp.bucket_checks import bucket_findings, require_bucket
from spotrun.clouds.gcp.calls import Google
from spotrun.clouds.gcp.capacity_checks import Capacity
from spotrun.clouds.gcp.catalog import Catalog
from spotrun.clouds.gcp.config import GcpConfig
from spotrun.clouds.gcp.other_accounts import NAME as OTHERS
from spotrun.clouds.gcp.other_accounts import other_account_findings
from spotrun.clouds.gcp.price_checks import price_findings, price_list_findings
from spotrun.clouds.gcp.quotas import Limits
from spotrun.clouds.gcp.right_checks import (
    BUCKET,
    GRANT,
    PROJECT,
    STORE,
    UNREAD_POLICY,
    UNTOLD_RIGHTS,
    bucket_right_findings,
    right_findings,
    shared_account_findings,
)
from spotrun.clouds.gcp.run_accounts import RunAccounts
from spotrun.clouds.gcp.secret_checks import secret_findings
from spotrun.clouds.gcp.surroundings import find_image, find_subnetwork, no_such_region
from spotrun.clouds.identities import SETTLES_WITHIN
from spotrun.clouds.identity_trial import DENIED_WITHIN, Settling, trial_identity
from spotrun.doctor.finding import Finding, Refusal, Step, failed, findings_of, findings_of_steps, ok, unknown, warned
from spotrun.errors import AccessDenied
from spotrun.secrets.reference import Reference
from spotrun.spec.model import ResourcesSpec

PRICED_MAX = 3
"""
Maximum number of types whose prices the doctor reads in each region, because Google answers for one type at a time.
"""
ACCOUNT = "service account"
_NEVER_REHEARSED = "Google has no dry run: only a real launch shows whether it succeeds"
_DRY = "`spotrun launch JOB.yaml --dry-run` shows what would be rented"


class GcpDoctor:
    """
    Checks a project. `wanted` are the resources to rent, if they are known. `store_uri` is the store of the runs; None
    if unknown. `secrets` are the job's secrets, keyed by their environment variables.
    """

    def __init__(
        self,
        config: GcpConfig,
        wanted: ResourcesSpec,
        store_uri: str | None,
        clock: Clock,
        secrets: Mapping[str, Reference] = {},
    ) -> None:
        self._config = config
        self._wanted = wanted
        self._store_uri = store_uri
        self._clock = clock
        self._google = Google(clock)
        self._secrets = secrets
        self._looked_at: set[str] = set()

    def findings(self) -> Iterator[Finding]:
        return findings_of_steps(self._steps())

    def _steps(self) -> Iterator[Step]:
        """
        Yield the steps of the check, in order. If the step "regions" finds that a region does not exist, later steps do
        not check it.
        """
        google, own = self._google, self._own_accounts
        yield Step("identity", self._identity, is_vital=True)
        yield Step("regions", self._unheard, Refusal("Google does not report regions and their quotas"))
        yield Step("image", self._image)
        for region in self._config.regions:
            yield Step(f"network in {region}", partial(self._network, region))
        if self._config.regions:
            yield Step("capacity", self._capacity.zone_findings)
            yield Step("spot prices", self._prices)
            yield Step("price list", partial(price_list_findings, google, self._config.regions))
            yield Step("quota", self._quotas)
            if (reserved := self._config.reservation) is not None and self._wanted.spot_policy != "spot":
                places = partial(self._reservation, reserved)
                yield Step(reservation_checks.NAME, places, reservation_checks.UNREAD, needs=("capacity",))
        if self._bucket is not None:
            yield Step("bucket", partial(require_bucket, google, self._bucket))
        yield Step(PROJECT, partial(right_findings, google, self._project, own), UNTOLD_RIGHTS)
        if self._bucket is not None:
            yield Step(BUCKET, partial(bucket_right_findings, google, self._bucket, own), needs=("bucket",))
        yield Step("secrets", partial(secret_findings, google, self._project, self._secrets))
        yield Step("bucket", self._bucket_facts, needs=("bucket",))
        if (email := self._config.service_account) is not None:
            yield Step(ACCOUNT, partial(self._shared_account, email))
            if self._bucket is not None:
                check = partial(shared_account_findings, google, self._bucket, email)
                yield Step(STORE, check, UNREAD_POLICY, needs=("bucket", ACCOUNT))
        elif self._bucket is not None and self._store_uri is not None:
            trial = partial(self._own_account, self._store_uri.rstrip("/"))
            yield Step(ACCOUNT, trial, needs=(PROJECT, BUCKET), otherwise=_no_account_tried)
        others = partial(other_account_findings, google, self._project, self._config.service_account)
        yield Step(OTHERS, others)
        yield Step("launch", lambda: [unknown("launch", _NEVER_REHEARSED, _DRY)])

    # -- login and clock -----------------------------------------------------------------------------------------

    @cached_property
    def _project(self) -> str:
        return self._google.project(self._config.project)

    @cached_property
    def _facts(self) -> Mapping[str, Any]:
        return account_checks.project_facts(self._google, self._project)

    def _identity(self) -> Iterator[Finding]:
        """
        Check the login. The first call also shows whether the project exists, and whether its API and billing are
        enabled.
        """
        before = self._clock.ahead
        name = self._facts.get("name", self._project)
        who = account_checks.caller(self._google) or "somebody whose address this login does not tell"
        yield ok("identity", f"{who}, in the project {name}")
        yield ok("project", f"{name}: Compute Engine is on, and so is billing")
        yield clock_finding("gcp clock", self._clock.ahead - before, "Google")

    @cached_property
    def _regions(self) -> dict[str, Mapping[str, Any]]:
        return account_checks.regions_told(self._google, self._project)

    def _unheard(self) -> Iterable[Finding]:
        """
        Raise BadSurroundings if some of the configured regions do not exist. All further checks leave these regions
        out.
        """
        unheard = [name for name in self._config.regions if name not in self._regions]
        if unheard:
            self._config = replace(
                self._config, regions=tuple(name for name in self._config.regions if name not in unheard)
            )
            raise no_such_region(unheard, self._regions)
        return ()

    # -- image and network ---------------------------------------------------------------------------------------

    def _image(self) -> Iterator[Finding]:
        image = find_image(self._google, self._config.image)
        name = image.path.rpartition("/")[2]
        if image.volume_gib > self._config.volume_gib:
            raise BadImage(
                f"{name} needs {image.volume_gib} GiB, but gcp.volume_gb is {self._config.volume_gib}",
                hint=f"set gcp.volume_gb to {image.volume_gib} or more",
            )
        family = self._config.image.partition("/images/family/")[2]
        behind = f", the newest of the family {family}" if family else ""
        yield ok("image", f"{name}{behind}" + (f", made on {image.made_on}" if image.made_on else ""))

    def _network(self, region: str) -> Iterator[Finding]:
        path = find_subnetwork(self._google, self._project, region, self._config.subnetwork)
        found = account_checks.subnetwork_at(self._google, path)
        network, name = found.network, path.rpartition("/")[2]
        if self._config.external_address or found.reaches_google:
            yield ok(f"network in {region}", f"the subnetwork {name}, of the network {network}")
        else:
            on = f"gcloud compute networks subnets update {name} --region={region} --enable-private-ip-google-access"
            what = f"instances without an external address do not reach Google from the subnetwork {name}"
            yield failed(f"network in {region}", BadSurroundings(what, hint=f"turn on Private Google Access: {on}"))
        if network in self._looked_at:
            return
        self._looked_at.add(network)
        host = path.removeprefix("projects/").partition("/regions/")[0]  # another project's, with Shared VPC
        check = partial(self._ingress, host, network)
        yield from findings_of("ingress", check, Refusal("the firewall's rules are unknown"))

    def _ingress(self, project: str, network: str) -> Iterator[Finding]:
        rules = account_checks.ingress_rules(self._google, project, network)
        names = ", ".join(sorted(rule.name for rule in rules if not rule.is_of_iap))
        if names:
            hint = (
                "remove it with `gcloud compute firewall-rules delete`: spotrun needs only a rule for ssh through IAP,"
                " and PyTorch executes whatever arrives at its ports"
            )
            yield warned("ingress", f"rules let traffic into the network {network}: {names}", hint)
        elif rules:
            yield ok("ingress", f"only ssh is let into the network {network}, through Identity-Aware Proxy")
        else:
            yield ok("ingress", f"no rule lets traffic into the network {network}")

    # -- capacity ------------------------------------------------------------------------------------------------

    @cached_property
    def _capacity(self) -> Capacity:
        return Capacity(self._catalogs, self._config, self._wanted)

    @cached_property
    def _catalogs(self) -> dict[str, Catalog]:
        """
        A catalog for each region, with all of its types. If the job names a type that the region does not have, a
        finding can then say which types it has.
        """
        everything = replace(self._config, instance_types=(), accelerators=())
        return {
            region: Catalog(self._google, self._project, region, everything, self._clock, dict)
            for region in self._config.regions
        }

    def _prices(self) -> Iterator[Finding]:
        for region in self._config.regions:
            types = self._capacity.types(region)[:PRICED_MAX]
            yield from price_findings(self._google, self._project, region, types, self._clock.now())

    def _quotas(self) -> Iterator[Finding]:
        """
        Check the quotas. If this login is not allowed to read the regions, their quotas count as unknown. This is not
        an error here, because the step "regions" has already reported it.
        """
        try:
            told = self._regions
        except AccessDenied:
            told = {}
        wanted = {name: row for name, row in told.items() if name in self._config.regions}
        yield from self._capacity.quota_findings(Limits(self._facts, wanted))

    def _reservation(self, name: str) -> Iterator[Finding]:
        wanted = self._capacity.on_demand
        return reservation_checks.reservation_findings(self._google, self._project, name, wanted)

    # -- bucket and service accounts -----------------------------------------------------------------------------

    @property
    def _own_accounts(self) -> bool:
        return self._config.service_account is None

    @cached_property
    def _bucket(self) -> str | None:
        place = None if self._store_uri is None else address.parse(self._store_uri)
        return place.bucket if isinstance(place, address.BucketAddress) and place.scheme == "gs" else None

    def _bucket_facts(self) -> Iterator[Finding]:
        if self._bucket is None:
            what = "no bucket is named, so neither the rights in a bucket nor a run's service account can be tested"
            yield unknown("bucket", what, "name a bucket in --store gs://BUCKET/runs, or in the job's checkpoint.uri")
        else:
            yield from bucket_findings(self._google, self._bucket, self._config.regions, self._own_accounts)

    def _own_account(self, store_uri: str) -> Iterator[Finding]:
        """
        Create a service account for a run that does not exist, and remove it again. The account is requested twice, as
        two runners of one run might do: the second request must find the account that the first has created.
        """
        accounts = RunAccounts(self._google, self._clock, self._project)
        with trial_identity(accounts, self._clock) as uid:
            make = partial(accounts.make, uid, f"{store_uri}/doctor-{uid}")
            for patience in (DENIED_WITHIN, SETTLES_WITHIN):
                settling = Settling("Google to know the new service account", self._clock, patience)
                yield from settling.findings(ACCOUNT, make, self._clock.now() + patience)
        yield ok(ACCOUNT, "a run can have a separate one, limited to its folder; the trial account has been removed")

    def _shared_account(self, email: str) -> Iterator[Finding]:
        account_checks.require_account(self._google, email)
        if not account_checks.may_act_as(self._google, email):
            what = f"you are not allowed to attach {email} to instances: this requires {account_checks.ACT_AS}"
            hint = (
                f"gcloud iam service-accounts add-iam-policy-binding {email} --role=roles/iam.serviceAccountUser"
                " --member=user:YOU"
            )
            yield failed(ACCOUNT, AccessDenied(what, hint=hint))
            return
        yield ok(ACCOUNT, f"{email} serves all runs, so runs are not isolated from one another")


def _no_account_tried() -> Iterable[Finding]:
    """
    Report that no service account was created as a test. Because rights are missing, the login might not be able to
    delete it again.
    """
    return [unknown(ACCOUNT, "no trial account is made, because rights are missing (see above)", GRANT)]
