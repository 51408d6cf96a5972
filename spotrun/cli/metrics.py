"""`spotrun metrics`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spotrun.cli.options import StoreOption
from spotrun.errors import needs_extra
from spotrun.runs.completion import run_names
from spotrun.runs.flags import only_one, read_flag

NEWEST = 100


def metrics(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN...]", help="Export only these runs, given by id, name or address.", autocompletion=run_names
        ),
    ] = None,
    store: StoreOption = None,
    last: Annotated[
        int, typer.Option("--last", metavar="N", min=1, help="Export only the N most recent runs.")
    ] = NEWEST,
    textfile: Annotated[
        Path | None,
        typer.Option(
            "--textfile",
            metavar="FILE.prom",
            help="Write the metrics to a file, for node_exporter's textfile collector.",
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            help="Serve the metrics at http://HOST:PORT/metrics until you press Ctrl-C.",
        ),
    ] = None,
    within: Annotated[
        str,
        typer.Option(
            "--within",
            metavar="DURATION",
            help="Spend at most this much time reading the store. With --listen, the limit applies to each scrape.",
        ),
    ] = "8s",
) -> None:
    """
    Export the costs and states of runs to Prometheus.

    The figures are the same as in `spotrun report --json`. The command never writes to the store.
    """
    from spotrun.runs.open_run import default_store, open_run
    from spotrun.spec.values import read_positive_duration

    with needs_extra("metrics", "to export metrics"):
        from spotrun.metrics import endpoint as metrics_endpoint
        from spotrun.metrics.watched_runs import WatchedRuns
    only_one(textfile=textfile is not None, listen=listen is not None)
    longest = read_flag("--within", read_positive_duration, within)
    address = None if listen is None else metrics_endpoint.parse(listen)
    named = [open_run(run, store) for run in dict.fromkeys(runs or ())]
    watched = WatchedRuns(store or default_store(), last, named)
    if address is not None:
        metrics_endpoint.serve(watched, longest, address)
    else:
        metrics_endpoint.write(watched, longest, textfile)
