"""`spotrun spans`"""

from __future__ import annotations

from typing import Annotated

import typer

from spotrun.cli.options import RunOrNewest, StoreOption
from spotrun.errors import SpecInvalid, needs_extra


def spans(
    run: RunOrNewest = None,
    store: StoreOption = None,
    endpoint: Annotated[
        str | None,
        typer.Option(
            "--endpoint",
            metavar="URL",
            envvar="OTEL_EXPORTER_OTLP_ENDPOINT",
            help="OpenTelemetry collector that receives the spans by OTLP over HTTP.",
            show_default="http://localhost:4318",
        ),
    ] = None,
) -> None:
    """
    Send the history of a run to OpenTelemetry, as spans whose times come from the run's ledger.

    For a run that has not ended, only spans that have ended are sent. If you call the command again, it sends them
    again.
    """
    from spotrun.metrics.spans import stretches
    from spotrun.runs.open_run import open_run
    from spotrun.units import count_of

    with needs_extra("otel", "to send spans"):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        from spotrun.metrics.telemetry import send
    address = endpoint or "http://localhost:4318"
    if not address.startswith(("http://", "https://")):
        raise SpecInvalid(
            f"--endpoint: {address!r} does not begin with http:// or https://", hint="--endpoint http://localhost:4318"
        )
    opened = open_run(run, store)
    exporter = OTLPSpanExporter(endpoint=f"{address.rstrip('/')}/v1/traces")
    sent = send(opened.created.uid, stretches(opened.ledger.refresh()), exporter, address)
    print(f"sent {count_of(sent, 'span')} of {opened.id} to {address}")
