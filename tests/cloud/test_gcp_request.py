"""Our body of an insert is gcloud's for the same wishes, with the differences named."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from spotrun.clouds.gcp.config import GcpConfig
from spotrun.clouds.gcp.request import insert_body
from spotrun.instance import LaunchRequest
from spotrun.offering import RENTED, CapacityType, Offering
from spotrun.spec.model import DEEP_LEARNING_IMAGE
from tests.support import gcloud_insert
from tests.support.gce_launches import request
from tests.support.gcloud_commands import GCLOUD, executed
from tests.support.google_login import TOKEN
from tests.support.google_server import GoogleServer
from tests.support.manual_clock import ManualClock

ONLY_OURS = {
    "description": "for people who look at the console",
    "disks.0.initializeParams.labels": "a disk that outlives its instance is found by them",
    "scheduling.preemptionNoticeDuration": "gcloud has no argument for it",
}
ONLY_GCLOUDS = {
    "canIpForward": "false is what holds without it",
    "deletionProtection": "the same",
    "disks.0.mode": "READ_WRITE is what holds without it",
    "disks.0.type": "PERSISTENT is what holds without it",
}


def ours(capacity_type: CapacityType) -> dict[str, Any]:
    offering = Offering(
        cloud="gcp",
        region="us-central1",
        zone="us-central1-a",
        instance_type="g2-standard-4",
        capacity_type=capacity_type,
        price_usd_per_hour=Decimal(0),
        accelerators="L4:1",
        image=DEEP_LEARNING_IMAGE,
        subnet="projects/acme-training/regions/us-central1/subnetworks/spotrun",
    )
    asked: LaunchRequest = replace(request(offering), time_to_live=timedelta(hours=2))
    body = insert_body(asked, GcpConfig(regions=("us-central1",)), "acme-training")
    body["labels"] = {"spotrun-run": body["labels"]["spotrun-run"]}
    body["metadata"]["items"] = [each for each in body["metadata"]["items"] if each["key"] != "startup-script"]
    return {**body, "name": "spotrun-x"}


def leaves(body: Any, at: str = "") -> dict[str, Any]:
    if isinstance(body, dict):
        parts = {f"{at}.{key}" if at else key: value for key, value in body.items()}
    elif isinstance(body, list):
        parts = {f"{at}.{number}": value for number, value in enumerate(body)}
    else:
        return {at: body}
    return {path: leaf for where, part in parts.items() for path, leaf in leaves(part, where).items()}


@pytest.mark.parametrize("capacity_type", RENTED)
def test_an_insert_is_what_gcloud_sends_for_the_same_wishes(capacity_type: CapacityType) -> None:
    mine, gclouds = leaves(ours(capacity_type)), leaves(gcloud_insert.recorded()[capacity_type])
    for path in mine.keys() - gclouds.keys():
        assert [reason for start, reason in ONLY_OURS.items() if path.startswith(start)], path
    for path in gclouds.keys() - mine.keys():
        assert path in ONLY_GCLOUDS, path
    assert {path: mine[path] for path in mine.keys() & gclouds.keys()} == {
        path: gclouds[path] for path in mine.keys() & gclouds.keys()
    }


@pytest.mark.checks("tests/support/gcloud_insert.py", "tests/support/gcloud_commands.py")
@pytest.mark.skipif(GCLOUD is None, reason="there is no gcloud on the PATH")
def test_gcloud_sends_what_was_recorded(tmp_path: Path) -> None:
    with GoogleServer(ManualClock(datetime.now(UTC))) as gce:
        token = tmp_path / "token"
        token.write_text(TOKEN)
        commands = [
            gcloud_insert.arguments(name, DEEP_LEARNING_IMAGE, spot=capacity_type is CapacityType.SPOT)
            for name, capacity_type in zip(("spotrun-x", "spotrun-y"), RENTED, strict=True)
        ]
        for command in commands:  # one process takes --metadata once
            done = executed([command], tmp_path, {**gce.environment, "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(token)})
            assert done.returncode == 0, done.stderr
        sent = [gcloud_insert.plain(each.body, gce.url) for each in gce.calls("compute.instances.insert")]
    found = {str(kind): {**body, "name": "spotrun-x"} for kind, body in zip(RENTED, sent, strict=True)}
    assert found == gcloud_insert.recorded()
