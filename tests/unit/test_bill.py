"""`spotrun bill`: what our ledger says against what the cloud has charged, by the cloud's own kinds of files."""

from __future__ import annotations

import gzip
import io
import json
import re
import sys
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from rich.console import Console

from spotrun.account.summary import summarise
from spotrun.bill import aws, gcp
from spotrun.bill import report as shown
from spotrun.bill.charge import Statement
from spotrun.bill.reconcile import Line, Reason, Reconciliation, line_filter, reconcile
from spotrun.bill.rows import column_name, files_of
from spotrun.errors import SpotrunError, command_for
from spotrun.instance import EndedBy
from spotrun.offering import CapacityType
from spotrun.run import events as ev
from spotrun.run.billing import EC2_RULE, LOCAL_RULE
from spotrun.run.gang import MemberName
from tests.support.bills import (
    Billed,
    as_csv_columns,
    beside,
    billed,
    billing_export,
    cost_and_usage_rows,
    in_parts,
    second_generation,
    spot_data_feed,
    stormy,
    write_csv,
    write_json_lines,
    write_parquet,
)
from tests.support.gang_history import GangHistory
from tests.support.histories import AWS_RULE, ON_DEMAND, START, History, random_runs


def against(history: History, statement: Statement) -> Reconciliation:
    found = reconcile(history.state, statement, history.now)
    for line in found.lines:
        assert line.ours_usd + sum(part.usd for part in line.parts) + line.unexplained_usd == line.theirs_usd
        assert bool(line.why) == bool(line.unexplained_usd)
    assert sum(line.theirs_usd for line in found.lines) == sum(charge.amount_usd for charge in statement.charges)
    return found


def by_report(history: History, lines: list[Billed], folder: Path, tagged: bool = True) -> Reconciliation:
    path = write_csv(folder / "cur.csv", cost_and_usage_rows(lines, tagged))
    return against(history, aws.read_cost_and_usage_report([path], line_filter(history.state)))


def line_of(found: Reconciliation, resource: str) -> Line:
    return next(line for line in found.lines if line.resource == resource)


def reasons(found: Reconciliation) -> dict[str, str]:
    return {part.reason: f"{part.usd:.6f}" for part in found.parts}


# -- the Cost and Usage Report -----------------------------------------------------------------------------------------


def test_a_report_that_agrees_differs_by_rounded_seconds_only(tmp_path: Path) -> None:
    history = stormy()
    found = by_report(history, billed(history), tmp_path)
    assert found.unexplained == ()
    assert set(reasons(found)) == {Reason.ROUNDING}
    assert abs(found.theirs_usd - found.ours_usd) < Decimal("0.003")
    # by hand: 8490.75 s of spot, 4090.25 s of them (its start, boot and setup included) at 0.36 and the rest at 0.42
    first, second, third = found.lines
    assert first.ours_usd == pytest.approx(
        (Decimal("4090.25") * Decimal("0.36") + Decimal("4400.5") * Decimal("0.42")) / 3600
    )
    assert (second.ours_usd, second.theirs_usd) == (0, 0), "lost in its first hour"
    assert third.ours_usd == pytest.approx(Decimal("6100.25") * Decimal("3.6") / 3600)


@pytest.mark.parametrize("kind", ["csv", "gzip", "second", "parquet"])
def test_every_form_of_the_report_says_the_same(tmp_path: Path, kind: str) -> None:
    history = stormy()
    rows = cost_and_usage_rows(billed(history))
    path = tmp_path / "cur"
    if kind == "parquet":
        write_parquet(path, second_generation(rows))
    elif kind == "second":
        maps = [{**row, "resource_tags": json.dumps(row["resource_tags"])} for row in second_generation(rows)]
        write_csv(path, maps)
    else:
        write_csv(path, rows)
    if kind == "gzip":
        path.write_bytes(gzip.compress(path.read_bytes()))
    found = against(history, aws.read_cost_and_usage_report([path], line_filter(history.state)))
    expected = by_report(history, billed(history), tmp_path)
    assert found.unexplained == ()
    assert abs(found.theirs_usd - expected.theirs_usd) < Decimal("1e-8")
    assert [len(line.charges) for line in found.lines] == [len(line.charges) for line in expected.lines]


def test_a_month_in_several_files_is_one_bill_and_a_file_that_is_named_twice_is_read_once(tmp_path: Path) -> None:
    history = stormy()
    lines = billed(history)
    folder = in_parts(cost_and_usage_rows(lines), tmp_path / "month")
    first = folder / "cur-0.csv.gz"
    paths = files_of([str(folder / "*.gz"), str(first)])
    assert len(paths) == len(list(folder.iterdir())) > 2
    found = against(history, aws.read_cost_and_usage_report(paths, line_filter(history.state)))
    whole = by_report(history, lines, tmp_path)
    assert (found.theirs_usd, found.parts) == (whole.theirs_usd, whole.parts)
    assert {charge.path for line in found.lines for charge in line.charges} == set(map(str, paths))


def test_two_versions_of_a_report_are_not_added_up(tmp_path: Path) -> None:
    rows = cost_and_usage_rows(billed(stormy()))
    old, new = write_csv(tmp_path / "old.csv", rows[:4]), write_csv(tmp_path / "new.csv", rows)
    with pytest.raises(SpotrunError, match=r"new\.csv:2: has the same line as .*old\.csv") as caught:
        aws.read_cost_and_usage_report([old, new], line_filter(stormy().state))
    assert caught.value.hint == "name only the files of the report's newest version, each once"


@pytest.mark.parametrize("pattern", ["no/such.csv", "*.parquet", "."])
def test_a_pattern_that_names_no_file_is_refused(pattern: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpotrunError, match="no such file"):
        files_of([pattern])


def test_other_charges_are_named_by_their_kind(tmp_path: Path) -> None:
    history = stormy()
    lines = billed(history)
    lines += [
        beside(lines[0], "vol-0123", "Usage", "USE2-EBS:VolumeUsage.gp3", "0.0123456789"),
        beside(lines[0], lines[0].resource, "Usage", "USE2-DataTransfer-Out-Bytes", "0.09"),
        beside(lines[0], "", "Tax", "", "0.57"),
        beside(lines[-1], lines[-1].resource, "SavingsPlanNegation", lines[-1].usage_type, "-0.25"),
    ]
    found = by_report(history, lines, tmp_path)
    assert found.unexplained == ()
    told = {part.reason: part.usd for part in found.parts}
    assert told.pop(Reason.ROUNDING) != 0
    assert told == {
        Reason.VOLUME: Decimal("0.0123456789"),
        Reason.NETWORK: Decimal("0.09"),
        Reason.TAX: Decimal("0.57"),
        Reason.CREDIT: Decimal("-0.25"),
    }


@pytest.mark.parametrize("kind", ["rate card", "net columns"])
def test_negotiated_price_without_discount_lines_leaves_no_instance_unexplained(tmp_path: Path, kind: str) -> None:
    history = stormy()
    lines = billed(history)
    rows = cost_and_usage_rows(lines)
    for line, row in zip(lines, rows, strict=True):
        row["pricing/publicOnDemandCost"] = f"{line.hours * Decimal('3.6'):.10f}"
        if kind == "net columns":
            row["lineItem/NetUnblendedCost"] = f"{line.usd * Decimal('0.8'):.10f}"
        elif line.capacity is CapacityType.ON_DEMAND:
            row["lineItem/UnblendedCost"] = f"{line.usd * Decimal('0.8'):.10f}"
    path = write_csv(tmp_path / "cur.csv", rows)
    found = against(history, aws.read_cost_and_usage_report([path], line_filter(history.state)))
    assert found.unexplained == (), [line.why for line in found.unexplained]
    discounted = [line for line in lines if kind == "net columns" or line.capacity is CapacityType.ON_DEMAND]
    (credit,) = [part.usd for part in found.parts if part.reason is Reason.CREDIT]
    assert float(credit) == pytest.approx(-0.2 * float(sum(line.usd for line in discounted)), rel=1e-6)


@pytest.mark.parametrize("usage_type", ["", "USE2-EBS:VolumeUsage.gp3"], ids=["usage", "volume"])
def test_a_line_that_gives_money_back_is_a_correction_whatever_it_names(tmp_path: Path, usage_type: str) -> None:
    history = stormy()
    lines = billed(history)
    back = beside(lines[-1], lines[-1].resource, "Usage", usage_type or lines[-1].usage_type, "-0.25")
    found = by_report(history, [*lines, replace(back, seconds=-900)], tmp_path)
    assert found.unexplained == ()
    assert {part.reason: part.usd for part in found.parts}[Reason.CREDIT] == Decimal("-0.25")


def test_disks_and_addresses_are_one_line_that_the_ledger_counts_at_list_prices(tmp_path: Path) -> None:
    history = stormy(billing=AWS_RULE)
    lines = billed(history)
    lines.append(beside(lines[0], "vol-0123", "Usage", "USE2-EBS:VolumeUsage.gp3", "0.0500000000"))
    lines.append(beside(lines[0], lines[0].resource, "Usage", "USE2-PublicIPv4:InUseAddress", "0.0200000000"))
    found = by_report(history, lines, tmp_path)
    assert found.unexplained == ()
    total = summarise(history.state, history.now).total
    assert found.ours_usd == total.spot_usd + total.on_demand_usd
    attached = found.lines[-1]
    lives_s = 8490.75 + 1890 + 6100.25
    volume, address = 0.08 * 100 / 720 * lives_s / 3600, 0.005 * lives_s / 3600
    assert float(attached.ours_usd) == pytest.approx(volume + address)
    told = {part.reason: float(part.usd) for part in attached.parts}
    assert told == {Reason.VOLUME: pytest.approx(0.05 - volume), Reason.NETWORK: pytest.approx(0.02 - address)}
    assert Reason.REFUND not in reasons(found)
    feed = tmp_path / "feed.tsv"
    feed.write_text(spot_data_feed(billed(history)))
    by_feed = against(history, aws.read_spot_data_feed([feed], line_filter(history.state)))
    assert by_feed.unexplained == ()
    assert set(reasons(by_feed)) == {Reason.ROUNDING, Reason.NOT_IN_FILE}


def test_a_disk_that_outlived_its_instance_is_not_explained(tmp_path: Path) -> None:
    history = stormy(billing=AWS_RULE)
    lines = billed(history)
    lines.append(beside(lines[0], "vol-0123", "Usage", "USE2-EBS:VolumeUsage.gp3", "8.0000000000"))
    (found,) = by_report(history, lines, tmp_path).unexplained
    assert found.why == "disks cost more than 3 times what the ledger says: a disk may have outlived its instance"


def test_minimum_and_first_hour_come_from_the_clouds_rule_where_the_ledger_had_another(tmp_path: Path) -> None:
    history = History(billing=LOCAL_RULE.__class__(minimum_s=0, free_if_interrupted_within_s=60, source="none"))
    lost = history.running(price="0.72")
    history.after(1700).gone(lost)
    short = history.launch(ON_DEMAND, "3.6")
    history.record(short)
    history.after(20).gone(short, EndedBy.USER)
    lines = billed(history)
    other = beside(lines[0], "i-other", "Usage", lines[0].usage_type, "1")
    early = replace(other, start=START - timedelta(hours=1), run="")
    found = by_report(history, [early, *lines], tmp_path)
    assert found.unexplained == ()
    # 1790 s at 0.72 are forgiven; 40 s more at 3.6 make the minute full
    assert reasons(found) == {Reason.REFUND: "-0.358000", Reason.MINIMUM: "0.040000"}


def test_hours_that_the_export_does_not_have_yet_explain_what_is_missing(tmp_path: Path) -> None:
    history = stormy()
    cut = START + timedelta(hours=3)
    found = by_report(history, billed(history, until=cut), tmp_path)
    assert found.unexplained == ()
    assert found.statement.until == cut
    # on-demand ran from 2 h 53 min on: what it cost after the third full hour
    third = line_of(found, found.lines[-1].resource)
    began = history.state.launches[third.launch or 0].recorded
    assert began is not None
    gone_at = history.now
    missing = Decimal(str((gone_at - cut).total_seconds())) * Decimal("3.6") / 3600
    told = {part.reason: part.usd for part in third.parts}
    assert told[Reason.NOT_COVERED] == pytest.approx(-missing, abs=Decimal("1e-8"))
    empty = by_report(history, [replace(billed(history)[0], resource="i-x", run="", usage_type="EBS:x")], tmp_path)
    assert empty.statement.until is None
    assert empty.unexplained == ()
    assert empty.theirs_usd == 0


def test_time_before_the_machine_ran_our_code_may_go_unbilled_and_no_more_than_that(tmp_path: Path) -> None:
    history = stormy()
    lines = billed(history)
    boot = [replace(lines[0], seconds=lines[0].seconds - 45), *lines[1:]]
    found = by_report(history, boot, tmp_path)
    assert found.unexplained == ()
    assert float(reasons(found)[Reason.STARTING]) == pytest.approx(-45 * 0.36 / 3600, abs=0.0001)
    more = [replace(lines[0], seconds=lines[0].seconds - 80), *lines[1:]]
    (line,) = by_report(history, more, tmp_path).unexplained
    assert line.why == "the bill has 8411 s, the ledger has 8491 s"


@pytest.mark.parametrize("fault", ["dearer", "dearer-shorter", "longer", "missing", "unforgiven", "stranger", "fee"])
def test_unexplained_charges_are_named(tmp_path: Path, fault: str) -> None:
    history = stormy()
    lines = billed(history)
    faults: dict[str, tuple[list[Billed], str]] = {
        "dearer": (
            [replace(line, usd_per_hour=line.usd_per_hour * 2) for line in lines[:1]] + lines[1:],
            "the bill has $",
        ),
        "dearer-shorter": (
            [replace(lines[0], usd_per_hour=lines[0].usd_per_hour * 3, seconds=lines[0].seconds - 97), *lines[1:]],
            "/h, the ledger has $0.36 then $0.42/h; the bill has 8394 s, the ledger has 8491 s",
        ),
        "longer": (
            [replace(lines[0], seconds=lines[0].seconds + 900), *lines[1:]],
            "the bill has 9391 s, the ledger has 8491 s",
        ),
        "missing": (
            [line for line in lines if line.capacity is ON_DEMAND],
            "the file covers the instance's hours, but has no line",
        ),
        "unforgiven": (
            [*lines, replace(lines[0], resource="i-9", seconds=900)],
            "the ledger has no cost",
        ),
        "stranger": ([*lines, replace(lines[0], resource="i-0ff", seconds=900)], "is not in the ledger"),
        "fee": (
            [*lines, beside(lines[0], lines[0].resource, "Fee", "RI upfront", "3")],
            "of another kind: Fee RI upfront",
        ),
    }
    changed, words = faults[fault]
    if fault == "unforgiven":
        second = list(history.state.launches)[1]
        changed[-1] = replace(changed[-1], resource=f"i-{second}")
    found = by_report(history, changed, tmp_path)
    (line,) = found.unexplained
    assert words in line.why
    assert abs(line.unexplained_usd) > Decimal("0.01")
    assert "UNEXPLAINED" in printed(found)


def test_missing_line_is_unexplained_for_an_instance_that_we_terminated(tmp_path: Path) -> None:
    for by, unexplained in ((EndedBy.ITSELF, 0), (EndedBy.USER, 1)):
        history = History(billing=EC2_RULE)
        launch = history.running()
        history.after(900).gone(launch, by)
        other = replace(billed(stormy())[0], resource="i-other", run="")
        found = by_report(history, [other], tmp_path)
        assert len(found.unexplained) == unexplained, by


def test_lines_are_found_by_the_instance_where_the_tag_is_not_activated(tmp_path: Path) -> None:
    history = stormy()
    found = by_report(history, billed(history), tmp_path, tagged=False)
    assert found.unexplained == ()
    assert found.theirs_usd > 0


def test_the_lines_of_other_runs_are_none_of_ours(tmp_path: Path) -> None:
    history = stormy()
    lines = billed(history)
    others = [replace(line, resource=f"{line.resource}-b", run="ffffffffff") for line in lines]
    assert by_report(history, lines + others, tmp_path).theirs_usd == by_report(history, lines, tmp_path).theirs_usd


@pytest.mark.exhaustive
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(random_runs())
def test_a_bill_by_the_published_rules_is_explained_whatever_happened(
    tmp_path_factory: pytest.TempPathFactory, history: History
) -> None:
    assume(not any(isinstance(entry.event, ev.InstanceStopped) for entry in history.entries))  # EC2 stops no machine
    anchor = replace(billed(stormy())[0], resource="i-other", run="", seconds=1)
    ends = [anchor.end, history.now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)]
    frame = [replace(anchor, start=START), replace(anchor, start=max(ends) - timedelta(hours=1), end=max(ends))]
    still_there = [each for each in history.state.launches.values() if each.recorded and each.gone is None]
    for launch in still_there:
        history.gone(launch.number, EndedBy.USER)
    found = by_report(history, [*frame, *billed(history)], tmp_path_factory.mktemp("bill"))
    assert found.unexplained == (), [line.why for line in found.unexplained]


# -- the spot data feed ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("places", [10, 3])
def test_the_spot_data_feed_knows_spot_only_and_its_own_rounding(tmp_path: Path, places: int) -> None:
    history = stormy()
    path = tmp_path / "111122223333.2026-03-01-12.001.b959dbc6.gz"
    path.write_bytes(gzip.compress(spot_data_feed(billed(history), places).encode()))
    found = against(history, aws.read_spot_data_feed([path], line_filter(history.state)))
    assert found.unexplained == ()
    assert set(reasons(found)) == {Reason.ROUNDING, Reason.NOT_IN_FILE}
    third = found.lines[-1]
    assert (third.theirs_usd, third.explained_usd) == (0, -third.ours_usd)
    path.write_text(spot_data_feed([replace(line, seconds=line.seconds * 2) for line in billed(history)]))
    changed = against(history, aws.read_spot_data_feed([path], line_filter(history.state)))
    assert [line.why for line in changed.unexplained] == ["the bill has $0.782221/h, the ledger has $0.36 then $0.42/h"]


# -- Google Cloud ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["lines", "array", "csv"])
def test_the_export_of_google_cloud_in_each_of_its_forms(tmp_path: Path, kind: str) -> None:
    history = stormy(billing=LOCAL_RULE)
    lines = billed(history, free_within=timedelta(minutes=1))
    rows = billing_export(lines)
    disk = {**rows[0], "sku": {"description": "Balanced PD Capacity in Americas"}, "cost": 0.0025}
    rounding = {**rows[0], "cost": 0.000001, "cost_type": "rounding_error"}
    rows[1]["credits"] = [{"name": "Sustained Usage Discount", "amount": -0.01, "type": "SUSTAINED_USAGE_DISCOUNT"}]
    rows += [disk, rounding]
    path = tmp_path / "export"
    if kind == "csv":
        write_csv(path, as_csv_columns(rows))
    elif kind == "array":
        path.write_text(json.dumps(rows, indent=1))
    else:
        write_json_lines(path, rows)
    found = against(history, gcp.read_billing_export([path], line_filter(history.state)))
    assert found.unexplained == ()
    told = reasons(found)
    assert (told[Reason.VOLUME], told[Reason.CREDIT]) == ("0.002500", "-0.010000")
    assert Reason.REFUND not in told, "half an hour is not the first minute"


# -- files that are damaged --------------------------------------------------------------------------------------------


def damaged(path: Path) -> str:
    """Reads as what the name says, and gives the letter that comes of it."""
    history = stormy()
    read = {
        "cur": aws.read_cost_and_usage_report,
        "feed": aws.read_spot_data_feed,
        "gcp": gcp.read_billing_export,
    }[path.stem]
    with pytest.raises(SpotrunError) as caught:
        read([path], line_filter(history.state))
    assert caught.value.exit_code == 2
    assert caught.value.hint
    return caught.value.message.replace(str(path), path.name)


def test_damaged_file_is_reported_by_name_line_and_fault(tmp_path: Path) -> None:
    rows = cost_and_usage_rows(billed(stormy()))
    cur, feed, export = tmp_path / "cur.csv", tmp_path / "feed.tsv", tmp_path / "gcp.json"

    def changed(column: str, value: str) -> str:
        return damaged(write_csv(cur, [rows[0], {**rows[1], column: value}]))

    assert (
        changed("lineItem/UnblendedCost", "1,5")
        == "cur.csv:3: line_item_unblended_cost is '1,5', which is not an amount"
    )
    assert "cur.csv:3: line_item_unblended_cost is 'NaN'" in changed("lineItem/UnblendedCost", "NaN")
    assert "cur.csv:3: line_item_usage_end_date is 'soon'" in changed("lineItem/UsageEndDate", "soon")
    assert changed("lineItem/CurrencyCode", "EUR") == "cur.csv:3: is in EUR, and the ledger is in USD"
    bare = [{key: value for key, value in row.items() if key != "lineItem/UsageType"} for row in rows]
    assert damaged(write_csv(cur, bare)) == "cur.csv:2: has no column line_item_usage_type"
    cur.write_text("name,amount\nrent,12\n")
    assert damaged(cur).startswith(
        "cur.csv is no AWS Cost and Usage Report: it does not have the columns line_item_line_item_type,"
    )
    write_csv(cur, rows)
    cur.write_text(cur.read_text().splitlines()[0] + "\na,b,c\n")
    assert damaged(cur).startswith("cur.csv:2: has 3 columns; the first line names ")
    write_csv(cur, rows)
    cur.write_bytes(gzip.compress(cur.read_bytes())[:-20])
    assert "cannot read cur.csv" in damaged(cur)
    cur.write_bytes(b"PAR1 and no more")
    assert "cannot be read as a Parquet file" in damaged(cur)
    assert "No such file" in damaged(tmp_path / "nowhere" / "cur.csv")

    feed.write_text(spot_data_feed(billed(stormy())).replace("\t", " "))
    assert damaged(feed) == "feed.tsv:3: has 1 field, separated by tabs; a line of the feed has 9"
    feed.write_text(spot_data_feed(billed(stormy())).replace("USD\t1\n", "EUR\t1\n"))
    assert "which is not in USD" in damaged(feed)

    good = billing_export(billed(stormy()))
    export.write_text(json.dumps(good[0]) + "\n{oops\n")
    assert damaged(export).startswith("gcp.json:2: not JSON")
    for opening in ("[", '{"a":'):
        export.write_text(opening * 100_000)
        assert damaged(export) == "gcp.json:1: not JSON: it is nested too deeply"
    write_json_lines(export, [{**good[0], "credits": "[" * 100_000}])
    assert "which is not JSON" in damaged(export)
    write_json_lines(export, [good[0], {**good[1], "credits": [{"name": "x"}]}])
    assert damaged(export) == "gcp.json:2: has a credit without an amount"


def test_a_parquet_file_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = stormy()
    path = write_parquet(tmp_path / "cur.parquet", second_generation(cost_and_usage_rows(billed(history))))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SpotrunError, match="needs the Python package pyarrow") as caught:
        aws.read_cost_and_usage_report([path], line_filter(history.state))
    assert caught.value.hint == command_for("parquet")


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("lineItem/UnblendedCost", "line_item_unblended_cost"),
        ("resourceTags/user:spotrun:run", "resource_tags_user_spotrun_run"),
        ("sku.description", "sku_description"),
        ("line_item_resource_id", "line_item_resource_id"),
    ],
)
def test_columns_have_one_name_in_all_generations(name: str, column: str) -> None:
    assert column_name(name) == column


# -- what is shown -----------------------------------------------------------------------------------------------------


def printed(found: Reconciliation, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    shown.show(found, "demo-0123456789", simulated=True, console=console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def usd(text: str) -> Decimal:
    return Decimal(0) if text == "-" or "<" in text else Decimal(text.replace("$", ""))


def test_the_dollars_that_are_shown_add_up(tmp_path: Path) -> None:
    history = stormy()
    lines = billed(history)
    lines.append(beside(lines[0], "other", "Fee", "other", "1.0000004999"))
    text = printed(by_report(history, lines, tmp_path))
    table, reasons = text.split("Instance by instance")[1].split("What explains the difference:")
    *rows, total = [[usd(cell) for cell in line.split()[-5:]] for line in table.splitlines() if "$" in line]
    assert len(rows) >= 3
    for ours, theirs, differ, explained, left in [*rows, total]:
        assert theirs == ours + differ
        assert differ == explained + left
    assert total == [sum(column, Decimal(0)) for column in zip(*rows, strict=True)]
    told = [usd(line.split()[0]) for line in reasons.splitlines() if "$" in line]
    assert sum(told, Decimal(0)) == total[2]


def test_a_narrow_terminal_shows_each_amount_whole(tmp_path: Path) -> None:
    history = stormy()
    lines = billed(history)
    lines.append(beside(lines[0], "other", "Fee", "other", "1234.5"))
    found = by_report(history, lines, tmp_path)
    wide, narrow = printed(found, 200), printed(found, 60)
    assert max(map(len, narrow.splitlines())) <= 60
    assert set(re.findall(r"-?\$\S+", wide)) == set(re.findall(r"-?\$\S+", narrow))
    for head in ("ours", "theirs", "differ", "explained", "left", "UNEXPLAINED,", "rounding"):
        assert head in narrow.split(), head


def test_a_person_sees_each_instance_and_each_reason_and_text_from_outside_is_only_text(tmp_path: Path) -> None:
    history = stormy()
    lines = billed(history)
    lines.append(beside(lines[0], "[red]\x1b[2J", "Fee", "\u202eevil", "1"))
    text = printed(by_report(history, lines, tmp_path))
    assert max(map(len, text.splitlines())) <= 80
    for launch in history.state.launches:
        assert f"i-{launch}" in text
    assert "SIMULATED" in text
    assert "rounding" in text
    assert "[red]" in text
    assert "\x1b" not in text
    assert "\u202e" not in text


# -- a gang ------------------------------------------------------------------------------------------------------------


def gang_of_two() -> tuple[GangHistory, list[MemberName]]:
    """One of them is taken after its first hour; the other ends with the run, 20 minutes later."""
    history = GangHistory(billing=AWS_RULE)
    names = history.training_gang()
    history.after(7000).lost(names[1])
    history.after(1200).lost(names[0], EndedBy.ITSELF)
    return history, names


def test_each_member_of_a_gang_has_its_line(tmp_path: Path) -> None:
    history, names = gang_of_two()
    found = by_report(history, billed(history), tmp_path)
    assert [(line.resource, line.launch, line.member) for line in found.lines if line.launch is not None] == [
        (f"i-{name}", name.launch, name.member) for name in names
    ]
    assert found.unexplained == ()
    assert found.ours_usd == history.state.settled_usd
    assert [line["member"] for line in shown.as_json(found, "r", simulated=False)["instances"]][:2] == [0, 1]


def test_overcharge_of_one_member_names_that_member(tmp_path: Path) -> None:
    history, names = gang_of_two()
    lines = billed(history)
    dearer = [
        replace(line, usd_per_hour=line.usd_per_hour * 2) if line.resource == f"i-{names[1]}" else line
        for line in lines
    ]
    found = by_report(history, dearer, tmp_path)
    assert [line.resource for line in found.unexplained] == [f"i-{names[1]}"]


def test_a_member_is_not_billed_while_it_starts(tmp_path: Path) -> None:
    """Each said itself when its machine ran our code: 50 s after its meter began in the ledger, here."""
    history, names = gang_of_two()
    lines = billed(history)
    first = min(line.start for line in lines if line.resource == f"i-{names[0]}")
    later = [
        replace(line, seconds=line.seconds - 45) if (line.resource, line.start) == (f"i-{names[0]}", first) else line
        for line in lines
    ]
    found = by_report(history, later, tmp_path)
    assert found.unexplained == ()
    assert Reason.STARTING in {part.reason for part in line_of(found, f"i-{names[0]}").parts}
