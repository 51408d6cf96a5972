"""Checks that the resources that a job names in its section `gcp` exist."""

from __future__ import annotations

from contextlib import suppress

from spotrun.clock import Clock
from spotrun.clouds.error_kinds import BadImage, BadSurroundings, of_key
from spotrun.clouds.gcp.account_checks import require_account
from spotrun.clouds.gcp.calls import Google
from spotrun.clouds.gcp.config import GcpConfig
from spotrun.clouds.gcp.reservation_checks import reservations
from spotrun.clouds.gcp.surroundings import find_image, find_subnetwork
from spotrun.clouds.regions import Regions
from spotrun.errors import AccessDenied, CloudError, Mistakes
from spotrun.spec.model import GcpSpec


def require_named(google: Google, config: GcpConfig, clock: Clock) -> None:
    """
    Check the service account, the machine image, the subnetwork and the reservation that a job names. The subnetwork
    must exist in at least one region, because a run leaves out a region in which it cannot launch instances.

    Raises:
        CloudError: a resource does not exist; SeveralInvalid if several do not.
    """
    mistakes, usual = Mistakes(), GcpSpec()
    if (email := config.service_account) is not None:
        with mistakes:
            require_account(google, email)
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
    mistakes.refuse()


def _require_reservation(google: Google, project: str, name: str) -> None:
    with suppress(AccessDenied):  # older roles of infra/gcp do not allow to list reservations
        if not reservations(google, project, name):
            what = f"the project {project} has no reservation called {name}"
            raise CloudError(what, hint="correct or leave out gcp.reservation", key=("gcp", "reservation"))
