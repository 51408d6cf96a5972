"""Sends a run's timeline as OpenTelemetry spans: https://opentelemetry.io/docs/specs/otel/trace/api."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags, set_span_in_context

from spotrun.errors import SpotrunError
from spotrun.metrics.spans import TraceSpan, in_order
from spotrun.version import __version__

TOGETHER = 500
"""Maximum number of spans in one request."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def send(uid: str, stretches: Iterable[TraceSpan], exporter: SpanExporter, address: str = "") -> int:
    """
    Send the parts of a run's timeline as spans, and return the number of spans. `address` is the collector's, for the
    error. What the exporter logs about its own tries is not shown.

    A span's id is computed from the run and the part's key. So a part that is sent twice is still one span.

    Raises:
        SpotrunError: the collector did not accept the spans.
    """
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL + 1)
    spans = spans_of(uid, stretches)
    for begin in range(0, len(spans), TOGETHER):
        if exporter.export(spans[begin : begin + TOGETHER]) is not SpanExportResult.SUCCESS:
            raise SpotrunError(
                f"no OpenTelemetry collector accepts the spans at {address}",
                hint="check --endpoint, and that a collector accepts OTLP over HTTP there",
            )
    return len(spans)


def spans_of(uid: str, stretches: Iterable[TraceSpan]) -> list[ReadableSpan]:
    ids, made = _Ids(uid), InMemorySpanExporter()
    provider = TracerProvider(
        resource=Resource.create({"service.name": "spotrun"}), id_generator=ids, sampler=ALWAYS_ON
    )
    provider.add_span_processor(SimpleSpanProcessor(made))
    tracer = provider.get_tracer("spotrun", __version__)
    for stretch in stretches:
        ids.key = stretch.key
        around = None if stretch.within is None else set_span_in_context(NonRecordingSpan(ids.context(stretch.within)))
        start, end = map(_nanoseconds, in_order(stretch))
        span = tracer.start_span(stretch.name, around, attributes=dict(stretch.told), start_time=start)
        if stretch.failed:
            span.set_status(Status(StatusCode.ERROR, stretch.failed))
        span.end(end)
    return list(made.get_finished_spans())


def _nanoseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1) * 1000


class _Ids(IdGenerator):
    """
    Generates a run's trace id from the run's uid, and each span id from the uid and `key`. Set `key` before each span.
    """

    def __init__(self, uid: str) -> None:
        self._uid = uid
        self.key = ""

    def generate_trace_id(self) -> int:
        return self._number("", 16)

    def generate_span_id(self) -> int:
        return self._number(self.key, 8)

    def context(self, key: str) -> SpanContext:
        flags = TraceFlags(TraceFlags.SAMPLED)
        return SpanContext(self._number("", 16), self._number(key, 8), is_remote=False, trace_flags=flags)

    def _number(self, key: str, size: int) -> int:
        return int.from_bytes(hashlib.sha256(f"spotrun {self._uid} {key}".encode()).digest()[:size], "big")
