"""A machine of one's own beside a cloud, rehearsed: at home are processes of this machine, and the cloud is a toy."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path

import pytest

from spotrun.clock import ScaledClock, system_clock
from spotrun.clouds.local.busy_gpus import BusyGpus
from spotrun.clouds.local.catalog import InstanceType, Zone
from spotrun.clouds.local.config import MarketConfig
from spotrun.clouds.local.driver import LocalDriver, default_root
from spotrun.clouds.local.own_machine import OwnMachine
from spotrun.clouds.owned_machine import OwnedMachineDriver
from spotrun.errors import CloudError, CloudUnavailable, InsufficientCapacity
from spotrun.instance import Instance, LaunchRequest
from spotrun.offering import HOME, CapacityType
from spotrun.run import events as ev
from spotrun.spec.own_machine import HardwareSpec
from tests.support.aws_sandbox import Aws, aws_sandbox
from tests.support.eventually import eventually
from tests.support.launch_requests import requested
from tests.support.object_stores import RunningServer
from tests.support.sandbox import Sandbox
from tests.support.toy_cloud import CLOUD, NAME
from tests.support.toy_sandbox import toy_sandbox

BOX = "{purchase_usd: 6500, months: 30, days_per_month: 10, watts: 1000, usd_per_kwh: 0.20, accelerators: 'RTX4090:1'}"
USD_PER_HOUR = Decimal("1.102778")
OWN, SPOT = ("local", CapacityType.OWN), (NAME, CapacityType.SPOT)


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    with toy_sandbox(tmp_path, monkeypatch) as found:
        yield found


def job(sandbox: Sandbox, name: str, args: str, extra: str = "") -> Path:
    path = sandbox.job(name, args=args, scale=60, extra=f"hardware: {{box: {BOX}}}\n{extra}")
    places = f"any_of: [{{cloud: local, hardware: box}}, {{cloud: {NAME}, accelerators: 'V100:1'}}]"
    path.write_text(path.read_text().replace("cloud: local, accelerators: 'V100:1'", places))
    return path


def asked_for(sandbox: Sandbox, name: str) -> list[tuple[str, CapacityType]]:
    """Where each launch of a run was asked for."""
    ledger = sandbox.run(name).ledger
    ledger.refresh()
    intents = [each.event for each in ledger.entries if isinstance(each.event, ev.LaunchIntended)]
    return [(each.offering.cloud, each.offering.capacity_type) for each in intents]


def machine(host: str | None = None, computing: str = "") -> OwnMachine:
    hardware = HardwareSpec.model_validate({"purchase_usd": 6500, "months": 30, "days_per_month": 10, "host": host})
    return OwnMachine("box", hardware, ScaledClock(system_clock().now(), 1.0), BusyGpus(lambda: computing))


def request(home: OwnMachine, run_uid: str) -> LaunchRequest:
    (offering,) = home.offerings()
    return requested(offering, run_uid=run_uid, run_uri=f"/nowhere/other-{run_uid}")


def trains_at_home(sandbox: Sandbox, name: str) -> bool:
    state = sandbox.state(name)
    current = state.current
    if current is None or not current.trainers:
        return False
    return state.launch_of(current).intent.offering.capacity_type is CapacityType.OWN


def holder() -> Instance:
    """Another run that holds the machine, and does nothing with it."""
    kind = InstanceType(name="box", accelerators="", cpus=1, memory_gib=1, on_demand_usd_per_hour=USD_PER_HOUR)
    market = MarketConfig(boot_s=0, instance_types=(kind,), zones=(Zone(region=HOME, name=HOME),))
    driver = LocalDriver(default_root(), ScaledClock(system_clock().now(), 1.0), market, init=("sleep", "600"))
    return driver.launch(request(machine(), "eeeeeeeeee"))


def test_a_job_trains_at_home_and_its_report_says_what_that_was_worth(sandbox: Sandbox) -> None:
    said = sandbox.call("launch", job(sandbox, "home", "--epochs, 2"), "-y")
    assert asked_for(sandbox, "home") == [OWN]
    assert "box at home at $1.102778/h (first launch: box is free)" in said
    run = sandbox.run("home")
    assert not run.created.simulated
    total = sandbox.call_json("report", "home")["total"]
    paid_h = Decimal(str(total["own_s"])) / 3600
    assert Decimal(total["own_usd"]) == pytest.approx(USD_PER_HOUR * paid_h, rel=Decimal("1e-6"))
    assert Decimal(total["spot_usd"]) == Decimal(total["on_demand_usd"]) == 0
    assert "100% of the paid time) at $1.1028 an hour" in said
    assert "$6500 over 30 months of 10 days a month, 1000 W at $0.20 a kWh" in " ".join(said.split())
    assert not (sandbox.folder / "box" / "armed.txt").exists(), "what is at home needs no guard"
    assert machine().offerings(), "it is free again"


def test_a_job_goes_to_the_cloud_while_its_home_is_taken_and_back_when_it_is_free(sandbox: Sandbox) -> None:
    other = holder()
    path = job(sandbox, "back", "--epochs, 10, --step-s, 0.3", "policy: {return_cooldown: 30s}\n")
    launched = sandbox.start("launch", path, "-y")
    eventually(lambda: sandbox.last_step() >= 2, within_s=240)
    assert asked_for(sandbox, "back") == [SPOT]
    machine().terminate(other.instance_id)
    eventually(lambda: trains_at_home(sandbox, "back") or launched.poll() is not None, within_s=240)
    sandbox.hurry()
    said, _ = launched.communicate(timeout=400)
    assert launched.returncode == 0, said
    assert asked_for(sandbox, "back") == [SPOT, OWN]
    assert "back home: box is free" in said
    lines = sandbox.trace_by_step()
    assert sorted(lines) == [*range(120)]
    assert all(len(found) == 1 for found in lines.values()), "a step that was done twice was the same"
    total = sandbox.call_json("report", "back")["total"]
    assert Decimal(total["own_usd"]) > 0
    assert Decimal(total["spot_usd"]) > 0


def test_of_two_runs_that_want_the_machine_at_one_moment_one_gets_it(sandbox: Sandbox) -> None:
    homes = [machine() for _ in range(4)]
    requests = [request(home, f"{number}" * 10) for number, home in enumerate(homes)]

    def launch(number: int) -> Instance | None:
        try:
            return homes[number].launch(requests[number])
        except InsufficientCapacity:
            return None

    with ThreadPoolExecutor(4) as pool:
        found = [each for each in pool.map(launch, range(4)) if each is not None]
    assert len(found) == 1
    winner = found[0]
    here = homes[int(winner.run_uid[0])]
    assert here.offerings() == []
    assert here.remarks == ()
    assert machine().offerings() == []
    here.terminate(winner.instance_id)
    assert len(here.offerings()) == 1


def test_run_that_waits_for_a_taken_machine_says_which_run_has_it(sandbox: Sandbox) -> None:
    mine, other = machine(), holder()
    assert mine.instances("1111111111", None) == []
    assert mine.offerings() == []
    assert mine.remarks == ("box is in use by the run eeeeeeeeee",)
    mine.terminate(other.instance_id)
    busy = machine(computing="1 other process computes on its GPUs (4711)")
    assert busy.offerings() == []
    assert busy.remarks == ("box is taken: 1 other process computes on its GPUs (4711)",)


def test_a_runner_on_another_machine_rents_and_does_not_take_what_is_at_home_for_gone(sandbox: Sandbox) -> None:
    there = OwnedMachineDriver(CLOUD.account(()).driver, machine(host="office-box"))
    assert {each.cloud for each in there.offerings(must_see=())} == {NAME}
    assert there.remarks[0] == "box is the machine office-box; only a runner on it can train there"
    assert there.instances("1111111111") == []
    with pytest.raises(CloudUnavailable, match="the instances on box can be seen only from the machine office-box"):
        there.instances("1111111111", must_see={HOME})
    at_home = request(machine(), "1111111111")
    with pytest.raises(CloudError, match="box is the machine office-box"):
        there.launch(at_home)


@pytest.fixture
def aws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, servers: Callable[[str], RunningServer]) -> Iterator[Aws]:
    with aws_sandbox(tmp_path, monkeypatch, servers("s3")) as sandbox:
        yield sandbox


@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:Tried to parse AWS")
def test_a_run_whose_home_fails_goes_on_in_aws_from_the_bucket(aws: Aws) -> None:
    """At home it has the credentials of the user who launched it, and on EC2 those of its own role."""
    path = aws.job_on_aws("stormy", "--epochs, '7', --step-s, '0.1'", extra=f"hardware: {{box: {BOX}}}\n")
    kept = [line for line in path.read_text().splitlines(keepends=True) if not line.startswith(("setup:", "secrets:"))]
    text = "".join(kept).replace("return_cooldown: 60s", "return_cooldown: 3h")  # its user may read no secret
    path.write_text(text.replace("{cloud: aws}", "{any_of: [{cloud: local, hardware: box}, {cloud: aws}]}"))
    runner = aws.start("launch", path, "-y")
    at_home = aws.trains_on(runner)
    assert aws.account.lives() == []
    machine().terminate(at_home)
    aws.trains_on(runner, before=at_home)
    output, _ = runner.communicate(timeout=400)
    assert runner.returncode == 0, output
    assert asked_for(aws, "stormy") == [OWN, ("aws", CapacityType.SPOT)]
    assert sorted(aws.trace_by_step()) == [*range(84)]
    total = aws.call_json("report", "stormy")["total"]
    assert Decimal(total["own_usd"]) > 0
    assert Decimal(total["spot_usd"]) > 0
    assert aws.left_running() == []
    secret = os.environ["AWS_SECRET_ACCESS_KEY"]
    run = aws.run("stormy")
    assert not any(secret.encode() in run.store.get(each.key) for each in run.store.list(""))
