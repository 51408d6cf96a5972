"""`spotrun metrics`: the figures of the report by names that Prometheus expects, whatever becomes of a run or store."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse
from prometheus_client.samples import Sample

from spotrun.account.outcome import STATES
from spotrun.errors import LoginExpired, SpecInvalid, StoreUnavailable
from spotrun.folder.ledger import key_of
from spotrun.metrics import endpoint as metrics_endpoint
from spotrun.metrics import watched_runs
from spotrun.metrics.endpoint import Address, ScrapeCollector
from spotrun.metrics.figures import FIGURES, Reading, open_metrics
from spotrun.metrics.watched_runs import WatchedRuns
from spotrun.run.entry_bytes import encode_entry
from spotrun.store.local import LocalStore
from tests.support.called_spotrun import Spotrun
from tests.support.decisions import spec
from tests.support.histories import History
from tests.support.report_samples import hostile, stormy
from tests.support.repository import ROOT
from tests.support.short_runs import bare, trained
from tests.support.stored_runs import store_run

SOON = timedelta(seconds=60)
DASHBOARD = ROOT / "infra/grafana/spotrun.json"


def samples(text: str) -> list[Sample]:
    return [sample for family in parse(text) for sample in family.samples]


def value(found: list[Sample], name: str, **labels: str) -> float:
    (one,) = (each for each in found if each.name == name and labels.items() <= each.labels.items())
    return one.value


def stored(folder: Path, **created: object) -> History:
    """A run with two losses, all of whose instances are gone."""
    history = stormy(spec=spec().to_dict(), budget_usd=Decimal(400), **created)
    history.gone(list(history.state.launches)[-1])
    store_run(folder, history)
    return history


# -- the figures ------------------------------------------------------------------------------------------------------


def test_the_figures_are_those_of_the_report(runs: Path, spotrun: Spotrun) -> None:
    stored(runs)
    report, status = spotrun("report", "demo", "--json").json, spotrun("status", "--json").json[0]
    said = spotrun("metrics")
    assert (said.code, said.err) == (0, "")
    found, total = samples(said.out), report["total"]
    kinds = ("spot", "on_demand", "storage", "requests", "egress")
    costs = {kind: value(found, "spotrun_run_cost_usd", kind=kind) for kind in kinds}
    assert costs == {kind: float(total[f"{kind}_usd"]) for kind in kinds}
    assert sum(costs.values()) == pytest.approx(float(total["cost_usd"]), abs=1e-9)
    assert costs["on_demand"] > costs["spot"] > 0
    downtime = {each.labels["kind"]: each.value for each in found if each.name == "spotrun_run_downtime_seconds"}
    assert downtime == total["downtime_s"]
    same = {
        "all_on_demand_usd": "counterfactual_usd",
        "interruptions_total": "interruptions",
        "steps_redone_total": "steps_redone",
        "productive_seconds": "productive_s",
        "paid_seconds": "paid_s",
        "goodput_ratio": "goodput",
        "savings_ratio": "savings",
    }
    assert {key: value(found, f"spotrun_run_{name}") for name, key in same.items()} == {
        key: float(total[key]) for key in same.values()
    }
    assert total["interruptions"] == 2
    assert value(found, "spotrun_run_steps") == status["step"] == 300
    assert value(found, "spotrun_run_epochs") == len(report["epochs"]) == 3
    assert value(found, "spotrun_run_budget_usd") == 400
    assert value(found, "spotrun_run_state", spotrun_run_state=status["state"]) == 1
    assert sum(each.value for each in found if each.name == "spotrun_run_state") == 1
    info = next(each.labels for each in found if each.name == "spotrun_run_info")
    assert info == {
        "run": "demo-0123456789", "cloud": "local", "name": "demo", "simulated": "true", "time_scale": "1"
    }  # fmt: skip


def test_running_instances_have_a_price_by_type(runs: Path, spotrun: Spotrun) -> None:
    store_run(runs, trained(1, uid="a"))
    store_run(runs, trained(1, uid="b"))
    store_run(runs, bare())
    found = samples(spotrun("metrics").out)
    prices = [each for each in found if each.name == "spotrun_run_price_usd_per_hour"]
    assert [(each.labels["run"], each.value) for each in prices] == [("demo-a", 1.5), ("demo-b", 1.5)]
    assert {each.labels["instance_type"] for each in prices} == {"sim-gpu"}
    assert value(found, "spotrun_run_instances", run="demo-a", capacity_type="spot") == 1
    assert value(found, "spotrun_runs", state="training") == 2
    assert value(found, "spotrun_runs", state="completed") == 1
    assert sum(each.value for each in found if each.name == "spotrun_runs") == 3


def test_a_run_without_a_figure_has_no_sample_of_it(runs: Path, spotrun: Spotrun) -> None:
    store_run(runs, History())
    found = {each.name for each in samples(spotrun("metrics").out)}
    assert "spotrun_run_cost_usd" in found
    assert not found & {"spotrun_run_goodput_ratio", "spotrun_run_budget_usd", "spotrun_run_price_usd_per_hour"}


def test_names_follow_the_rules_of_open_metrics(runs: Path, spotrun: Spotrun) -> None:
    stored(runs)
    families = list(parse(spotrun("metrics").out))
    assert len(families) > len(FIGURES)
    for family in families:
        assert re.fullmatch(r"spotrun(_[a-z]+)+", family.name), family.name
        assert family.documentation.endswith("."), family.name
        assert not family.unit or family.name.endswith(f"_{family.unit}")
        ends = {"counter": "_total", "info": "_info"}.get(family.type, "")
        assert {each.name for each in family.samples} <= {family.name + ends}, family.name
        if family.name.startswith("spotrun_run_") and not family.name.endswith("unreadable"):
            assert all({"run", "cloud"} <= each.labels.keys() for each in family.samples), family.name


def test_a_name_that_tries_to_be_more_is_a_label_and_no_line(runs: Path, spotrun: Spotrun) -> None:
    history = hostile()
    store = LocalStore(runs / "demo-0123456789")
    for entry in [*History().entries, *history.entries[1:]]:
        store.put_if_absent(key_of(entry.number), encode_entry(entry))
    text = spotrun("metrics").out
    (price,) = (each for each in samples(text) if each.name == "spotrun_run_price_usd_per_hour")
    assert "<script>" in price.labels["instance_type"]
    assert "\x1b" not in text


# -- which runs -------------------------------------------------------------------------------------------------------


def test_newest_runs_are_exported_with_the_number_left_out(runs: Path, spotrun: Spotrun) -> None:
    for day in range(1, 4):
        began = datetime(2026, 3, day, tzinfo=UTC)
        store_run(runs, History(name=f"day{day}", uid=str(day), clock_epoch=began))
    (runs / "notes").mkdir()
    found = samples(spotrun("metrics", "--last", 2).out)
    assert {each.labels["run"] for each in found if each.name == "spotrun_run_info"} == {"day3-3", "day2-2"}
    assert value(found, "spotrun_runs_left_out") == 1
    named = samples(spotrun("metrics", "day1", "day1-1").out)
    assert {each.labels["run"] for each in named if each.name == "spotrun_run_info"} == {"day1-1"}
    nobody = spotrun("metrics", "ghost")
    assert (nobody.code, nobody.out) == (3, "")
    assert "ghost" in nobody.err


def test_unreadable_run_is_reported_and_the_others_are_exported(runs: Path, spotrun: Spotrun) -> None:
    stored(runs, name="well", uid="1")
    for name, number in (("first", 0), ("middle", 4)):
        stored(runs, name=name, uid=name)
        (runs / f"{name}-{name}" / key_of(number)).write_bytes(b"{}")
    stored(runs, name="moved", uid="2")
    (runs / "moved-2").rename(runs / "other-2")
    said = spotrun("metrics")
    found = samples(said.out)
    assert said.code == 0
    assert {each.labels["run"] for each in found if each.name == "spotrun_run_unreadable"} == {
        "first-first", "middle-middle", "other-2"
    }  # fmt: skip
    assert {each.labels["run"] for each in found if each.name == "spotrun_run_info"} == {"well-1"}
    assert [line.partition(":")[0] for line in said.err.splitlines()] == [
        "first-first cannot be read", "middle-middle cannot be read", "other-2 cannot be read"
    ]  # fmt: skip
    assert value(found, "spotrun_runs_late") == 0


def test_an_ended_run_is_reckoned_once_and_a_living_one_again_and_again(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, living = stored(runs, uid="1"), trained(1, uid="2")
    place = store_run(runs, living)
    reckoned: list[str] = []
    real = watched_runs.figures_of

    def counted(state, now, machines):  # type: ignore[no-untyped-def]
        reckoned.append(state.created.uid)
        return real(state, now, machines)

    monkeypatch.setattr(watched_runs, "figures_of", counted)
    watched = WatchedRuns(str(runs), 10)
    first = watched.read(SOON)
    living.after(1000).gone(next(iter(living.state.launches)))
    LocalStore(place).put_if_absent(key_of(living.entries[-1].number), encode_entry(living.entries[-1]))
    second = watched.read(SOON)
    assert sorted(reckoned) == [ended.uid, living.uid, living.uid]
    rented = [{each.run: len(each.rented) for each in reading.runs} for reading in (first, second)]
    assert rented == [{"demo-1": 0, "demo-2": 1}, {"demo-1": 0, "demo-2": 0}]
    assert [each.report["total"]["interruptions"] for each in second.runs if each.run == "demo-2"] == [1]


# -- time -------------------------------------------------------------------------------------------------------------


class _Slow(LocalStore):
    """One that does not answer for a run until it may."""

    may_answer = threading.Event()

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        if "slow" in self.uri:
            assert self.may_answer.wait(120)
        return super().get(key, start, size)


@pytest.fixture
def slow_store(runs: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr("spotrun.runs.open_run.open_store", lambda uri: _Slow(Path(uri)))
    _Slow.may_answer.clear()
    yield runs
    _Slow.may_answer.set()


def test_a_run_that_is_not_read_in_time_is_late_and_comes_with_a_later_look(slow_store: Path) -> None:
    stored(slow_store, name="quick", uid="1")
    stored(slow_store, name="slow", uid="2")
    watched = WatchedRuns(str(slow_store), 10)
    until_quick = _looked(watched, lambda reading: bool(reading.runs), timedelta(milliseconds=200))
    assert ([each.name for each in until_quick.runs], until_quick.late) == (["quick"], 1)
    _Slow.may_answer.set()
    whole = _looked(watched, lambda reading: reading.late == 0, SOON)
    assert {each.name for each in whole.runs} == {"quick", "slow"}


def _looked(watched: WatchedRuns, enough, within: timedelta) -> Reading:  # type: ignore[no-untyped-def]
    """Look until it is enough: a busy machine may need several looks."""
    for _ in range(300):
        reading = watched.read(within)
        if enough(reading):
            return reading
    raise AssertionError(reading)


def test_scrapes_share_a_reading_for_a_while(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(runs, uid="1")
    scraped = ScrapeCollector(WatchedRuns(str(runs), 10), SOON)
    stored(runs, uid="2")
    assert _runs_of(scraped) == {"demo-1"}
    monkeypatch.setattr(metrics_endpoint, "FRESH_FOR_S", 0.0)
    assert _runs_of(scraped) == {"demo-1", "demo-2"}


def test_last_figures_are_served_with_their_time_while_the_store_is_away(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(metrics_endpoint, "FRESH_FOR_S", 0.0)
    stored(runs, uid="1")
    watched = WatchedRuns(str(runs), 10)
    scraped = ScrapeCollector(watched, SOON)
    read_at = _values_of(scraped)["spotrun_read_timestamp_seconds"]
    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "folders", _away)
        told = _values_of(scraped)
        assert told["spotrun_store_reachable"] == 0
        assert _runs_of(scraped) == {"demo-1"}
        assert told["spotrun_read_timestamp_seconds"] >= read_at
        assert "the disk is away" in capsys.readouterr().err
        with pytest.raises(StoreUnavailable):
            ScrapeCollector(WatchedRuns(str(runs), 10), SOON)
    assert _values_of(scraped)["spotrun_store_reachable"] == 1


def _away(_: LocalStore) -> tuple[str, ...]:
    raise LoginExpired("the disk is away")  # which is not tried again


def _runs_of(scraped: ScrapeCollector) -> set[str]:
    found = (sample for family in scraped.collect() for sample in family.samples)
    return {each.labels["run"] for each in found if each.name == "spotrun_run_info"}


def _values_of(scraped: ScrapeCollector) -> dict[str, float]:
    return {each.name: each.value for family in scraped.collect() for each in family.samples if not each.labels}


def test_unreadable_run_is_reported_once_until_its_reason_changes(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(metrics_endpoint, "FRESH_FOR_S", 0.0)
    stored(runs, uid="1")
    entry = runs / "demo-1" / key_of(0)
    whole = entry.read_bytes()
    entry.write_bytes(b"{}")
    scraped = ScrapeCollector(WatchedRuns(str(runs), 10), SOON)
    scraped.collect()
    assert capsys.readouterr().err.count("demo-1 cannot be read") == 1
    entry.write_bytes(whole)
    assert _runs_of(scraped) == {"demo-1"}


# -- files and addresses ----------------------------------------------------------------------------------------------


def test_a_textfile_is_replaced_whole_and_can_be_read_by_others(runs: Path, spotrun: Spotrun) -> None:
    stored(runs)
    file = runs.parent / "spotrun.prom"
    file.write_text("before\n")
    file.chmod(0o600)
    before = file.open()
    said = spotrun("metrics", "--textfile", file)
    assert (said.code, said.out) == (0, f"wrote {file}: 1 run\n")
    assert before.read() == "before\n", "a reader that has opened it reads the old one to its end"
    before.close()
    assert "\nspotrun_run_interruptions_total{" in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o644
    assert [each.name for each in runs.parent.iterdir() if each.name != "runs"] == ["spotrun.prom"]


@pytest.mark.parametrize("name", ["missing/x.prom", "runs", "file/x.prom"])
def test_a_textfile_that_cannot_be_written_is_one_error_and_leaves_nothing(
    name: str, runs: Path, spotrun: Spotrun
) -> None:
    (runs.parent / "file").write_text("")
    said = spotrun("metrics", "--textfile", runs.parent / name)
    assert (said.code, said.out) == (1, "")
    assert said.err.startswith(f"error: cannot write {runs.parent / name}: ")
    assert {each.name for each in runs.parent.iterdir()} == {"runs", "file"}


def test_an_address_is_a_host_and_a_port() -> None:
    assert metrics_endpoint.parse("127.0.0.1:9753") == Address("127.0.0.1", 9753)
    assert metrics_endpoint.parse("[::1]:0") == Address("::1", 0)
    for wrong in ("9753", ":9753", "localhost", "localhost:", "localhost:65536", "a b:1", "http://localhost:1"):
        with pytest.raises(SpecInvalid, match="not HOST:PORT"):
            metrics_endpoint.parse(wrong)


def test_an_endpoint_answers_only_to_its_own_names() -> None:
    listed = {
        ("127.0.0.1", "127.0.0.1"): {"127.0.0.1", "[::1]", "localhost"},
        ("gpu1.example", "10.1.2.3"): {"127.0.0.1", "[::1]", "localhost", "gpu1.example", "10.1.2.3"},
        ("0.0.0.0", "0.0.0.0"): {"127.0.0.1", "[::1]", "localhost", "10.1.2.3", "10.9.9.9", "me", "me.example"},
    }
    everyone = {*("evil.example", "me.evil.example", "10.1.2.3@evil.example", "[::1", "a b", "")}.union(
        *listed.values()
    )
    for (name, bound), own in listed.items():
        is_own = metrics_endpoint.own_hosts(name, bound, ["me", "Me.example"])
        found = {host for host in everyone if is_own(host)}
        assert found == own, name
        assert {host for host in everyone if host and is_own(f"{host.upper()}:9753")} == own


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--listen", "nowhere"], "--listen: 'nowhere' is not HOST:PORT"),
        (["--within", "soon"], "--within"),
        (["--listen", "127.0.0.1:0", "--textfile", "x.prom"], "cannot be combined"),
        (["--store", "nowhere"], "no folder"),
    ],
)
def test_a_flag_that_cannot_be_meant_is_refused(words: list[str], message: str, runs: Path, spotrun: Spotrun) -> None:
    said = spotrun("metrics", *words)
    assert said.code in (2, 5)
    assert message in said.err
    assert "Traceback" not in said.err


# -- the dashboard ----------------------------------------------------------------------------------------------------


def test_the_dashboard_asks_for_metrics_and_labels_that_exist() -> None:
    families = list(parse(open_metrics(_all_figures())))
    labels = {each.name: set(each.labels) for family in families for each in family.samples}
    text = DASHBOARD.read_text()
    asked = set(re.findall(r"\bspotrun_[a-z_]+", text)) - {"spotrun_run_state"}
    assert len(asked) > 12
    assert asked - labels.keys() == set()
    for expression in _expressions():
        for name, chosen in re.findall(r"\b(spotrun_[a-z_]+)\{([^}]*)\}", expression):
            assert set(re.findall(r"(\w+)=", chosen)) <= labels[name], expression
        known = set().union(*(labels[name] for name in re.findall(r"\bspotrun_[a-z_]+", expression) if name in labels))
        for group in re.findall(r"by \(([^)]*)\)", expression):
            assert set(re.split(r", ?", group)) <= known, expression
    assert set(STATES) >= set(re.findall(r'state=\\"(\w+)\\"', text))


def _expressions() -> list[str]:
    return [target["expr"] for panel in json.loads(DASHBOARD.read_text())["panels"] for target in panel["targets"]]


def _all_figures() -> Reading:
    """A run with a sample of each metric."""
    from spotrun.folder.machine_use import TypeUse
    from spotrun.folder.status_objects import Busy, MachineUse
    from spotrun.metrics.figures import figures_of

    history = trained(1)
    busy = Busy(busy_s=1, of_s=2)
    used = TypeUse(
        instance_type="g5.xlarge", used=MachineUse(cpu=busy, memory=busy, gpu=busy, gpu_memory=busy, waited=busy)
    )
    return Reading([figures_of(history.state, history.now, [used])], {"x": "why"}, 0, 0, datetime.now(UTC), 0.1)


def test_panels_have_their_own_numbers_and_places() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
