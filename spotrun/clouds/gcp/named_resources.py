"""Checks that the resources that a job names in its section `gcp` exist, and that its instances may use the store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from spotrun import address
from spotrun.clock import Clock
from spotrun.clouds.error_kinds import BadImage, BadSurroundings, NotThere, of_key
from spotrun.clouds.gcp.account_checks import require_account
from spotrun.clouds.gcp.calls import Google
from spotrun.clouds.gcp.config import GcpConfig
from spotrun.clouds.gcp.reservation_checks import reservations
from spotrun.clouds.gcp.right_checks import shared_account_findings
from spotrun.clouds.gcp.surroundings import find_image, find_subnetwork
from spotrun.clouds.regions import Regions
from spotrun.doctor.finding import Verdict
from spotrun.errors import AccessDenied, CloudError, Mistakes
from spotrun.spec.model import GcpSpec


def require_named(google: Google, config: GcpConfig, store_uri: str, clock: Clock) -> list[str]:
    """
    Check the service account, the machine image, the subnetwork and the reservation that a job names. The subnetwork
    must exist in at least one region, because a run leaves out a region in which it cannot launch instances. Return a
    note if the service account may be unable to use the store.

    Raises:
        CloudError: a resource does not exist; SeveralInvalid if several do not.
    """
    notes, mistakes, usual = list[str](), Mistakes(), GcpSpec()
    if config.image != usual.image:
        with mistakes, of_key(BadImage, "gcp", "image"):
            find_image(google, config.image)
    if (name := config.subnetwork) != usual.subnetwork:
        with mistakes, of_key(BadSurroundings, "gcp", "subnetwork"):
            project, regions = google.project(config.project), Regions(config.regions, clock)
            regions.ask(lambda region: find_subnetwork(google, project, region, name), must_see=())
    if config.reservation is not None:
        with mistakes:
            _require_reservation(google, google.project(config.project), config.reservation)
    if (email := config.service_account) is not None:  # last, because the user may not be allowed to read it
        with mistakes:
            require_account(google, email)
            notes += _about_store(google, email, store_uri)
    mistakes.refuse()
    return notes


def _about_store(google: Google, email: str, store_uri: str) -> Iterator[str]:
    store = address.parse(store_uri)
    if not isinstance(store, address.BucketAddress):
        return
    with suppress(AccessDenied, NotThere):  # the policy cannot be read, or there is no bucket, which another check says
        for finding in shared_account_findings(google, store.bucket, email):
            if finding.verdict is Verdict.WARNED:
                yield f"{finding.detail}; try: {finding.hint}"


def _require_reservation(google: Google, project: str, name: str) -> None:
    with suppress(AccessDenied):  # older roles of infra/gcp do not allow to list reservations
        if not reservations(google, project, name):
            what = f"the project {project} has no reservation called {name}"
            raise CloudError(what, hint="correct or leave out gcp.reservation", key=("gcp", "reservation"))
