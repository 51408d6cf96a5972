"""What tests of the driver of Compute Engine ask of a project on this machine."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from spotrun.clouds.gcp.config import GcpConfig
from spotrun.clouds.gcp.driver import GcpDriver
from spotrun.instance import Instance, InstanceState, LaunchRequest
from spotrun.offering import CapacityType, Offering
from spotrun.spec.model import DEEP_LEARNING_IMAGE
from tests.support.gce_answers import Refusal
from tests.support.google_server import GoogleServer
from tests.support.launch_requests import requested
from tests.support.manual_clock import ManualClock

RUN, REGION = "0123456789", "us-central1"
CONFIG = GcpConfig(regions=(REGION,), instance_types=("g2-standard-4",), image=DEEP_LEARNING_IMAGE)


def reach(gce: GoogleServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is logged in as the runner, and asks the server of the tests in place of Google's."""
    gce.reach(monkeypatch, folder)
    without_a_price_list(gce)


def without_a_price_list(google: GoogleServer) -> None:
    """The price list of the Cloud Billing Catalog is down, so the shipped prices hold."""
    google.fail("cloudbilling.services.skus.list", Refusal(503, "backendError", "down"), times=None)


def offered(
    driver: GcpDriver, capacity_type: CapacityType = CapacityType.SPOT, zone: str = "us-central1-a"
) -> Offering:
    found = (each for each in driver.offerings() if each.capacity_type is capacity_type and each.zone == zone)
    return next(found)


def request(what: Offering, launch: int = 7, time_to_live: timedelta = timedelta(hours=2)) -> LaunchRequest:
    return requested(what, launch, RUN, run_uri=f"gs://bucket/runs/job-{RUN}", time_to_live=time_to_live)


def running(driver: GcpDriver, clock: ManualClock, asked: LaunchRequest | None = None) -> Instance:
    """Launch one, and see it run."""
    launched = driver.launch(asked or request(offered(driver)))
    clock.advance(30)
    found = driver.describe(launched.instance_id)
    assert found is not None
    assert found.state is InstanceState.RUNNING
    return found
