"""Launches that EC2 accepts and cannot start, and instances that end before their agent: what follows, what is told."""

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
    assert "the caller cannot use" in run.state.terminal.detail


def test_p32_a_training_goes_on_while_spot_cannot_start(run: PlainAwsRun) -> None:
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


def test_p32_an_unreadable_default_key_is_reported_as_the_default_key(run: PlainAwsRun) -> None:
    run.fails("get_ebs_default_kms_key_id", broken("UnauthorizedOperation", 403), 3600)
    run.aws.cannot_start = {"spot": "Client.InternalError"}
    assert run.trains_within(60)
    gone = next(iter(run.state.launches.values())).gone
    assert gone is not None
    assert "cannot use the KMS key of the disk, EBS's default key in us-east-1" in gone.evidence


@pytest.mark.parametrize(
    ("reason", "named"), [("Client.InternalError", "the image's key"), ("Server.InternalError", "")]
)
def test_p32_where_ebs_has_awss_own_key_the_image_may_have_another(run: PlainAwsRun, reason: str, named: str) -> None:
    run.aws.disk_key, run.aws.cannot_start = "alias/aws/ebs", {"spot": reason}
    assert run.trains_within(60)
    gone = next(iter(run.state.launches.values())).gone
    assert gone is not None
    assert ("KMS" in gone.evidence) is bool(named)
    assert named in gone.evidence


# -- what an instance said -------------------------------------------------------------------------------------------

PIP = "spotrun: error: pip has installed nothing within 300 s: no package index can be reached from here"
LOG = f"spotrun: launch 7 installs what its agent needs\n{PIP}\nspotrun: launch 7 failed before its agent ran\n"
CONSOLE = """[    1.2] systemd[1]: password=hunter2 error: of the image
[   35.1] cloud-init[812]: spotrun: launch 7 of run fedcba9876 powers off 86400 s after its boot
[  400.9] cloud-init[812]: spotrun: error: the run's folder cannot be read: power off
ip-10-0-0-1 login: error: something else
"""


def rents(run: PlainAwsRun) -> tuple[int, str]:
    """The newest launch and its instance, which boots and has no agent."""
    run.boots = False
    run.goes_on(8)
    (living,) = run.aws.alive
    return max(run.state.launches), living


def ended(run: PlainAwsRun) -> str:
    """Let its instance power itself off; what the ledger has of its end."""
    number, living = rents(run)
    run.aws.power_off(living)
    run.goes_on(2, 2)
    gone = run.state.launches[number].gone
    assert gone is not None
    return gone.evidence


def test_p33_three_stillborn_instances_fail_a_run_with_their_places_and_what_the_last_one_said(
    run: PlainAwsRun,
) -> None:
    for _ in range(3):
        number, living = rents(run)
        run.store.put(f"boot/failed-{number}.log", LOG.encode())
        run.aws.power_off(living)
        run.goes_on(2, 2)
    terminal = run.state.terminal
    assert terminal is not None
    assert terminal.detail == (
        "3 instances in a row ended before the agent took over (the newest: the cloud's record: ended by itself "
        f"(Client.InstanceInitiatedShutdown); its log says: {PIP}); they were in us-east-1a, subnet-a "
        "and in us-east-1b, subnet-b; `spotrun logs` shows their output\n"
        "  try: `spotrun doctor aws JOB.yaml` checks subnets, rights and image; then `spotrun resume`"
    )


def test_p33_an_agent_that_gives_up_before_its_attempt_gives_its_reason_in_the_ledger(run: PlainAwsRun) -> None:
    number, living = rents(run)
    run.store.put(f"logs/{number}/000000.log", b"[spotrun] power off: an older reason\n")
    last = b"Collecting torch\n[spotrun] power off: the installation of PyTorch ended with exit code 1\n"
    run.store.put(f"logs/{number}/000001.log", last)
    run.aws.power_off(living)
    run.goes_on(2, 2)
    gone = run.state.launches[number].gone
    assert gone is not None
    assert gone.evidence.endswith("; its log says: power off: the installation of PyTorch ended with exit code 1")


def test_p33_without_a_log_the_console_is_read_and_of_it_what_spotrun_has_said(run: PlainAwsRun) -> None:
    run.aws.consoles = {f"i-{number:017x}": CONSOLE for number in range(3)}
    evidence = ended(run)
    assert evidence.endswith("; its console says: spotrun: error: the run's folder cannot be read: power off")
    assert "hunter2" not in evidence


def test_p33_a_console_without_a_line_of_spotrun_is_reported_as_such(run: PlainAwsRun) -> None:
    run.aws.consoles = {f"i-{number:017x}": "Kernel panic - not syncing" for number in range(3)}
    assert ended(run).endswith("; spotrun wrote no line to its console")


def test_p33_an_unreadable_console_is_reported_and_delays_nothing(run: PlainAwsRun) -> None:
    run.fails("get_console_output", broken("UnauthorizedOperation", 403), 3600)
    assert "its console cannot be read: AWS refused to show the console" in ended(run)


def test_p33_the_console_of_an_instance_interrupted_at_boot_is_not_read(run: PlainAwsRun) -> None:
    _, living = rents(run)
    run.aws.interrupt(living)
    run.goes_on(2, 2)
    assert "get_console_output" not in run.aws.counts


def test_p33_the_boot_log_of_a_silent_instance_is_reported_when_it_is_given_up(run: PlainAwsRun) -> None:
    number, _ = rents(run)
    run.store.put(f"boot/failed-{number}.log", b"spotrun: launch 7 installs what its agent needs\n")
    run.goes_on(900, 15)
    closed = run.state.launches[number].closed
    assert closed is not None
    assert closed.detail == "its agent never reported; its log says: spotrun: launch 7 installs what its agent needs"
