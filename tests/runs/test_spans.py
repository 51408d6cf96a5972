"""`spotrun spans`: a run's life as spans of OpenTelemetry, with the times of its ledger."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from spotrun.account.summary import summarise
from spotrun.account.timeline import Activity, timeline
from spotrun.metrics.spans import stretches
from spotrun.metrics.telemetry import send, spans_of
from spotrun.run import events as ev
from spotrun.run.events import Cause, Entry
from spotrun.run.fold import fold
from tests.support.called_spotrun import Spotrun
from tests.support.called_spotrun import runs as runs
from tests.support.decisions import spec
from tests.support.histories import START, History, histories
from tests.support.http_server import HttpServer, Reply, Request
from tests.support.report_samples import stormy
from tests.support.short_runs import trained
from tests.support.stored_runs import store_run


def sent(history: History) -> list[ReadableSpan]:
    exporter = InMemorySpanExporter()
    assert send(history.uid, stretches(history.state), exporter) == len(exporter.get_finished_spans())
    return list(exporter.get_finished_spans())


def moment(nanoseconds: int | None) -> datetime:
    assert nanoseconds is not None
    return datetime.fromtimestamp(0, START.tzinfo) + timedelta(microseconds=nanoseconds // 1000)


def lasted(span: ReadableSpan) -> timedelta:
    return moment(span.end_time) - moment(span.start_time)


def ended() -> History:
    history = stormy(spec=spec().to_dict())
    history.gone(list(history.state.launches)[-1])
    return history


def test_the_spans_of_a_run_lie_within_one_another() -> None:
    history = ended()
    spans = sent(history)
    by_id = {span.context.span_id: span for span in spans if span.context is not None}
    assert len(by_id) == len(spans)
    assert len({span.context.trace_id for span in spans if span.context is not None}) == 1
    (root,) = (span for span in spans if span.parent is None)
    assert (moment(root.start_time), moment(root.end_time)) == (START, history.state.terminal.at)  # type: ignore[union-attr]

    def around(span: ReadableSpan) -> str:
        assert span.parent is not None
        return by_id[span.parent.span_id].name

    found = {(around(span), span.name) for span in spans if span.parent is not None}
    assert found >= {
        *(("demo", name) for name in ("launch", "wait", "epoch 1", "epoch 2", "epoch 3")),
        *(("launch", name) for name in ("attempt", "boot", "setup")),
        *(("attempt", name) for name in ("training", "restore", "checkpoint")),
    }
    assert [span.name for span in spans].count("attempt") == 3
    attempts = [span.attributes or {} for span in spans if span.name == "attempt"]
    assert [told["spotrun.interrupted"] for told in attempts] == [True, True, False]
    assert [told["spotrun.attempt"] for told in attempts] == [1, 2, 3]
    assert all(span.status.status_code is StatusCode.UNSET for span in spans)


def test_training_and_downtime_last_as_long_as_in_the_report() -> None:
    history = ended()
    spans, total = sent(history), summarise(history.state, history.now).total
    for kind in Activity:
        name = "training" if kind is Activity.PRODUCTIVE else kind.value
        assert sum((lasted(span) for span in spans if span.name == name), timedelta()) == total.times[kind], kind
    downtime = [span for span in spans if (span.attributes or {}).get("spotrun.downtime")]
    assert sum(map(lasted, downtime), timedelta()) == total.downtime
    epochs = [span for span in spans if span.name.startswith("epoch ")]
    assert len(epochs) == 3
    assert moment(epochs[0].start_time) == START


def test_a_run_that_goes_on_has_spans_for_what_is_over_and_sends_them_again_as_the_same() -> None:
    history = trained(1, spec=spec().to_dict(), budget_usd=None)
    names = [span.name for span in sent(history)]
    assert names == ["checkpoint"]
    history.after(60).gone(next(iter(history.state.launches)))
    history.running()
    first, again = sent(history), sent(history)
    assert sorted(span.name for span in first) == ["attempt", "checkpoint", "launch"]
    assert [span.context for span in first] == [span.context for span in again]
    other = trained(1, uid="another", spec=spec().to_dict())
    assert sent(other)[0].context != sent(trained(1))[0].context


def test_a_failure_is_an_error_with_its_reason() -> None:
    history = trained(1)
    history.write(
        ev.AttemptEnded(attempt=history.attempt, cause=Cause.USER_ERROR, last_step=100, detail="no \x1b such")
    )
    (attempt,) = (span for span in sent(history) if span.name == "attempt")
    assert attempt.status.status_code is StatusCode.ERROR
    assert attempt.status.description == r"no \x1b such"


@settings(max_examples=10, deadline=None)
@given(histories())
def test_whatever_happens_no_span_ends_before_it_begins_and_each_has_its_own_name(entries: list[Entry]) -> None:
    state = fold(entries)
    found = list(stretches(state))
    keys = {stretch.key for stretch in found}
    assert len(keys) == len(found)
    assert all(lasted(span) >= timedelta() for span in spans_of("0", found))
    if state.terminal is not None:
        assert "run" in keys
        times = [stretch for stretch in found if stretch.key.startswith("time/")]
        assert len(times) == len(timeline(state, state.terminal.at))


# -- a collector ------------------------------------------------------------------------------------------------------


class _Collector(HttpServer):
    """Takes what OTLP sends by HTTP, or refuses it."""

    code = 200

    def __init__(self) -> None:
        self.taken: list[tuple[str, bytes]] = []
        super().__init__(self._take)

    def _take(self, request: Request) -> Reply:
        self.taken.append((request.target, request.body))
        return Reply(self.code)


@pytest.fixture
def collector() -> Iterator[_Collector]:
    with _Collector() as server:
        yield server


def test_a_collector_gets_them_by_otlp(
    runs: Path, spotrun: Spotrun, collector: _Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_run(runs, ended())
    url = collector.url
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    said = spotrun("spans", "demo", "--endpoint", url)
    ((path, body),) = collector.taken
    assert path == "/v1/traces"
    (resource,) = ExportTraceServiceRequest.FromString(body).resource_spans
    spans = resource.scope_spans[0].spans
    assert said.out == f"sent {len(spans)} spans of demo-0123456789 to {url}\n"
    assert {"service.name": "spotrun"}.items() <= {
        each.key: each.value.string_value for each in resource.resource.attributes
    }.items()
    assert "demo" in {span.name for span in spans}


def test_a_collector_that_refuses_them_is_one_error(runs: Path, spotrun: Spotrun, collector: _Collector) -> None:
    store_run(runs, ended())
    collector.code = 400
    said = spotrun("spans", "demo", "--endpoint", collector.url)
    assert (said.code, said.out) == (1, "")
    assert said.err == (
        f"error: no OpenTelemetry collector accepts the spans at {collector.url}\n"
        "  try: check --endpoint, and that a collector accepts OTLP over HTTP there\n"
    )
    assert "Traceback" not in said.err
    wrong = spotrun("spans", "demo", "--endpoint", "localhost:4318")
    assert wrong.code == 2
    assert "does not begin with http://" in wrong.err
