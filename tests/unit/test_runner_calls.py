"""What a night's function counts of its own calls, and what the report of the run says of them."""

from __future__ import annotations

import io
from datetime import timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from spotrun.account.summary import summarise
from spotrun.clouds.aws.cloud import Aws
from spotrun.clouds.aws.control_plane import prices
from spotrun.clouds.gcp import control_plane as google
from spotrun.clouds.gcp.cloud import Gcp
from spotrun.errors import StoreUnavailable
from spotrun.folder.run_calls import WRITTEN_EVERY, Calls, RunnerCalls, read_calls
from spotrun.night.counts import CallCounter, since_start_s
from spotrun.report import terminal
from spotrun.report.html.page import page
from spotrun.report.machine_use import whole_report
from spotrun.store import opening, request_counts
from spotrun.store.request_counts import RequestCounts
from tests.support.manual_clock import ManualClock
from tests.support.memory_store import MemoryStore
from tests.support.report_samples import stormy

TICK = {"kind": "tick"}
RUN = {"run": "r-0123456789"}


class Function:
    """Environments of a function that are called once a minute, and a store with the folder of its run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock, self.store, self.asked = ManualClock(), MemoryStore(), RequestCounts()
        monkeypatch.setattr(opening, "open_store", lambda uri: self.store)
        self.is_cold()

    def is_cold(self) -> None:
        self.asked = RequestCounts()
        self._counter = CallCounter("s3://bucket/runs", 256, 2.0, self.clock, lambda: self.asked)

    def ticks(self, minutes: int, answer: dict[str, Any] = RUN) -> None:
        for _ in range(minutes):
            self.asked = RequestCounts(self.asked.reads + 3, self.asked.writes + 1)
            self._counter.count(TICK, answer, 0.5, 10)
            self.clock.advance(60)

    @property
    def calls(self) -> Calls:
        found = read_calls(self.store)
        assert found is not None
        return found


@pytest.fixture
def function(monkeypatch: pytest.MonkeyPatch) -> Function:
    return Function(monkeypatch)


def test_the_last_call_writes_down_all_that_went_before(function: Function) -> None:
    function.ticks(39)
    function.ticks(1, {**RUN, "done": True})
    calls = function.calls
    assert (calls.calls, calls.ticks, calls.starts, calls.uncounted) == (40, 40, 1, 0)
    assert calls.seconds == pytest.approx(40 * 0.5 + 2.0, abs=0.1)
    writes_of_its_own = 1 + 39 // (WRITTEN_EVERY // timedelta(minutes=1)) + 1
    assert (calls.reads, calls.writes, calls.log_bytes) == (120, 40 + writes_of_its_own, 400)


def test_calls_that_an_environment_did_not_come_to_write_down_are_known_to_be_missing(function: Function) -> None:
    function.ticks(9)  # it has written after the first
    function.is_cold()
    function.ticks(1, {**RUN, "done": True})
    calls = function.calls
    assert (calls.calls, calls.uncounted, calls.starts) == (2, 7, 2)


def test_environments_that_were_called_side_by_side_miss_nothing(function: Function) -> None:
    other = CallCounter("s3://bucket/runs", 256, 2.0, function.clock, lambda: RequestCounts())
    other.count({"detail-type": "EC2"}, RUN, 1.0, 0)
    function.ticks(2)
    calls = function.calls
    assert (calls.events, calls.uncounted) == (1, 0)


def test_a_call_before_there_is_a_run_counts_for_the_run_and_the_next_run_begins_at_nothing(function: Function) -> None:
    function.ticks(1, {})
    assert read_calls(function.store) is None
    function.ticks(1, {**RUN, "done": True})
    assert function.calls.calls == 2
    function.store = MemoryStore()
    function.ticks(1, {"run": "r-1"})
    assert function.calls.calls == 1


def test_a_store_that_takes_no_record_just_now_gets_it_with_the_next_call(
    function: Function, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise StoreUnavailable("not now")

    kept = function.store.put_status
    monkeypatch.setattr(function.store, "put_status", refuse)
    function.ticks(1)
    monkeypatch.setattr(function.store, "put_status", kept)
    function.ticks(1)
    assert function.calls.calls == 2


def test_a_record_that_is_none_is_passed_over() -> None:
    store = MemoryStore()
    store.put("calls/x.json", b'{"calls": -1}')
    assert read_calls(store) is None


def test_each_kind_of_request_to_s3_counts_as_it_is_billed() -> None:
    before = request_counts.asked()
    for method, url in [
        ("GET", "b/k"),
        ("HEAD", "b"),
        ("GET", "b?list-type=2&prefix=x"),
        ("PUT", "b/k"),
        ("DELETE", "b/k"),
    ]:
        request_counts.count(SimpleNamespace(method=method, url=url))
    assert request_counts.asked().since(before) == RequestCounts(reads=2, writes=2)


def test_the_process_knows_since_when_it_lives() -> None:
    assert 0 < since_start_s() < 86_400


# -- the report ------------------------------------------------------------------------------------------------------


def calls(**changes: Any) -> Calls:
    at = ManualClock().now()
    facts = {"calls": 480, "ticks": 478, "events": 2, "seconds": 100.0, "reads": 1300, "writes": 400, "log_bytes": 9000}
    return Calls(began_at=at, ended_at=at, **{"memory_mb": 256, **facts, **changes})


def counted(**changes: Any) -> RunnerCalls:
    return Aws().runner_calls(calls(**changes))


def test_calls_are_priced_by_the_dated_table() -> None:
    usd = prices().prices
    exact = 480 * usd["lambda_request"] + 25 * usd["lambda_gb_second"] + 1300 * usd["s3_get"] + 400 * usd["s3_put"]
    assert counted(log_bytes=0).usd == round(exact, 9)
    assert counted(log_bytes=0, uncounted=480).usd == round(2 * exact, 9)
    assert counted().prices_read == prices().as_of


def test_calls_of_google_are_priced_by_its_own_table() -> None:
    usd = google.prices().prices
    vcpu_s = 100 + 480 * Decimal("0.05")
    service = 480 * usd["run_request"] + vcpu_s * (usd["run_vcpu_second"] + usd["run_gib_second"] / 2)
    bucket = 1300 * usd["gcs_class_b"] + 400 * usd["gcs_class_a"]
    log = (480 * 1000 + 9000) * usd["log_gib"] / 2**30
    found = Gcp().runner_calls(calls(memory_mb=512))
    assert (found.usd, found.prices_read) == (round(service + bucket + log, 9), google.prices().as_of)


def test_each_form_of_the_report_has_what_calling_its_runner_cost() -> None:
    history, found = stormy(), counted(uncounted=3)
    summary = summarise(history.state, history.now)
    text = io.StringIO()
    terminal.show(summary, Console(file=text, width=400), calls=found)
    line = next(line for line in text.getvalue().splitlines() if line.startswith("Calling its runner: $0.00"))
    for words in ("480 calls of the function", "1m40s of 256 MB", "1,300 reads", "3 calls that were not counted"):
        assert words in line
    assert line.strip() in page(history.state, history.entries, history.now, calls=found).replace("&#x27;", "'")
    told = whole_report(summary, (), found)["runner_calls"]
    assert Decimal(told["usd"]) == found.usd
    assert (told["calls"], told["by_events"], told["uncounted"]) == (480, 2, 3)
    assert whole_report(summary, ())["runner_calls"] is None
    text = io.StringIO()
    terminal.show(summary, Console(file=text, width=400))
    assert "Calling its runner" not in text.getvalue()
