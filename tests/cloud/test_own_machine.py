"""A machine of one's own beside a cloud, rehearsed: at home are processes of this machine, and the cloud is a toy."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from spotrun.offering import CapacityType
from spotrun.run import events as ev
from tests.support import toy_cloud
from tests.support.sandbox import Sandbox
from tests.support.toy_cloud import NAME

BOX = "{purchase_usd: 6500, months: 30, days_per_month: 10, watts: 1000, usd_per_kwh: 0.20, accelerators: 'RTX4090:1'}"
USD_PER_HOUR = Decimal("1.102778")


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    path = toy_cloud.install(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv(toy_cloud.FOLDER_VARIABLE, str(tmp_path / "toys"))
    monkeypatch.syspath_prepend(tmp_path / "site")
    sandbox = Sandbox(tmp_path, monkeypatch)
    yield sandbox
    sandbox.close()


def job(sandbox: Sandbox, name: str, *, extra: str = "", epochs: int = 4, **more: str) -> Path:
    path = sandbox.job(name, args=f"--epochs, {epochs}", scale=60, extra=f"hardware: {{box: {BOX}}}\n{extra}", **more)
    places = f"any_of: [{{cloud: local, hardware: box}}, {{cloud: {NAME}, accelerators: 'V100:1'}}]"
    path.write_text(path.read_text().replace("cloud: local, accelerators: 'V100:1'", places))
    return path


def places(sandbox: Sandbox, name: str) -> list[tuple[str, CapacityType]]:
    """Where each launch of a run was asked for."""
    entries = sandbox.run(name).ledger
    entries.refresh()
    intents = [each.event for each in entries.entries if isinstance(each.event, ev.LaunchIntended)]
    return [(each.offering.cloud, each.offering.capacity_type) for each in intents]


def test_a_job_trains_at_home_and_its_report_says_what_that_was_worth(sandbox: Sandbox) -> None:
    said = sandbox.call("launch", job(sandbox, "home"), "-y")
    print(said, sandbox.call("events", "home"), sandbox.call("why", "home"))
    assert places(sandbox, "home") == [("local", CapacityType.OWN)]
    print(said)
