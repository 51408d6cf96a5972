"""A third cloud that stands in one file of the tests: what knows it is told by its registry entry alone."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

import spotrun
from spotrun.errors import LedgerDamaged, RunNotFound, SpecInvalid
from spotrun.run import events as ev
from spotrun.spec.file import SpecFileInvalid, load_spec
from spotrun.spec.schema import json_schema
from tests.support.called_spotrun import Spotrun
from tests.support.launch_requests import requested
from tests.support.sandbox import Sandbox, kinds
from tests.support.toy_cloud import CLOUD, NAME, RULE, TYPES, ZONES
from tests.support.toy_sandbox import toy_sandbox

INTERRUPTED = "{when: epoch 2 at 40%, then: interrupt, notice: 120s}"


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    with toy_sandbox(tmp_path, monkeypatch) as found:
        yield found


@pytest.fixture
def called(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Spotrun:
    """The commands in this process, with the surroundings of the sandbox."""
    return Spotrun(monkeypatch, capsys)


def job(sandbox: Sandbox, name: str, **more: str) -> Path:
    path = sandbox.job(name, script=more.get("script", ""), args="--epochs, 4", scale=60)
    path.write_text(path.read_text().replace("cloud: local", f"cloud: {NAME}") + more.get("extra", ""))
    return path


def test_a_job_runs_on_it_to_its_end_through_a_loss(sandbox: Sandbox) -> None:
    said = sandbox.call("launch", job(sandbox, "play", script=INTERRUPTED), "-y")
    assert TYPES[0].name in said
    run = sandbox.run("play")
    state = run.ledger.refresh()
    assert state.terminal is not None
    assert state.terminal.outcome == "completed"
    events = [entry.event for entry in run.ledger.entries]
    assert {each.offering.cloud for each in events if isinstance(each, ev.LaunchIntended)} == {NAME}
    assert [each.kind for each in events if isinstance(each, ev.NoticeSeen)] == ["termination"]
    assert "NoticesLost" not in kinds(run)
    assert not run.created.simulated
    assert run.created.billing == RULE
    assert run.created.interruption_bands == {f"{ZONES[0].region}/{TYPES[0].name}": "<5%"}
    assert run.store.get("boot/box.txt") == b"batteries included"
    armed = set((sandbox.folder / "box" / "armed.txt").read_text().split())
    assert armed == {f"{run.created.uid}-{number}" for number in state.launches}
    assert list((sandbox.folder / "box" / "guards").iterdir()) == []
    assert CLOUD.account(()).identities.runs() == []
    facts = sandbox.call_json("report", "play")
    assert facts["total"]["interruptions"] == 1
    assert RULE.source in facts["assumptions"]
    assert "completed" in sandbox.call("status")


def test_a_run_on_it_is_looked_at_and_ended(sandbox: Sandbox) -> None:
    sandbox.start("launch", job(sandbox, "short"), "-y", "--detach").communicate(timeout=60)
    assert NAME in sandbox.call("events", "short")
    sandbox.call("down", "short", "-y")
    assert sandbox.left_running() == []


def test_unwanted_instance_is_reaped(sandbox: Sandbox, called: Spotrun) -> None:
    sandbox.call("launch", job(sandbox, "over"), "-y")
    run, driver = sandbox.run("over"), CLOUD.account(()).driver
    left = driver.launch(requested(driver.offerings()[0], 99, run.created.uid, run_uri=run.uri))
    CLOUD.account(()).identities.make(run.created.uid, run.uri)
    said = sandbox.call("reap", "--cloud", NAME, "-y")
    assert left.instance_id in said
    assert f"the role of {run.id}, which has ended" in said
    assert not any(each.alive for each in driver.instances())
    lost = driver.launch(requested(driver.offerings()[0], run_uid="ffffffffff", run_uri="/elsewhere/n-ffffffffff"))
    assert lost.instance_id in called.call("reap", "--cloud", NAME, "-y").split("of runs that are not in")[1]
    assert any(each.alive for each in driver.instances("ffffffffff")), "another store may have its run"
    known = called.call("reap", "--cloud", NAME, "-y", "--run", run.created.uid, code=SpecInvalid.exit_code)
    assert f"spotrun down {run.created.uid}" in known
    assert "ended 1" in called.call("reap", "--cloud", NAME, "-y", "--run", "ffffffffff")
    assert not any(each.alive for each in driver.instances())
    called.call("reap", "--cloud", NAME, "-y", "--run", "ffffffffff", code=RunNotFound.exit_code)
    assert "has no regions" in called.call("reap", "--cloud", NAME, "--region", "toyland", code=SpecInvalid.exit_code)


def test_an_instance_whose_run_lost_the_beginning_of_its_ledger_can_be_ended(sandbox: Sandbox, called: Spotrun) -> None:
    """Its folder was moved away while nobody looked, and its agent has begun it anew."""
    uid, driver = "eeeeeeeeee", CLOUD.account(()).driver
    ledger = sandbox.store / f"n-{uid}" / "ledger"
    ledger.mkdir(parents=True)
    (ledger / "00000005.json").write_text("{}")
    left = driver.launch(requested(driver.offerings()[0], run_uid=uid, run_uri=str(ledger.parent)))
    listed = called.call("reap", "--cloud", NAME, "-y")
    assert left.instance_id in listed.split("that cannot be read")[1]
    said = called.call("down", f"n-{uid}", "-y", code=LedgerDamaged.exit_code)
    assert f"spotrun reap --cloud CLOUD --run {uid}" in said
    assert [each.alive for each in driver.instances(uid)] == [True]
    assert "ended 1" in called.call("reap", "--cloud", NAME, "-y", "--run", uid)
    assert not any(each.alive for each in driver.instances())
    shutil.rmtree(ledger.parent)  # the sandbox reads all runs at its end


def test_its_offers_and_checks_are_shown(called: Spotrun) -> None:
    (quote, *_) = called.call_json("offers", "--cloud", NAME)["offers"]
    assert (quote["instance_type"], quote["simulated"]) == (TYPES[0].name, False)
    checks = called.call_json("doctor", NAME)["checks"]
    assert {"toys", "store"} <= {each["name"] for each in checks}


def test_a_job_that_names_it_is_read_and_one_that_it_refuses_is_not(sandbox: Sandbox) -> None:
    spec = load_spec(job(sandbox, "fine"))
    assert spec.cloud is CLOUD
    assert NAME in json_schema()["$defs"]["ResourcesSpec"]["properties"]["cloud"]["enum"]
    refused = job(sandbox, "refused")
    refused.write_text(refused.read_text().replace(f"cloud: {NAME}", f"cloud: {NAME}, region: us-east-1"))
    with pytest.raises(SpecFileInvalid, match="is no region of toys"):
        load_spec(refused)


def test_unknown_cloud_is_refused_with_the_known_ones(sandbox: Sandbox, called: Spotrun) -> None:
    wrong = job(sandbox, "wrong")
    wrong.write_text(wrong.read_text().replace(f"cloud: {NAME}", "cloud: lego"))
    known = f"local, aws, gcp, slurm and {NAME}"
    with pytest.raises(SpecFileInvalid, match=f"lego is not supported; spotrun rents on {known}"):
        load_spec(wrong)
    assert f"local, aws, gcp, slurm, {NAME}" in called.call("offers", "--cloud", "lego", code=SpecInvalid.exit_code)


def test_nothing_of_spotrun_knows_its_name() -> None:
    files = Path(spotrun.__file__).parent.rglob("*")
    texts = (path.read_text() for path in files if path.suffix in (".py", ".sh", ".json"))
    assert not any(re.search(rf"\b{NAME}\b", text, re.IGNORECASE) for text in texts)
    assert TYPES[0].on_demand_usd_per_hour == Decimal(10)
