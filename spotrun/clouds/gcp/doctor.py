"""
The checks of a project on Google Cloud, made with the caller's own login before any instance is billed.

They read, and ask what the caller may do. They make the service account of a run that does not exist, and remove it.
Google rehearses no launch: whether one succeeds is only told by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from difflib import get_close_matches
from functools import cached_property, partial
from typing import Any

from msgspec.structs import replace

from spotrun import address
from spotrun.clock import Clock
from spotrun.clouds.clock_skew import SET_CLOCK, SKEW_WARNED, in_words
from spotrun.clouds.gcp import account_checks
from spotrun.clouds.gcp.account_trial import NAME as ACCOUNT
from spotrun.clouds.gcp.account_trial import account_trial
from spotrun.clouds.gcp.bucket_checks import bucket_findings
from spotrun.clouds.gcp.calls import Google
from spotrun.clouds.gcp.capacity_checks import Capacity
from spotrun.clouds.gcp.catalog import Catalog
from spotrun.clouds.gcp.config import GcpConfig
from spotrun.clouds.gcp.error_codes import BadImage
from spotrun.clouds.gcp.other_accounts import NAME as OTHERS
from spotrun.clouds.gcp.other_accounts import other_account_findings
from spotrun.clouds.gcp.price_checks import price_findings, price_list_finding
from spotrun.clouds.gcp.quotas import Limits
from spotrun.clouds.gcp.right_checks import BUCKET, GRANT, bucket_right_findings, right_findings
from spotrun.clouds.gcp.run_accounts import RunAccounts
from spotrun.clouds.gcp.secret_checks import secret_findings
from spotrun.clouds.gcp.surroundings import find_image, find_subnetwork
from spotrun.doctor.finding import Finding, Verdict, findings_of, ok, unknown, warned
from spotrun.errors import AccessDenied, CloudError
from spotrun.secrets.reference import Reference
from spotrun.spec.model import ResourcesSpec

PRICED_MAX = 3
"""Maximum types whose prices the doctor reads in each region: Google answers for one type at a time."""
_DRY = "`spotrun launch JOB.yaml --dry-run` shows what would be rented"


class GcpDoctor:
    """
    A project, and what a job wants of it. `wanted` need not name anything; `store_uri` is where runs would live, None
    if unknown. `secrets` are those of the job, by the names of their variables.
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
        """All findings. A failed check stops none of the others, but for the first, which finds out who is asking."""
        who = list(findings_of("identity", self._identity))
        yield from who
        if any(finding.verdict is Verdict.FAILED for finding in who):
            return
        yield from findings_of("regions", self._unheard)
        yield from findings_of("image", self._image)
        yield from self._places()
        rights = [*self._rights()]
        yield from rights
        yield from secret_findings(self._google, self._project, self._secrets)
        yield from findings_of("bucket", self._bucket_facts)
        yield from self._account(may=all(finding.verdict is not Verdict.FAILED for finding in rights))
        others = partial(other_account_findings, self._google, self._project, self._config.service_account)
        yield from findings_of(OTHERS, others)
        yield unknown("launch", "Google rehearses none: only a launch tells whether one succeeds", _DRY)

    def _places(self) -> Iterator[Finding]:
        for region in self._config.regions:
            yield from findings_of(f"network in {region}", partial(self._network, region))
        if self._config.regions:
            yield from findings_of("capacity", self._capacity.zone_findings)
            yield from findings_of("spot prices", self._prices)
            yield price_list_finding(self._google, self._config.regions)
            yield from findings_of("quota", self._quotas)

    # -- who asks, and when --------------------------------------------------------------------------------------

    @cached_property
    def _project(self) -> str:
        return self._google.project(self._config.project)

    @cached_property
    def _facts(self) -> Mapping[str, Any]:
        return account_checks.project_facts(self._google, self._project)

    def _identity(self) -> Iterator[Finding]:
        """The first call says too if the API or billing is off, or if there is no such project."""
        before = self._clock.ahead
        name = self._facts.get("name", self._project)
        who = account_checks.caller(self._google) or "somebody whose address this login does not tell"
        yield ok("identity", f"{who}, in the project {name}")
        yield ok("project", f"{name}: Compute Engine is on, and so is billing")
        yield _clock_finding(self._clock.ahead - before)

    @cached_property
    def _regions(self) -> dict[str, Mapping[str, Any]]:
        return account_checks.regions_told(self._google, self._project)

    def _unheard(self) -> Iterator[Finding]:
        """
        Check that Google has the regions, and leave those that it does not have out of all further checks.

        Raises:
            CloudError: the job names one.
        """
        try:
            unheard = [name for name in self._config.regions if name not in self._regions]
        except AccessDenied as error:
            yield unknown(
                "regions", f"Google does not tell regions and their quotas: {error.message}", error.hint or ""
            )
            return
        if unheard:
            self._config = replace(
                self._config, regions=tuple(name for name in self._config.regions if name not in unheard)
            )
            close = get_close_matches(unheard[0], self._regions, 1)
            hint = f"did you mean {close[0]}?" if close else "`gcloud compute regions list` has their names"
            raise CloudError(f"Google shows no region called {', '.join(unheard)}", hint=hint)

    # -- what surrounds an instance ------------------------------------------------------------------------------

    def _image(self) -> Iterator[Finding]:
        image = find_image(self._google, self._config.image)
        name = image.path.rpartition("/")[2]
        if image.volume_gib > self._config.volume_gib:
            raise BadImage(
                f"{name} needs {image.volume_gib} GiB, and gcp.volume_gb is {self._config.volume_gib}",
                hint=f"set gcp.volume_gb to {image.volume_gib} or more",
            )
        family = self._config.image.partition("/images/family/")[2]
        behind = f", the newest of the family {family}" if family else ""
        yield ok("image", f"{name}{behind}" + (f", made on {image.made_on}" if image.made_on else ""))

    def _network(self, region: str) -> Iterator[Finding]:
        path = find_subnetwork(self._google, self._project, region, self._config.subnetwork)
        network = account_checks.network_of(self._google, path)
        yield ok(f"network in {region}", f"the subnetwork {self._config.subnetwork}, of the network {network}")
        if network in self._looked_at:
            return
        self._looked_at.add(network)
        yield from findings_of("ingress", partial(self._ingress, network))

    def _ingress(self, network: str) -> Iterator[Finding]:
        try:
            rules = account_checks.ingress_rules(self._google, self._project, network)
        except AccessDenied as error:
            yield unknown("ingress", f"what is let in is not told: {error.message}", error.hint or "")
            return
        names = ", ".join(sorted(rule.name for rule in rules if not rule.is_of_iap))
        if names:
            hint = (
                "remove it with `gcloud compute firewall-rules delete`: spotrun needs none, but for ssh through IAP,"
                " and PyTorch runs what comes to its ports"
            )
            yield warned("ingress", f"something is let into the network {network}: {names}", hint)
        elif rules:
            yield ok("ingress", f"nothing is let into the network {network} but ssh through Identity-Aware Proxy")
        else:
            yield ok("ingress", f"no rule lets anything into the network {network}")

    # -- what there is to rent -----------------------------------------------------------------------------------

    @cached_property
    def _capacity(self) -> Capacity:
        return Capacity(self._catalogs, self._config, self._wanted)

    @cached_property
    def _catalogs(self) -> dict[str, Catalog]:
        """Return a catalog of all types per region, to name what there is if there is none of what the job wants."""
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
        """Check the quotas. What this login may not read is unknown, and reported once."""
        try:
            told = self._regions
        except AccessDenied:
            told = {}
        wanted = {name: row for name, row in told.items() if name in self._config.regions}
        yield from self._capacity.quota_findings(Limits(self._facts, wanted))

    # -- the store, and who reaches it ---------------------------------------------------------------------------

    @property
    def _own_accounts(self) -> bool:
        return self._config.service_account is None

    @cached_property
    def _bucket(self) -> str | None:
        place = None if self._store_uri is None else address.parse(self._store_uri)
        return place.bucket if isinstance(place, address.BucketAddress) and place.scheme == "gs" else None

    def _rights(self) -> Iterator[Finding]:
        google, own = self._google, self._own_accounts
        yield from right_findings(google, self._project, own)
        if self._bucket is not None:
            yield from findings_of(BUCKET, partial(bucket_right_findings, google, self._bucket, own))

    def _bucket_facts(self) -> Iterator[Finding]:
        if self._bucket is None:
            what = "no bucket is named, so neither its rights nor a run's service account are tried"
            yield unknown("bucket", what, "name one by --store gs://BUCKET/runs, or by checkpoint.uri in the job")
        else:
            yield from bucket_findings(self._google, self._bucket, self._config.regions, self._own_accounts)

    def _account(self, *, may: bool) -> Iterator[Finding]:
        """Check a run's account, or the one that the job names for all. A login that may not delete one makes none."""
        email = self._config.service_account
        if email is not None:
            yield from findings_of(ACCOUNT, partial(self._shared_account, email))
        elif self._bucket is None or self._store_uri is None:
            return
        elif may:
            accounts = RunAccounts(self._google, self._clock, self._project)
            yield from findings_of(ACCOUNT, partial(account_trial, accounts, self._store_uri, self._clock))
        else:
            yield unknown(ACCOUNT, "none is made on trial while rights are missing, as above", GRANT)

    def _shared_account(self, email: str) -> Iterator[Finding]:
        account_checks.require_account(self._google, email)
        yield ok(ACCOUNT, f"{email} serves all runs, so none is kept apart from another")


def _clock_finding(skew: timedelta) -> Finding:
    if abs(skew) > SKEW_WARNED:
        return warned("gcp clock", in_words(skew, "Google"), SET_CLOCK)
    return ok("gcp clock", "this machine's clock agrees with Google's")
