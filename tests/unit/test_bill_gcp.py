"""`spotrun bill --gcp-billing`: what Google's export says of a run, against what the run's ledger says."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from msgspec.structs import replace

from spotrun.bill.charge import ChargeKind
from spotrun.bill.gcp import read_billing_export
from spotrun.bill.reconcile import Reason, Reconciliation, line_filter, reconcile
from spotrun.clouds.gcp.names import Name
from spotrun.clouds.gcp.request import LAUNCH, RUN, TOKEN
from spotrun.instance import EndedBy, PriceSegment
from spotrun.offering import CapacityType
from spotrun.run.billing import gcp_rule
from spotrun.run.state import RunState
from tests.support import histories
from tests.support.bills import write_json_lines
from tests.support.gce_catalog import KINDS
from tests.support.gce_charges import Charges, Kept, Running, Step
from tests.support.gce_export import exported
from tests.support.histories import ON_DEMAND, SPOT, START, History, intended, offering

L4, CPU = "g2-standard-4", "e2-standard-4"
ZONE, REGION = "us-central1-a", "us-central1"
DISK_GIB = 100


class Project:
    """A project with one run in it, and the ledger of that run; each life is written into both."""

    def __init__(self) -> None:
        self.charges = Charges()
        self.history = History(billing=gcp_rule(DISK_GIB, [REGION]))
        self.labels: dict[str, dict[str, str]] = {}

    def life(self, kind: str, market: CapacityType, ran_s: int, by: EndedBy, disk_alone_s: int = 0) -> str:
        """An instance that ran for a while. Its disk may have been there for longer."""
        number = self._intend(kind, market)
        name = str(Name(self.history.uid, number, f"{crc32(b'token'):08x}", market, kind))
        began = self.history.now.replace(microsecond=0)
        off, gone = began + timedelta(seconds=ran_s), began + timedelta(seconds=ran_s + disk_alone_s)
        self.labels[name] = {RUN: self.history.uid, LAUNCH: str(number), TOKEN: f"{self.history.uid}-{number}"}
        self.charges.running.append(
            Running(name, ZONE, kind, market is SPOT, True, began, off, was_preempted=by is EndedBy.CLOUD)
        )
        self.charges.kept.append(Kept(name, ZONE, "pd-balanced", DISK_GIB, began, gone))
        prices = self._prices(kind, market, began, off, gone)
        self.history.after(ran_s + disk_alone_s).write(
            histories.gone(number, gone, by, instance_id=name, billed_from=began, prices=prices)
        )
        return name

    def _intend(self, kind: str, market: CapacityType) -> int:
        price = KINDS[kind].spot if market is SPOT else KINDS[kind].on_demand
        wanted = replace(offering(market, str(price), ZONE), instance_type=kind, region=REGION, cloud="gcp")
        return self.history.write(intended(wanted, self.history.now, str(KINDS[kind].on_demand)))

    def _prices(
        self, kind: str, market: CapacityType, began: datetime, off: datetime, gone: datetime
    ) -> tuple[PriceSegment, ...]:
        if market is SPOT:
            steps = self.charges.spot_prices(kind, REGION, began, off)
            prices = tuple(PriceSegment(since=step.since, usd_per_hour=step.usd) for step, _ in steps)
        else:
            prices = (PriceSegment(since=began, usd_per_hour=KINDS[kind].on_demand),)
        return prices if off == gone else (*prices, PriceSegment(since=off, usd_per_hour=Decimal(0)))

    @property
    def rows(self) -> list[dict[str, Any]]:
        """After some hours in which the export could be written."""
        return exported(self.charges, self.labels, self.history.now)

    def reconciled(self, path: Path, rows: list[dict[str, Any]] | None = None) -> Reconciliation:
        state: RunState = self.history.state
        written = write_json_lines(path / "export.json", self.rows if rows is None else rows)
        statement = read_billing_export([written], line_filter(state))
        return reconcile(state, statement, self.history.now + timedelta(days=1))


@pytest.fixture
def project() -> Project:
    """Each way in which an instance ends, with its own bill."""
    found = Project()
    found.charges.steps[L4, REGION] = [Step(START + timedelta(hours=1), Decimal("0.42"))]
    found.life(L4, SPOT, 9_000, EndedBy.CLOUD)
    found.life(L4, SPOT, 40, EndedBy.CLOUD)
    found.life(L4, ON_DEMAND, 3_000, EndedBy.ITSELF, disk_alone_s=18_000)
    found.life(CPU, SPOT, 20, EndedBy.USER)
    found.life(CPU, ON_DEMAND, 7_200, EndedBy.TIME_TO_LIVE)
    return found


def part(found: Reconciliation, reason: Reason) -> Decimal:
    return next((part.usd for part in found.parts if part.reason is reason), Decimal(0))


def reasons(found: Reconciliation) -> set[Reason]:
    return {part.reason for part in found.parts}


def test_the_export_of_a_whole_run_is_explained(project: Project, tmp_path: Path) -> None:
    found = project.reconciled(tmp_path)

    assert found.unexplained == (), [line.why for line in found.unexplained]
    minute_of_disks = Decimal("0.0003")
    assert abs(found.theirs_usd - found.ours_usd) < 2 * minute_of_disks
    assert abs(part(found, Reason.VOLUME)) < minute_of_disks, "the ledger knows disks, for a minute at least"
    assert abs(part(found, Reason.NETWORK)) < minute_of_disks, "and addresses of both markets"
    assert reasons(found) == {Reason.ROUNDING, Reason.VOLUME, Reason.NETWORK}, "and it knows what is free"
    assert abs(found.theirs_usd - project.charges.usd(project.history.now)) < Decimal("0.001")


def test_a_price_of_yesterday_is_a_difference(project: Project, tmp_path: Path) -> None:
    """Google's spot price had changed, and the ledger did not know."""
    project.charges.steps[L4, REGION] = [Step(START, Decimal("0.60"))]

    found = project.reconciled(tmp_path)

    assert len(found.unexplained) == 1
    assert L4 in found.unexplained[0].what
    assert re.fullmatch(r"the bill has \$0\.\d+/h, the ledger has \$.*/h", found.unexplained[0].why)


def test_undeleted_disk_is_found(project: Project, tmp_path: Path) -> None:
    project.charges.kept[0].until = project.history.now + timedelta(days=30)
    rows = exported(project.charges, project.labels, project.history.now + timedelta(days=30))

    found = project.reconciled(tmp_path, rows)

    [line] = found.unexplained
    assert "a disk may have outlived its instance" in line.why


@pytest.mark.parametrize("labels", [{}, {RUN: "ffffffffff"}], ids=["no labels", "of another run"])
def test_an_instance_whose_labels_were_changed_is_found_by_its_name(
    project: Project, tmp_path: Path, labels: dict[str, str]
) -> None:
    stray = str(Name(project.history.uid, 99, "0" * 8, SPOT, L4))
    other = str(Name("ffffffffff", 99, "0" * 8, SPOT, L4))
    project.labels = dict.fromkeys(project.labels, labels)
    project.labels[stray] = labels
    for name in (stray, other):
        project.charges.running.append(Running(name, ZONE, L4, True, False, START, START + timedelta(hours=1)))

    found = project.reconciled(tmp_path)

    assert [line.resource for line in found.unexplained] == [stray]
    assert "is not in the ledger" in found.unexplained[0].why
    assert abs(found.theirs_usd - found.ours_usd - Decimal("0.3973")) < Decimal("0.001")


@pytest.mark.parametrize(
    "sku",
    [
        "RTX 6000 96GB attached to Spot Preemptible VMs running in Iowa",
        "SSD backed Local Storage attached to Spot Preemptible VMs",
        "A3 Instance Local SSD running in Iowa",
        "Nvidia H100 80GB GPU running in Americas",
        "Spot Preemptible G4 Instance Core running in Iowa",
    ],
)
def test_all_parts_of_a_machine_are_its_usage(project: Project, tmp_path: Path, sku: str) -> None:
    rows = project.rows
    for row in rows:
        if "GPU" in row["sku"]["description"]:
            row["sku"]["description"] = sku
    path = write_json_lines(tmp_path / "export.json", rows)

    statement = read_billing_export([path], line_filter(project.history.state))

    assert {charge.kind for charge in statement.charges if charge.what == sku} == {ChargeKind.USAGE}
    assert project.reconciled(tmp_path, rows).unexplained == ()


def test_charges_for_other_things_are_no_part_of_a_machine(project: Project, tmp_path: Path) -> None:
    rows = project.rows
    licensed = json.loads(json.dumps(rows[0])) | {"cost": 0.5}
    licensed["sku"]["description"] = "Licensing Fee for Ubuntu Pro on a VM with 4 VCPU"
    traffic = json.loads(json.dumps(rows[0])) | {"cost": 0.25}
    traffic["sku"]["description"] = "Network Inter Region Data Transfer Out from Americas to Netherlands"

    found = project.reconciled(tmp_path, [*rows, licensed, traffic])

    assert abs(part(found, Reason.NETWORK) - Decimal("0.25")) < Decimal("0.001")
    assert len(found.unexplained) == 1
    assert "Licensing" in found.unexplained[0].why


def copied(row: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**json.loads(json.dumps(row)), **changes}


def test_line_of_another_service_with_the_name_of_an_instance_is_explained(project: Project, tmp_path: Path) -> None:
    monitored = copied(project.rows[0], cost=0.001)
    monitored["service"]["description"] = "Cloud Monitoring"

    found = project.reconciled(tmp_path, [*project.rows, monitored])

    assert found.unexplained == ()
    assert part(found, Reason.SERVICE) == Decimal("0.001")


def test_negotiated_price_is_explained_by_the_list_price_in_the_export(project: Project, tmp_path: Path) -> None:
    rows = [copied(row, cost=float(row["cost"]) * 0.8, cost_at_list=row["cost"]) for row in project.rows]

    found = project.reconciled(tmp_path, rows)

    assert found.unexplained == (), [line.why for line in found.unexplained]
    assert part(found, Reason.CREDIT) < 0


@pytest.mark.parametrize("is_charged_again", [True, False])
def test_charge_that_is_taken_back_and_charged_again_is_explained(
    project: Project, tmp_path: Path, is_charged_again: bool
) -> None:
    wrong = [copied(row, cost=float(row["cost"]) * 2) for row in project.rows[:3]]
    rows = wrong if is_charged_again else project.rows[:3]
    negated = [copied(row, cost=-float(row["cost"])) for row in rows]

    found = project.reconciled(tmp_path, [*project.rows, *(wrong if is_charged_again else []), *negated])

    assert found.unexplained == (), [line.why for line in found.unexplained]
