"""Commands that start no instance: over stored runs, recorded markets and files of a bill."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from spotrun.folder.ledger import Ledger
from spotrun.folder.status_objects import AgentStatus, agent_key, write_status
from spotrun.report import live
from spotrun.report.live import PlainView
from spotrun.runner.tick import Tick
from spotrun.spec.model import RunSpec
from spotrun.store.opening import open_store
from tests.support.bills import (
    billed,
    cost_and_usage_rows,
    in_parts,
    stormy,
    write_csv,
)
from tests.support.decisions import spec
from tests.support.histories import History
from tests.support.manual_clock import ManualClock
from tests.support.market_records import write_records
from tests.support.memory_store import MemoryStore
from tests.support.sandbox import Sandbox
from tests.support.short_runs import bare, trained


def test_plan_forecasts_a_job_and_spends_nothing(sandbox: Sandbox) -> None:
    job = sandbox.job("later", extra="budget: {max_usd: 9}\n")
    facts = sandbox.ask_json("plan", job, "--deadline", "8h", "--work", "4h", "--lifetimes", "20")
    assert (facts["work_s"], facts["time_left_s"]) == (14_400, 28_800)
    assert facts["forecasts"][0]["budget_passed"] is not None
    assert not sandbox.store.exists()
    said = sandbox.call("plan", job, "--deadline", "8h", "--work", "4h", "--lifetimes", "20")
    assert "Cost, P5 to P95" in said
    page = sandbox.folder / "plan.html"
    said = sandbox.ask("plan", job, "--work", "4h", "--lifetimes", "20", "--html", page)
    assert said.strip() == f"wrote {page}"
    assert "later: 4h00m of work" in page.read_text()
    assert not sandbox.store.exists()


def test_plan_says_what_it_lacks(sandbox: Sandbox, tmp_path: Path) -> None:
    job = sandbox.job("later")
    assert "the training time of this job is not known" in sandbox.ask("plan", job, code=2)
    refusal = sandbox.ask("plan", job, "--deadline", "4h", "--work", "4h", code=2)
    assert "cannot be met even on demand" in refusal
    assert "no market windows" in sandbox.ask(
        "plan", job, "--deadline", "8h", "--work", "4h", "--traces", tmp_path / "none.npz", code=1
    )
    both = ("--traces", tmp_path / "none.npz", "--price-history")
    assert "--traces already has prices" in sandbox.ask("plan", job, "--work", "4h", *both, code=2)


def test_plan_lets_prices_move_as_they_did(sandbox: Sandbox) -> None:
    job = sandbox.job("later", extra="  market: generated\n")
    facts = sandbox.ask_json("plan", job, "--work", "4h", "--lifetimes", "5", "--price-history")
    assert "prices move as they did in the last 2d" in facts["assumed"]


def test_plan_takes_any_record_for_its_market(sandbox: Sandbox) -> None:
    record = sandbox.folder / "never.json"
    record.write_text(json.dumps({"metadata": {"gap_seconds": 600}, "data": [1] * 200}))
    few = ("--deadline", "8h", "--work", "4h", "--lifetimes", "5", "--traces", record)
    for published_as, least in (("skypilot", 0.0), ("adrs", 0.99)):
        facts = sandbox.ask_json("plan", sandbox.job("later"), *few, "--published-as", published_as)
        cost = {row["strategy"]: row["cost_mean_usd"] for row in facts["forecasts"]}
        assert least < cost["ours"] / cost["on_demand_only"] < least + 0.6


def test_launch_and_plan_know_what_runs_before_them_told_the_store(sandbox: Sandbox) -> None:
    job = sandbox.job("next", scale=1)
    plan = ("plan", job, "--deadline", "8h", "--work", "4h", "--lifetimes", "1")
    first = sandbox.ask_json(*plan)["offerings"][0]
    at = f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
    name = f"{at}_lost_{first['zone']}_{first['instance_type']}_spot_60_other_1"
    open_store(str(sandbox.store)).put_if_absent(f"market/local/{first['region']}/{name}", b"")
    offerings = sandbox.ask_json(*plan)["offerings"]
    assert offerings[0]["zone"] != first["zone"]
    (lost_one,) = [each for each in offerings if (each["zone"], each["capacity_type"]) == (first["zone"], "spot")]
    assert lost_one["why"] == "asked last: an instance was lost there 1m ago"
    (ticked,) = [line for line in sandbox.ask("launch", job, "--dry-run").splitlines() if line.startswith("✓")]
    assert offerings[0]["zone"] in ticked


def test_launch_refuses_what_the_run_before_it_showed_to_be_hopeless_and_says_what_to_do(sandbox: Sandbox) -> None:
    history = bare()
    store = open_store(str(sandbox.store / f"demo-{history.uid}"))
    history.put_into(store)
    stormy = sandbox.folder / "demo.yaml"
    stormy.write_text(
        f"name: demo\nrun: sleep 1\ncheckpoint: {{uri: '{sandbox.store}'}}\nlocal: {{market: generated, seed: 3}}\n"
    )
    said = sandbox.ask("launch", stormy, "--dry-run", code=2)
    assert "made no checkpoint" in said
    assert "--on-demand" in said
    assert "Offerings considered" in sandbox.ask("launch", stormy, "--dry-run", "--on-demand")
    assert "Offerings considered" in sandbox.ask("launch", stormy, "--dry-run", "--name", "other")


def test_status_and_the_lines_of_a_launch_show_where_the_budget_leads(
    sandbox: Sandbox, capsys: pytest.CaptureFixture[str]
) -> None:
    history = trained(30, spec=spec().to_dict())
    store = open_store(str(sandbox.store / f"demo-{history.uid}"))
    history.put_into(store)
    ledger, clock = Ledger(store, history.uid, "test", ManualClock(history.now)), ManualClock(history.now)
    PlainView(ledger, clock, spec(), "demo").show(Tick(state=ledger.refresh()))
    assert "budget $30.0" in (said := capsys.readouterr().out)
    assert said.startswith(f"03-01 12:00:00     0  run demo-{history.uid} created\n")
    assert "of $40: passes it in epoch 40 at 03-02 1" in said
    launch = next(iter(history.state.launches))
    status = AgentStatus(launch=launch, phase="train", at=history.now, sequence=1, epochs=100)
    write_status(store, agent_key(launch), status)
    (row,) = sandbox.ask_json("status")
    assert row["budget_usd"] == "40"
    assert row["budget_passed_in_epoch"] is not None
    assert 99 < float(row["budget_needed_usd"]) < 102
    assert "of $40: passes it in epoch" in row["detail"]
    assert "and needs $10" in row["detail"]


def test_a_long_reason_to_wait_is_printed_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "PLAIN_EVERY_S", 0)
    monkeypatch.setattr(live, "NEWS_EVERY_S", 0)
    history, store = History(), MemoryStore()
    history.put_into(store)
    ledger, clock = Ledger(store, history.uid, "test", ManualClock(history.now)), ManualClock(history.now)
    view = PlainView(ledger, clock, spec(), "demo")
    for why in ("the cloud refuses", "the cloud refuses", "it hangs", None, "it hangs"):
        view.show(Tick(state=ledger.refresh(), blind=why, remark=why and "a quota is full"))
    lines = [line.split(" | ")[2:] for line in capsys.readouterr().out.splitlines() if "  ..  " in line]
    assert lines == [
        ["the cloud refuses", "a quota is full"],
        ["as above"],
        ["it hangs", "a quota is full"],
        [],
        ["it hangs", "a quota is full"],
    ]


def test_bill_compares_a_run_in_a_store_and_ends_with_12_where_something_is_left(sandbox: Sandbox) -> None:
    spec = RunSpec.from_dict({"name": "demo", "workdir": "/", "train": {"script": "train.py"}})
    history = stormy(spec=spec.to_dict())
    store = open_store(f"{sandbox.store}/demo-{history.uid}")
    history.put_into(store)
    lines = billed(history)
    cur = write_csv(sandbox.folder / "cur.csv", cost_and_usage_rows(lines))
    found = json.loads(sandbox.ask("bill", "demo", "--cur", cur, "--json"))
    assert found["total"]["unexplained_usd"] == "0.000000000"
    theirs = sum(Decimal(line["amount_usd"]) for each in found["instances"] for line in each["lines"])
    assert theirs == Decimal(found["total"]["theirs_usd"]) == sum(Decimal(f"{line.usd:.10f}") for line in lines)
    folder = in_parts(cost_and_usage_rows(lines), sandbox.folder / "month")
    assert json.loads(sandbox.ask("bill", "demo", "--cur", f"{folder}/*", "--json"))["total"] == found["total"]
    report = sandbox.ask_json("report", "demo")["total"]
    assert Decimal(found["total"]["ours_usd"]) == Decimal(report["spot_usd"]) + Decimal(report["on_demand_usd"])

    write_csv(cur, cost_and_usage_rows([*lines, replace(lines[0], resource="i-0ff")]))
    output = sandbox.call("bill", "demo", "--cur", cur, code=12)
    assert "1 of 4 lines not explained" in output
    assert "no bill was given\n  try: spotrun bill demo with one of --cur FILE" in sandbox.ask("bill", "demo", code=2)


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    return write_records(tmp_path / "traces")


def test_simulate_prints_tables_and_json(sandbox: Sandbox, traces: Path) -> None:
    words = ("simulate", "--traces", traces, "--work", "2h", "--deadline", "4h", "--strategy", "ours")
    said = sandbox.call(*words)
    assert "2h of work due in 4h, starts take 6m, one zone" in said
    assert "comes-and-goes.json: 1 zone, 1 = available (skypilot), up 67%, tick 600 s" in said
    facts = sandbox.ask_json(*words)
    assert facts["sha256"] in said
    assert "does not accept" in sandbox.ask(*words[:3], "--strategy", "best", code=2)
    assert "needs a unit" in sandbox.ask(*words[:3], "--work", "8", code=2)
