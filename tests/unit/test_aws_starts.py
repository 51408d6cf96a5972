"""Runs whose launches EC2 accepts and cannot start: for the key of the disk, or by a fault of its own."""

from __future__ import annotations

import pytest

from spotrun.offering import CapacityType
from tests.support.aws_accidents import broken
from tests.support.plain_aws_run import PlainAwsRun

REASONS = ("Client.InternalError", "Server.InternalError", "Client.InvalidKMSKey.InvalidState")
KEY = "arn:aws:kms:us-east-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab"
SPOT, ON_DEMAND = CapacityType.SPOT, CapacityType.ON_DEMAND


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> PlainAwsRun:
    run = PlainAwsRun(monkeypatch)
    run.aws.disk_key = KEY
    return run


def types(run: PlainAwsRun) -> list[CapacityType]:
    return [launch.intent.offering.capacity_type for launch in run.state.launches.values()]


@pytest.mark.parametrize("reason", REASONS)
def test_p32_a_run_whose_spot_cannot_start_trains_on_demand(run: PlainAwsRun, reason: str) -> None:
    run.aws.cannot_start = {"spot": reason}
    assert run.trains_within(60)
    assert types(run) == [SPOT, SPOT, SPOT, ON_DEMAND], "two pools; the first one twice, as EC2 may err for a moment"
    assert not any(launch.recorded for launch in [*run.state.launches.values()][:-1])
    for launch in [*run.state.launches.values()][:-1]:
        assert launch.gone is not None
        assert launch.gone.evidence.startswith(f"the cloud's record: ended by fault ({reason}")
        assert KEY in launch.gone.evidence


@pytest.mark.parametrize("reason", REASONS)
def test_p32_a_run_that_is_bound_to_spot_fails_and_names_the_key(monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    run = PlainAwsRun(monkeypatch, spot_policy="spot")
    run.aws.disk_key, run.aws.cannot_start = KEY, {"spot": reason}
    run.goes_on(120)
    terminal = run.state.terminal
    assert terminal is not None
    assert reason in terminal.detail
    assert KEY in terminal.detail
    assert "spotrun doctor aws" in terminal.detail


def test_p32_a_run_that_starts_on_neither_spot_nor_demand_fails_once_each_pool_was_asked(run: PlainAwsRun) -> None:
    run.aws.cannot_start = dict.fromkeys(("spot", "on-demand"), "Client.InternalError")
    run.goes_on(120)
    assert run.state.terminal is not None
    assert {*types(run)} == {SPOT, ON_DEMAND}
    assert "the caller may not use" in run.state.terminal.detail


def test_p32_a_training_goes_on_beside_spot_that_cannot_start_any_more(run: PlainAwsRun) -> None:
    assert run.trains_within(60)
    run.aws.cannot_start = {"spot": "Client.InternalError"}
    run.is_interrupted()
    assert run.trains_within(300)
    assert types(run)[-1] is ON_DEMAND
    _, *failed, _ = run.booked_usd.values()
    assert failed == [0.0] * 3, "EC2 bills what runs"


def test_p32_a_fault_of_ec2_that_passes_leaves_the_run_on_spot(run: PlainAwsRun) -> None:
    run.aws.cannot_start = {"spot": "Server.InternalError"}
    run.goes_on(2, 2)
    run.aws.cannot_start = {}
    assert run.trains_within(60)
    assert types(run)[-1] is SPOT


def test_p32_who_may_not_read_the_default_key_is_told_that_it_is_that_one(run: PlainAwsRun) -> None:
    run.fails("get_ebs_default_kms_key_id", broken("UnauthorizedOperation", 403), 3600)
    run.aws.cannot_start = {"spot": "Client.InternalError"}
    assert run.trains_within(60)
    gone = next(iter(run.state.launches.values())).gone
    assert gone is not None
    assert "may not use the KMS key of the disk, the default of EBS in us-east-1" in gone.evidence


@pytest.mark.parametrize(
    ("reason", "named"), [("Client.InternalError", "that of the image"), ("Server.InternalError", "")]
)
def test_p32_where_ebs_has_awss_own_key_the_image_may_have_another(run: PlainAwsRun, reason: str, named: str) -> None:
    run.aws.disk_key, run.aws.cannot_start = "alias/aws/ebs", {"spot": reason}
    assert run.trains_within(60)
    gone = next(iter(run.state.launches.values())).gone
    assert gone is not None
    assert ("KMS" in gone.evidence) is bool(named)
    assert named in gone.evidence
